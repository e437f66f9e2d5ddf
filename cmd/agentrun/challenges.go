// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/verb"
	"agentrun/safetyloop"
	"agentrun/safetyloop/desk"
	"agentrun/supervisor/live"
)

func challengesCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "challenges",
		Usage: "what the safety loop has stopped: codes, confirmations, blocks",
		Description: `A step that is too dangerous waits for a human: its agent sees the challenge's id, only operators see the code. verify answers a challenge
here; confirm lets go on what waits for somebody else's word; blocks are the agents that were stopped, until verify or unblock.
An id or a token may be cut short, as long as one only begins so.

   agentrun challenges list
   agentrun challenges show 6f1d          the code, which is put on record
   agentrun challenges verify 6f1d        asks for the code; without a terminal it is read from stdin
   agentrun challenges confirm TOKEN
   agentrun challenges blocks
   agentrun challenges unblock local/planner --reason "false alarm"`,
		Subcommands: []*cli.Command{
			{Name: "list", Usage: "what waits for a code, and what waits to be confirmed",
				Flags: []cli.Flag{jsonFlag()}, Action: verb.Action(g.challengesList)},
			{Name: "show", Usage: "one challenge with its code, or all of what waits to be confirmed", ArgsUsage: "ID|TOKEN",
				Flags: []cli.Flag{jsonFlag()}, Action: verb.Action(g.challengesShow)},
			{Name: "verify", Usage: "answer a challenge: its agent may go on", ArgsUsage: "ID [CODE]",
				Action: verb.Action(g.challengesVerify)},
			{Name: "confirm", Usage: "confirm what waits for it, once", ArgsUsage: "TOKEN",
				Action: verb.Action(g.challengesConfirm)},
			{Name: "blocks", Usage: "the agents that are stopped", Flags: []cli.Flag{jsonFlag()},
				Action: verb.Action(g.challengesBlocks)},
			{Name: "unblock", Usage: "release an agent without a code", ArgsUsage: "AGENT",
				Flags:  []cli.Flag{&cli.StringFlag{Name: "reason", Usage: "`WHY`, for the record"}},
				Action: verb.Action(g.challengesUnblock)},
		},
	}
}

// asking bounds what one command asks of the loops.
func asking(c *cli.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.Context, answerTime)
}

func (g *global) challengesList(c *cli.Context, _ []string) error {
	ctx, cancel := asking(c)
	defer cancel()
	waiting, err := desk.Challenges(ctx, g.RunDir)
	pending, perr := desk.Confirmations(ctx, g.RunDir)
	unanswered := incompleteLoops(err, perr)
	var rows [][]any
	for _, o := range waiting {
		rows = append(rows, []any{o.ID, o.Kind, o.Agent, o.Expires, o.Loop, short(o.Hint)})
	}
	for _, p := range pending {
		what := short(p.Operation + ": " + p.Summary)
		rows = append(rows, []any{p.Token, "confirm", orDash(p.Agent), p.Expires, p.Loop, what})
	}
	err = printList(c, map[string]any{"challenges": notNil(waiting), "pending": notNil(pending)},
		"ID\tKIND\tAGENT\tUNTIL\tLOOP\tHINT", rows, func(row []any) []any { return row })
	return errors.Join(err, unanswered)
}

func notNil[E any](list []E) []E {
	if list == nil {
		return []E{}
	}
	return list
}

func incompleteLoops(errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return hinted.New(refusal("safety loops", err), "what was printed is what the other safety loops say")
	}
	return nil
}

// short fits a table: what an agent says can be long, and is shown whole by show.
func short(s string) string {
	const most = 100
	s = oneLine(s)
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// theOne finds what begins with ref, if one only does. A whole one counts although another loop doesn't answer.
func theOne[T any](what, ref string, all []T, err error, name func(T) string) (one T, _ error) {
	var fits []T
	for _, o := range all {
		if name(o) == ref {
			return o, nil
		}
		if ref != "" && strings.HasPrefix(name(o), ref) {
			fits = append(fits, o)
		}
	}
	switch {
	case err != nil:
		return one, hinted.New(refusal(fmt.Sprintf("%s %q", what, ref), err), "give all of it: one that doesn't answer may have another that begins so")
	case len(fits) == 1:
		return fits[0], nil
	case len(fits) > 1:
		return one, hinted.New(fmt.Errorf("%s %.64q fits %d", what, ref, len(fits)), "give more of it")
	}
	return one, hinted.New(fmt.Errorf("%s %.64q: there is none", what, ref), "agentrun challenges list shows what waits; each is good for five minutes")
}

func findChallenge(ctx context.Context, g *global, ref string) (desk.Challenge, error) {
	all, err := desk.Challenges(ctx, g.RunDir)
	return theOne("challenge", ref, all, err, func(o desk.Challenge) string { return o.ID })
}

func findPending(ctx context.Context, g *global, ref string) (desk.Pending, error) {
	all, err := desk.Confirmations(ctx, g.RunDir)
	return theOne("confirmation", ref, all, err, func(p desk.Pending) string { return p.Token })
}

func (g *global) challengesShow(c *cli.Context, a []string) error {
	ctx, cancel := asking(c)
	defer cancel()
	o, err := findChallenge(ctx, g, a[0])
	if err != nil {
		p, perr := findPending(ctx, g, a[0])
		if perr != nil {
			return err
		}
		return printResult(c, p, "token      %s\noperation  %s\nagent      %s\nuntil      %s\nreason     %s\nhint       %s\n",
			p.Token, p.Operation, orDash(p.Agent), p.Expires, p.Reason, p.Summary)
	}
	s, err := o.By.Show(ctx, o.ID)
	if err != nil {
		return refusal("show", err)
	}
	return printResult(c, s,
		"challenge  %s\nkind       %s\nagent      %s\nuntil      %s\nreason     %s\nhint       %s\ncode       %s\n",
		s.ID, s.Kind, s.Agent, s.Expires, s.Reason, s.Hint, s.Code)
}

func (g *global) challengesVerify(c *cli.Context, a []string) error {
	ctx, cancel := asking(c)
	o, err := findChallenge(ctx, g, a[0])
	cancel()
	if err != nil {
		return err
	}
	code := c.Args().Get(1)
	if code == "" {
		if isTerminal(os.Stdin) {
			fmt.Fprintf(os.Stderr, "%s\ncode for %s: ", oneLine(o.Hint), oneLine(o.Agent))
		}
		// In the arguments every user of the machine could read it.
		if code, err = readCode(os.Stdin); err != nil {
			return err
		}
	}
	ctx, cancel = asking(c) // anew: people take their time
	defer cancel()
	if err := refusal("verify", o.By.Verify(ctx, o.ID, code)); err != nil {
		return err
	}
	fmt.Printf("challenge %s is verified: %s may go on\n", oneLine(o.ID), oneLine(o.Agent))
	return nil
}

func readCode(r io.Reader) (string, error) {
	const most = 256
	line, err := bufio.NewReader(io.LimitReader(r, most)).ReadString('\n')
	code := strings.TrimSpace(line)
	if code == "" {
		if err == nil || errors.Is(err, io.EOF) {
			err = errors.New("there is none")
		}
		return "", hinted.New(fmt.Errorf("read the code: %w", err), "agentrun challenges show ID prints it")
	}
	return code, nil
}

func (g *global) challengesConfirm(c *cli.Context, a []string) error {
	ctx, cancel := asking(c)
	defer cancel()
	p, err := findPending(ctx, g, a[0])
	if err != nil {
		return err
	}
	if err := refusal("confirmation", p.By.Confirm(ctx, p.Token)); err != nil {
		return err
	}
	fmt.Printf("confirmed, once: %s: %s\n", oneLine(p.Operation), oneLine(p.Summary))
	return nil
}

func (g *global) challengesBlocks(c *cli.Context, _ []string) error {
	ctx, cancel := asking(c)
	defer cancel()
	all, err := desk.Blocks(ctx, g.RunDir)
	// What the state has and no loop told: those who stopped them have ended.
	var kept []safetyloop.Block
	kerr := g.node(func(h *hypervisor.Hypervisor) (err error) {
		kept, err = h.SafetyBlocks(ctx)
		return err
	})
	for _, b := range kept {
		if !slices.ContainsFunc(all, func(have desk.Block) bool { return have.Agent == b.Agent }) {
			all = append(all, desk.Block{Block: b, Loop: "-"})
		}
	}
	unanswered := incompleteLoops(err, kerr)
	err = printList(c, notNil(all), "AGENT\tSINCE\tCHALLENGE\tLOOP\tREASON", all, func(b desk.Block) []any {
		return []any{b.Agent, b.Since, orDash(b.Challenge), b.Loop, short(b.Reason)}
	})
	return errors.Join(err, unanswered)
}

func (g *global) challengesUnblock(c *cli.Context, a []string) error {
	if c.String("reason") == "" {
		return hinted.New(errors.New("--reason is missing"), "agentrun challenges unblock AGENT --reason \"false alarm\"")
	}
	ctx, cancel := asking(c)
	defer cancel()
	all, err := desk.Blocks(ctx, g.RunDir)
	unblocked := 0
	for _, b := range all {
		// Loops of one state folder all list the block, and the first that lifts it does so for all.
		if b.Agent != a[0] || unblocked > 0 {
			continue
		}
		if err := refusal("unblock", b.By.Unblock(ctx, b.Agent, c.String("reason"))); err != nil {
			return err
		}
		unblocked++
	}
	if unblocked == 0 {
		kerr := g.node(func(h *hypervisor.Hypervisor) error {
			return live.Unblock(ctx, h, operatorName(), a[0], c.String("reason"))
		})
		if kerr == nil {
			unblocked++
		} else if !errors.Is(kerr, safetyloop.ErrNotFound) {
			err = errors.Join(err, kerr)
		}
	}
	if unblocked == 0 {
		if err != nil {
			return refusal(fmt.Sprintf("agent %.64q", a[0]), err)
		}
		return hinted.New(fmt.Errorf("agent %.64q isn't stopped by any safety loop", a[0]), "agentrun challenges blocks")
	}
	fmt.Printf("agent %s may go on\n", oneLine(a[0]))
	return nil
}

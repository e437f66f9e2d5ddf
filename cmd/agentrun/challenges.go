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
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/safetyloop"
	"agentrun/safetyloop/desk"
	"agentrun/supervisor/live"
)

func challengesCommand(g *global) *cli.Command {
	asJSON := func() []cli.Flag { return []cli.Flag{jsonFlag()} }
	return &cli.Command{
		Name:            "challenges",
		Usage:           "what the safety loop has stopped: codes, confirmations, blocks",
		HideHelpCommand: true,
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
			{Name: "list", Usage: "what waits for a code, and what waits to be confirmed", Flags: asJSON(), OnUsageError: usageError, Action: func(c *cli.Context) error { return challengesList(g, c) }},
			{Name: "show", Usage: "one challenge with its code", ArgsUsage: "ID", Flags: asJSON(), OnUsageError: usageError, Action: func(c *cli.Context) error { return challengesShow(g, c) }},
			{Name: "verify", Usage: "answer a challenge: its agent may go on", ArgsUsage: "ID [CODE]", OnUsageError: usageError, Action: func(c *cli.Context) error { return challengesVerify(g, c) }},
			{Name: "confirm", Usage: "confirm what waits for it, once", ArgsUsage: "TOKEN", OnUsageError: usageError, Action: func(c *cli.Context) error { return challengesConfirm(g, c) }},
			{Name: "blocks", Usage: "the agents that are stopped", Flags: asJSON(), OnUsageError: usageError, Action: func(c *cli.Context) error { return challengesBlocks(g, c) }},
			{Name: "unblock", Usage: "release an agent without a code", ArgsUsage: "AGENT", OnUsageError: usageError,
				Flags:  []cli.Flag{&cli.StringFlag{Name: "reason", Usage: "`WHY`, for the record"}},
				Action: func(c *cli.Context) error { return challengesUnblock(g, c) }},
		},
	}
}

// asking bounds what one command asks of the loops.
func asking(c *cli.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.Context, answerTime)
}

func challengesList(g *global, c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	ctx, cancel := asking(c)
	defer cancel()
	waiting, err := desk.Challenges(ctx, g.RunDir)
	pending, perr := desk.Confirmations(ctx, g.RunDir)
	unanswered := incompleteLoops(err, perr)
	if c.Bool("json") {
		return errors.Join(printJSON(map[string]any{"challenges": notNil(waiting), "pending": notNil(pending)}), unanswered)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tKIND\tAGENT\tUNTIL\tLOOP\tHINT")
	for _, o := range waiting {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", oneLine(o.ID), oneLine(o.Kind), oneLine(o.Agent), o.Expires.Format(time.RFC3339), oneLine(o.Loop), short(o.Hint))
	}
	for _, p := range pending {
		fmt.Fprintf(w, "%s\tconfirm\t%s\t%s\t%s\t%s\n", oneLine(p.Token), oneLine(orDash(p.Agent)), p.Expires.Format(time.RFC3339), oneLine(p.Loop), short(p.Operation+": "+p.Summary))
	}
	return errors.Join(w.Flush(), unanswered)
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

func challengesShow(g *global, c *cli.Context) error {
	a, err := args(c, "ID")
	if err != nil {
		return err
	}
	ctx, cancel := asking(c)
	defer cancel()
	o, err := findChallenge(ctx, g, a[0])
	if err != nil {
		return err
	}
	s, err := o.By.Show(ctx, o.ID)
	if err != nil {
		return refusal("show", err)
	}
	if c.Bool("json") {
		return printJSON(s)
	}
	fmt.Printf("challenge  %s\nkind       %s\nagent      %s\nuntil      %s\nreason     %s\nhint       %s\ncode       %s\n",
		oneLine(s.ID), oneLine(s.Kind), oneLine(s.Agent), s.Expires.Format(time.RFC3339), oneLine(s.Reason), oneLine(s.Hint), oneLine(s.Code))
	return nil
}

func challengesVerify(g *global, c *cli.Context) error {
	if n := c.NArg(); n < 1 || n > 2 {
		return hinted.New(fmt.Errorf("%s takes an id and perhaps a code, got %d arguments", c.Command.HelpName, n), "agentrun challenges verify ID")
	}
	ctx, cancel := asking(c)
	o, err := findChallenge(ctx, g, c.Args().First())
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

func challengesConfirm(g *global, c *cli.Context) error {
	a, err := args(c, "TOKEN")
	if err != nil {
		return err
	}
	ctx, cancel := asking(c)
	defer cancel()
	all, err := desk.Confirmations(ctx, g.RunDir)
	p, err := theOne("confirmation", a[0], all, err, func(p desk.Pending) string { return p.Token })
	if err != nil {
		return err
	}
	if err := refusal("confirmation", p.By.Confirm(ctx, p.Token)); err != nil {
		return err
	}
	fmt.Printf("confirmed, once: %s: %s\n", oneLine(p.Operation), short(p.Summary))
	return nil
}

func challengesBlocks(g *global, c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	ctx, cancel := asking(c)
	defer cancel()
	all, err := desk.Blocks(ctx, g.RunDir)
	// What the state has and no loop told: those who stopped them have ended.
	var kept []safetyloop.Block
	kerr := g.node(c, func(_ context.Context, h *hypervisor.Hypervisor) (err error) {
		kept, err = h.SafetyBlocks(ctx)
		return err
	})
	for _, b := range kept {
		if !slices.ContainsFunc(all, func(have desk.Block) bool { return have.Agent == b.Agent }) {
			all = append(all, desk.Block{Block: b, Loop: "-"})
		}
	}
	unanswered := incompleteLoops(err, kerr)
	if c.Bool("json") {
		return errors.Join(printJSON(notNil(all)), unanswered)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "AGENT\tSINCE\tCHALLENGE\tLOOP\tREASON")
	for _, b := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", oneLine(b.Agent), b.Since.Format(time.RFC3339), oneLine(orDash(b.Challenge)), oneLine(b.Loop), short(b.Reason))
	}
	return errors.Join(w.Flush(), unanswered)
}

func challengesUnblock(g *global, c *cli.Context) error {
	a, err := args(c, "AGENT")
	if err != nil {
		return err
	}
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
		kerr := g.node(c, func(_ context.Context, h *hypervisor.Hypervisor) error {
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

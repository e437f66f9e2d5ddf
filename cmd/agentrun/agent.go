// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/verb"
	"agentrun/rings"
)

func agentCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "agent",
		Usage: "agents: their scores, rings and quarantine",
		Description: `An agent's ring follows from its score: over 0.95 with consensus ring 1, over 0.60 ring 2, else ring 3.

   agentrun agent list
   agentrun agent score planner-1 0.7
   agentrun agent score planner-1 0.97 --consensus
   agentrun agent set planner-1 --plan casual --team research
   agentrun agent quarantine planner-1 --reason "odd tool calls"
   agentrun agent release planner-1 --witness attestation.txt`,
		Subcommands: []*cli.Command{
			{Name: "list", Usage: "every agent with a score or in quarantine", Flags: []cli.Flag{jsonFlag()},
				Action: g.onNode(agentList)},
			{Name: "show", Usage: "one agent", ArgsUsage: "ID", Flags: []cli.Flag{jsonFlag()},
				Action: g.onNode(agentShow)},
			{Name: "score", Usage: "set an agent's effective score, 0 to 1", ArgsUsage: "ID SCORE",
				Flags: []cli.Flag{consensusFlag(), jsonFlag()}, Action: verb.Action(g.agentScore)},
			agentSetCommand(g),
			agentMemoryCommand(g),
			{Name: "quarantine", Usage: "hold an agent: no run, no elevation, until it is released", ArgsUsage: "ID",
				Flags: []cli.Flag{whyHeldFlag(), jsonFlag()}, Action: verb.Action(g.agentQuarantine)},
			{Name: "release", Usage: "let an agent out of quarantine, by an operator's attestation", ArgsUsage: "ID",
				Flags: append(releaseFlags(), jsonFlag()), Action: verb.Action(g.agentRelease)},
		},
	}
}

func consensusFlag() cli.Flag {
	return &cli.BoolFlag{Name: "consensus", Usage: "the agent has consensus; without, it has none"}
}

func whyHeldFlag() cli.Flag {
	return &cli.StringFlag{Name: "reason", Usage: "`WHY`, for the audit, and for whoever has to decide about its release"}
}

func releaseFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "witness",
			Usage: "`FILE` with the attestation (agentrun operator sign), - for standard input"},
		&cli.StringFlag{Name: "operators", Usage: "`FILE` with the operators' public keys",
			EnvVars: []string{"AGENTRUN_OPERATORS"}},
		&cli.StringFlag{Name: "reason", Usage: "`WHY`, for the audit"},
	}
}

func agentList(c *cli.Context, h *hypervisor.Hypervisor, _ []string) error {
	agents, err := h.Agents(c.Context)
	if err != nil {
		return err
	}
	const heads = "AGENT\tRING\tSCORE\tCONSENSUS\tQUARANTINE"
	return printList(c, agents, heads, agents, func(a hypervisor.Agent) []any {
		return []any{a.ID, a.Ring.Value(), scoreText(a), a.Consensus, quarantineText(a)}
	})
}

func scoreText(a hypervisor.Agent) string {
	if a.Score == nil {
		return "-"
	}
	return strconv.FormatFloat(*a.Score, 'g', -1, 64)
}

func quarantineText(a hypervisor.Agent) string {
	q := a.Quarantined
	if q == nil {
		return "-"
	}
	return fmt.Sprintf("since %s by %s: %s", q.Since.Format(time.RFC3339), q.By, printable(q.Reason))
}

// printable keeps what somebody wrote from acting on the reader's terminal.
func printable(s string) string {
	q := strconv.QuoteToGraphic(s)
	return q[1 : len(q)-1]
}

func agentShow(c *cli.Context, h *hypervisor.Hypervisor, a []string) error {
	agent, err := h.Agent(c.Context, a[0])
	if err != nil {
		return err
	}
	return printAgent(c, agent)
}

func printAgent(c *cli.Context, a hypervisor.Agent) error {
	if c.Bool("json") {
		return printJSON(a)
	}
	fmt.Printf("agent       %s\nring        %d\nscore       %s\nconsensus   %t\nquarantine  %s\n", a.ID, a.Ring.Value(), scoreText(a), a.Consensus, quarantineText(a))
	for _, s := range [][2]string{
		{"plan", a.Plan}, {"role", a.Role}, {"team", a.Team}, {"mode", a.Mode}, {"substitute", a.Substitute},
	} {
		if s[1] != "" {
			fmt.Printf("%-12s%s\n", s[0], s[1])
		}
	}
	if a.Stake != 0 {
		fmt.Printf("stake       %d\n", a.Stake)
	}
	if a.SelfElevation {
		fmt.Println("elevates    itself, as far as its score goes")
	}
	return nil
}

func (g *global) agentScore(c *cli.Context, a []string) error {
	score, err := strconv.ParseFloat(a[1], 64)
	if err != nil {
		return fmt.Errorf("SCORE %q: %w", a[1], rings.ErrScore)
	}
	return g.node(func(h *hypervisor.Hypervisor) error {
		now, before, err := h.SetScore(c.Context, a[0], score, c.Bool("consensus"), operatorName())
		if now.ID != "" {
			fmt.Fprintf(os.Stderr, "agent %s: %s before, %s now\n", now.ID, before, now.Ring)
			err = errors.Join(err, printAgent(c, now))
		}
		return err
	})
}

func (g *global) agentQuarantine(c *cli.Context, a []string) error {
	if err := checkReason("--reason", c.String("reason"), `agentrun agent quarantine --reason "what was seen" `+a[0]); err != nil {
		return err
	}
	return g.node(func(h *hypervisor.Hypervisor) error {
		e, err := h.Quarantine(c.Context, a[0], hypervisor.Cause{Code: "operator", Reason: c.String("reason"), By: operatorName()})
		if e.Agent == "" {
			return err
		}
		told := printResult(c, e, "agent %s is in quarantine since %s: %s\n", e.Agent, e.Since, printable(e.Reason))
		return errors.Join(err, told)
	})
}

// maxAttestation bounds what is read of a witness file; an attestation is one line.
const maxAttestation = 64 << 10

func (g *global) agentRelease(c *cli.Context, a []string) error {
	name := c.String("witness")
	if name == "" {
		err := errors.New("--witness is missing: only an operator's attestation releases an agent (H-31)")
		sign := "agentrun operator sign --key FILE --action release-quarantine --subject agent:"
		return hinted.New(err, sign+a[0])
	}
	if c.IsSet("reason") {
		if err := checkReason("--reason", c.String("reason"), `agentrun agent release --reason "what was found" --witness FILE `+a[0]); err != nil {
			return err
		}
	}
	text, err := readAttestation(name)
	if err != nil {
		return fmt.Errorf("--witness: %w", err)
	}
	keys, err := g.operators(c)
	if err != nil {
		return err
	}
	return g.node(func(h *hypervisor.Hypervisor) error {
		was, operator, err := h.Release(c.Context, a[0], text, keys, c.String("reason"), operatorName())
		if err != nil {
			return err
		}
		return printResult(c, map[string]any{"agent_id": a[0], "operator": operator, "was": was},
			"agent %s is released by %s; it was held since %s: %s\n", a[0], operator, was.Since, printable(was.Reason))
	})
}

func readAttestation(name string) (string, error) {
	f := os.Stdin
	if name != "-" {
		var err error
		if f, err = os.Open(name); err != nil {
			return "", err
		}
		defer f.Close()
	}
	b, err := io.ReadAll(io.LimitReader(f, maxAttestation))
	return string(b), err
}

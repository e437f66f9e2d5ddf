// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/rings"
)

func agentCommand(g *global) *cli.Command {
	asJSON := func() cli.Flag { return &cli.BoolFlag{Name: "json", Usage: "print JSON"} }
	return &cli.Command{
		Name:            "agent",
		Usage:           "agents: their scores, rings and quarantine",
		HideHelpCommand: true,
		Description: `An agent's ring follows from its score: over 0.95 with consensus ring 1, over 0.60 ring 2, else ring 3.

   agentrun agent list
   agentrun agent score planner-1 0.7
   agentrun agent score planner-1 0.97 --consensus
   agentrun agent set planner-1 --plan casual --team research
   agentrun agent quarantine planner-1 --reason "odd tool calls"
   agentrun agent release planner-1 --witness attestation.txt`,
		Subcommands: []*cli.Command{
			{Name: "list", Usage: "every agent with a score or in quarantine", Flags: []cli.Flag{asJSON()}, OnUsageError: usageError,
				Action: func(c *cli.Context) error { return agentList(g, c) }},
			{Name: "show", Usage: "one agent", ArgsUsage: "ID", Flags: []cli.Flag{asJSON()}, OnUsageError: usageError,
				Action: func(c *cli.Context) error { return agentShow(g, c) }},
			{Name: "score", Usage: "set an agent's effective score, 0 to 1", ArgsUsage: "ID SCORE",
				Flags:        []cli.Flag{&cli.BoolFlag{Name: "consensus", Usage: "the agent has consensus; without, it has none"}, asJSON()},
				OnUsageError: usageError, Action: func(c *cli.Context) error { return agentScore(g, c) }},
			agentSetCommand(g),
			agentMemoryCommand(g),
			{Name: "quarantine", Usage: "hold an agent: no run, no elevation, until it is released", ArgsUsage: "ID",
				Flags:        []cli.Flag{&cli.StringFlag{Name: "reason", Usage: "`WHY`, for whoever has to decide about its release"}, asJSON()},
				OnUsageError: usageError, Action: func(c *cli.Context) error { return agentQuarantine(g, c) }},
			{Name: "release", Usage: "let an agent out of quarantine, by an operator's attestation", ArgsUsage: "ID",
				Flags:        []cli.Flag{&cli.StringFlag{Name: "witness", Usage: "`FILE` with the attestation (agentrun operator sign), - for standard input"}, &cli.StringFlag{Name: "operators", Usage: "`FILE` with the operators' public keys", EnvVars: []string{"AGENTRUN_OPERATORS"}}, asJSON()},
				OnUsageError: usageError, Action: func(c *cli.Context) error { return agentRelease(g, c) }},
		},
	}
}

// node runs fn on this node's hypervisor. What fn decided is on disk when node returns nil.
func (g *global) node(c *cli.Context, fn func(context.Context, *hypervisor.Hypervisor) error) error {
	h, err := g.Open()
	if err != nil {
		return err
	}
	return errors.Join(fn(c.Context, h), h.Close())
}

// args takes exactly the arguments named, with flags before or after them.
func args(c *cli.Context, names ...string) ([]string, error) {
	if c.NArg() != len(names) {
		return nil, hinted.New(fmt.Errorf("%s takes %d arguments, got %d", c.Command.HelpName, len(names), c.NArg()), c.Command.HelpName+" [flags] "+strings.Join(names, " "))
	}
	return c.Args().Slice(), nil
}

func agentList(g *global, c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		agents, err := h.Agents(ctx)
		if err != nil {
			return err
		}
		if c.Bool("json") {
			return printJSON(agents)
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "AGENT\tRING\tSCORE\tCONSENSUS\tQUARANTINE")
		for _, a := range agents {
			fmt.Fprintf(w, "%s\t%d\t%s\t%t\t%s\n", a.ID, a.Ring.Value(), scoreText(a), a.Consensus, quarantineText(a))
		}
		return w.Flush()
	})
}

func scoreText(a hypervisor.Agent) string {
	if a.Score == nil {
		return "-"
	}
	return strconv.FormatFloat(*a.Score, 'g', -1, 64)
}

func quarantineText(a hypervisor.Agent) string {
	if a.Quarantined == nil {
		return "-"
	}
	return fmt.Sprintf("since %s by %s: %s", a.Quarantined.Since.Format(time.RFC3339), a.Quarantined.By, printable(a.Quarantined.Reason))
}

// printable keeps what somebody wrote from acting on the reader's terminal.
func printable(s string) string {
	q := strconv.QuoteToGraphic(s)
	return q[1 : len(q)-1]
}

func agentShow(g *global, c *cli.Context) error {
	a, err := args(c, "ID")
	if err != nil {
		return err
	}
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		agent, err := h.Agent(ctx, a[0])
		if err != nil {
			return err
		}
		return printAgent(c, agent)
	})
}

func printAgent(c *cli.Context, a hypervisor.Agent) error {
	if c.Bool("json") {
		return printJSON(a)
	}
	fmt.Printf("agent       %s\nring        %d\nscore       %s\nconsensus   %t\nquarantine  %s\n", a.ID, a.Ring.Value(), scoreText(a), a.Consensus, quarantineText(a))
	for _, s := range []struct{ name, value string }{{"plan", a.Plan}, {"role", a.Role}, {"team", a.Team}, {"mode", a.Mode}, {"substitute", a.Substitute}} {
		if s.value != "" {
			fmt.Printf("%-12s%s\n", s.name, s.value)
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

func agentScore(g *global, c *cli.Context) error {
	a, err := args(c, "ID", "SCORE")
	if err != nil {
		return err
	}
	score, err := strconv.ParseFloat(a[1], 64)
	if err != nil {
		return fmt.Errorf("SCORE %q: %w", a[1], rings.ErrScore)
	}
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		now, before, err := h.SetScore(ctx, a[0], score, c.Bool("consensus"))
		if now.ID != "" {
			fmt.Fprintf(os.Stderr, "agent %s: %s before, %s now\n", now.ID, before, now.Ring)
			err = errors.Join(err, printAgent(c, now))
		}
		return err
	})
}

func agentQuarantine(g *global, c *cli.Context) error {
	a, err := args(c, "ID")
	if err != nil {
		return err
	}
	if c.String("reason") == "" {
		return hinted.New(errors.New("--reason is missing"), `agentrun agent quarantine --reason "what was seen" `+a[0])
	}
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		e, err := h.Quarantine(ctx, a[0], hypervisor.Cause{Code: "operator", Reason: c.String("reason")})
		if e.Agent == "" {
			return err
		}
		if c.Bool("json") {
			return errors.Join(err, printJSON(e))
		}
		fmt.Printf("agent %s is in quarantine since %s: %s\n", e.Agent, e.Since.Format(time.RFC3339), printable(e.Reason))
		return err
	})
}

// maxAttestation bounds what is read of a witness file; an attestation is one line.
const maxAttestation = 64 << 10

func agentRelease(g *global, c *cli.Context) error {
	a, err := args(c, "ID")
	if err != nil {
		return err
	}
	name := c.String("witness")
	if name == "" {
		return hinted.New(errors.New("--witness is missing: only an operator's attestation releases an agent (H-31)"), "agentrun operator sign --key FILE --action release-quarantine --subject agent:"+a[0])
	}
	text, err := readAttestation(name)
	if err != nil {
		return fmt.Errorf("--witness: %w", err)
	}
	keys, err := g.operators(c)
	if err != nil {
		return err
	}
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		was, operator, err := h.Release(ctx, a[0], text, keys)
		if err != nil {
			return err
		}
		if c.Bool("json") {
			return printJSON(map[string]any{"agent_id": a[0], "operator": operator, "was": was})
		}
		fmt.Printf("agent %s is released by %s; it was held since %s: %s\n", a[0], operator, was.Since.Format(time.RFC3339), printable(was.Reason))
		return nil
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

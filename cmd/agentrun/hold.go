// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
	"agentrun/rings"
)

// The verbs here are those of agentrun agent, for whoever looks at a run: they find its agent and do the same. The state is
// what every supervisor follows, so there is nothing to ask a supervisor for.

func (l *liveVerbs) quarantine() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "quarantine",
		Usage:     "hold a run's agent: ring 3 at once, and no new run",
		ArgsUsage: "REF | --agent ID",
		Description: `The agent's live runs are in ring 3, their actions are denied, their elevations end. It lasts until an operator's attestation
releases the agent.

   agentrun quarantine planner --reason "odd tool calls"
   agentrun quarantine --agent planner-1 --reason "odd tool calls"

Exit code: 0; 1 not done, or not on record; 2 usage.`,
		Flags: []cli.Flag{agentFlag(), whyHeldFlag(), jsonFlag()},
		Action: func(c *cli.Context) error {
			const example = `agentrun quarantine REF --reason "what was seen"`
			if err := checkReason("--reason", c.String("reason"), example); err != nil {
				return err
			}
			return l.ofAgent(c, nil, l.g.agentQuarantine)
		},
	})
}

func (l *liveVerbs) release() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "release",
		Usage:     "let an agent out of quarantine, by an operator's attestation",
		ArgsUsage: "REF | --agent ID",
		Description: `   agentrun operator sign --key FILE --action release-quarantine --subject agent:planner-1 > attestation.txt
   agentrun release --agent planner-1 --witness attestation.txt

Exit code: 0; 1 refused; 2 usage.`,
		Flags: slices.Concat([]cli.Flag{agentFlag()}, releaseFlags(), []cli.Flag{jsonFlag()}),
		Action: func(c *cli.Context) error {
			if c.String("witness") == "" {
				return usagef("agentrun operator sign makes one: --action release-quarantine --subject agent:ID", "--witness is missing: only an operator's attestation releases an agent (H-31)")
			}
			return l.ofAgent(c, nil, l.g.agentRelease)
		},
	})
}

func (l *liveVerbs) score() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "score",
		Usage:     "set the effective score of a run's agent, 0 to 1",
		ArgsUsage: "REF SCORE | --agent ID SCORE",
		Description: `A lower score takes effect on the agent's live runs at once: each is in the ring that the score gives. A higher one counts for
elevations and new runs; it raises no live run.

   agentrun score planner 0.4
   agentrun score --agent planner-1 0.97 --consensus

Exit code: 0; 1 not done, or not on record; 2 usage.`,
		Flags: []cli.Flag{agentFlag(), consensusFlag(), jsonFlag()},
		Action: func(c *cli.Context) error {
			text := c.Args().Get(max(c.NArg()-1, 0))
			score, err := strconv.ParseFloat(text, 64)
			if err == nil {
				err = rings.CheckScore(score)
			} else {
				err = rings.ErrScore
			}
			if err != nil {
				return usagef("agentrun score REF 0.7", "SCORE %.64q: %w", text, err)
			}
			return l.ofAgent(c, []string{text}, l.g.agentScore)
		},
	})
}

func agentFlag() cli.Flag {
	return &cli.StringFlag{Name: "agent", Usage: "agent `ID`; it needs no live run"}
}

// ofAgent does what agentrun agent does, to the agent that is named or that the run named belongs to.
func (l *liveVerbs) ofAgent(c *cli.Context, more []string, do func(*cli.Context, []string) error) error {
	id, err := l.agentOf(c, len(more))
	if err != nil {
		return err
	}
	return do(c, append([]string{id}, more...))
}

func (l *liveVerbs) agentOf(c *cli.Context, more int) (string, error) {
	hint := c.Command.HelpName + " " + c.Command.ArgsUsage
	named := c.IsSet("agent")
	if want := more + 1 - count(named); c.NArg() != want {
		return "", usagef(hint, "%s: want a run or --agent ID, and not both (got %d arguments, want %d)", c.Command.HelpName, c.NArg(), want)
	}
	if named {
		id := c.String("agent")
		return id, identifier("--agent", id, rings.CheckAgentID)
	}
	ref := c.Args().First()
	if ref == "" || len(ref) > maxRef {
		return "", usagef(hint, "%.64q names no run", ref)
	}
	ctx, cancel := context.WithTimeout(c.Context, answerTime)
	defer cancel()
	r, err := l.findOne(ctx, ref)
	if err == nil && r.Agent == "" {
		err = hinted.New(fmt.Errorf("%s belongs to no agent: there is nobody to score, hold or release", r.label()), "agentrun kill "+oneLine(r.ID)+" ends it")
	}
	return r.Agent, err
}

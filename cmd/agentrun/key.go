// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/shown"
	"agentrun/internal/verb"
)

func keyCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "key",
		Usage: "agents' keys: what a run may be started with, and what it may call",
		Description: `A key is one agent's, for a time. Runs that are started with it may call the tools that it names and no others.
It is a secret: whoever has it can start that agent's runs here.

   agentrun key issue --agent planner-1 --may tool.math,agent.run.invoke --ttl 24h --out planner-1.key
   agentrun exec --agent planner-1 --key-file planner-1.key -- agent.py
   agentrun key list
   agentrun key revoke KEY`,
		Subcommands: []*cli.Command{
			{Name: "issue", Usage: "make a key and print it", Action: verb.Action(g.keyIssue),
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "agent", Usage: "`ID` of the agent"},
					&cli.StringSliceFlag{Name: "may", Usage: "`CAPABILITIES` by exact names, with commas between or one at a time: agent.run.invoke, tool.NAME"},
					&cli.DurationFlag{Name: "ttl", Usage: "`TIME` until it expires, 1s to " + shown.Duration(hypervisor.MaxKeyTTL), Value: hypervisor.DefaultKeyTTL, DefaultText: shown.Duration(hypervisor.DefaultKeyTTL)},
					&cli.StringFlag{Name: "out", Usage: "write it to a new `FILE`, mode 0600, instead of stdout"},
					jsonFlag(),
				}},
			{Name: "list", Usage: "the keys that were issued, without what makes them keys",
				Flags: []cli.Flag{jsonFlag()}, Action: g.onNode(keyList)},
			{Name: "revoke", Usage: "take a key back, from live runs too", ArgsUsage: "KEY",
				Flags: []cli.Flag{jsonFlag()}, Action: g.onNode(keyRevoke)},
		},
	}
}

func (g *global) keyIssue(c *cli.Context, _ []string) error {
	var may []string
	for _, v := range c.StringSlice("may") {
		may = append(may, strings.Split(v, ",")...)
	}
	return g.node(func(h *hypervisor.Hypervisor) error {
		k, token, err := h.IssueKey(c.Context, operatorName(), c.String("agent"), may, c.Duration("ttl"))
		if errors.Is(err, hypervisor.ErrKey) {
			return hinted.New(err, "agentrun key issue --agent planner-1 --may agent.run.invoke,tool.math --ttl 24h")
		}
		if err != nil {
			return err
		}
		issued := k.With(token)
		if out := c.String("out"); out != "" {
			if err := newSecret(out, issued.Text+"\n"); err != nil {
				_, revoked := h.RevokeKey(c.Context, k.ID, operatorName())
				return errors.Join(fmt.Errorf("--out: %w", err), revoked)
			}
			return printResult(c, k, "key %s of agent %s until %s, in %s\n", k.ID, k.Agent, k.Expires, out)
		}
		if c.Bool("json") {
			return printJSON(issued)
		}
		fmt.Fprintf(os.Stderr, "key %s of agent %s until %s; it is a secret:\n", k.ID, oneLine(k.Agent), k.Expires.Format(time.RFC3339))
		_, err = fmt.Println(issued.Text)
		return err
	})
}

// newSecret writes a file that wasn't there, for its owner alone.
func newSecret(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(name) // half a key is none
	}
	return err
}

func keyList(c *cli.Context, h *hypervisor.Hypervisor, _ []string) error {
	keys, err := h.Keys(c.Context)
	if err != nil {
		return err
	}
	now := time.Now()
	return printList(c, keys, "KEY\tAGENT\tSTATE\tEXPIRES\tMAY", keys, func(k hypervisor.AgentKey) []any {
		return []any{k.ID, k.Agent, k.State(now), k.Expires, strings.Join(k.May, ",")}
	})
}

func keyRevoke(c *cli.Context, h *hypervisor.Hypervisor, a []string) error {
	k, err := h.RevokeKey(c.Context, a[0], operatorName())
	if errors.Is(err, hypervisor.ErrNoKey) {
		return hinted.New(err, "agentrun key list has them")
	}
	if err != nil {
		return err
	}
	return printResult(c, k, "key %s of agent %s is revoked\n", k.ID, k.Agent)
}

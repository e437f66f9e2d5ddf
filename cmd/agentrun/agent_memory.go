// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
)

func agentMemoryCommand(g *global) *cli.Command {
	asJSON := func() cli.Flag { return &cli.BoolFlag{Name: "json", Usage: "print JSON"} }
	return &cli.Command{
		Name: "memory", Usage: "what an agent's runs have put into the tool memory", HideHelpCommand: true,
		Description: `Summaries and embeddings live on beyond the run, in the agent's own memory or in a session's.

   agentrun agent memory list planner-1
   agentrun agent memory delete planner-1 m3
   agentrun agent memory delete planner-1`,
		Subcommands: []*cli.Command{
			{Name: "list", Usage: "everything the agent has put, in sessions too", ArgsUsage: "ID", Flags: []cli.Flag{asJSON()}, OnUsageError: usageError,
				Action: func(c *cli.Context) error { return agentMemoryList(g, c) }},
			{Name: "delete", Usage: "delete what the agent has put under a name; without one, everything it has put", ArgsUsage: "ID [ITEM]", Flags: []cli.Flag{asJSON()}, OnUsageError: usageError,
				Action: func(c *cli.Context) error { return agentMemoryDelete(g, c) }},
		},
	}
}

func agentMemoryList(g *global, c *cli.Context) error {
	a, err := args(c, "ID")
	if err != nil {
		return err
	}
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		entries, err := h.AgentMemory(ctx, a[0])
		if err != nil {
			return err
		}
		if c.Bool("json") {
			return printJSON(memoryRows(entries))
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "ITEM\tSESSION\tKIND\tAT\tTAGS\tCONTENT")
		for _, e := range memoryRows(entries) {
			content := fmt.Sprintf("%d numbers", e.Numbers)
			if e.Numbers == 0 {
				content = shortened(printable(e.Summary))
			}
			session := e.Session
			if session == "" {
				session = "-"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", e.ID, session, e.Kind, e.At.Format(time.RFC3339), printable(strings.Join(e.Tags, " ")), content)
		}
		return w.Flush()
	})
}

// memoryRow is an item as scripts see it. An embedding's numbers say nothing to a reader; how many there are may.
type memoryRow struct {
	ID      string    `json:"id"`
	Session string    `json:"session_id,omitempty"`
	Kind    string    `json:"kind"`
	Summary string    `json:"summary,omitempty"`
	Numbers int       `json:"numbers,omitempty"`
	Tags    []string  `json:"tags,omitempty"`
	At      time.Time `json:"at"`
}

func memoryRows(entries []hypervisor.MemoryEntry) []memoryRow {
	rows := []memoryRow{}
	for _, e := range entries {
		rows = append(rows, memoryRow{e.ID, e.Session, e.Kind, e.Summary, len(e.Embedding) / 4, e.Tags, e.At})
	}
	return rows
}

// shortened is for a column; --json has it whole.
func shortened(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

func agentMemoryDelete(g *global, c *cli.Context) error {
	if c.NArg() != 2 {
		if _, err := args(c, "ID"); err != nil {
			return err
		}
	}
	agent, item := c.Args().Get(0), c.Args().Get(1)
	if c.NArg() == 2 && item == "" {
		return hinted.New(errors.New("ITEM is empty"), "leave it out to delete everything: agentrun agent memory delete "+agent)
	}
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		n, err := h.DeleteMemory(ctx, agent, item)
		if errors.Is(err, hypervisor.ErrNoMemory) {
			return hinted.New(err, "agentrun agent memory list "+agent)
		}
		if err != nil {
			return err
		}
		if c.Bool("json") {
			return printJSON(map[string]any{"agent_id": agent, "deleted": n})
		}
		fmt.Printf("agent %s: %d items deleted\n", agent, n)
		return nil
	})
}

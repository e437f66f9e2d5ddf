// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/verb"
)

func agentMemoryCommand(g *global) *cli.Command {
	return &cli.Command{
		Name: "memory", Usage: "what an agent's runs have put into the tool memory",
		Description: `Summaries and embeddings live on beyond the run, in the agent's own memory or in a session's.

   agentrun agent memory list planner-1
   agentrun agent memory delete planner-1 m3
   agentrun agent memory delete planner-1`,
		Subcommands: []*cli.Command{
			{Name: "list", Usage: "everything the agent has put, in sessions too", ArgsUsage: "ID",
				Flags: []cli.Flag{jsonFlag()}, Action: g.onNode(agentMemoryList)},
			{Name: "delete", Usage: "delete what the agent has put under a name; without one, everything it has put",
				ArgsUsage: "ID [ITEM]", Flags: []cli.Flag{jsonFlag()}, Action: verb.Action(g.agentMemoryDelete)},
		},
	}
}

func agentMemoryList(c *cli.Context, h *hypervisor.Hypervisor, a []string) error {
	entries, err := h.AgentMemory(c.Context, a[0])
	if err != nil {
		return err
	}
	rows := memoryRows(entries)
	return printList(c, rows, "ITEM\tSESSION\tKIND\tAT\tTAGS\tCONTENT", rows, func(e memoryRow) []any {
		content := fmt.Sprintf("%d numbers", e.Numbers)
		if e.Numbers == 0 {
			content = shortened(printable(e.Summary))
		}
		return []any{e.ID, orDash(e.Session), e.Kind, e.At, printable(strings.Join(e.Tags, " ")), content}
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

func (g *global) agentMemoryDelete(c *cli.Context, a []string) error {
	agent, item := a[0], c.Args().Get(1)
	if len(a) == 2 && item == "" {
		return hinted.New(errors.New("ITEM is empty"), "leave it out to delete everything: agentrun agent memory delete "+agent)
	}
	return g.node(func(h *hypervisor.Hypervisor) error {
		n, err := h.DeleteMemory(c.Context, agent, item)
		if errors.Is(err, hypervisor.ErrNoMemory) {
			return hinted.New(err, "agentrun agent memory list "+agent)
		}
		if err != nil {
			return err
		}
		did := map[string]any{"agent_id": agent, "deleted": n}
		return printResult(c, did, "agent %s: %d items deleted\n", agent, n)
	})
}

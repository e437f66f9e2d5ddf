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
	"agentrun/internal/read"
	"agentrun/internal/shown"
	"agentrun/internal/verb"
	"agentrun/rings"
)

func sessionCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "session",
		Usage: "sessions: agents that share a workspace",
		Description: `A session becomes active when it has its minimum of participants. Its runs see its own workspace and no other's.

   agentrun session create build-7 --min 2 --max 4 --mode strong
   agentrun session join build-7 --agent planner-1
   agentrun exec --session build-7 --agent planner-1 -- plan.py
   agentrun session archive build-7`,
		Subcommands: []*cli.Command{
			{Name: "create", Usage: "make a session and its workspace", ArgsUsage: "ID",
				Action: g.onNode(sessionCreate),
				Flags: []cli.Flag{
					&cli.IntFlag{Name: "max", Usage: "at most `N` participants, 1 to 100", Value: 10},
					&cli.IntFlag{Name: "min", Usage: "active from `N` participants on", Value: 1},
					&cli.StringFlag{Name: "mode", Usage: "consistency of what they share: `eventual|causal|strong`; in a strong one, runs that can write take turns", Value: string(rings.Eventual)},
					jsonFlag(),
				}},
			{Name: "join", Usage: "make an agent a participant", ArgsUsage: "ID", Action: verb.Action(g.sessionJoin),
				Flags: []cli.Flag{&cli.StringFlag{Name: "agent", Usage: "`ID` of the agent"}, jsonFlag()}},
			{Name: "list", Usage: "every session", Flags: []cli.Flag{jsonFlag()}, Action: g.onNode(sessionList)},
			{Name: "show", Usage: "one session", ArgsUsage: "ID", Flags: []cli.Flag{jsonFlag()},
				Action: g.onNode(sessionShow)},
			{Name: "get", Usage: "read a key of the session's context, as a participant", ArgsUsage: "ID KEY",
				Flags:  []cli.Flag{&cli.StringFlag{Name: "agent", Usage: "`ID` of the participant"}, jsonFlag()},
				Action: g.onNode(sessionGet)},
			{Name: "put", Usage: "write a key of the session's context, as a participant", ArgsUsage: "ID KEY VALUE",
				Action: verb.Action(g.sessionPut),
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "agent", Usage: "`ID` of the participant"},
					&cli.Uint64Flag{Name: "version", Usage: "strong: the version `N` this replaces, from get; 0 for a new key"},
					&cli.StringFlag{Name: "clock", Usage: "causal: `JSON` clock from get, of what this replaces"},
					&cli.TimestampFlag{Name: "at", Usage: "eventual: when it was written, `TIME` as 2026-01-02T03:04:05Z (default: now)", Layout: time.RFC3339Nano},
					jsonFlag(),
				}},
			{Name: "archive", Usage: "end a session; its workspace and its audit stay", ArgsUsage: "ID",
				Flags: []cli.Flag{jsonFlag()}, Action: g.onNode(sessionArchive)},
		},
	}
}

func sessionCreate(c *cli.Context, h *hypervisor.Hypervisor, a []string) error {
	s, err := h.CreateSession(c.Context, rings.SessionConfig{
		SessionID: a[0], MaxParticipants: c.Int("max"), MinParticipants: c.Int("min"),
		ConsistencyMode: rings.ConsistencyMode(c.String("mode")),
	})
	return printSession(c, h, s, err)
}

func (g *global) sessionJoin(c *cli.Context, a []string) error {
	if c.String("agent") == "" {
		return hinted.New(errors.New("--agent is missing"), "agentrun session join --agent AGENT "+a[0])
	}
	return g.node(func(h *hypervisor.Hypervisor) error {
		s, err := h.JoinSession(c.Context, a[0], c.String("agent"))
		return printSession(c, h, s, err)
	})
}

func sessionShow(c *cli.Context, h *hypervisor.Hypervisor, a []string) error {
	s, err := h.Session(c.Context, a[0])
	return printSession(c, h, s, err)
}

func sessionArchive(c *cli.Context, h *hypervisor.Hypervisor, a []string) error {
	s, err := h.ArchiveSession(c.Context, a[0])
	return printSession(c, h, s, err)
}

// sessionJSON is a session as scripts see it.
type sessionJSON struct {
	rings.SessionRecord
	Workspace string `json:"workspace"`
}

// printSession prints a session, or returns why there is none.
func printSession(c *cli.Context, h *hypervisor.Hypervisor, s rings.SessionRecord, err error) error {
	if err != nil {
		return sessionHint(c, err)
	}
	var who []string
	for _, p := range s.Participants {
		who = append(who, p.Agent)
	}
	to, workspace := s.Config, h.Workspace(s.Config.SessionID)
	return printResult(c, sessionJSON{s, workspace}, "session       %s\nstate         %s\nconsistency   %s\n"+
		"participants  %d of %d to %d: %s\nworkspace     %s\n",
		to.SessionID, s.State, to.ConsistencyMode, len(who), to.MinParticipants, to.MaxParticipants,
		strings.Join(who, " "), workspace)
}

func sessionHint(c *cli.Context, err error) error {
	switch {
	case errors.Is(err, hypervisor.ErrNoSession):
		return hinted.New(err, "agentrun session list shows the sessions, agentrun session create makes one")
	case errors.Is(err, rings.ErrVersion):
		return hinted.New(err, "agentrun session get --json tells the version to give with --version")
	case errors.Is(err, rings.ErrTransition):
		return hinted.New(err, "agentrun session show "+c.Args().First())
	}
	return err
}

func sessionList(c *cli.Context, h *hypervisor.Hypervisor, _ []string) error {
	all, err := h.Sessions(c.Context)
	if err != nil {
		return err
	}
	rows := []sessionJSON{}
	for _, s := range all {
		rows = append(rows, sessionJSON{s, h.Workspace(s.Config.SessionID)})
	}
	return printList(c, rows, "SESSION\tSTATE\tCONSISTENCY\tPARTICIPANTS", rows, func(s sessionJSON) []any {
		of := fmt.Sprintf("%d of %d to %d", len(s.Participants), s.Config.MinParticipants, s.Config.MaxParticipants)
		return []any{s.Config.SessionID, s.State, s.Config.ConsistencyMode, of}
	})
}

func sessionGet(c *cli.Context, h *hypervisor.Hypervisor, a []string) error {
	r, err := h.GetShared(c.Context, a[0], c.String("agent"), a[1])
	if err != nil {
		return sessionHint(c, err)
	}
	if c.Bool("json") {
		return printJSON(r)
	}
	if len(r.Values) == 0 {
		return hinted.New(fmt.Errorf("session %s has no key %q", a[0], a[1]), "agentrun session put makes it")
	}
	for _, v := range r.Values {
		text := string(v.Value) // an agent's
		if isTerminal(os.Stdout) {
			text = shown.Output(text)
		}
		if _, err := fmt.Println(text); err != nil {
			return err
		}
	}
	if n := len(r.Values); n > 1 {
		fmt.Fprintf(os.Stderr, "agentrun: %d values were written without knowing of each other; "+
			"put one with the clock of get --json to resolve them\n", n)
	}
	return nil
}

func (g *global) sessionPut(c *cli.Context, a []string) error {
	w := rings.SharedWrite{Agent: c.String("agent"), Key: a[1], Value: []byte(a[2]), Version: c.Uint64("version")}
	if text := c.String("clock"); text != "" {
		n := read.JSON(read.Source{Path: "--clock", Max: 1 << 20}, []byte(text))
		if n.Into(&w.Clock); n.Done() != nil {
			return n.Done()
		}
	}
	if at := c.Timestamp("at"); at != nil {
		w.At = *at
	}
	return g.node(func(h *hypervisor.Hypervisor) error {
		r, err := h.PutShared(c.Context, a[0], w)
		if err != nil {
			return sessionHint(c, err)
		}
		if c.Bool("json") {
			return printJSON(r)
		}
		switch r.Conflict {
		case rings.Replaced:
			fmt.Fprintf(os.Stderr, "agentrun: it replaced a value of %s\n", r.Losers[0].Agent)
		case rings.Late:
			fmt.Fprintf(os.Stderr, "agentrun: a later value of %s stands already; this one was put on record and dropped\n", r.Values[0].Agent)
		case rings.Concurrent:
			fmt.Fprintf(os.Stderr, "agentrun: conflict: %d values stand side by side\n", len(r.Values))
		}
		return nil
	})
}

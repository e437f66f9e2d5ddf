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
	"agentrun/internal/read"
	"agentrun/internal/shown"
	"agentrun/rings"
)

func sessionCommand(g *global) *cli.Command {
	asJSON := func() cli.Flag { return &cli.BoolFlag{Name: "json", Usage: "print JSON"} }
	return &cli.Command{
		Name:            "session",
		Usage:           "sessions: agents that share a workspace",
		HideHelpCommand: true,
		Description: `A session becomes active when it has its minimum of participants. Its runs see its own workspace and no other's.

   agentrun session create build-7 --min 2 --max 4 --mode strong
   agentrun session join build-7 --agent planner-1
   agentrun exec --session build-7 --agent planner-1 -- plan.py
   agentrun session archive build-7`,
		Subcommands: []*cli.Command{
			{Name: "create", Usage: "make a session and its workspace", ArgsUsage: "ID", OnUsageError: usageError,
				Flags: []cli.Flag{
					&cli.IntFlag{Name: "max", Usage: "at most `N` participants, 1 to 100", Value: 10},
					&cli.IntFlag{Name: "min", Usage: "active from `N` participants on", Value: 1},
					&cli.StringFlag{Name: "mode", Usage: "consistency of what they share: `eventual|causal|strong`; in a strong one, runs that can write take turns", Value: string(rings.Eventual)},
					asJSON(),
				},
				Action: func(c *cli.Context) error { return sessionCreate(g, c) }},
			{Name: "join", Usage: "make an agent a participant", ArgsUsage: "ID", OnUsageError: usageError,
				Flags:  []cli.Flag{&cli.StringFlag{Name: "agent", Usage: "`ID` of the agent"}, asJSON()},
				Action: func(c *cli.Context) error { return sessionJoin(g, c) }},
			{Name: "list", Usage: "every session", Flags: []cli.Flag{asJSON()}, OnUsageError: usageError,
				Action: func(c *cli.Context) error { return sessionList(g, c) }},
			{Name: "show", Usage: "one session", ArgsUsage: "ID", Flags: []cli.Flag{asJSON()}, OnUsageError: usageError,
				Action: func(c *cli.Context) error { return sessionShow(g, c) }},
			{Name: "get", Usage: "read a key of the session's context, as a participant", ArgsUsage: "ID KEY", OnUsageError: usageError,
				Flags:  []cli.Flag{&cli.StringFlag{Name: "agent", Usage: "`ID` of the participant"}, asJSON()},
				Action: func(c *cli.Context) error { return sessionGet(g, c) }},
			{Name: "put", Usage: "write a key of the session's context, as a participant", ArgsUsage: "ID KEY VALUE", OnUsageError: usageError,
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "agent", Usage: "`ID` of the participant"},
					&cli.Uint64Flag{Name: "version", Usage: "strong: the version `N` this replaces, from get; 0 for a new key"},
					&cli.StringFlag{Name: "clock", Usage: "causal: `JSON` clock from get, of what this replaces"},
					&cli.TimestampFlag{Name: "at", Usage: "eventual: when it was written, `TIME` as 2026-01-02T03:04:05Z (default: now)", Layout: time.RFC3339Nano},
					asJSON(),
				},
				Action: func(c *cli.Context) error { return sessionPut(g, c) }},
			{Name: "archive", Usage: "end a session; its workspace and its audit stay", ArgsUsage: "ID", Flags: []cli.Flag{asJSON()}, OnUsageError: usageError,
				Action: func(c *cli.Context) error { return sessionArchive(g, c) }},
		},
	}
}

func sessionCreate(g *global, c *cli.Context) error {
	a, err := args(c, "ID")
	if err != nil {
		return err
	}
	cfg := rings.SessionConfig{
		SessionID: a[0], MaxParticipants: c.Int("max"), MinParticipants: c.Int("min"), ConsistencyMode: rings.ConsistencyMode(c.String("mode")),
	}
	return sessionDo(g, c, func(ctx context.Context, h *hypervisor.Hypervisor) (rings.SessionRecord, error) {
		return h.CreateSession(ctx, cfg)
	})
}

func sessionJoin(g *global, c *cli.Context) error {
	a, err := args(c, "ID")
	if err != nil {
		return err
	}
	if c.String("agent") == "" {
		return hinted.New(errors.New("--agent is missing"), "agentrun session join --agent AGENT "+a[0])
	}
	return sessionDo(g, c, func(ctx context.Context, h *hypervisor.Hypervisor) (rings.SessionRecord, error) {
		return h.JoinSession(ctx, a[0], c.String("agent"))
	})
}

func sessionShow(g *global, c *cli.Context) error {
	a, err := args(c, "ID")
	if err != nil {
		return err
	}
	return sessionDo(g, c, func(ctx context.Context, h *hypervisor.Hypervisor) (rings.SessionRecord, error) {
		return h.Session(ctx, a[0])
	})
}

func sessionArchive(g *global, c *cli.Context) error {
	a, err := args(c, "ID")
	if err != nil {
		return err
	}
	return sessionDo(g, c, func(ctx context.Context, h *hypervisor.Hypervisor) (rings.SessionRecord, error) {
		return h.ArchiveSession(ctx, a[0])
	})
}

// sessionJSON is a session as scripts see it.
type sessionJSON struct {
	rings.SessionRecord
	Workspace string `json:"workspace"`
}

func sessionDo(g *global, c *cli.Context, do func(context.Context, *hypervisor.Hypervisor) (rings.SessionRecord, error)) error {
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		s, err := do(ctx, h)
		if err != nil {
			return sessionHint(c, err)
		}
		workspace := h.Workspace(s.Config.SessionID)
		if c.Bool("json") {
			return printJSON(sessionJSON{s, workspace})
		}
		var who []string
		for _, p := range s.Participants {
			who = append(who, p.Agent)
		}
		fmt.Printf("session       %s\nstate         %s\nconsistency   %s\nparticipants  %d of %d to %d: %s\nworkspace     %s\n",
			s.Config.SessionID, s.State, s.Config.ConsistencyMode, len(who), s.Config.MinParticipants, s.Config.MaxParticipants, strings.Join(who, " "), workspace)
		return nil
	})
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

func sessionList(g *global, c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		all, err := h.Sessions(ctx)
		if err != nil {
			return err
		}
		if c.Bool("json") {
			rows := []sessionJSON{}
			for _, s := range all {
				rows = append(rows, sessionJSON{s, h.Workspace(s.Config.SessionID)})
			}
			return printJSON(rows)
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "SESSION\tSTATE\tCONSISTENCY\tPARTICIPANTS")
		for _, s := range all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d of %d to %d\n", s.Config.SessionID, s.State, s.Config.ConsistencyMode, len(s.Participants), s.Config.MinParticipants, s.Config.MaxParticipants)
		}
		return w.Flush()
	})
}

func sessionGet(g *global, c *cli.Context) error {
	a, err := args(c, "ID", "KEY")
	if err != nil {
		return err
	}
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		r, err := h.GetShared(ctx, a[0], c.String("agent"), a[1])
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
			fmt.Println(text)
		}
		if len(r.Values) > 1 {
			fmt.Fprintf(os.Stderr, "agentrun: %d values were written without knowing of each other; put one with the clock of get --json to resolve them\n", len(r.Values))
		}
		return nil
	})
}

func sessionPut(g *global, c *cli.Context) error {
	a, err := args(c, "ID", "KEY", "VALUE")
	if err != nil {
		return err
	}
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
	return g.node(c, func(ctx context.Context, h *hypervisor.Hypervisor) error {
		r, err := h.PutShared(ctx, a[0], w)
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

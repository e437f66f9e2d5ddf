// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/verb"
)

func undoCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:      "undo",
		Usage:     "undo a call of a tool, within its window",
		ArgsUsage: "[CALL]",
		Description: `CALL is call_id of the call's record in the audit. Its tool declares what undoes it, and for how long, in gateway.yaml; the run may
have ended. An undo is tried once and is on record. Kill undoes the calls of a run that still can be, the latest first.

   agentrun undo --list
   agentrun undo k3x7q2m5t9w1a8c4.7
   agentrun undo k3x7q2m5t9w1a8c4.7 --session s1   refused if the call is of another session

Exit code: 0 undone; 125 it failed, or was refused.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "list", Usage: "list the calls that can be undone, and what became of those of the last day"},
			&cli.StringFlag{Name: "session", Usage: "only calls of session `ID`"},
			jsonFlag(),
		},
		Action: verb.Action(g.undo),
	}
}

func (g *global) undo(c *cli.Context, a []string) error {
	session := c.String("session")
	switch {
	case c.Bool("list") == (len(a) == 1):
		return hinted.New(errors.New("undo takes one CALL, or --list"), "agentrun undo --list shows the calls that can be undone")
	case c.Bool("list"):
		return g.node(func(h *hypervisor.Hypervisor) error { return undoList(c, h, session) })
	}
	if err := g.enter(); err != nil {
		return err
	}
	return g.node(func(h *hypervisor.Hypervisor) error {
		u, err := h.Undo(c.Context, hypervisor.UndoRequest{Call: a[0], Session: session, By: operatorName()}, g.Undoer(g.caller))
		if _, ok := errors.AsType[*hypervisor.UndoError](err); ok {
			return hinted.New(err, "it isn't tried again; undo it by hand")
		}
		if err != nil {
			return err
		}
		return printResult(c, u, "call %s of %s is undone\n", u.Call, u.Tool)
	})
}

func undoList(c *cli.Context, h *hypervisor.Hypervisor, session string) error {
	all, unread := h.Undos()
	shown := []hypervisor.Undoable{}
	for _, u := range all {
		if session == "" || u.Session == session {
			shown = append(shown, u)
		}
	}
	err := printList(c, shown, "CALL\tTOOL\tAGENT\tSESSION\tMADE\tUNTIL\tSTATE", shown, func(u hypervisor.Undoable) []any {
		return []any{u.Call, u.Tool, orDash(u.Agent), orDash(u.Session), u.Made, u.Until, u.State}
	})
	return errors.Join(err, unread)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"agentrun/internal/confine"
	"agentrun/internal/shown"
	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/cmdtool"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/httptool"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// undoMain undoes one call, of a run that may have ended (H-7): a link.UndoAsk is on standard input, the answer, a link.Undone, goes to
// standard output. An error means that nothing was done.
func undoMain() int {
	var q link.UndoAsk
	err := json.NewDecoder(os.Stdin).Decode(&q)
	var answer link.Undone
	if err == nil {
		answer, err = undo(q)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(answer)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, shown.Line(err.Error()))
		return exitFailed
	}
	return exitOK
}

func undo(q link.UndoAsk) (link.Undone, error) {
	if q.Start.Version != version {
		return link.Undone{}, fmt.Errorf("agentrun is version %s and this is %s: install both anew", q.Start.Version, version)
	}
	s, err := readSettings(q.Start.Config, os.LookupEnv)
	if err != nil {
		return link.Undone{}, err
	}
	spec, ok := s.tools[q.Tool]
	if !ok || spec.Undo == nil {
		return link.Undone{}, fmt.Errorf("%s declares no undo of the tool %s any more", cmp.Or(s.Path, "no gateway.yaml"), q.Tool)
	}
	// The supervisor has the window from the run's own gateway, which may have fallen (H-7).
	if window := time.Duration(spec.Undo.Window); q.Begun.Sub(q.Made) >= window {
		return link.Undone{}, fmt.Errorf("%s has a window of %v for the tool %s, which is over", s.Path, window, q.Tool)
	}
	limit := cmp.Or(time.Duration(spec.Timeout), spec.Category.Timeout())
	if spec.Undo.Command != nil {
		commands, err := cmdtool.Commands(q.Tool, spec.Undo.Command)
		if err != nil {
			return link.Undone{}, err
		}
		return link.Undone{Code: rings.CodeOK, Command: &commands[0], Limit: limit}, nil
	}
	tool, err := httptool.Factory(httptool.Options{Secrets: s.Secret})(q.Tool, spec.Undo.HTTP)
	if err != nil {
		return link.Undone{}, err
	}
	drop := confine.Options{UID: q.Start.UID, GID: q.Start.UID, BestEffort: q.Start.BestEffort}
	if err := confine.Drop(drop); err != nil {
		return link.Undone{}, err
	}
	if err := confine.Verify(drop); err != nil {
		return link.Undone{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, err = tool.Call(ctx, tools.Call{Tool: q.Tool, Args: telemetry.NewPlaintext(q.Args), Limit: int64(spec.MaxReply)})
	return undone(err), nil
}

// undone tells the operator more than an agent is told.
func undone(err error) link.Undone {
	if err == nil {
		return link.Undone{Code: rings.CodeOK}
	}
	e, ok := errors.AsType[*gate.Error](err)
	if !ok {
		return link.Undone{Code: gate.CodeToolFailed, Message: "the call failed"}
	}
	message := e.Message
	if e.Cause != nil {
		message += fmt.Sprintf(": %v", gate.CauseOf(e.Cause))
	}
	return link.Undone{Code: e.Code, Message: message}
}

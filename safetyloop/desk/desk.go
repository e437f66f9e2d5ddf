// SPDX-License-Identifier: Apache-2.0

// Package desk is the operators' side of a safety loop on a control socket (S-10, S-12): the routes that a dongle or a supervisor
// adds to its control server, and the client of `agentrun challenges`.
//
//	srv := &control.Server{Controller: c, More: desk.Routes(loop)}
//
//	found, err := desk.Challenges(ctx, runDir) // of every loop of the run folder
//	shown, err := found[0].By.Show(ctx, found[0].ID)
//
// Guarantees: what it answers reaches nobody whose credentials the control server doesn't allow; a code is in the answer of one route
// only, which is a POST, so that members of a group that may only read never get it. By, for the audit, is the kernel's word.
//
// Errors are *control.Error: not_found, wrong_code, expired, used, blocked_all. It decides nothing: Loop does. It does not protect against root, nor
// against an agent that runs as the operator's own user outside of a sandbox. It fails closed: an error releases nobody.
package desk

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"agentrun/control"
	"agentrun/safetyloop"
)

// Loop is what safetyloop.Loop does for operators.
type Loop interface {
	Challenges(ctx context.Context) []safetyloop.Challenge
	Show(ctx context.Context, by, id string) (safetyloop.Challenge, error)
	Verify(ctx context.Context, by, id, code string) error
	Pending(ctx context.Context) []safetyloop.Pending
	Confirm(ctx context.Context, by, token string) error
	Blocks(ctx context.Context) ([]safetyloop.Block, error)
	Unblock(ctx context.Context, by, agent, reason string) error
}

// Codes of the errors, beside those of control.
const (
	CodeWrong   = "wrong_code"
	CodeExpired = "expired"
	CodeUsed    = "used"
	CodeAll     = "blocked_all" // the blocks can't be read: every agent is blocked
)

const (
	prefix    = "/v1/safety"
	maxID     = 64   // bytes
	maxCode   = 256  // of what somebody types as a code, or pastes as a token
	maxAgent  = 1024 // of an agent's name: principal and element
	maxReason = 1024
)

// Shown is a challenge with its code.
type Shown = safetyloop.Shown

type (
	challenges struct {
		Challenges []safetyloop.Challenge `json:"challenges"`
	}
	pending struct {
		Pending []safetyloop.Pending `json:"pending"`
	}
	blocks struct {
		Blocks []safetyloop.Block `json:"blocks"`
	}
)

// Routes are for control.Server.More.
func Routes(l Loop) []control.Route {
	return []control.Route{
		{Method: "GET", Path: prefix + "/challenges", Do: func(ctx context.Context, _ control.Request) (any, error) {
			return challenges{some(l.Challenges(ctx))}, nil
		}},
		{Method: "POST", Path: prefix + "/challenges/{id}/show", Do: func(ctx context.Context, r control.Request) (any, error) {
			if err := r.Read(&struct{}{}); err != nil {
				return nil, err
			}
			if err := control.CheckText("id", r.ID, maxID); err != nil {
				return nil, err
			}
			c, err := l.Show(ctx, r.By, r.ID)
			return c.Shown(), refusal(err)
		}},
		{Method: "POST", Path: prefix + "/challenges/{id}/verify", Do: func(ctx context.Context, r control.Request) (any, error) {
			var v struct {
				Code string `json:"code" read:"required"`
			}
			err := r.Read(&v)
			if err == nil {
				err = cmp.Or(control.CheckText("code", v.Code, maxCode), control.CheckText("id", r.ID, maxID))
			}
			if err != nil {
				return nil, err
			}
			return control.Done{}, refusal(l.Verify(ctx, r.By, r.ID, v.Code))
		}},
		{Method: "GET", Path: prefix + "/pending", Do: func(ctx context.Context, _ control.Request) (any, error) {
			return pending{some(l.Pending(ctx))}, nil
		}},
		{Method: "POST", Path: prefix + "/confirm", Do: func(ctx context.Context, r control.Request) (any, error) {
			var v struct {
				Token string `json:"token" read:"required"`
			}
			err := r.Read(&v)
			if err == nil {
				err = control.CheckText("token", v.Token, maxCode)
			}
			if err != nil {
				return nil, err
			}
			return control.Done{}, refusal(l.Confirm(ctx, r.By, v.Token))
		}},
		{Method: "GET", Path: prefix + "/blocks", Do: func(ctx context.Context, _ control.Request) (any, error) {
			list, err := l.Blocks(ctx)
			if err != nil {
				return nil, &control.Error{Status: 503, Code: CodeAll, Message: "the blocks can't be read, so every agent is blocked: " + err.Error(), Hint: "agentrun doctor; the state folder's owner, mode and file"}
			}
			return blocks{some(list)}, nil
		}},
		{Method: "POST", Path: prefix + "/unblock", Do: func(ctx context.Context, r control.Request) (any, error) {
			var v struct {
				Agent  string `json:"agent" read:"required"`
				Reason string `json:"reason" read:"required"`
			}
			err := r.Read(&v)
			switch {
			case err != nil:
				return nil, err
			case len(v.Agent) > maxAgent:
				return nil, &control.Error{Status: 400, Code: control.CodeBadRequest, Message: fmt.Sprintf("agent: want at most %d bytes", maxAgent)}
			}
			if err := control.CheckText("reason", v.Reason, maxReason); err != nil {
				return nil, err
			}
			return control.Done{}, refusal(l.Unblock(ctx, r.By, v.Agent, v.Reason))
		}},
	}
}

// some makes JSON's [] of no elements.
func some[E any](list []E) []E {
	if list == nil {
		return []E{}
	}
	return list
}

// refusal gives an error its code on the wire.
func refusal(err error) error {
	e := control.Error{Status: 409}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, safetyloop.ErrNotFound):
		e.Status, e.Code = 404, control.CodeNotFound
	case errors.Is(err, safetyloop.ErrCode):
		e.Status, e.Code, e.Hint = 403, CodeWrong, "agentrun challenges show ID prints the code; a wrong one doesn't burn it"
	case errors.Is(err, safetyloop.ErrExpired):
		e.Code, e.Hint = CodeExpired, "the agent's next step makes a new one"
	case errors.Is(err, safetyloop.ErrUsed):
		e.Code = CodeUsed
	default:
		return err
	}
	e.Message = err.Error()
	return &e
}

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
	"context"
	"errors"

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
type Shown struct {
	safetyloop.Challenge
	Code string `json:"code"`
}

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
			if err := r.Fields(nil); err != nil {
				return nil, err
			}
			if err := control.CheckText("id", r.ID, maxID); err != nil {
				return nil, err
			}
			c, err := l.Show(ctx, r.By, r.ID)
			return Shown{c, c.Code}, refusal(err)
		}},
		{Method: "POST", Path: prefix + "/challenges/{id}/verify", Do: func(ctx context.Context, r control.Request) (any, error) {
			code, err := field(r, "code", maxCode)
			if err == nil {
				err = control.CheckText("id", r.ID, maxID)
			}
			if err != nil {
				return nil, err
			}
			return control.Done{}, refusal(l.Verify(ctx, r.By, r.ID, code))
		}},
		{Method: "GET", Path: prefix + "/pending", Do: func(ctx context.Context, _ control.Request) (any, error) {
			return pending{some(l.Pending(ctx))}, nil
		}},
		{Method: "POST", Path: prefix + "/confirm", Do: func(ctx context.Context, r control.Request) (any, error) {
			token, err := field(r, "token", maxCode)
			if err != nil {
				return nil, err
			}
			return control.Done{}, refusal(l.Confirm(ctx, r.By, token))
		}},
		{Method: "GET", Path: prefix + "/blocks", Do: func(ctx context.Context, _ control.Request) (any, error) {
			list, err := l.Blocks(ctx)
			if err != nil {
				return nil, &control.Error{Status: 503, Code: CodeAll, Message: "the blocks can't be read, so every agent is blocked: " + err.Error(), Hint: "agentrun doctor; the state folder's owner, mode and file"}
			}
			return blocks{some(list)}, nil
		}},
		{Method: "POST", Path: prefix + "/unblock", Do: func(ctx context.Context, r control.Request) (any, error) {
			var agent, reason string
			if err := r.Fields(map[string]any{"agent": &agent, "reason": &reason}); err != nil {
				return nil, err
			}
			if agent == "" || len(agent) > maxAgent || reason == "" {
				return nil, &control.Error{Status: 400, Code: control.CodeBadRequest, Message: "agent and reason are required"}
			}
			if err := control.CheckText("reason", reason, maxReason); err != nil {
				return nil, err
			}
			return control.Done{}, refusal(l.Unblock(ctx, r.By, agent, reason))
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

// field reads a body of one field. The text of an error doesn't have what was sent.
func field(r control.Request, name string, most int) (string, error) {
	var s string
	if err := r.Fields(map[string]any{name: &s}); err != nil {
		return "", err
	}
	if s == "" {
		return "", &control.Error{Status: 400, Code: control.CodeBadRequest, Message: name + " is required"}
	}
	return s, control.CheckText(name, s, most)
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

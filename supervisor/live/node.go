// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"agentrun/control"
	"agentrun/hypervisor"
	"agentrun/rings"
	"agentrun/witness"
)

// What operators ask of the node's state rather than of a run (M-23): agents, and calls that wait for an
// operator. It is the state that `agentrun agent` and `agentrun approvals` open, so a supervisor that serves
// one run answers it too.

const (
	maxWords  = 1024    // bytes of a reason
	maxSigned = 8 << 10 // of an attestation
)

type (
	scoreRequest struct {
		Score     float64 `json:"score" read:"required"`
		Consensus bool    `json:"has_consensus"`
	}
	holdRequest struct {
		Reason string `json:"reason" read:"required"`
	}
	releaseRequest struct {
		Attestation string `json:"attestation" read:"required"`
		Reason      string `json:"reason"`
	}
	grantRequest struct {
		Agent  string        `json:"agent_id" read:"required"`
		Tool   string        `json:"tool" read:"required"`
		Digest *string       `json:"digest"` // nil: for any arguments
		For    time.Duration `json:"for_ns" read:"required"`
	}
	undoRequest struct {
		Session string `json:"session"`
	}
	keyRequest struct {
		Agent string        `json:"agent_id" read:"required"`
		May   []string      `json:"may" read:"required"`
		TTL   time.Duration `json:"ttl_ns" read:"required"`
	}
)

// node makes a route of what is done with the node's state. The body is read before it is opened.
func node[T any](s *Runs, method, path string,
	do func(ctx context.Context, h *hypervisor.Hypervisor, r control.Request, body T) (any, error),
) control.Route {
	return control.Route{Method: method, Path: path, Do: func(ctx context.Context, r control.Request) (v any, err error) {
		var body T
		if err := r.Read(&body); err != nil {
			return nil, err
		}
		if strings.HasPrefix(path, "/v1/agents/") && rings.CheckAgentID(r.ID) != nil {
			return nil, &control.Error{Status: 400, Code: control.CodeBadRequest, Message: "the agent's id is no identifier (H-29)"}
		}
		h, err := s.opt.Node()
		if err != nil {
			return nil, err
		}
		if s.opt.OwnNode {
			defer func() {
				if err := h.Close(); err != nil {
					s.warn(err)
				}
			}()
		}
		v, err = do(ctx, h, r, body)
		return v, nodeRefusal(err)
	}}
}

type none = struct{}

// nodeRoutes are all of these.
func (s *Runs) nodeRoutes() []control.Route {
	return []control.Route{
		node(s, "GET", "/v1/agents", func(ctx context.Context, h *hypervisor.Hypervisor, _ control.Request, _ none) (any, error) {
			list, err := h.Agents(ctx)
			return map[string]any{"agents": some(list)}, err
		}),
		node(s, "GET", "/v1/agents/{id}", func(ctx context.Context, h *hypervisor.Hypervisor, r control.Request, _ none) (any, error) {
			return h.Agent(ctx, r.ID)
		}),
		node(s, "POST", "/v1/agents/{id}/score", func(ctx context.Context, h *hypervisor.Hypervisor, r control.Request, b scoreRequest) (any, error) {
			now, _, err := h.SetScore(ctx, r.ID, b.Score, b.Consensus, r.By)
			return now, err
		}),
		node(s, "POST", "/v1/agents/{id}/quarantine", func(ctx context.Context, h *hypervisor.Hypervisor, r control.Request, b holdRequest) (any, error) {
			return hold(ctx, h, r.ID, b.Reason, r.By)
		}),
		node(s, "POST", "/v1/agents/{id}/release", s.release),
		node(s, "POST", "/v1/sandboxes/{id}/quarantine", func(ctx context.Context, h *hypervisor.Hypervisor, r control.Request, b holdRequest) (any, error) {
			v, err := s.find(r.ID)
			if err != nil {
				return nil, err
			}
			if v.Plan.Agent == "" {
				return nil, &control.Error{Status: 409, Code: control.CodeConflict, Message: "the run has no agent that could be held", Hint: "kill it, or freeze it"}
			}
			return hold(ctx, h, v.Plan.Agent, b.Reason, r.By)
		}),
		node(s, "GET", "/v1/approvals", func(ctx context.Context, h *hypervisor.Hypervisor, _ control.Request, _ none) (any, error) {
			calls, err := h.Approvals(ctx)
			grants, gerr := h.StandingGrants(ctx)
			return map[string]any{"approvals": some(calls), "grants": some(grants)}, errors.Join(err, gerr)
		}),
		node(s, "GET", "/v1/approvals/{id}", func(ctx context.Context, h *hypervisor.Hypervisor, r control.Request, _ none) (any, error) {
			return h.Approval(ctx, r.ID)
		}),
		node(s, "POST", "/v1/approvals/{id}/approve", func(ctx context.Context, h *hypervisor.Hypervisor, r control.Request, _ none) (any, error) {
			return h.AnswerApproval(ctx, r.ID, true, r.By)
		}),
		node(s, "POST", "/v1/approvals/{id}/deny", func(ctx context.Context, h *hypervisor.Hypervisor, r control.Request, _ none) (any, error) {
			return h.AnswerApproval(ctx, r.ID, false, r.By)
		}),
		node(s, "POST", "/v1/grants", func(ctx context.Context, h *hypervisor.Hypervisor, r control.Request, b grantRequest) (any, error) {
			g := hypervisor.StandingGrant{Agent: b.Agent, Tool: b.Tool, By: r.By, Expires: time.Now().Add(b.For)}
			if b.Digest != nil {
				if g.Digest = *b.Digest; g.Digest == "" { // such as a variable that is empty; left out it is for any
					return nil, &control.Error{Status: 400, Code: control.CodeBadRequest, Message: "digest: want the SHA-256 of the arguments, or none at all"}
				}
			}
			return h.GrantApproval(ctx, g)
		}),
		node(s, "POST", "/v1/grants/{id}/revoke", func(ctx context.Context, h *hypervisor.Hypervisor, r control.Request, _ none) (any, error) {
			return h.RevokeApproval(ctx, r.ID, r.By)
		}),
		node(s, "GET", "/v1/calls", func(_ context.Context, h *hypervisor.Hypervisor, _ control.Request, _ none) (any, error) {
			list, err := h.Undos()
			return map[string]any{"calls": some(list)}, err
		}),
		owners(node(s, "POST", "/v1/calls/{id}/undo", func(ctx context.Context, h *hypervisor.Hypervisor, r control.Request, b undoRequest) (any, error) {
			if s.opt.Undo == nil {
				return nil, &control.Error{Status: 409, Code: control.CodeConflict, Message: "nothing is undone here"}
			}
			return h.Undo(ctx, hypervisor.UndoRequest{Call: r.ID, Session: b.Session, By: r.By}, s.opt.Undo)
		})),
		node(s, "GET", "/v1/keys", func(ctx context.Context, h *hypervisor.Hypervisor, _ control.Request, _ none) (any, error) {
			list, err := h.Keys(ctx)
			return map[string]any{"keys": some(list)}, err
		}),
		owners(node(s, "POST", "/v1/keys", func(ctx context.Context, h *hypervisor.Hypervisor, r control.Request, b keyRequest) (any, error) {
			k, token, err := h.IssueKey(ctx, r.By, b.Agent, b.May, b.TTL)
			return k.With(token), err
		})),
		node(s, "POST", "/v1/keys/{id}/revoke", func(ctx context.Context, h *hypervisor.Hypervisor, r control.Request, _ none) (any, error) {
			return h.RevokeKey(ctx, r.ID, r.By)
		}),
	}
}

// owners keeps a route to root and the supervisor's own user. Whoever has an agent's key starts its runs, and
// who is in the operators' group may start none.
func owners(r control.Route) control.Route {
	r.Own = true
	return r
}

func hold(ctx context.Context, h *hypervisor.Hypervisor, agent, reason, by string) (any, error) {
	if err := control.CheckText("reason", reason, maxWords); err != nil {
		return nil, err
	}
	return h.Quarantine(ctx, agent, hypervisor.Cause{Code: "operator", Reason: reason, By: by})
}

// release takes what agentrun release takes: an attestation that an operator's key signed, of a key this host
// trusts.
func (s *Runs) release(ctx context.Context, h *hypervisor.Hypervisor, r control.Request, b releaseRequest) (any, error) {
	if len(b.Attestation) > maxSigned {
		return nil, &control.Error{Status: 400, Code: control.CodeBadRequest, Message: "attestation: it is too long"}
	}
	if err := control.CheckText("reason", b.Reason, maxWords); err != nil {
		return nil, err
	}
	keys, err := witness.LoadKeys(s.opt.Operators)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &control.Error{Status: 403, Code: control.CodeForbidden, Message: "this host trusts no operator's key", Hint: "agentrun operator keygen prints the line that belongs into " + s.opt.Operators}
	}
	if err != nil {
		return nil, err
	}
	was, operator, err := h.Release(ctx, r.ID, b.Attestation, keys, b.Reason, r.By)
	return map[string]any{"agent_id": r.ID, "operator": operator, "was": was}, err
}

// some makes JSON's [] of no elements.
func some[E any](list []E) []E {
	if list == nil {
		return []E{}
	}
	return list
}

// nodeRefusal gives an error of the node's state that is a peer's doing its code on the wire.
func nodeRefusal(err error) error {
	is := func(list ...error) bool {
		return slices.ContainsFunc(list, func(e error) bool { return errors.Is(err, e) })
	}
	refused := func(status int, code, hint string) error {
		return &control.Error{Status: status, Code: code, Message: err.Error(), Hint: hint}
	}
	if denied, ok := errors.AsType[*hypervisor.DeniedError](err); ok {
		status := map[rings.Code]int{hypervisor.CodeUndoUnknown: 404, hypervisor.CodeUndoOver: 409, hypervisor.CodeUndoDone: 409}[denied.Code]
		return refused(cmp.Or(status, 403), string(denied.Code), denied.Hint)
	}
	if failed, ok := errors.AsType[*hypervisor.UndoError](err); ok {
		return refused(502, string(failed.Code), "it isn't tried again; undo it by hand")
	}
	switch {
	case is(hypervisor.ErrNoApproval):
		return refused(404, control.CodeNotFound, "GET /v1/approvals")
	case is(hypervisor.ErrLate):
		return refused(409, control.CodeConflict, "the agent has to ask again; POST /v1/grants approves beforehand")
	case is(rings.ErrNotQuarantined):
		return refused(409, control.CodeConflict, "GET /v1/agents")
	case is(hypervisor.ErrNoKey):
		return refused(404, control.CodeNotFound, "GET /v1/keys")
	case is(hypervisor.ErrGrant, hypervisor.ErrKey, rings.ErrScore):
		return refused(400, control.CodeBadRequest, "")
	case is(witness.ErrMalformed, witness.ErrUnknownKey, witness.ErrSignature, witness.ErrAction, witness.ErrSubject,
		witness.ErrExpired, witness.ErrTooFar, witness.ErrNonceUsed):
		return refused(403, control.CodeForbidden, "agentrun operator sign makes one, for what it names, once; agentrun operator list shows whom this host trusts")
	}
	return err
}

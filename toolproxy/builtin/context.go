// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// sharedContext has the tools of a session's key/value context (H-32). Order and conflicts are the supervisor's, by the session's mode.
type sharedContext struct{ to link.Contexts }

type contextArgs struct {
	Key     string            `json:"key"`
	Value   string            `json:"value"`
	Version uint64            `json:"version"`
	Clock   rings.VectorClock `json:"clock"`
	After   string            `json:"after"`
}

type contextValue struct {
	Value string    `json:"value"`
	Agent string    `json:"agent"`
	At    time.Time `json:"at"`
}

type contextRead struct {
	Values  []contextValue    `json:"values"`
	Version uint64            `json:"version,omitzero"`
	Clock   rings.VectorClock `json:"clock,omitempty"`
}

type contextWritten struct {
	Conflict rings.ConflictKind `json:"conflict,omitempty"`
	Values   int                `json:"values"` // that stand under the key now
	Version  uint64             `json:"version,omitzero"`
	Clock    rings.VectorClock  `json:"clock,omitempty"`
}

// maxPages is how often a get asks for more: a key has no more values than that.
const maxPages = rings.MaxSharedSiblings + 1

func (s sharedContext) get(ctx context.Context, _ tools.Call, args contextArgs) (any, error) {
	out := contextRead{Values: []contextValue{}}
	for q := (link.ContextRequest{Op: link.ContextGet, Key: args.Key}); q.From < maxPages; q.From = len(out.Values) {
		a, e := s.ask(ctx, q)
		if e != nil {
			return nil, e
		}
		// The last page's clock may know of values that came meanwhile: a write by it would replace them unseen.
		if q.From == 0 {
			out.Version, out.Clock = a.Version, a.Clock
		}
		for _, v := range a.Values {
			if !utf8.Valid(v.Value) {
				return nil, refuse(gate.CodeToolRestricted, "", "a value of this key is no text")
			}
			out.Values = append(out.Values, contextValue{string(v.Value), v.Agent, v.At})
		}
		if !a.More || len(a.Values) == 0 {
			break
		}
	}
	return out, nil
}

func (s sharedContext) put(ctx context.Context, _ tools.Call, args contextArgs) (any, error) {
	if len(args.Value) > rings.MaxSharedValueBytes {
		return nil, tools.BadArguments("the value has %d bytes, at most %d are allowed", len(args.Value), rings.MaxSharedValueBytes)
	}
	a, e := s.ask(ctx, link.ContextRequest{Op: link.ContextPut, Key: args.Key, Value: []byte(args.Value), Version: args.Version, Clock: args.Clock})
	if e != nil {
		return nil, e
	}
	return contextWritten{a.Conflict, a.Standing, a.Version, a.Clock}, nil
}

func (s sharedContext) list(ctx context.Context, _ tools.Call, args contextArgs) (any, error) {
	a, e := s.ask(ctx, link.ContextRequest{Op: link.ContextList, After: args.After})
	if e != nil {
		return nil, e
	}
	keys := a.Keys
	if keys == nil {
		keys = []link.ContextKey{}
	}
	return map[string]any{"keys": keys, "more": a.More}, nil
}

// ask gives an answer that allows, or what the agent may know of why not.
func (s sharedContext) ask(ctx context.Context, q link.ContextRequest) (link.ContextAnswer, *gate.Error) {
	if err := q.Check(); err != nil {
		e := tools.BadArguments("key is 1 to %d bytes of UTF-8, value at most %d bytes", rings.MaxSharedKeyBytes, rings.MaxSharedValueBytes)
		e.Cause = err
		return link.ContextAnswer{}, e
	}
	a, err := s.to.Context(ctx, q)
	if err == nil && a.Allowed {
		return a, nil
	}
	var e *gate.Error
	switch {
	case a.Refused == link.ContextVersion:
		e = refuse(gate.CodeBadArguments, "context.get tells the version that a write replaces; 0 for a new key", "the key has another version by now")
	case a.Refused == link.ContextWrong:
		e = refuse(gate.CodeBadArguments, "send version in a strong session and clock in a causal one, as context.get told them", "version or clock don't fit the session's consistency mode")
	case a.Refused == link.ContextFull:
		e = refuse(gate.CodeQuota, "write smaller values, or resolve concurrent ones by a write with the clock of context.get", "the session's context has no room for this")
	case a.Refused == link.ContextLarge:
		e = refuse(gate.CodeTooLarge, "", "what stands there is too large for one answer")
	case ctx.Err() != nil:
		e = ended(ctx)
	default:
		e = refuse(gate.CodeUnavailable, "try again later", "the session's context can't be reached")
	}
	if err == nil {
		err = errors.New("the supervisor refused: " + a.Refused)
	}
	e.Cause, e.Rule = err, "H-32"
	return link.ContextAnswer{}, e
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"

	"agentrun/telemetry"
	"agentrun/toolproxy/builtin"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/llm"
)

// embedderOf gives the tool `embeddings` a provider's model, if one is configured. nil: the tool has its own, a stand-in.
func embedderOf(g *llm.Gateway) builtin.Embedder {
	if !g.Embeds() {
		return nil
	}
	return embedder{g}
}

// embedder asks the models' gateway on behalf of a tool call. That call was counted and paced already; its cost is the model's.
type embedder struct{ models *llm.Gateway }

// Embed implements builtin.Embedder.
func (e embedder) Embed(ctx context.Context, _ link.Caller, model string, texts []string) (builtin.Vectors, error) {
	q := llm.Embedding{Model: model, Texts: telemetry.NewPlaintext(texts)}
	if p, ok := ctx.Value(permitKey{}).(*metered); ok {
		q.Spent = p.Spent
	}
	a, err := e.models.Embed(ctx, q)
	v := builtin.Vectors{Model: a.Model, Vectors: a.Vectors, Tokens: a.Tokens, Cost: a.Cost, Sent: a.Sent, Received: a.Received}
	if err != nil {
		return v, err
	}
	return v, nil
}

type permitKey struct{}

// metering lets a tool's work tell what it has spent while the call goes on: its permit is in the call's context.
type metering struct{ outer }

func (m metering) Enter(ctx context.Context, c gate.Call) (gate.Permit, *gate.Error) {
	p, err := m.Entrance.Enter(ctx, c)
	if err != nil {
		return nil, err
	}
	return &metered{Permit: p}, nil
}

type metered struct {
	gate.Permit

	mu           sync.Mutex
	cost, tokens int64 // told last
}

func (p *metered) Context() context.Context {
	return context.WithValue(p.Permit.Context(), permitKey{}, p)
}

func (p *metered) Spent(cost, tokens int64) *gate.Error {
	p.mu.Lock()
	p.cost, p.tokens = cost, tokens
	p.mu.Unlock()
	return p.Permit.Spent(cost, tokens)
}

// End books what was spent also if the call failed and its result, which would have said it, is lost: a call that was given
// up in the middle has been paid for.
func (p *metered) End(o gate.Outcome) *gate.Error {
	p.mu.Lock()
	if o.Err != nil {
		o.Cost, o.Tokens = max(o.Cost, p.cost), max(o.Tokens, p.tokens)
	}
	p.mu.Unlock()
	return p.Permit.End(o)
}

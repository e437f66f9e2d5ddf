// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"context"

	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
)

// Embedding asks for the vectors of texts on behalf of a call that has passed the entrance already, as the
// tool `embeddings` has: it isn't decided, counted or recorded again, but what it costs belongs to that call.
type Embedding struct {
	Model string // empty: the first embeddings model of a provider
	Texts telemetry.Plaintext[[]string]
	// gate.Permit's of the call; nil: nobody is asked while it goes on
	Spent func(cost, tokens int64) *gate.Error
}

// Embedded is the answer, and what it cost: also beside an error.
type Embedded struct {
	Model    string
	Vectors  [][]float32 // one for each text, in order
	Cost     int64       // millionths of the plans' unit
	Tokens   int64
	Sent     int64 // bytes
	Received int64
}

// Embeds tells whether a provider has a model for Embed. The test model is none: the tool has one of its own.
func (g *Gateway) Embeds() bool { return g.firstEmbeds() != "" }

func (g *Gateway) firstEmbeds() string {
	for _, t := range g.order {
		if t.rt != nil && t.model.Kind == kindEmbeddings {
			return t.model.Name
		}
	}
	return ""
}

// Embed asks a provider. It ends with ctx. The estimate is told to Spent before anything is sent, so that a
// budget which is used up ends the call there. What the call cost is in the answer beside an error as well:
// whoever has the permit books it, and a provider charges also for a reply that broke off.
func (g *Gateway) Embed(ctx context.Context, q Embedding) (Embedded, *gate.Error) {
	if q.Model == "" {
		q.Model = g.firstEmbeds()
	}
	t, e := g.find(kindEmbeddings, q.Model)
	if e != nil {
		return Embedded{}, e
	}
	texts := q.Texts.Reveal()
	if e := checkTexts(texts); e != nil {
		return Embedded{}, e
	}
	p := &passed{ctx: ctx, spent: q.Spent}
	c := newCall(g, t, p, sizeOf(texts), 0, t.provider.Timeout)
	defer func() { _ = c.end(refuse(gate.CodeToolFailed, "the call was given up", "try again")) }()
	vectors, e := c.vectors(&embeddingsRequest{Model: q.Model}, texts)
	e = c.end(e)
	out := Embedded{Model: q.Model, Cost: p.o.Cost, Tokens: p.o.Tokens, Sent: p.o.Sent, Received: p.o.Received}
	if e != nil {
		g.o.Log.Warn("embeddings call", "model", t.model.Name, "code", e.Code, "cause", gate.CauseOf(e.Cause))
		return out, e
	}
	for _, v := range vectors {
		short := make([]float32, len(v))
		for i, x := range v {
			short[i] = float32(x)
		}
		out.Vectors = append(out.Vectors, short)
	}
	return out, nil
}

// passed stands for the permit of the call that asks. Whoever has that one ends it, with what this one was
// told. So a call for a tool has one permit, one record and one end, and its money is counted once.
type passed struct {
	ctx   context.Context //nolint:containedctx // as a permit: the scope of one call
	spent func(cost, tokens int64) *gate.Error
	o     gate.Outcome
}

func (p *passed) Context() context.Context { return p.ctx }

func (p *passed) Spent(cost, tokens int64) *gate.Error {
	if p.spent == nil {
		return nil
	}
	return p.spent(cost, tokens)
}

func (p *passed) End(o gate.Outcome) *gate.Error {
	p.o = o
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"path/filepath"
	"testing"

	"agentrun/rings"
	"agentrun/toolproxy/link"
)

func benchBroker(b *testing.B) *Broker {
	h, err := Open(Options{StateDir: filepath.Join(b.TempDir(), "state")})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	if _, _, err := h.SetScore(ctx, "a", 0.8, false, "uid:0"); err != nil {
		b.Fatal(err)
	}
	adm, err := h.Admit(ctx, Request{Agent: "a"})
	if err != nil {
		b.Fatal(err)
	}
	e := h.Control(adm, ControlOptions{Run: "r"}).Broker(BrokerOptions{MaxSteps: 1 << 40})
	b.Cleanup(func() { over(e); adm.Done(); h.Close() })
	return e
}

// What a tool call asks of its supervisor, part by part. The rate of ring 2 refuses most checks; both answers look at the
// same things.
func BenchmarkExitCheck(b *testing.B) {
	e, ctx, c := benchBroker(b), context.Background(), tool("math")
	b.ReportAllocs()
	for b.Loop() {
		v, err := e.Check(ctx, c)
		if err != nil {
			b.Fatal(err)
		}
		e.giveBack(v.Place)
	}
}

func BenchmarkExitReserveEnd(b *testing.B) {
	e, ctx := benchBroker(b), context.Background()
	b.ReportAllocs()
	for b.Loop() {
		r, err := e.Reserve(ctx, link.Spend{What: "model", Estimate: 10, Tokens: 10})
		if err != nil || !r.Allowed {
			b.Fatal(r, err)
		}
		done := link.Record{Kind: "llm", Name: "m", Allowed: true, Code: rings.CodeOK, Count: 1, Cost: 10, Tokens: 10}
		if _, err := e.End(ctx, link.End{Reservation: r.ID, Record: &done}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExitRecord(b *testing.B) {
	e, ctx := benchBroker(b), context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Record(ctx, link.Record{Kind: "tool", Name: "math", Allowed: true, Code: rings.CodeOK, Count: 1, Cost: 10}); err != nil {
			b.Fatal(err)
		}
	}
}

// A state that changed is read anew.
func BenchmarkExitRead(b *testing.B) {
	e, ctx := benchBroker(b), context.Background()
	for b.Loop() {
		e.live.readMu.Lock()
		e.live.sure = false
		e.live.readMu.Unlock()
		if _, _, err := e.live.now(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

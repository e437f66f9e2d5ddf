// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"testing"
	"time"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/sagas"
)

// BenchmarkGovernancePipeline is what the public reference implementation measures as its pipeline, in memory: a session
// is made, joined and activated, three entries are chained, a saga of one step runs, the session is terminated.
func BenchmarkGovernancePipeline(b *testing.B) {
	ctx := context.Background()
	check := &audit.RingCheck{
		Action: "file.read", AgentID: "agent-1", AgentRing: audit.Standard, Allowed: true,
		EffScore: audit.NumberOf(0.8), Reason: "ok", RequiredRing: audit.Sandbox, Rule: "H-9",
	}
	steps := []sagas.Step{{ID: "step-1", Execute: func(context.Context, sagas.Call) error { return nil }}}
	b.ReportAllocs()
	for b.Loop() {
		s, err := rings.NewSession(rings.SessionConfig{SessionID: "s", MaxParticipants: 10, MinParticipants: 1, ConsistencyMode: rings.Eventual}, time.Now)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Join("agent-1"); err != nil {
			b.Fatal(err)
		}
		if err := s.Activate(); err != nil {
			b.Fatal(err)
		}
		log, err := audit.NewMemory(audit.SessionChain("s"), time.Now)
		if err != nil {
			b.Fatal(err)
		}
		for range 3 {
			if _, err := log.Append(check); err != nil {
				b.Fatal(err)
			}
		}
		o, err := sagas.New(sagas.Options{Journal: sagas.NewMemory(), Now: time.Now})
		if err != nil {
			b.Fatal(err)
		}
		if rec, err := o.Run(ctx, sagas.Saga{ID: "saga", Steps: steps}); err != nil || rec.State != sagas.Committed {
			b.Fatal(rec.State, err)
		}
		if err := s.Terminate(); err != nil {
			b.Fatal(err)
		}
	}
}

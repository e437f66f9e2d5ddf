// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"testing"
	"time"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/sagas"
)

// BenchmarkGovernancePipeline is what the public reference implementation measures as its pipeline, in memory: a session
// is made, joined and activated, three entries are chained, a saga of one step runs, the session is terminated. With the
// step on a goroutine of its own, which can hang without harm, and on the orchestrator's.
func BenchmarkGovernancePipeline(b *testing.B) {
	for _, direct := range []bool{false, true} {
		b.Run(map[bool]string{false: "contained", true: "direct"}[direct], func(b *testing.B) {
			steps := []sagas.Step{{ID: "step-1", Direct: direct, Execute: func(context.Context, sagas.Call) error { return nil }}}
			b.ReportAllocs()
			for b.Loop() {
				if err := pipeline(steps); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func pipeline(steps []sagas.Step) error {
	s, err := rings.NewSession(rings.SessionConfig{SessionID: "s", MaxParticipants: 10, MinParticipants: 1, ConsistencyMode: rings.Eventual}, time.Now)
	if err != nil {
		return err
	}
	if err := errors.Join(s.Join("agent-1"), s.Activate()); err != nil {
		return err
	}
	log, err := audit.NewMemory(audit.SessionChain("s"), time.Now)
	if err != nil {
		return err
	}
	for range 3 {
		_, err := log.Append(&audit.RingCheck{
			Action: "file.read", AgentID: "agent-1", AgentRing: audit.Standard, Allowed: true,
			EffScore: audit.NumberOf(0.8), Reason: "ok", RequiredRing: audit.Sandbox, Rule: "H-9",
		})
		if err != nil {
			return err
		}
	}
	o, err := sagas.New(sagas.Options{Journal: sagas.NewMemory(), Now: time.Now})
	if err != nil {
		return err
	}
	rec, err := o.Run(context.Background(), sagas.Saga{ID: "saga", Steps: steps})
	if err != nil {
		return err
	}
	if rec.State != sagas.Committed {
		return errors.New("the saga is " + rec.State.String())
	}
	return s.Terminate()
}

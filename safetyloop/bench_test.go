// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"context"
	"path/filepath"
	"testing"

	"agentrun/audit"
	"agentrun/telemetry"
)

func BenchmarkStep(b *testing.B) {
	l := newBench(b, func(s *Settings) { s.MaxSteps, s.Record = 10000, discard{} })
	raw := params(pElement, "a", pHint, "auto calling read_file on /workspace/notes.txt")
	b.ReportAllocs()
	for b.Loop() {
		if r := l.Do(b.Context(), Call{Caller: alice, Endpoint: Create, Operation: opStep, Params: telemetry.NewPlaintext(raw)}); !r.Success {
			b.Fatal(r.Error)
		}
		l.principals["alice"].shared.steps = 0
	}
}

// BenchmarkStepOnDisk has the store and the audit in files, as a supervisor has.
func BenchmarkStepOnDisk(b *testing.B) {
	dir := b.TempDir()
	db := onDisk(b, dir)
	chain, err := audit.Open(filepath.Join(dir, "audit"), audit.NodeChain, audit.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = chain.Close() }()
	l := newBench(b, func(s *Settings) { s.MaxSteps, s.Store, s.Record = 10000, db, chained{chain} })
	raw := params(pElement, "a", pHint, "auto calling read_file on /workspace/notes.txt")
	for b.Loop() {
		if r := l.Do(b.Context(), Call{Caller: alice, Endpoint: Create, Operation: opStep, Params: telemetry.NewPlaintext(raw)}); !r.Success {
			b.Fatal(r.Error)
		}
		l.principals["alice"].shared.steps = 0
	}
}

type chained struct{ log *audit.Log }

func (o chained) Record(_ context.Context, _ string, r audit.Record) error {
	_, err := o.log.Append(r)
	return err
}

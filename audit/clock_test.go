// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"path/filepath"
	"testing"
	"time"
)

// H-25 (THREATS, clock jumps): a clock that is set back or forward between entries, or shows nonsense for a
// while, breaks no chain and loses nothing but the entries that can have no time; each entry has the time
// that its clock showed.
func TestH25ClockJumps(t *testing.T) {
	dir := t.TempDir()
	logs, now := filepath.Join(dir, "audit"), at
	key, _, err := LoadOrCreateKey(filepath.Join(dir, "keys"))
	noError(t, err)
	k := &Checkpoints{Dir: filepath.Join(dir, "checkpoints"), Key: key, Heads: &fakeHeads{heads: map[string]Head{}}, Now: func() time.Time { return now }}
	l, err := Open(logs, NodeChain, Options{Now: func() time.Time { return now }, RotateBytes: 1200})
	noError(t, err)
	defer l.Close()
	noError(t, k.Begin(logs, NodeChain))
	var want []time.Time
	for _, jump := range []struct {
		by      time.Duration
		refused bool
	}{
		{0, false}, {time.Hour, false}, {-24 * time.Hour, false}, {-time.Nanosecond, false}, {100 * 365 * 24 * time.Hour, false},
		{-200 * 365 * 24 * time.Hour, true}, // 1926
		{100 * 365 * 24 * time.Hour, false}, {0, false}, {-30 * time.Second, false}, {time.Second, false},
	} {
		now = now.Add(jump.by)
		_, err := l.AppendSync(&SandboxEnd{PlanDigest: Hash{1}, RunID: "r", State: "exited"})
		if (err != nil) != jump.refused {
			t.Fatalf("at %v: %v", now, err)
		}
		if err == nil {
			want = append(want, now)
		}
		if _, _, err := k.Write(logs, NodeChain); err != nil && !jump.refused {
			t.Fatalf("signed at %v: %v", now, err)
		}
	}
	note, err := ReadCheckpoint(k.Dir, NodeChain)
	noError(t, err)
	r, err := Verify(logs, NodeChain, VerifyOptions{Home: true, Checkpoints: [][]byte{note}, Key: key.Public()})
	if err != nil || !r.Valid || r.SignedSize != r.Entries || r.Losses > 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	if r.SetBack != 3 || !r.First.Equal(want[0]) || !r.Last.Equal(want[len(want)-1]) {
		t.Errorf("set back %d times, from %v to %v; want 3, %v, %v", r.SetBack, r.First, r.Last, want[0], want[len(want)-1])
	}
	reader, err := OpenReader(logs, NodeChain)
	noError(t, err)
	defer reader.Close()
	var got []time.Time
	for {
		line, err := reader.Next()
		if err != nil {
			break
		}
		if line.Entry.Kind == "sandbox_end" {
			got = append(got, line.Entry.Time)
		}
	}
	for i := range want {
		if i >= len(got) || !got[i].Equal(want[i]) {
			t.Fatalf("entry %d: got %v, want the clock's own %v", i, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// fakeHeads remembers in memory, and fails when told.
type fakeHeads struct {
	heads map[string]Head
	fail  error
}

func (f *fakeHeads) Head(chain string) (Head, bool, error) {
	h, ok := f.heads[chain]
	return h, ok, nil
}

func (f *fakeHeads) Keep(chain string, h Head, anew bool) error {
	if f.fail != nil {
		return f.fail
	}
	if old, ok := f.heads[chain]; !ok || old.Size < h.Size || anew {
		f.heads[chain] = h
	}
	return nil
}

// H-26: whatever moment the machine stops in while a chain is signed for the first and for the second time,
// the chain is sound before and after, and signed again without a loss on record.
func TestH26CrashWhileSigning(t *testing.T) {
	stop := errors.New("the machine stops here")
	for _, c := range []struct {
		name  string
		crash func(t *testing.T, k *Checkpoints, logs string, f *fakeHeads)
	}{
		{"before the end is on record", func(t *testing.T, k *Checkpoints, logs string, _ *fakeHeads) {
			noError(t, k.Begin(logs, NodeChain))
		}},
		{"before the note is stored", func(t *testing.T, k *Checkpoints, logs string, _ *fakeHeads) {
			noError(t, k.Begin(logs, NodeChain))
			appendAll(t, logs, &SandboxEnd{PlanDigest: Hash{1}, RunID: "r", State: "exited"})
		}},
		{"before the state has it", func(t *testing.T, k *Checkpoints, logs string, f *fakeHeads) {
			noError(t, k.Begin(logs, NodeChain))
			appendAll(t, logs, &SandboxEnd{PlanDigest: Hash{1}, RunID: "r", State: "exited"})
			f.fail = stop
			if _, _, err := k.Write(logs, NodeChain); !errors.Is(err, stop) {
				t.Fatalf("got %v, want what the state says", err)
			}
			f.fail = nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			logs, f := filepath.Join(dir, "audit"), &fakeHeads{heads: map[string]Head{}}
			key, _, err := LoadOrCreateKey(filepath.Join(dir, "keys"))
			noError(t, err)
			k := &Checkpoints{Dir: filepath.Join(dir, "checkpoints"), Key: key, Heads: f}
			sound := func() {
				t.Helper()
				opt := VerifyOptions{Home: true, Key: key.Public()}
				if h, known, _ := f.Head(NodeChain); known {
					opt.Remembered = &h
				}
				if signed, err := ReadCheckpoint(k.Dir, NodeChain); err == nil {
					opt.Checkpoints = [][]byte{signed}
				}
				if r, err := Verify(logs, NodeChain, opt); err != nil || !r.Valid || r.Losses > 0 {
					t.Errorf("got %+v, %v, want a sound chain", r.Problem, err)
				}
			}
			appendAll(t, logs, &Key{Event: "trusted", KeyID: "k", PublicKey: "p", Purpose: "sre_witness"})
			for range 2 {
				c.crash(t, k, logs, f)
				sound()
				if _, _, err := k.Write(logs, NodeChain); err != nil {
					t.Fatal(err)
				}
				sound()
			}
		})
	}
}

// Begin must not make a removed note look like one that is still to come.
func TestH26BeginDoesNotForgive(t *testing.T) {
	dir := t.TempDir()
	logs, f := filepath.Join(dir, "audit"), &fakeHeads{heads: map[string]Head{}}
	appendAll(t, logs, &SandboxEnd{PlanDigest: Hash{1}, RunID: "r", State: "exited"})
	k := &Checkpoints{Dir: filepath.Join(dir, "checkpoints"), Heads: f}
	noError(t, k.Begin(logs, NodeChain))
	if _, known, _ := f.Head(NodeChain); known {
		t.Error("the state says that the first signature is still to come")
	}
	key, _, err := LoadOrCreateKey(filepath.Join(dir, "keys"))
	noError(t, err)
	k.Key = key
	if _, c, err := k.Write(logs, NodeChain); err != nil || c.Size != 2 {
		t.Errorf("got %d entries signed, %v, want 2: the loss is on record", c.Size, err)
	}
	// Without anybody who remembers, it is as it was: a note that isn't missed.
	if err := os.RemoveAll(k.Dir); err != nil {
		t.Fatal(err)
	}
	k.Heads = nil
	if _, c, err := k.Write(logs, NodeChain); err != nil || c.Size != 2 {
		t.Errorf("got %d entries signed, %v, want 2", c.Size, err)
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func appendAll(t *testing.T, logs string, records ...Record) {
	t.Helper()
	l, err := Open(logs, NodeChain, Options{})
	noError(t, err)
	for _, r := range records {
		_, err := l.AppendSync(r)
		noError(t, err)
	}
	noError(t, l.Close())
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"agentrun/audit"
	"agentrun/audit/heads"
)

// H-28: while nothing can be written nothing is recorded, and so no step goes on. A dongle that lived through
// a full disk decides again when there is room.
func TestH28DongleGoesOnAfterAFullDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := newRecorder(dir)
	defer r.Close()
	add := func() error {
		return r.Record(t.Context(), "", &audit.KillOrder{AgentID: "planner-1", Reason: "manual", Trigger: "operator"})
	}
	if err := add(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, auditDir, audit.NodeChain, "*.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v, want one file", files, err)
	}
	st, err := os.Stat(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	full := unix.Rlimit{Cur: uint64(st.Size()) + 100, Max: before.Max} //nolint:gosec // a size
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &full); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := add(); !errors.Is(err, unix.EFBIG) {
			t.Errorf("no room: got %v, want EFBIG", err)
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err := add(); err != nil {
		t.Errorf("there is room again: %v", err)
	}
}

// H-26 (A-M9): a dongle's chains are missed too: the loss of a session's note is on record before that chain
// is signed again, and one that was put back is not.
func TestH26DongleMissesItsCheckpoints(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	chain := audit.SessionChain("s")
	work := func() error {
		r := newRecorder(dir)
		for _, session := range []string{"", "s"} {
			if err := r.Record(t.Context(), session, &audit.SafetyOperation{AgentID: "a", Code: "ok", Operation: "x"}); err != nil {
				t.Fatal(err)
			}
		}
		return r.Close()
	}
	losses := func() int {
		t.Helper()
		h, known, err := heads.State{Dir: dir}.Head(chain)
		if err != nil || !known {
			t.Fatalf("%v, %v: the state knows nothing of the chain", known, err)
		}
		report, err := audit.Verify(filepath.Join(dir, auditDir), chain, audit.VerifyOptions{Remembered: &h})
		if err != nil || report.Problem != nil && report.Problem.Code != audit.Unsigned { // no note is given here
			t.Fatalf("%+v, %v", report, err)
		}
		return report.Losses
	}
	if err := work(); err != nil || losses() != 0 {
		t.Fatalf("%v, %d losses", err, losses())
	}
	note, log := filepath.Join(dir, checkpointsDir, chain), filepath.Join(dir, auditDir, chain, "000001.jsonl")
	early, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	earlyNote, err := os.ReadFile(note)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(note); err != nil {
		t.Fatal(err)
	}
	if err := work(); err != nil || losses() != 1 {
		t.Errorf("the note removed: %v, %d losses, want 1", err, losses())
	}
	for name, content := range map[string][]byte{log: early, note: earlyNote} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := work(); err == nil {
		t.Error("log and note put back: signed again")
	} else if _, broken := errors.AsType[*audit.BrokenError](err); !broken {
		t.Errorf("got %v, want that the chain is broken", err)
	}
}

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
)

// H-28: while nothing can be written nothing is recorded, and so no step goes on. A dongle that lived through a full disk decides again
// when there is room.
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

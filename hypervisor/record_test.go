// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/audit"
)

// H-28: while nothing can be written nothing is recorded, and so nothing granted. When there is room again a run that was there all
// the time goes on: its record did not break for good.
func TestH28RecordGoesOnAfterAFullDisk(t *testing.T) {
	n := newNode(t)
	add := func(durable bool) error {
		return n.record("", durable, &audit.KillOrder{AgentID: "planner-1", Reason: "manual", Trigger: "operator"})
	}
	if err := add(true); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(n.dir, auditDir, audit.NodeChain, "*.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v, want one file", files, err)
	}
	st, err := os.Stat(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, durable := range []bool{true, false} {
		// A few bytes of the next line still find room.
		lift := fillUp(t, uint64(st.Size())+100) //nolint:gosec // a size
		for range 3 {
			if err := add(durable); !errors.Is(err, unix.EFBIG) {
				t.Errorf("durable %v, no room: got %v, want EFBIG", durable, err)
			}
		}
		lift()
		if err := add(durable); err != nil {
			t.Errorf("durable %v, there is room again: %v", durable, err)
		}
		if st, err = os.Stat(files[0]); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"kill_order", "repair", "kill_order", "repair", "kill_order"}, n.log(audit.NodeChain)); diff != "" {
		t.Errorf("the chain (-want +got):\n%s", diff)
	}
}

// fillUp has no file of this process grow beyond a size, until it is lifted.
func fillUp(t *testing.T, size uint64) (lift func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(unix.SIGXFSZ)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: size, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
			t.Fatal(err)
		}
		signal.Reset(unix.SIGXFSZ)
	}
}

// H-28: what isn't on record is not on the disk either.
func TestH28NothingIsSettledBeforeItsStart(t *testing.T) {
	if err := (&watch{}).Settled(); err == nil {
		t.Error("a start that was never recorded is on the disk")
	}
}

// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/audit"
	"agentrun/internal/fault"
)

// H-26: what hypervisors of one process have written is signed at the latest when their signer closes, and at once after that.
func TestH26SignerSignsForAll(t *testing.T) {
	n := newNode(t)
	opt := Options{StateDir: n.dir, Now: func() time.Time { return n.now }}
	s := NewSigner(opt, func(err error) { t.Error(err) })
	opt.Signer = s
	signed := func() (size, entries uint64) {
		t.Helper()
		text, err := audit.ReadCheckpoint(filepath.Join(n.dir, checkpointsDir), audit.NodeChain)
		if err != nil {
			t.Fatal(err)
		}
		key, _, err := audit.LoadOrCreateKey(filepath.Join(n.dir, keysDir))
		if err != nil {
			t.Fatal(err)
		}
		c, err := audit.OpenCheckpoint(text, key.Public())
		if err != nil {
			t.Fatal(err)
		}
		rep, err := audit.Verify(filepath.Join(n.dir, auditDir), audit.NodeChain, audit.VerifyOptions{Checkpoints: [][]byte{text}, Key: key.Public()})
		if err != nil || rep.Problem != nil {
			t.Fatal(rep.Problem, err)
		}
		return uint64(c.Size), uint64(rep.Entries)
	}
	write := func(agent string) {
		t.Helper()
		h, err := Open(opt)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := h.SetScore(t.Context(), agent, 0.5, false, "uid:0"); err != nil {
			t.Fatal(err)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write("a")
	write("b")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	first, entries := signed()
	if first != entries || first < 2 {
		t.Errorf("%d of %d entries are signed", first, entries)
	}
	write("c")
	if size, entries := signed(); size != entries || size <= first {
		t.Errorf("after the end of the signer %d of %d entries are signed, %d before", size, entries, first)
	}
}

// H-26: what can't be signed, as there is no room for it, is signed with what comes next, or at the end.
func TestH26SignerTriesAgain(t *testing.T) {
	n := newNode(t)
	opt := Options{StateDir: n.dir, Now: func() time.Time { return n.now }}
	s := NewSigner(opt, func(error) {})
	opt.Signer = s
	undo := fault.Set("audit/checkpoint=ENOSPC")
	defer undo()
	h, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.SetScore(t.Context(), "a", 0.5, false, "uid:0"); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.sign(); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("got %v", err)
	}
	undo()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := audit.ReadCheckpoint(filepath.Join(n.dir, checkpointsDir), audit.NodeChain); err != nil {
		t.Error("it was never signed: ", err)
	}
}

// H-28: what a hypervisor left to its signer is closed, and by that on the disk, in time: an entry is 50 ms old at most when it is left.
func TestH28SignerClosesLogsInTime(t *testing.T) {
	n := newNode(t)
	synctest.Test(t, func(t *testing.T) {
		opt := Options{StateDir: n.dir, Now: func() time.Time { return n.now }}
		s := NewSigner(opt, func(err error) { t.Error(err) })
		opt.Signer = s
		var logs []*audit.Log
		for _, agent := range []string{"a", "b"} {
			h, err := Open(opt)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := h.SetScore(t.Context(), agent, 0.5, false, "uid:0"); err != nil {
				t.Fatal(err)
			}
			for _, l := range h.logs {
				logs = append(logs, l)
			}
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(45 * time.Millisecond)
		synctest.Wait()
		if len(logs) != 2 {
			t.Fatalf("%d logs", len(logs))
		}
		for _, l := range logs {
			if err := l.Sync(); !errors.Is(err, audit.ErrClosed) {
				t.Errorf("after 45 ms: %v, want %v", err, audit.ErrClosed)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

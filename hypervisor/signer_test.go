// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"path/filepath"
	"testing"
	"time"

	"agentrun/audit"
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
		if _, _, err := h.SetScore(t.Context(), agent, 0.5, false); err != nil {
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

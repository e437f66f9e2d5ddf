// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"os"
	"path/filepath"
	"testing"

	"agentrun/audit"
)

func TestH26HeadsAreRemembered(t *testing.T) {
	s := State{Dir: filepath.Join(t.TempDir(), "state")}
	if _, known, err := s.Head("node"); known || err != nil {
		t.Fatalf("of nothing: %v, %v", known, err)
	}
	if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
		t.Errorf("got %v: a node is given a state for being asked", err)
	}
	at := func(n int64, b byte) audit.Head { return audit.Head{Size: n, Hash: audit.Hash{b}} }
	for _, c := range []struct {
		name string
		keep audit.Head
		anew bool
		want audit.Head
	}{
		{"not signed yet", at(0, 0), false, at(0, 0)},
		{"first", at(3, 1), false, at(3, 1)},
		{"later", at(9, 2), false, at(9, 2)},
		{"the slower of two", at(5, 3), false, at(9, 2)},
		{"the same size", at(9, 4), false, at(9, 2)},
		{"not signed yet, too late", at(0, 0), false, at(9, 2)},
		{"accepted", at(4, 5), true, at(4, 5)},
	} {
		if err := s.Keep("node", c.keep, c.anew); err != nil {
			t.Fatal(err)
		}
		if got, known, err := s.Head("node"); got != c.want || !known || err != nil {
			t.Errorf("%s: got %v, %v, %v, want %v", c.name, got, known, err, c.want)
		}
	}
	if err := s.Keep("session-s", audit.Head{}, false); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Signed(); err != nil || len(got) != 1 || got[0] != "node" {
		t.Errorf("signed: %v, %v, want node alone", got, err)
	}
}

// A state that can't be read must not pass for one that remembers nothing.
func TestH26HeadsFailClosed(t *testing.T) {
	s := State{Dir: t.TempDir()}
	if err := os.Chmod(s.Dir, 0o700); err != nil { //nolint:gosec // a folder
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Dir, "state.db"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Head("node"); err == nil {
		t.Error("a damaged state remembers nothing")
	}
	if _, err := s.Signed(); err == nil {
		t.Error("a damaged state lists nothing")
	}
	if err := s.Keep("node", audit.Head{Size: 1}, false); err == nil {
		t.Error("a damaged state takes something")
	}
}

// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"agentrun/audit"
	"agentrun/store"
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

// Of two slots the newer counts; one that was cut in the middle leaves the other, and both of them nothing at all.
func TestH26HeadsOutliveATornWrite(t *testing.T) {
	s := State{Dir: filepath.Join(t.TempDir(), "state")}
	file := filepath.Join(s.Dir, folder, "node")
	for n := range int64(5) {
		if err := s.Keep("node", audit.Head{Size: n + 1, Hash: audit.Hash{byte(n)}}, false); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(file)
	if err != nil || len(whole) != 2*slotSize {
		t.Fatalf("%d bytes, %v", len(whole), err)
	}
	tear := func(slots ...int) {
		torn := slices.Clone(whole)
		for _, at := range slots {
			clear(torn[at*slotSize+20 : at*slotSize+40])
		}
		if err := os.WriteFile(file, torn, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		torn []int
		want int64
	}{{nil, 5}, {[]int{1}, 4}, {[]int{0}, 5}} {
		tear(c.torn...)
		if h, known, err := s.Head("node"); h.Size != c.want || !known || err != nil {
			t.Errorf("torn %v: got %+v, %v, %v, want %d", c.torn, h, known, err, c.want)
		}
		if err := s.Keep("node", audit.Head{Size: 9}, false); err != nil {
			t.Error(err)
		}
		if h, _, err := s.Head("node"); h.Size != 9 || err != nil {
			t.Errorf("torn %v: kept, got %+v, %v", c.torn, h, err)
		}
	}
	tear(0, 1)
	if _, _, err := s.Head("node"); err == nil {
		t.Error("a file without a whole slot remembers nothing")
	}
	if err := s.Keep("node", audit.Head{Size: 9}, true); err == nil {
		t.Error("a file without a whole slot takes something")
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, known, err := s.Head("node"); known || err != nil {
		t.Errorf("of the first write nothing was on disk: %v, %v", known, err)
	}
	if err := os.WriteFile(filepath.Join(s.Dir, folder, "other"), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Head("other"); err == nil {
		t.Error("the file of another chain is believed")
	}
}

// What the state's database remembers counts until a chain is signed again.
func TestH26HeadsOfTheDatabase(t *testing.T) {
	s := State{Dir: filepath.Join(t.TempDir(), "state")}
	db, err := store.Open(s.Dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(t.Context(), func(tx *store.Tx) error {
		return errors.Join(store.PutJSON(tx.Bucket(bucket), "node", head{7, audit.Hash{1}.String()}), store.PutJSON(tx.Bucket(bucket), "session-s", head{3, audit.Hash{2}.String()}))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ keep, want int64 }{{0, 7}, {5, 7}, {8, 8}} {
		if err := s.Keep("node", audit.Head{Size: c.keep}, false); err != nil {
			t.Fatal(err)
		}
		if h, known, err := s.Head("node"); h.Size != c.want || !known || err != nil {
			t.Errorf("kept %d: got %+v, %v, %v, want %d", c.keep, h, known, err, c.want)
		}
	}
	if got, err := s.Signed(); err != nil || len(got) != 2 {
		t.Errorf("signed: %v, %v", got, err)
	}
}

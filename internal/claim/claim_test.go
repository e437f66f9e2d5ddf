// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Those who share keep out whoever takes, and the other way round.
func TestShare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	one, err := Share(path)
	if err != nil {
		t.Fatal(err)
	}
	two, err := Share(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{one, two} {
		if _, err := Take(path); !errors.Is(err, ErrBusy) || !Held(path) {
			t.Errorf("got %v, held %v", err, Held(path))
		}
		f.Close()
	}
	mine, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	if _, err := Share(path); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
}

func TestClaim(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if Held(path) {
		t.Error("nobody has it yet")
	}
	mine, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Take(path); !errors.Is(err, ErrBusy) || !Held(path) {
		t.Errorf("a second claim: %v, held: %v", err, Held(path))
	}
	// Who had waited for it finds that it was removed.
	old, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	os.Remove(path)
	if err := still(old); !errors.Is(err, ErrBusy) {
		t.Errorf("a removed one: %v", err)
	}
	mine.Close()
	if Held(path) {
		t.Error("held by nobody")
	}
	if _, err := Take(filepath.Join(path, "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
}

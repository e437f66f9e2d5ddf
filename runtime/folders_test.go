// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"os"
	"testing"
)

// Looked at by processor time, not by the clock; folders are told from files, and a thread's shared table counts once.
func TestFoldersAreLookedAtByProcessorTime(t *testing.T) {
	var l tooManyFolders
	us := func() ([]int, error) { return []int{os.Getpid()}, nil }
	if why, err := l.look(folderLook-1, us); why != "" || err != nil || l.seen != 0 {
		t.Errorf("looked too early: %q, %v, %+v", why, err, l)
	}
	if why, err := l.look(folderLook, us); why != "" || err != nil || l.seen != folderLook {
		t.Errorf("didn't look: %q, %v, %+v", why, err, l)
	}
	tables := tablesOf(os.Getpid())
	if len(tables) != 1 {
		t.Fatalf("tables %q, want one", tables)
	}
	all, before := descriptorsIn(tables[0]), foldersIn(tables[0], 100)
	for range 3 {
		f, err := os.Open("/")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	if a, n := descriptorsIn(tables[0]), foldersIn(tables[0], 100); a < all+3 || n != before+3 {
		t.Errorf("%d descriptors and %d folders, want %d and %d", a, n, all+3, before+3)
	}
}

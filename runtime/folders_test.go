// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
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

// What is on its way through a socket is counted where it waits, and only overlays that can be written are told from other mounts.
func TestFoldersOfOverlays(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	tables, st := tablesOf(os.Getpid()), unix.Stat_t{}
	_, before := mergedIn(tables[0], nil)
	if err := unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(0, 1, 2), nil, 0); err != nil {
		t.Fatal(err)
	}
	if n := sentThrough(fmt.Sprintf("%sinfo/%d", tables[0], pair[1])); n != 3 {
		t.Errorf("%d descriptors wait in the socket, want 3", n)
	}
	if n, b := mergedIn(tables[0], nil); n < 3 || b-before != 3*8<<20 {
		t.Errorf("they count as %d folders of %d bytes, want 3 or more of 24 MiB", n, b-before)
	}
	dir := t.TempDir()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	here := map[string]bool{fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)): true}
	if n, b := mergedIn(tables[0], here); n < 4 || b-before < 25<<20 {
		t.Errorf("with an open folder they count as %d folders of %d bytes, want 4 or more of 25 MiB", n, b-before)
	}
}

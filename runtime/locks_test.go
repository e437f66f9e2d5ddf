// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The kernel's list, with locks that wait, locks of nobody and lines of another form.
func TestRecordLocks(t *testing.T) {
	const list = `1: POSIX  ADVISORY  WRITE 17 00:2a:11 0 EOF
1: -> POSIX  ADVISORY  WRITE 17 00:2a:11 0 EOF
2: FLOCK  ADVISORY  WRITE 18 00:2a:12 0 EOF
3: OFDLCK ADVISORY  WRITE -1 00:2a:13 0 EOF
4: LEASE  ACTIVE    READ  17 00:2a:14 0 EOF
5: POSIX  ADVISORY  READ  x 00:2a:14 0 EOF

6: POSIX
`
	asked := map[string]int{}
	n, err := recordLocks(strings.NewReader(list), func(pid string) bool { asked[pid]++; return pid == "17" })
	if n != 3 || err != nil || len(asked) != 2 || asked["17"] != 1 {
		t.Errorf("got %d, %v, asked of %v", n, err, asked)
	}
	var many strings.Builder
	for i := range 3 * mostLocks {
		fmt.Fprintf(&many, "%d: POSIX  ADVISORY  WRITE 17 00:2a:11 %d %d\n", i, i, i)
	}
	if n, err := recordLocks(strings.NewReader(many.String()), func(string) bool { return true }); n != mostLocks+1 || err != nil {
		t.Errorf("got %d, %v, want it to stop past the limit", n, err)
	}
}

// Looked at by processor time, not by the clock: an idle run costs nothing.
func TestLocksAreLookedAtByProcessorTime(t *testing.T) {
	var l tooManyLocks
	if why, err := l.look(lockLook-1, os.Getpid()); why != "" || err != nil || l.space != "" {
		t.Errorf("looked too early: %q, %v, %+v", why, err, l)
	}
	if why, err := l.look(lockLook, os.Getpid()); why != "" || err != nil || l.space == "" || l.seen != lockLook {
		t.Errorf("didn't look: %q, %v, %+v", why, err, l)
	}
}

func FuzzRecordLocks(f *testing.F) {
	f.Add("1: POSIX  ADVISORY  WRITE 17 00:2a:11 0 EOF\n1: -> POSIX  ADVISORY  WRITE 17 00:2a:11 0 EOF\n")
	f.Fuzz(func(t *testing.T, list string) {
		n, _ := recordLocks(strings.NewReader(list), func(string) bool { return true })
		if n > strings.Count(list, "\n")+1 || n > mostLocks+1 {
			t.Fatalf("%d locks in %d lines", n, strings.Count(list, "\n")+1)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"agentrun/internal/fault"
)

// H-25: a rotation that fails between its two halves is the log's end, and the next opener goes on with a chain that is whole.
func TestFaultAtRotation(t *testing.T) {
	for name, errno := range map[string]unix.Errno{"EIO": unix.EIO, "ENOSPC": unix.ENOSPC, "EINTR": unix.EINTR} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := openLog(t, dir, Options{RotateBytes: 600})
			undo := fault.Set("audit/rotate=" + name)
			var err error
			acknowledged := 0
			for range 10 {
				if _, err = l.Append(someRecord()); err != nil {
					break
				}
				acknowledged++
			}
			undo()
			if !errors.Is(err, errno) {
				t.Fatalf("got %v, want %v at the first rotation", err, errno)
			}
			if _, again := l.Append(someRecord()); again == nil {
				t.Error("the log takes entries after it has failed")
			}
			l = openLog(t, dir, Options{RotateBytes: 600})
			appendN(t, l, 10)
			if r, err := Verify(dir, NodeChain, VerifyOptions{}); err != nil || r.Problem != nil {
				t.Errorf("verify: %v, %+v", err, r)
			}
			if n := len(readAll(t, dir)); n < acknowledged+10 {
				t.Errorf("%d entries, %d and 10 were acknowledged", n, acknowledged)
			}
		})
	}
}

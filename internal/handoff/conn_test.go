// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"os"
	"testing"
)

func connOf(t *testing.T, fd int) *Conn {
	t.Helper()
	return &Conn{fd: fd, PID: os.Getpid()}
}

func openFDs(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

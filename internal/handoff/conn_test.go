// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"net"
	"os"
	"testing"
)

func connOf(t *testing.T, fd int) *Conn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "pair")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return &Conn{u: c.(*net.UnixConn), PID: os.Getpid()}
}

func openFDs(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

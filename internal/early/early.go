// SPDX-License-Identifier: Apache-2.0

// Package early is what a program does before its Go runtime begins, in C without libc (c/early.c): it enters a user namespace where package
// rootless wants one, and hands an exec over to the daemon (package handoff). A program has it by importing this package and by being linked
// with -E agentrun_entry, as make build does, which compiles the C to assembly before (build.sh); without, nothing happens early and nothing is said.
//
//	if why := early.Declined(); why != "" { … } // the daemon was there and did not want this run
//
// It gives no rights: what it does, whoever starts the program can do.
package early

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// said is what C has left, as in early.c.
var said struct {
	declined   [1024]byte
	buildID    [128]byte
	buildIDLen int32
	asked      int32
	failed     int32
	cgroup     int32
}

// Declined tells why the daemon did not take this command over; empty: none was asked, or none listens.
func Declined() string {
	text, _, _ := bytes.Cut(said.declined[:], []byte{0})
	return string(text)
}

// BuildID names this program as the go command does; empty if it was linked without.
func BuildID() string { return string(said.buildID[:said.buildIDLen]) }

// Unshared tells what became of the unshare(2) that _AGENTRUN_UNSHARE asks for, and whether it made a cgroup namespace too; asked is false if
// there was none.
func Unshared() (asked, cgroup bool, err error) {
	if said.failed != 0 {
		err = unix.Errno(said.failed) //nolint:gosec // an error number
	}
	return said.asked != 0, said.cgroup != 0, err
}

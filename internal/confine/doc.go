// SPDX-License-Identifier: Apache-2.0

// Package confine gives up, for good and for every thread of the process, what the gateway doesn't need when it begins to
// read what a hostile agent sends (THREATS, tool proxy).
//
// Guarantees. After Drop returned nil, no thread has a capability in any set or can get one; user and group are the given
// ones and no others; no core dump, no debugger; a file can be opened only beneath the paths named (Landlock); no program
// started, no process made, no memory made executable, no socket but TCP and UDP over IP made, no port bound; every system
// call that a Go server doesn't need is refused by number (seccomp), and a call of another architecture kills. Verify shows
// it from inside, by trying.
//
//	err := confine.Drop(confine.Options{UID: uid, GID: uid, Read: []string{policies}, Write: []string{logs}})
//	if err == nil {
//		err = confine.Verify(confine.Options{…}) // the same
//	}
//	if err != nil {
//		os.Exit(1) // not a byte was read yet
//	}
//
// Unpack is the same for agentrun-image, which writes trees that strangers have packed, and keeps its user.
//
// Errors name the step and the system call. A kernel without Landlock is one, unless BestEffort is set. There is no way
// back and no second try: after an error the process has lost some of its rights and must end.
//
// What it does not protect against. Descriptors that are open already stay usable, whatever they are: close what isn't
// needed. Memory keeps the secrets that were read. The network stays: dialling it is the gateway's work, and which
// addresses are good is toolproxy/egress' decision. Files that are replaced by a rename (/etc/resolv.conf by a DHCP client)
// can't be opened again: a rule of Landlock holds for the file, not the name. Bugs of the kernel in what is left.
//
// It fails closed: the zero Options are refused, so is a binary with cgo, whose threads Go can't reach
// (syscall.AllThreadsSyscall). Should a thread differ from the others afterwards, the Go runtime ends the process.
package confine

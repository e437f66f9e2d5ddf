// SPDX-License-Identifier: Apache-2.0

// Package handoff lets `agentrun exec` be carried out by the daemon as if it ran alone: the client passes its arguments, environment,
// working directory, input and output over <run-dir>/control/exec.handoff, forwards its signals, and ends with the exit code it is told.
//
//	l, err := handoff.Listen("/run/agentrun/control")
//	c, err := l.Accept()
//	err = c.Receive(5 * time.Second) // c.Request, c.Stdin, …
//	code := carryOut(c)
//	c.Exit(code)
//
// The client is C that runs before the Go runtime does (package early). It goes on alone when nobody listens, when who listens is neither root
// nor the caller, when the daemon declines, and when it closes the connection with a part of the request unread.
//
// Guarantees. A Conn is of a peer that runs as root or as the daemon's user, as the kernel says (SO_PEERCRED), and never as an agent's
// (uids from 0x70000000). A request is bounded (2 MiB), whole, and checked before anybody sees it. Same says whether the caller sees the
// same host: namespaces, root and working directory. Hear tells of a caller that is gone.
//
// Errors. Receive: a request that is malformed, too large or too slow. What it does not protect against: root, and the daemon's own
// user. It fails closed: what is not understood is not carried out, and a client whose daemon dies ends with 125.
package handoff

// SPDX-License-Identifier: Apache-2.0

// Package stub holds what makes a sandbox and is pid 1 of it (c/init.c, a freestanding static program) and the supervisor's
// side of the conversation with it.
//
// The conversation, over two unix stream sockets:
//
//	stub  → control: [forked (what goes on, in the run's cgroup)]
//	super → control: what the sandbox is made of
//	stub  → control: apart: it is in the namespaces
//	super → control: 'G': its ids are mapped
//	stub  → control: forked (pid 1); hello (from pid 1, in its root, without rights)
//	super → control: confinement + stdin, stdout, stderr, child socket
//	stub  → control: [pty master]  started (from pid 1: the number of a descriptor that keeps its filter)
//	child → child:   listener (the numbers of its seccomp notification descriptor, and of a Landlock ruleset that it enters later)
//	super → child:   'G': it has fetched the descriptors (pidfd_getfd(2))
//	child → child:   ready: it has closed its listener
//	super → child:   command, at once or hours later; or nothing ever
//	child → child:   end of file at a successful execve, or failed{step, errno}
//	stub  → control: exited{wait status}; not of an exit with 0, which is its own
//
// A command that joins has a control socket of its own, and another beginning:
//
//	super → control: what the sandbox is made of, when it is in the run's cgroup
//	stub  → control: forked (what becomes the command); hello (from that, in the sandbox, without rights)
//
// and then the same from the confinement on, to the end of file; nobody says exited.
//
// Errors of the child keep their step and errno: Failure unwraps to the unix.Errno.
//
// What it does not protect against: everything the stub enforces, the child does to itself before
// any code of the agent runs; the supervisor checks the result from outside (see runtime).
package stub

import _ "embed"

// Image is the program to put into the root view; build.sh makes it from c/init.c.
//
//go:embed stub.bin
var Image []byte

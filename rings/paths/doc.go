// SPDX-License-Identifier: Apache-2.0

// Package paths decides whether a path belongs to a session (H-30), on the real file system or on a description of one.
//
// Each session's files are in the folder BASE/SESSION-ID. A path belongs to a session if it is absolute, has no ".."
// component, lies beneath that folder component by component, and still does when the kernel has resolved its
// symlinks, none of which may lead out of the folder: not even out and back in, nor to an absolute target. Everything
// else is denied, with a code that says why: so are sessions without folder and whatever can't be looked at.
//
//	c, err := paths.Open("/var/lib/agentrun/sessions")
//	defer c.Close()
//	target, d := c.Resolve("session-1", "/var/lib/agentrun/sessions/session-1/notes/today")
//	if !d.Allowed() { return d }
//	defer target.Close()
//	// read through /proc/self/fd/N of target.File, or create target.Missing beneath it
//
// A yes is good for what was looked at, not for its name: an agent may swap a folder for a symlink right after. So Resolve
// returns the very file it judged, as an O_PATH descriptor; who opens the name again has checked nothing. Allowed is for
// telling, not for opening.
//
// Model answers the same questions without a file system, for `agentrun conform` and for explaining.
//
// Errors: Open returns those of the operating system. Decisions are never errors.
//
// What this does not protect against: a hard link or a bind mount within the folder to what is outside (agents can make
// neither: the mounts of their sandbox hold them, and those, not this package, are what confines a live process); a base
// whose parent folders or session folders an agent may rename or create.
//
// It fails closed: a kernel without openat2(2) (before 5.6, or hidden by a filter) denies everything, as does a tree
// that is moved about faster than it can be resolved.
package paths

// SPDX-License-Identifier: Apache-2.0

// Package fsjail builds what a sandbox can see of the file system.
//
// A root view is a list of entries (directories, links, small files, binds, tmpfs, overlays), put
// together on a tmpfs skeleton in a mount namespace of its own. It guarantees:
//
//   - nothing is mounted in the host's namespace, so the supervisor's death leaves no mount behind (M-5);
//   - no mount follows a symbolic link of somebody else: sources are opened with RESOLVE_NO_SYMLINKS,
//     targets component by component with O_NOFOLLOW, and mounts are placed by descriptor
//     (CVE-2021-30465, CVE-2019-19921);
//   - nothing is ever created in a host directory: mount points only come into being on the skeleton;
//   - every mount is nosuid, and nodev unless it is one of the device nodes the view names.
//
// Use, on a thread that may be thrown away:
//
//	goruntime.LockOSThread()
//	err := fsjail.Isolate()
//	root, err := fsjail.Build("/run/agentrun/sandboxes/x/fs", entries, fsjail.IDs{UID: u, GID: g})
//
// Errors name the entry's target and the operation and unwrap to the errno. A host that lacks a
// feature (idmapped mounts on a file system, overlay) is an error; nothing weaker is used instead.
//
// What it does not protect against: what a shown directory contains. A unix socket in a workspace can
// be connected to; a symbolic link that the agent leaves in its workspace is the reader's problem.
package fsjail

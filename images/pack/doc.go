// SPDX-License-Identifier: Apache-2.0

// Package pack writes an image of what is on the disk: layers, and an OCI layout around them (agentrun commit).
//
//	l, err := pack.NewLayout(dir)
//	base, err := l.Layer(func(to io.Writer) error { … pack.New(to, limits).Whole(root) … })
//	change, err := l.Layer(func(to io.Writer) error { … pack.New(to, limits).Changes("usr", before, now) … })
//	err = l.Finish("tools:8", config, base, change)
//
// Guarantees. What is read may be an agent's, and nothing of it is followed: each folder and file is opened by its own name in an open
// folder (openat2(2), RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS). No set-ID bits, devices, pipes, sockets or extended attributes are written, and
// no name that a reader would take for a deletion. Content, files and depth are bounded before anything is read: a sparse file is refused by
// the size that it says it has. The same folders make the same layer.
//
// Errors. ErrLimit: larger than Limits. All others are the system's. What was written by then is no layer.
//
// It does not see changes of a file whose inode was last changed (ctime) at the same nanosecond, with the same mode and size, as the one of
// before. Nobody can set that time. Whoever calls sees to it that nobody writes in the folders meanwhile.
package pack

// SPDX-License-Identifier: Apache-2.0

// Package unpack writes the layers of an image, which anybody may have made, into one folder that nobody else writes.
//
//	t, err := unpack.Open(dir, unpack.DefaultLimits(), true)
//	err = t.Apply(layer) // each one, the lowest first; a tar, plain or by gzip or zstd
//	counts, err := t.Done()
//
// Where the lowest layers are in an image that is here, Over says so before the next one is applied, and Delta afterwards what they do to
// that image; package based joins the two.
//
// What it guarantees. Nothing outside of the folder is written, read, linked or removed: each folder on a way is opened by
// openat2(2) with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS, and what is done is done to one name in it. No file has a set-ID bit, a
// capability or another extended attribute than user.*; there are no devices and no pipes. What a layer takes of disk, files,
// depth and time is bounded by Limits, and so is how much comes of a compressed byte.
//
// Errors. *HostileError is an entry that no image needs, by its name and layer; ErrLimit is one of Limits. All others are the
// system's, or say that the archive is damaged. After an error the folder is to be thrown away.
//
// What it does not protect against: what the files do when somebody runs them, which is what a sandbox is for; a file system
// that is full before a limit is reached. Owners are those of the archive where asked for, so the folder has to be where
// their namesakes on the host don't get.
//
// It fails closed: what it doesn't know is refused.
package unpack

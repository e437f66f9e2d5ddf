// SPDX-License-Identifier: Apache-2.0

// Package based completes an image of which only the upper layers were unpacked, by an image that is here and has the lower ones.
//
//	missing, err := based.Complete(ctx, root, f.Root(base), delta, true)
//
// What it guarantees. Nothing of the base is written or changed, but the number of its files' links and with it their time of change: its
// files get second names, and folders are made anew. Nothing outside of root is written, linked or removed, whatever is in the two folders
// and in the delta: each way is resolved by openat2(2) beneath them, without links. What comes of it is what unpacking all layers into one
// folder would have made.
//
// Where a file can't have another name (another file system, too many links, none at all), it is copied.
//
// Errors. *HostileError is what package unpack refuses, and could not see. After an error root is to be thrown away.
//
// What it does not protect against: a base whose files somebody has changed, and others that write one of the two meanwhile. Both belong in
// folders that nobody else gets at.
package based

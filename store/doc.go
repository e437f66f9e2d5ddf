// SPDX-License-Identifier: Apache-2.0

// Package store keeps agentrun's small state (agents, sessions, nonces, sagas) in one file, for many short-lived
// processes at once and without a daemon.
//
// It guarantees: a transaction whose Update returned nil survives SIGKILL and power loss; one that returned an error from
// its own function left nothing; nobody sees half of one. Transactions run one at a time over all processes. Whoever
// waits is woken by the kernel, and a lock dies with its process.
//
//	db, err := store.Open("/var/lib/agentrun", store.Options{})
//	err = db.Update(ctx, func(tx *store.Tx) error {
//		return store.PutJSON(tx.Bucket("agents"), "planner", agent)
//	})
//
// Errors: *CorruptError is a damaged file and names the way out; *UnsafeError a folder or file whose owner, mode or kind
// lets others change the state; ErrBusy a lock that wasn't free in time; ErrSchema a file of a newer agentrun;
// ErrLimit a key or value over the limits; ErrDecode a record that isn't what this version writes. An error of Update
// that comes from the disk (full, broken) leaves open whether the transaction happened: read again before acting on it.
//
// It does not protect against root, nor against damage inside a page that still looks well-formed: pages carry no
// checksums, only strict decoding stands behind them. It is not for large data: the audit has its own files.
//
// It fails closed. A damaged, empty, foreign or newer file is an error for every transaction and is never set aside or
// begun anew by itself: the file says who is quarantined, and an empty one would say nobody.
package store

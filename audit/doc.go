// SPDX-License-Identifier: Apache-2.0

// Package audit keeps chains of records on disk that can't be changed unnoticed: one for each session and one for the node
// (H-25 to H-28). It says what was decided and done, in a form that any program can check.
//
// Guarantees. An entry whose Append returned is in the file and survives the end of the process; one whose AppendSync
// returned, and every one before it, survives the end of the machine. Any number of goroutines and processes append to one
// chain; the kernel keeps them apart by a lock that dies with its holder. A writer killed in the middle of a line leaves
// bytes that the next one accounts for with an entry; they are never taken away. Verify finds every edited, missing,
// inserted, reordered or duplicated entry and names the first; with a checkpoint it also finds a missing end and a
// chain written anew.
//
//	log, err := audit.Open(filepath.Join(state, "audit"), audit.NodeChain, audit.Options{})
//	...
//	if _, err := log.AppendSync(&audit.KillOrder{AgentID: id, Reason: "manual", Trigger: "operator"}); err != nil {
//		return err // don't act: H-28
//	}
//	report, err := audit.Verify(dir, audit.NodeChain, audit.VerifyOptions{Checkpoints: notes, Key: key})
//
// An entry is one line, the canonical JSON of RFC 8785. Its hash is SHA-256 over the line without the member hash; the
// previous entry's hash is part of the content. docs/audit.md has the format and a verifier in a dozen lines of Python.
//
// Errors. A record that can't be written exactly (a NaN is a Number of its own, but integers over 2^53-1, text that is not
// UTF-8 or too long, a digest or a ring nobody filled in) is refused by itself; the log goes on. Once a write or a sync
// fails, the log refuses everything until it is reopened (ErrBroken). A chain whose end was changed by somebody isn't
// written to at all (*DamagedError). Verify has two kinds of answers: a Problem (the chain is broken, and where) and an
// error (it couldn't be checked).
//
// What it does not protect against. Root on this machine can write a chain anew; only a checkpoint that was copied
// elsewhere before tells. Entries after the last checkpoint can be cut off without a trace. The signing key lies on the
// same machine: who takes it can sign. Times are the machine's clock. Nothing is encrypted. That a record is true is the
// writer's business.
//
// It fails closed: the zero Kind, Ring, Hash and time are refused, a lock that can't be taken is waited for, and an error
// of Append means that nothing may be granted on the strength of the record.
package audit

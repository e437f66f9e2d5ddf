// SPDX-License-Identifier: Apache-2.0

// Package builtin has the tools that need nothing of the outside (M-11, categories A and B): math, text, memory,
// embeddings, calendar and task, and a session's context.get, context.put, context.list and file. They run inside the gateway, which is unprivileged.
//
// Guarantees. Each tool opens no file but time zones, starts no process, connects to nothing (embeddings asks the Embedder
// it is given; file asks the supervisor). Arguments are bounded, and so is the work they make: no expression, pattern or range keeps a tool busy
// beyond its time limit by more than a fraction of a second. Outputs longer than the call's limit are an error, never cut.
// The memory keeps summaries and embeddings, never raw messages (M-14).
//
//	for _, d := range builtin.Definitions(builtin.Options{Clock: time.Now}) {
//		registry.Add(d)
//	}
//	// math {"expression":"6*7"} → 42
//
// Errors are *gate.Error: bad_arguments with a sentence about what to write instead, too_large, tool_timeout, not_found,
// quota_exceeded when a memory or a task list is full, unavailable when a store can't be asked.
//
// The ring (H-6). What reads is read-only and may be used in ring 3. memory's put and delete, context.put, file's write and delete and task's create, update and
// complete change something that outlives the call, or the run, or that others read: they need ring 2. An operator who sees it
// otherwise says read_only: true of the tool in gateway.yaml.
//
// The context tools are there where the run belongs to a session. They obey its consistency mode (H-32); the memory of a session's runs
// doesn't: its items are their authors' alone to replace, so no two writers ever meet.
//
// What it does not protect against. A summary is text that an agent wrote: what looks like a transcript is refused, but
// nothing here can tell a faithful summary from a message in other words, nor an instruction to its next reader. Vectors
// of the local embedder are made of words and say nothing of meaning: it is there for tests and for runs without a model.
// math is floating point (IEEE 754, 64 bits): integers are exact up to 2^53, the rest has about 15 digits.
//
// It fails closed: what isn't known, too long, not finite or out of range is refused.
package builtin

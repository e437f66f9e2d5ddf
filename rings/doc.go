// SPDX-License-Identifier: Apache-2.0

// Package rings decides what an agent may do: the pure policy of docs/requirements/hypervisor.md (H-1 to H-17, H-21 to
// H-24, H-29 to H-32). It starts no process, opens no file and keeps nothing on disk: what it answers, others enforce and
// record. Only the sub-package paths opens files.
//
// Without state: Assign and ShouldDemote turn a trust score into a ring, Action and Classify say which ring an action
// requires, Check decides on it, ConstraintsOf and ResourceAllowed say what a ring may use, and CheckAgentID and its
// likes what may be a name. With state, and each safe for concurrent use, bounded in memory and given its clock:
// Elevations (rings on loan), Draw (token buckets), Attempts (the window of a breach), QuarantineEntry, KillSwitch (handlers, compensations,
// hand-off), Session, and Shared, what a session's participants share.
//
//	action, err := rings.DecodeAction(unsafeText)
//	if err != nil {
//		return err // *read.InvalidError: every bad field
//	}
//	base, _ := rings.Assign(score, consensus) // with an error it is Sandbox
//	live := elevations.Effective(base)
//	decision := rings.Check(live, score, consensus, action).Decision()
//	return record(decision) // then act on it
//
// # Answers and errors
//
// A refusal is a Decision, or a result that has one: a Code that never changes its meaning, a sentence for people, and the
// requirement that decided. An error says that a question could not be understood or that an act did not take place; it
// Is one of the Err… values, or is a *read.InvalidError, with the path of each bad field.
//
// # How it fails
//
// Closed. The zero value of every type refuses: NoRing is no ring, Deny is the first verdict. NaN, the infinities, unknown
// words, null, what is too long and what is too much are refused, or count as the least privilege. A table that is full
// refuses newcomers and hands nobody anything. A clock that jumps ahead ends loans early; one that is set back gives none
// back.
//
// # What it does not protect against
//
// Anything, by itself: despite the name these are not the rings of a processor. An agent that doesn't ask is held by the
// mounts, filters, namespaces and cgroups that the runtime sets up. The package believes the scores, the consensus and the
// names that it is told; who may say them is decided before. Two answers are two moments: whoever checks and then acts must
// let a change of the ring reach what acts (live control). And it writes no audit record: its caller does, before the
// answer takes effect (H-28).
package rings

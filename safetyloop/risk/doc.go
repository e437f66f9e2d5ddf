// SPDX-License-Identifier: Apache-2.0

// Package risk scores what a hint says an agent is about to do: 0 for nothing, 100 for what can't be taken
// back (S-7).
//
//	a := risk.Assess("executing shell command: sudo rm -rf /var/lib/app", risk.Env{Workspace: "/work"})
//	a.Score, a.Tier // 100, danger_zone
//	for _, f := range a.Factors { … } // what was found, and what each added
//
// Guarantees. The score is a pure function of the hint and the environment. It is the sum of its factors, at
// most 100, and the factors are those of Catalogue. Nothing a hint says lowers it: there is no factor with
// negative points, so a word such as "safely" or "dry run" buys nothing. Look-alikes and what can't be seen
// are folded first. A shell command is read by a shell parser and by its words as well, and the worse of the
// two counts: what one of them is made blind for, the other reads. The whole hint is read; time and memory
// are linear in its length. It never panics: a panic of the parser counts as a command that can't be read,
// which is at least the verify tier. There are no errors.
//
// It doesn't know whether a hint is true. An agent that says it reads and then deletes is held by what
// enforces the sandbox, or by require_intent, and never by a score. It knows English, shell commands, SQL and
// names of operations; what it can't make sense of is Vague, which is at least the confirm tier. It isn't a
// parser of prose: a sentence about deleting scores like one that deletes.
package risk

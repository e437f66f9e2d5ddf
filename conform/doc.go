// SPDX-License-Identifier: Apache-2.0

// Package conform answers cases of the hypervisor's conformance suite: JSON Lines in, one answer a line out, in order. So anyone can
// check this implementation against cases written in any language, and hold another to ours (rings/testdata/*.jsonl).
//
//	{"id":1,"op":"assign","in":{"eff_score":0.97,"has_consensus":true}}
//	{"id":1,"out":{"ring":1}}
//	{"id":2,"op":"assign","in":{"eff_score":"NaN","has_consensus":true}}
//	{"id":2,"error":{"code":"invalid_score","message":"assign: score NaN: a score is a number from 0 to 1"}}
//
// Guarantees: each line that isn't blank gets exactly one answer, in its place, whatever stands in it; a bad one never keeps the next
// from being answered. The answers come from the packages that agentrun itself decides with, there is no second copy of any rule here.
// Memory is bounded by MaxLine. docs/conformance.md has every operation, its fields and its error codes.
//
//	err := conform.Run(os.Stdin, os.Stdout)
//	result, err := conform.Check(cases, os.Stdout) // compares with the "want" of each case
//
// Errors: Run's error is one of reading or writing. What is wrong with a case is in its answer, with a Code.
//
// What it does not protect against: nothing is contained, enforced or stored here. Time is part of the cases, sagas run in memory, a
// kill kills nothing. It says what would be decided, not that anybody obeys.
//
// It fails closed: a number that is null, "NaN", infinite or no ring gives the refusal that the rule has for it, or an error where
// the answer would be a value to rely on. Whatever else is not exactly as documented (a type, a missing, unknown or doubled field) is
// an error, as is a panic.
package conform

// SPDX-License-Identifier: Apache-2.0

// Package boundary keeps instructions and data apart (M-16), plaintext from confidential teams' agents (M-15), and a model's
// chain of thought from everybody (M-17). It reads bytes and answers; it opens nothing and keeps nothing between calls.
//
// What it guarantees:
//
//   - Marker.Wrap puts text between delimiters that carry a nonce. Text can neither close them nor open
//     others: what looks like a delimiter, like a chat template's token or like a speaker's name at the start of a line is
//     written with a look-alike that no tokenizer folds back; what can't be seen (zero width, direction marks, tag
//     characters, terminal escapes) is made visible. Escape(Escape(x)) == Escape(x).
//   - Inspect names what is suspicious, by rules in rules.json, in text that is normalised first. Names are stable.
//   - Filter.Reply gives JSON in which no reasoning field, and in confidential mode no field that bears plaintext, is left.
//   - Stripper and Redactor give the same text however a stream is cut into pieces.
//
// An example:
//
//	m, err := boundary.NewMarker(rand.Reader)
//	prompt, flags := m.Wrap(boundary.FromTool, unsafeOutput)
//	system := operatorsText + "\n" + m.Instruction()
//	…
//	output, more, err := boundary.Reply(caller.Mode, toolOutput)
//
// Errors: JSON that can't be read as one text with one meaning (names twice, broken UTF-8, nested deeper than 64) wraps
// ErrJSON and gives no output. Errors have nothing of the text in them.
//
// What it does not protect against. A model that obeys data all the same: delimiters make injection harder, not impossible,
// and rules know the usual wordings only; that is why the ring, the policy and the egress hold whatever a model was talked
// into (M-16). Plaintext in a field that is called otherwise and looks like an identifier, in a summary, or in the numbers
// of an embedding. Reasoning that a model writes as its answer, without tags. An opening tag that a chat template has put
// before the reply can't be seen: say so (NewStripper).
//
// How it fails. Closed: a mode that isn't "public" is confidential, an unknown string in confidential mode goes, a reasoning
// tag that isn't closed hides all that follows. All work is linear in the input (RE2, no backtracking), nothing is compiled
// before the first use.
package boundary

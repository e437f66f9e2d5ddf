// SPDX-License-Identifier: Apache-2.0

// Package read reads what others write for agentrun, strictly, and tells everything that is wrong with it:
// files of YAML, by their own lines, and requests of JSON.
//
//	n := read.YAML(read.Source{File: path, Max: 1 << 20}, text) // or read.JSON
//	var c Config
//	n.Into(&c)
//	return c, n.Done(c.check()) // gateway.yaml:13: llm.providrs: unknown key; did you mean providers?
//
// Guarantees. A key that is unknown, missing or given twice, a value of another type, a second document, an
// anchor, alias or tag, a text that is too large or too deep, is a problem with its line and path; nothing
// of it is used. The traps of YAML are closed: yes is no bool, 0600 no number, ~ no value, 10 no text. So
// are those of JSON, in which encoding/json takes NAME for name, the last of two values, null for anything
// and U+FFFD for half a character: what is taken here, it takes too, and finds the same in it. Whoever reads
// a part of a file is given its node, so lines stay those of the file. Checks that come after add their own
// by path; what only follows from a problem isn't told again.
//
// Fields of structs are named by their yaml tag, or else by their json tag; read:"required" says that one
// must be there, any other words of that tag say so and why. A type that implements encoding.TextUnmarshaler
// reads a text or, of YAML, a number; one that implements json.Unmarshaler reads its JSON; one that
// implements Reader reads its node. A *Node, or a json.RawMessage, keeps a part for later.
//
// A request of the control socket takes 36 allocations (BenchmarkDecodeBody), an action 64
// (BenchmarkDecodeAction). What is asked thousands of times a second, a tool call's arguments and a model's
// stream, makes no nodes: github.com/go-json-experiment/json reads it, as strictly. Exactly is for what our
// own programs wrote; State reads a file of that kind, and Replace writes one, whole or not.
//
// It does not protect against values that make no sense: that is what the checks are for. It fails by an
// *InvalidError.
package read

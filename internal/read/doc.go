// SPDX-License-Identifier: Apache-2.0

// Package read reads what people write for agentrun, strictly, and tells everything that is wrong with it by the file's own
// lines.
//
//	n := read.YAML(read.Source{File: path, Max: 1 << 20}, text)
//	var c Config
//	n.Into(&c)
//	return c, n.Done(c.check()) // gateway.yaml:13: llm.providrs: unknown key; did you mean providers?
//
// Guarantees. A key that is unknown or given twice, a value of another type, a second document, an anchor, alias or tag, a text
// that is too large or too deep, is a problem with its line and path; nothing of it is used. The traps of YAML are closed: yes
// is no bool, 0600 no number, ~ no value, 10 no text. Whoever reads a part of a file is given its node, so lines stay those of
// the file. Checks that come after add their own by path; what only follows from a problem isn't told again.
//
// Fields of structs are named by their yaml tag, or else by their json tag. A type that implements encoding.TextUnmarshaler
// reads a text or a whole number, one that implements Reader reads its node. A *Node keeps a part for later.
//
// It does not protect against values that make no sense: that is what the checks are for. It fails by an *InvalidError.
package read

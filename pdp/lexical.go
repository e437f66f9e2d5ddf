// SPDX-License-Identifier: Apache-2.0

package pdp

// Bounds of policy files, far above what people write. The parser, the type checker and the evaluator of the library descend
// by recursion without a bound of their own, and a Go stack that overflows ends the process, with all its sandboxes; no
// recover helps. An operator's generator gone wrong, or half a disk in a file, must not do that.
const (
	MaxPolicyFile = 256 << 10 // bytes
	MaxPolicyText = 16 << 10  // bytes of one policy, so of one expression
	MaxNesting    = 64        // brackets within brackets
	MaxFiles      = 1000
	MaxPolicies   = 10_000
)

// measure looks only for brackets, strings, comments and semicolons, and returns the line where a bound is broken. What isn't
// valid otherwise is the parser's to find.
func measure(text string) (line int, wrong string) {
	if len(text) > MaxPolicyFile {
		return 1, "the file is longer than 256 KiB"
	}
	line = 1
	depth, start := 0, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\n':
			line++
		case '"':
			i = endOfString(text, i)
		case '/':
			i = endOfComment(text, i)
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		case ';':
			start = i
		}
		if depth > MaxNesting {
			return line, "brackets are nested deeper than 64"
		}
		if i-start > MaxPolicyText {
			return line, "a policy is longer than 16 KiB"
		}
	}
	return 0, ""
}

// endOfString returns the index of the quote that ends the string beginning at i. Line breaks within it aren't counted: only
// the position of an error is off, and the language has none in strings.
func endOfString(text string, i int) int {
	for i++; i < len(text) && text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i
}

// endOfComment returns the last index before the line break; i itself where no comment begins.
func endOfComment(text string, i int) int {
	if i+1 >= len(text) || text[i+1] != '/' {
		return i
	}
	for i+1 < len(text) && text[i+1] != '\n' {
		i++
	}
	return i
}

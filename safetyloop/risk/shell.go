// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"fmt"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Bounds of what the parser is given. It recurses for each opening bracket and each operator that binds to
// the right, and a goroutine's stack that is full can't be recovered from; a hint that needs more than this
// isn't read, and counts as unreadable.
const (
	maxNesting   = 100
	maxOperators = 2000
	maxParses    = 16
)

// shell parses text as a shell would, and judges its commands. Prose is a command with odd arguments, which
// does no harm; prose that isn't one (it's, a bracket) is tried again from where a command is likely to
// begin.
func (f *finder) shell(text string, depth int) {
	if tooComplex(text) {
		f.add(shellUnreadable, "more nested or chained than is parsed")
		return
	}
	if f.parse(text, depth) {
		return
	}
	parsed := false
	for _, part := range snippets(text) {
		parsed = f.parse(part, depth) || parsed
	}
	if !parsed && evasive(text) {
		f.add(shellUnreadable, "can't be parsed, and has expansions")
	}
}

func tooComplex(text string) bool {
	openers, operators, depth, deepest := 0, 0, 0, 0
	arithmetic := strings.Contains(text, "((") || strings.Contains(text, "$[") || strings.Contains(text, "let ")
	for i := range len(text) {
		switch text[i] {
		case '(', '{', '[':
			openers++
			if depth++; depth > deepest {
				deepest = depth
			}
		case ')', '}', ']':
			depth = max(0, depth-1)
		case '`':
			openers++
		case '|', '&', ';', '!', '<', '\n', '$', '~', '-', '+', '*', '?', ':':
			operators++
		case ',', '=', '%', '/', '^':
			if arithmetic {
				operators++
			}
		}
	}
	if deepest > maxNesting || openers > 4*maxNesting {
		return true
	}
	return operators > maxOperators && strings.ContainsAny(text, "|&(`!<") || keywords(text) > maxNesting
}

// keywords counts the words that open a compound command, wherever they stand.
func keywords(text string) int {
	n := 0
	for _, w := range [...]string{"if", "while", "until", "for", "case", "select", "then", "time", "coproc", "function", "do"} {
		n += strings.Count(text, w+" ") + strings.Count(text, w+"\n")
	}
	if !strings.ContainsAny(text, ";\n") {
		return 0
	}
	return n
}

// snippets are the parts of prose that may be a command: what follows a colon, what stands in backquotes,
// what follows "run".
func snippets(text string) []string {
	var out []string
	for rest := text; len(out) < maxParses/2; {
		_, after, ok := strings.Cut(rest, ": ")
		if !ok {
			break
		}
		out = append(out, after)
		rest = after
	}
	for i, span := range strings.Split(text, "`") {
		if i%2 == 1 && len(out) < maxParses-4 {
			out = append(out, span)
		}
	}
	for _, marker := range [...]string{"run ", "running ", "execute ", "executing "} {
		if _, after, ok := strings.Cut(text, marker); ok {
			out = append(out, after)
		}
	}
	return out
}

// evasive tells whether a text that can't be parsed has what only a parser can read.
func evasive(text string) bool {
	for _, s := range [...]string{"$'", "${", "$(", "\\x", "<<<", "$\"", "eval "} {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// parse judges text if it is a program. A panic of the parser refuses it: what couldn't be read may be
// anything.
func (f *finder) parse(text string, depth int) (ok bool) {
	if f.budget -= len(text); f.budget < 0 {
		f.add(shellUnreadable, "more code than is read")
		return true
	}
	defer func() {
		if p := recover(); p != nil {
			f.add(shellUnreadable, fmt.Sprintf("the parser gave up: %v", p))
			ok = true
		}
	}()
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		return false
	}
	w := walker{f: f, depth: depth}
	w.statements(file.Stmts)
	return true
}

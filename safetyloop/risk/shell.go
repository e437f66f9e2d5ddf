// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

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

// tooComplex tells whether a text might take the parser more stack or time than there is. It must be sure
// without parsing, so it counts characters wherever they stand, in quotes and words as well: a text that is
// refused without need is held for verification, one that is parsed without bound ends the process and with
// it everybody's blocks.
//
// deepest bounds the stack by brackets; openers bound what is closed and opened again; operators and keywords
// bound what binds to the right without any bracket. Within arithmetic more signs are operators than
// elsewhere.
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
// what follows "run". Some of them hold others, so their number is bounded; the words of all of them have
// been judged as words already, and what is looked for here is what only the parser can put together.
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

// evasive tells whether a text that can't be parsed has what only a parser can read. Prose hardly ever has
// it: a sentence that isn't a program is judged by its words, and one with these signs in it is held, because
// its words may not be what would run.
func evasive(text string) bool {
	for _, s := range [...]string{"$'", "${", "$(", "\\x", "<<<", "$\"", "eval "} {
		if strings.Contains(text, s) {
			return true
		}
	}
	return named().MatchString(text)
}

// named is a variable that a command may be named by, in a function or loop that only parses without the words before it. A sum
// of dollars is none.
var named = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`[;&|{\n]([^;&|\n]*\$["A-Za-z_@*]|\s*((do|then|else|exec|env|!)\s+)*["\w\\]*\$\d)`)
})

// parse judges text if it is a program, and tells whether it was. A panic of the parser refuses the text:
// what couldn't be read may be anything. So does a budget that is spent, and both count as read, or the
// caller would go on with pieces of the same text.
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
	w := walker{f: f, depth: depth, args: depth > 0}
	w.statements(file.Stmts)
	return true
}

// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"encoding/base64"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDepth is how deep code within code is read: sh -c within sh -c, text within base64.
const maxDepth = 8

// text judges a text, which may hold others: commands in quotes, encoded ones. Each of them comes back here
// with a greater depth.
//
// Both bounds are needed. The depth ends texts that hold themselves; the budget, which all readings of a hint
// share, ends those that hold many: without it, eight levels of eight parts would be read sixteen million
// times. What is over either isn't left out in silence, it is a command that can't be read. A comment is
// taken out in two ways, because DROP/**/TABLE is two words to a database and r/**/m is one to a careless
// filter; the second reading must not rename the operation that the first found.
func (f *finder) text(text string, depth int) {
	if strings.TrimSpace(text) == "" {
		return
	}
	if f.budget -= len(text); f.budget < 0 || depth > maxDepth {
		f.add(shellUnreadable, "code within code within code")
		return
	}
	f.read(tokenize(text), depth)
	if spaced, closed := uncomment(text); spaced != "" {
		f.read(tokenize(spaced), depth)
		name := f.operation
		f.read(tokenize(closed), depth)
		f.operation = name
	}
	if fork(text) {
		f.add(forkBomb, "a function that pipes into itself")
		f.act(verbRun, "fork")
		f.aim("machine")
	}
	f.shell(text, depth)
}

// read judges the same words four times over: as prose, as SQL, as commands between separators, and what they
// encode. None of them knows of the others. What one is made blind for by a trick (a quote that isn't closed,
// a comment within a word) another still reads, and the worst counts.
func (f *finder) read(tokens []token, depth int) {
	f.prose(tokens)
	f.sql(tokens)
	f.segments(tokens)
	for _, t := range tokens {
		if inner := decoded(t.text); inner != "" {
			f.add(disguised, "base64 of: "+inner)
			f.text(inner, depth+1)
		}
	}
}

// fork takes :(){ :|:& };: with any name and spacing. The name is looked for backwards from its brackets, in
// pieces that get shorter, since what stands before it may be a word of prose; 32 bytes of it are enough, and
// keep the work linear.
func fork(text string) bool {
	squeezed := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text)
	for {
		name, rest, ok := strings.Cut(squeezed, "(){")
		if !ok {
			return false
		}
		if i := strings.LastIndexAny(name, ";&|(){}"); i >= 0 {
			name = name[i+1:]
		}
		name = name[max(0, len(name)-32):]
		for n := name; n != ""; n = n[1:] {
			if strings.HasPrefix(rest, n+"|"+n+"&") {
				return true
			}
		}
		squeezed = rest
	}
}

// minEncoded is the shortest run that is decoded: 9 bytes of text. Names of functions that happen to decode
// don't read as text.
const minEncoded = 12

// decoded is the text that a run of base64 holds, if it does: if all of it prints, and if it has a
// space or a line end. A name of a function, a digest or a key in base64 hardly ever decodes to that; a
// command without any argument would be missed, and harms little. Both alphabets of base64 are taken.
func decoded(s string) string {
	s = strings.TrimRight(s, "=")
	if len(s) < minEncoded || strings.ContainsFunc(s, func(r rune) bool {
		return r >= utf8.RuneSelf || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '+' && r != '/' && r != '-' && r != '_'
	}) {
		return ""
	}
	std := strings.NewReplacer("-", "+", "_", "/").Replace(s)
	b, err := base64.RawStdEncoding.DecodeString(std)
	if err != nil {
		return ""
	}
	spaces := 0
	for _, c := range b {
		if c == ' ' || c == '\n' {
			spaces++
		} else if c < ' ' || c > '~' {
			return ""
		}
	}
	if spaces == 0 {
		return ""
	}
	return string(b)
}

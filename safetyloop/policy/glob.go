// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// glob is a pattern cut at its stars. A * is any text, also none and also across words; a ? is one character.
type glob struct {
	pieces     []string
	head, tail bool // it begins, ends with a star
}

func newGlob(s string) glob {
	g := glob{head: strings.HasPrefix(s, "*"), tail: strings.HasSuffix(s, "*")}
	for _, piece := range strings.Split(s, "*") {
		if piece != "" {
			g.pieces = append(g.pieces, piece)
		}
	}
	return g
}

// within tells whether text holds the pattern as words: where it has no star, it must begin and end where a word does.
func (g glob) within(text string) bool {
	if len(g.pieces) == 0 {
		return g.head
	}
	at, last := 0, len(g.pieces)-1
	for i, piece := range g.pieces {
		begin, end := find(text, piece, at, i == 0 && !g.head, i == last && !g.tail)
		if begin < 0 {
			return false
		}
		at = end
	}
	return true
}

// find is the first place of piece from at on, that begins and ends with a word if asked to. The first place is as good as any:
// whatever must follow can follow a later one only if it can follow this.
func find(text, piece string, at int, wordBegins, wordEnds bool) (begin, end int) {
	for {
		begin, end = index(text, piece, at)
		if begin < 0 {
			return -1, -1
		}
		if (!wordBegins || edge(text, begin)) && (!wordEnds || edge(text, end)) {
			return begin, end
		}
		_, n := utf8.DecodeRuneInString(text[begin:])
		at = begin + n
	}
}

// edge tells whether a word could begin or end at i: not between two letters or digits.
func edge(text string, i int) bool {
	a, _ := utf8.DecodeLastRuneInString(text[:i])
	b, _ := utf8.DecodeRuneInString(text[i:])
	return !alnum(a) || !alnum(b) || i == 0 || i == len(text)
}

func alnum(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// index is strings.Index with ? for any character.
func index(text, piece string, from int) (begin, end int) {
	literal, _, any := strings.Cut(piece, "?")
	for i := from; i < len(text); {
		if literal != "" {
			n := strings.Index(text[i:], literal)
			if n < 0 {
				break
			}
			if i += n; !any {
				return i, i + len(literal)
			}
		}
		if n, ok := prefix(text[i:], piece); ok {
			return i, i + n
		}
		_, n := utf8.DecodeRuneInString(text[i:])
		i += n
	}
	return -1, -1
}

// prefix is the length of what piece matches at the start of text.
func prefix(text, piece string) (int, bool) {
	n := 0
	for i := 0; i < len(piece); {
		want, size := utf8.DecodeRuneInString(piece[i:])
		got, taken := utf8.DecodeRuneInString(text[n:])
		if taken == 0 || want != '?' && want != got {
			return 0, false
		}
		i, n = i+size, n+taken
	}
	return n, true
}

// whole tells whether the pattern is all of text.
func (g glob) whole(text string) bool {
	if len(g.pieces) == 0 {
		return g.head || text == ""
	}
	pieces := g.pieces
	if !g.head {
		n, ok := prefix(text, pieces[0])
		if !ok {
			return false
		}
		text, pieces = text[n:], pieces[1:]
	}
	if len(pieces) == 0 {
		return g.tail || text == ""
	}
	last := pieces[len(pieces)-1]
	if !g.tail {
		pieces = pieces[:len(pieces)-1]
	}
	at := 0
	for _, piece := range pieces {
		if _, at = index(text, piece, at); at < 0 {
			return false
		}
	}
	if g.tail {
		return true
	}
	// The last piece must end the text: count its characters from there.
	rest := text[at:]
	for n := utf8.RuneCountInString(rest) - utf8.RuneCountInString(last); n > 0; n-- {
		_, size := utf8.DecodeRuneInString(rest)
		rest = rest[size:]
	}
	n, ok := prefix(rest, last)
	return ok && n == len(rest)
}

// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"agentrun/internal/fold"
)

// A name that looks like a role's is one to a model, whatever its letters are called: a tag or a speaker's name that is written
// with the Cyrillic ѕ or in circled letters passed as text while only width and case were folded (M-16).

// wordSet holds words by their key.
type wordSet map[string]bool

// wordsOf reads the list at the first use.
func wordsOf(list string) func() wordSet {
	return sync.OnceValue(func() wordSet {
		set := wordSet{}
		for _, w := range strings.Fields(list) {
			set[key(w)] = true
		}
		return set
	})
}

// has reads the word as it stands, and with its case dropped first: capital Η looks like H, small η like n.
func (s wordSet) has(word string) bool {
	if s[key(word)] {
		return true
	}
	lower := strings.ToLower(word)
	return lower != word && s[key(lower)]
}

// leetBytes is how long a name is at least that is also found with digits for letters (syst3m). Shorter ones are honest
// words: T001 is no tool, and Al is no AI.
const leetBytes = 6

func key(word string) string {
	folded := fold.String(word)
	if len(folded) < leetBytes {
		return folded
	}
	return fold.Skeleton(folded)
}

// maxName is longer than any name that is looked for. Accents and strokes don't count: a letter can carry any number of them.
const maxName = 32

// name is what s begins with that may be a name: letters, digits, _ and -, in whatever form they are drawn.
func name(s string) string {
	letters := 0
	for i, r := range s {
		if !ofName(r) {
			return s[:i]
		}
		if unicode.IsMark(r) {
			continue
		}
		if letters++; letters > maxName {
			return s[:i]
		}
	}
	return s
}

// ofName leaves out what Escape replaces: a name goes out as it came.
func ofName(r rune) bool {
	switch {
	case r < utf8.RuneSelf:
		return wordByte(r)
	case r == utf8.RuneError || sign(r) != r || Invisible(r):
		return false
	case unicode.IsLetter(r) || unicode.IsMark(r):
		return true
	case unicode.IsSpace(r) || unicode.Is(unicode.Pd, r):
		return false
	}
	f := fold.String(string(r)) // circled letters, wide low lines
	return f != "" && strings.IndexFunc(f, func(r rune) bool { return !wordByte(r) }) < 0
}

func wordByte(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-'
}

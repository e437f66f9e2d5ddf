// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"agentrun/internal/fold"
)

// views are the readings of a text that rules are held against. A wording can be hidden by width, case,
// accents, spaces between letters, invisible characters and letters of other scripts; none of that changes
// what a model reads in it.
type views struct {
	text    string // folded, with its spaces and signs
	letters string // the skeleton's letters and digits only
	signs   string // the same with @, $, ! and | read as letters; "" if text has none of them
	lower   string // letters where case is dropped before the look-alikes, as in rules: З is like 3, з isn't; "" for ASCII
}

func view(s string) views {
	s, wide := shown(s)
	v := views{text: fold.String(s)}
	v.letters = fold.Skeleton(strings.Map(onlyLetters, v.text))
	if wide {
		v.lower = v.letters
		if l := strings.ToLower(s); l != s {
			v.lower = fold.Skeleton(strings.Map(onlyLetters, fold.String(l)))
		}
	}
	if strings.ContainsAny(v.text, "@$!|") {
		v.signs = strings.Map(onlyLetters, fold.Skeleton(v.text))
	}
	return v
}

// shown reads tag characters as the ASCII they shadow, where they stand: a model may. What Escape puts in for
// a bracket isn't one: text that was escaped before isn't suspicious for what was taken out of it. The answer
// tells whether s has more than ASCII.
func shown(s string) (string, bool) {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return strings.Map(func(r rune) rune {
				switch {
				case 0xe0020 <= r && r <= 0xe007e:
					return r - 0xe0000
				case r == angleOpen || r == angleClose:
					return ' '
				}
				return r
			}, s), true
		}
	}
	return s, false
}

func onlyLetters(r rune) rune {
	if r < utf8.RuneSelf {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return -1
	}
	if unicode.IsLetter(r) || unicode.IsDigit(r) {
		return r
	}
	return -1
}

// words are the literal letters of a pattern, or one escaped character.
var words = regexp.MustCompile(`\\.|[\pL\pM]+`)

// foldPattern brings the words of a pattern for letters into the form of the texts it is held against.
func foldPattern(p string) string {
	return words.ReplaceAllStringFunc(p, func(w string) string {
		if w[0] == '\\' {
			return w
		}
		return fold.Skeleton(fold.String(w))
	})
}

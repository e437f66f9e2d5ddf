// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// views are the readings of a text that rules are held against. A wording can be hidden by width, case, accents, spaces
// between letters, invisible characters and letters of other scripts; none of that changes what a model reads in it.
type views struct {
	text    string // compatibility forms, lower case, no marks, one space for any white space
	letters string // letters and digits of text only
	latin   string // letters with look-alikes of other scripts and digits read as Latin; "" if that is the same
	wide    bool   // text has characters beyond ASCII
}

func view(s string) views {
	v := views{text: fold(s)}
	v.letters = strings.Map(onlyLetters, v.text)
	if l := strings.Map(latin, v.text); l != v.letters {
		v.latin = l
	}
	for i := 0; i < len(v.text) && !v.wide; i++ {
		v.wide = v.text[i] >= utf8.RuneSelf
	}
	return v
}

// fold decomposes: an accent may be written into a letter or after it, and is dropped in both cases. Patterns of rules are
// folded the same way.
func fold(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	space := true
	for _, r := range norm.NFKD.String(visible(s)) {
		switch {
		case 'a' <= r && r <= 'z':
			b.WriteByte(byte(r))
			space = false
		case r >= utf8.RuneSelf && unicode.Is(unicode.Mn, r):
		case unicode.IsSpace(r):
			if !space {
				b.WriteByte(' ')
			}
			space = true
		default:
			b.WriteRune(unicode.ToLower(r))
			space = false
		}
	}
	return b.String()
}

// visible drops what can't be seen, and reads tag characters as the ASCII they shadow: a model may.
func visible(s string) string {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return strings.Map(func(r rune) rune {
				switch {
				case 0xe0020 <= r && r <= 0xe007e:
					return r - 0xe0000
				case Invisible(r):
					return -1
				}
				return r
			}, s)
		}
	}
	return s
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

func latin(r rune) rune {
	if 'a' <= r && r <= 'z' {
		return r
	}
	if r == ' ' {
		return -1
	}
	return lookAlike(sign(r))
}

func sign(r rune) rune {
	switch r {
	case '@':
		return 'a'
	case '$':
		return 's'
	case '!', '|':
		return 'i'
	}
	return onlyLetters(r)
}

const (
	alikes = "ааеосрхуіјѕһкмтвнгԁԛԝοαερτυικνχ013457"
	latins = "aaeocpxyijshkmtbhrdqwoaeptuiknxoieast"
)

// lookAlike reads Cyrillic and Greek letters, and digits, as the Latin letters they resemble.
func lookAlike(r rune) rune {
	if r < '0' || 'a' <= r && r <= 'z' {
		return r
	}
	i := 0
	for _, a := range alikes {
		if a == r {
			return rune(latins[i])
		}
		i++
	}
	return r
}

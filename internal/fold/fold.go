// SPDX-License-Identifier: Apache-2.0

package fold

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Reading is a text in the forms it is judged in. They differ in what else they keep.
type Reading struct {
	// Folded: compatibility forms, look-alikes as ASCII, lower case, without marks and what can't be seen, one space for white
	// space of any kind and length, none at the ends.
	Folded string
	// Split is Folded with an underscore where a capital begins a word within a name: deleteUser is delete_user.
	Split string
	// Clean keeps case, and lines: white space is a space or a line feed. It is what a shell would be given.
	Clean string
	// Shadow is what tag characters (U+E0020 to U+E007E) spell, which no screen shows and a model may read.
	Shadow string
	Hidden Hidden
}

// Hidden counts what a reader of the text can't see or takes for something else.
type Hidden struct {
	Invisible int // zero-width and format characters, controls and escapes, beside letters, digits or signs
	Bidi      int // characters that change the order of display
	Tags      int // tag characters
	Alike     int // words that mix ASCII letters with look-alikes of other scripts
	Styled    int // letters in a form of their own: mathematical, enclosed, full width, small capitals, turned
	Invalid   int // bytes that aren't UTF-8
}

// Any tells whether there is something that an honest text of prose or code has no use for.
func (h Hidden) Any() bool { return h != Hidden{} }

// String is Read(s).Folded.
func String(s string) string {
	if out, ok := plain(s); ok {
		return out
	}
	var b strings.Builder
	b.Grow(len(s))
	gap := false // white space is owed
	for i := 0; i < len(s); {
		if strings.HasPrefix(s[i:], "\x1b[") {
			i += escape(s[i:])
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		i += n
		for f := folded(r); f != ""; {
			if f[0] == ' ' {
				gap, f = true, f[1:]
				continue
			}
			if gap && b.Len() > 0 {
				b.WriteByte(' ')
			}
			end := strings.IndexByte(f, ' ')
			if end < 0 {
				end = len(f)
			}
			b.WriteString(f[:end])
			gap, f = false, f[end:]
		}
	}
	return b.String()
}

// plain is String for ASCII without controls, which is nearly every text.
func plain(s string) (string, bool) {
	same := true
	for i := range len(s) {
		c := s[i]
		if c >= utf8.RuneSelf || c < ' ' && (c < '\t' || c > '\r') || c == 0x7f {
			return "", false
		}
		if c < ' ' || 'A' <= c && c <= 'Z' || c == ' ' && (i == 0 || i == len(s)-1 || s[i-1] == ' ') {
			same = false
		}
	}
	if same {
		return s, true
	}
	return strings.ToLower(strings.Join(strings.Fields(s), " ")), true
}

// Read gives all forms of s.
func Read(s string) Reading {
	f := folder{}
	f.folded.Grow(len(s))
	f.clean.Grow(len(s))
	f.split = make([]byte, 0, len(s)+len(s)/8)
	visible := f.drop(s)
	if ascii(visible) {
		for i := range len(visible) {
			f.put(rune(visible[i]), false)
		}
		return f.reading()
	}
	f.decompose(visible)
	return f.reading()
}

// decompose feeds the NFKD form piece by piece: U+FDFA alone becomes 18 characters, and a whole text of it needn't be held
// twice.
func (f *folder) decompose(s string) {
	var it norm.Iter
	for it.InitString(norm.NFKD, s); !it.Done(); {
		at := it.Pos()
		piece := it.Next()
		first, _ := utf8.DecodeRuneInString(s[at:])
		styled := first >= utf8.RuneSelf && len(piece) > 0 && piece[0] < utf8.RuneSelf && !unicode.IsSpace(first) && style(first)
		for len(piece) > 0 {
			r, n := utf8.DecodeRune(piece)
			piece = piece[n:]
			if !unicode.Is(unicode.M, r) && !invisible(r) {
				f.put(r, styled)
			}
		}
	}
}

// style tells a letter or digit in another form from a plain one with an accent, a ligature, or a sign like ™.
func style(r rune) bool {
	return 0xff01 <= r && r <= 0xff5e || 0x1d400 <= r && r <= 0x1d7ff || 0x2460 <= r && r <= 0x24ff || 0x1f100 <= r && r <= 0x1f1ff ||
		0x2102 <= r && r <= 0x2149 && unicode.IsLetter(r)
}

// turnedForm takes letters that are used for their looks alone: phonetic and small capitals, turned, and in boxes. A pair of regional
// letters is a flag.
func turnedForm(r rune) bool {
	return (0x1d00 <= r && r <= 0x1d7f || 0x1f130 <= r && r <= 0x1f1e5) && lookAlike(r) != 0
}

// drop takes out what can't be seen, before characters are decomposed: what is left must not depend on how often it is done.
func (f *folder) drop(s string) string {
	if ascii(s) && !strings.ContainsFunc(s, control) {
		return s
	}
	var b, shadow strings.Builder
	b.Grow(len(s))
	seen := false // the last visible character is one that text is written with, not a picture
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			f.hidden.Invalid++
		}
		switch {
		case 0xe0000 <= r && r <= 0xe007f:
			f.hidden.Tags++
			if r >= 0xe0020 && r < 0xe007f {
				shadow.WriteByte(byte(r))
			}
		case bidi(r):
			f.hidden.Bidi++
		case r == 0x1b && i+1 < len(s) && s[i+1] == '[':
			f.hidden.Invisible++
			n = escape(s[i:])
		case control(r) || invisible(r):
			if seen && r != 0xfeff {
				f.hidden.Invisible++
			}
		case r == 0x3164 || r == 0xffa0: // decomposed, they would be gone
			b.WriteByte(' ')
			seen = true
		default:
			b.WriteRune(r)
			seen = unicode.IsLetter(r) || unicode.IsDigit(r) || r < utf8.RuneSelf
		}
		i += n
	}
	f.shadow = shadow.String()
	return b.String()
}

// escape is the length of a terminal's control sequence at the start of s.
func escape(s string) int {
	i := 2
	for i < len(s) && 0x20 <= s[i] && s[i] <= 0x3f {
		i++
	}
	if i < len(s) && 0x40 <= s[i] && s[i] <= 0x7e {
		i++
	}
	return i
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

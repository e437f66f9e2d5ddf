// SPDX-License-Identifier: Apache-2.0

package fold

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// folder writes the forms of a text, character by character.
type folder struct {
	folded, clean strings.Builder
	split         []byte
	shadow        string
	hidden        Hidden

	gap, line bool // white space is owed; some of it ends a line
	last      rune // the last character written, in its own case
	capitals  int  // in a row up to last
	lastAt    int  // where last begins in split

	latin, alike bool // of the word so far: ASCII letters, look-alikes
}

// put adds one visible character.
func (f *folder) put(r rune, styled bool) {
	if space(r) {
		f.gap = true
		f.line = f.line || lineEnd(r)
		return
	}
	upper := unicode.IsUpper(r)
	if styled && r < utf8.RuneSelf || turnedForm(r) {
		f.hidden.Styled++
	}
	lower, turned := lowerOf(r)
	f.space()
	f.word(r, lower, turned)
	f.camel(r, upper)
	f.folded.WriteRune(lower)
	f.lastAt = len(f.split)
	f.split = utf8.AppendRune(f.split, lower)
	f.clean.WriteRune(caseOf(r, lower, turned, upper))
	f.last = r
}

// lowerOf is the folded character, and whether another script's was read as Latin. The table is asked before the case is
// dropped: capital Η looks like H, small η like n.
func lowerOf(r rune) (rune, bool) {
	if r < utf8.RuneSelf {
		return unicode.ToLower(r), false
	}
	if a := lookAlike(r); a != 0 {
		return a, true
	}
	l := unicode.ToLower(r)
	if a := lookAlike(l); a != 0 {
		return a, true
	}
	return l, false
}

func caseOf(r, lower rune, turned, upper bool) rune {
	switch {
	case turned && upper:
		return unicode.ToUpper(lower)
	case turned:
		return lower
	}
	return r
}

func (f *folder) space() {
	if !f.gap {
		return
	}
	if f.folded.Len() > 0 {
		f.folded.WriteByte(' ')
		f.split = append(f.split, ' ')
		if f.line {
			f.clean.WriteByte('\n')
		} else {
			f.clean.WriteByte(' ')
		}
	}
	f.gap, f.line = false, false
	f.last, f.capitals = ' ', 0
	f.endWord()
}

// camel puts an underscore where a capital begins a word: before the U of deleteUser, before the R of HTTPRequest.
func (f *folder) camel(r rune, upper bool) {
	switch {
	case upper && (unicode.IsLower(f.last) || unicode.IsDigit(f.last)):
		f.split = append(f.split, '_')
	case unicode.IsLower(r) && f.capitals > 1:
		f.split = append(f.split, 0)
		copy(f.split[f.lastAt+1:], f.split[f.lastAt:])
		f.split[f.lastAt] = '_'
	}
	if upper {
		f.capitals++
	} else {
		f.capitals = 0
	}
}

// word notes a word that mixes ASCII letters with look-alikes: Greek alone is Greek.
func (f *folder) word(r, lower rune, turned bool) {
	switch {
	case turned && unicode.IsLetter(r) && unicode.IsLetter(lower):
		f.alike = true
	case r < utf8.RuneSelf && unicode.IsLetter(r):
		f.latin = true
	case !unicode.IsLetter(r):
		f.endWord()
	}
}

func (f *folder) endWord() {
	if f.latin && f.alike {
		f.hidden.Alike++
	}
	f.latin, f.alike = false, false
}

func (f *folder) reading() Reading {
	f.endWord()
	return Reading{Folded: f.folded.String(), Split: string(f.split), Clean: f.clean.String(), Shadow: f.shadow, Hidden: f.hidden}
}

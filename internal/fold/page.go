// SPDX-License-Identifier: Apache-2.0

package fold

import (
	"strings"
	"sync/atomic"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// page has what each of 256 characters in a row is folded to. A text of one script needs one or two pages; asking the tables of
// Unicode anew for each character took two thirds of the time that a Ukrainian text was inspected in. All of them together are
// below 2 MiB.
type page [256]string

// pages are made at the first use, each once or, by two at a time, twice the same.
var pages [0x10000 >> 8]atomic.Pointer[page]

// folded is what a character alone adds to Reading.Folded; white space is a space.
func folded(r rune) string {
	if int(r>>8) >= len(pages) {
		return foldedRune(r)
	}
	p := pages[r>>8].Load()
	if p == nil {
		p = newPage(r &^ 0xff)
		pages[r>>8].Store(p)
	}
	return p[r&0xff]
}

// newPage keeps the forms in one string: 256 small ones would take four times the memory.
func newPage(first rune) *page {
	var ends [256]int
	var all strings.Builder
	for i := range ends {
		all.WriteString(foldedRune(first + rune(i)))
		ends[i] = all.Len()
	}
	text, start, p := all.String(), 0, &page{}
	for i, end := range ends {
		p[i], start = text[start:end], end
	}
	return p
}

// foldedRune does to one character what drop, decompose and put do to each of a text. Marks are dropped, so the order that a
// decomposition of the whole text would bring them into is nothing.
func foldedRune(r rune) string {
	switch {
	case bidi(r), control(r), invisible(r):
		return ""
	case r == 0x3164 || r == 0xffa0:
		return " "
	}
	var b strings.Builder
	for _, d := range norm.NFKD.String(string(r)) {
		switch {
		case unicode.Is(unicode.M, d) || invisible(d):
		case space(d):
			b.WriteByte(' ')
		default:
			lower, _ := lowerOf(d)
			b.WriteRune(lower)
		}
	}
	return b.String()
}

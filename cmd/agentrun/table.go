// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// table is text in columns. Every cell may be an agent's text: what a terminal would obey is written out, whoever filled it in.
type table struct {
	columns []column
	width   int // of the terminal; 0: as wide as it gets
	rows    [][]string
}

type column struct {
	head  string
	right bool
	cut   int // the column may shrink to this many cells; 0: never
}

func (t *table) row(cells ...string) {
	for i, c := range cells {
		cells[i] = oneLine(c)
	}
	t.rows = append(t.rows, cells)
}

func (t *table) String() string {
	widths := t.widths()
	heads := make([]string, len(t.columns))
	for i, c := range t.columns {
		heads[i] = c.head
	}
	var b strings.Builder
	for _, r := range append([][]string{heads}, t.rows...) {
		b.WriteString(t.line(r, widths))
		b.WriteByte('\n')
	}
	return b.String()
}

func (t *table) widths() []int {
	widths := make([]int, len(t.columns))
	total := 2 * (len(t.columns) - 1)
	for i, c := range t.columns {
		widths[i] = cells(c.head)
		for _, r := range t.rows {
			widths[i] = max(widths[i], cells(r[i]))
		}
		total += widths[i]
	}
	if t.width == 0 {
		return widths
	}
	for i := len(widths) - 1; i >= 0 && total > t.width; i-- { // the last first: it is the command
		if c := t.columns[i]; c.cut > 0 && widths[i] > c.cut {
			less := min(total-t.width, widths[i]-c.cut)
			widths[i] -= less
			total -= less
		}
	}
	return widths
}

func (t *table) line(row []string, widths []int) string {
	var b strings.Builder
	for i, text := range row {
		text = clip(text, widths[i])
		pad := strings.Repeat(" ", widths[i]-cells(text))
		if i > 0 {
			b.WriteString("  ")
		}
		switch {
		case t.columns[i].right:
			b.WriteString(pad + text)
		case i == len(row)-1:
			b.WriteString(text)
		default:
			b.WriteString(text + pad)
		}
	}
	if t.width > 0 {
		return clip(b.String(), t.width)
	}
	return b.String()
}

// clip is text in at most n cells, with a sign where something is missing.
func clip(text string, n int) string {
	if cells(text) <= n {
		return text
	}
	if n <= 0 {
		return ""
	}
	used := 0
	for i, r := range text {
		if used += runeCells(r); used >= n {
			return text[:i] + "…"
		}
	}
	return text
}

func cells(text string) (n int) {
	for _, r := range text {
		n += runeCells(r)
	}
	return n
}

// runeCells is how many cells of a terminal a character takes (Unicode's UAX #11, as terminals have it): two for East Asian
// ideographs, syllables, full-width forms and pictures, none for marks on the one before.
func runeCells(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case r < 0x1100:
		return 1
	case r <= 0x115f, r >= 0x2e80 && r <= 0xa4cf && r != 0x303f, r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff,
		r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6, r >= 0x1f300 && r <= 0x1faff, r >= 0x20000 && r <= 0x3fffd:
		return 2
	}
	return 1
}

// terminalSize is that of the terminal f is, if it is one.
func terminalSize(f *os.File) (width, height int, ok bool) {
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Col == 0 {
		return 0, 0, false
	}
	return int(ws.Col), int(ws.Row), true
}

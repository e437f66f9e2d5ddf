// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"strings"
	"unicode"
)

// Table is text in columns. Every cell may be an agent's text: what a terminal would obey is written out,
// whoever filled it in.
type Table struct {
	Columns []Column
	Width   int // of the terminal; 0: as wide as it gets
	rows    [][]string
}

// Column is one.
type Column struct {
	Head  string
	Right bool
	Cut   int // the column may shrink to this many cells; 0: never
}

// Row adds one, of as many cells as there are columns.
func (t *Table) Row(cells ...string) {
	for i, c := range cells {
		cells[i] = Line(c)
	}
	t.rows = append(t.rows, cells)
}

func (t *Table) String() string {
	widths := t.widths()
	heads := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		heads[i] = c.Head
	}
	var b strings.Builder
	for _, r := range append([][]string{heads}, t.rows...) {
		b.WriteString(t.line(r, widths))
		b.WriteByte('\n')
	}
	return b.String()
}

func (t *Table) widths() []int {
	widths := make([]int, len(t.Columns))
	total := 2 * (len(t.Columns) - 1)
	for i, c := range t.Columns {
		widths[i] = Cells(c.Head)
		for _, r := range t.rows {
			widths[i] = max(widths[i], Cells(r[i]))
		}
		total += widths[i]
	}
	if t.Width == 0 {
		return widths
	}
	for i := len(widths) - 1; i >= 0 && total > t.Width; i-- { // the last first: it is the command
		if c := t.Columns[i]; c.Cut > 0 && widths[i] > c.Cut {
			less := min(total-t.Width, widths[i]-c.Cut)
			widths[i] -= less
			total -= less
		}
	}
	return widths
}

func (t *Table) line(row []string, widths []int) string {
	var b strings.Builder
	for i, text := range row {
		text = Clip(text, widths[i])
		pad := strings.Repeat(" ", widths[i]-Cells(text))
		if i > 0 {
			b.WriteString("  ")
		}
		switch {
		case t.Columns[i].Right:
			b.WriteString(pad + text)
		case i == len(row)-1:
			b.WriteString(text)
		default:
			b.WriteString(text + pad)
		}
	}
	if t.Width > 0 {
		return Clip(b.String(), t.Width)
	}
	return b.String()
}

// Clip returns text in at most n cells, with a sign where something is missing.
func Clip(text string, n int) string {
	if Cells(text) <= n {
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

// Cells is how many cells of a terminal a text takes.
func Cells(text string) (n int) {
	for _, r := range text {
		n += runeCells(r)
	}
	return n
}

// runeCells is how many cells of a terminal a character takes (Unicode's UAX #11, as terminals have it): two
// for East Asian ideographs, syllables, full-width forms and pictures, none for marks on the one before.
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

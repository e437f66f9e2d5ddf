// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"strings"
	"testing"
)

// Columns line up in cells of a terminal, not in bytes; nothing is wider than the terminal, and no cell
// commands it.
func TestTable(t *testing.T) {
	rows := [][]string{{"a\x1b[2J", "1", "界界 café"}, {"b", "100", "a command that is long"}}
	for _, tt := range []struct {
		name  string
		width int
		want  string
	}{
		{"as wide as it gets", 0, "ID            N  COMMAND\na\\u001b[2J    1  界界 café\nb           100  a command that is long\n"},
		{"cut", 30, "ID            N  COMMAND\na\\u001b[2J    1  界界 café\nb           100  a command th…\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table := Table{Width: tt.width, Columns: []Column{{Head: "ID"}, {Head: "N", Right: true}, {Head: "COMMAND", Cut: 5}}}
			for _, r := range rows {
				table.Row(append([]string{}, r...)...)
			}
			got := table.String()
			if got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
			for line := range strings.Lines(got) {
				if n := Cells(strings.TrimSuffix(line, "\n")); tt.width > 0 && n > tt.width {
					t.Errorf("%d cells: %q", n, line)
				}
			}
		})
	}
}

// What comes in pieces is shown as what comes whole.
func TestWriter(t *testing.T) {
	for in, want := range map[string]string{
		"a\tb\r\nc\n": "a\tb\nc\n", "over\rwritten": `over\u000dwritten`, "ä界\x1b": "ä界\\u001b", "half \xe7\x95": "half ��", "end\r": `end\u000d`,
	} {
		for _, size := range []int{1, 2, 100} {
			var b strings.Builder
			w := Writer{To: &b}
			for rest := []byte(in); len(rest) > 0; {
				n := min(size, len(rest))
				if _, err := w.Write(rest[:n]); err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			w.Flush()
			if b.String() != want {
				t.Errorf("%q in pieces of %d: got %q, want %q", in, size, b.String(), want)
			}
		}
	}
}

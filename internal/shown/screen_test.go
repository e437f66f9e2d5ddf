// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"strings"
	"testing"
)

// A terminal is set back by as much as was switched, whatever pieces it came in and whatever stands between.
func TestScreen(t *testing.T) {
	for name, tt := range map[string]struct{ written, want string }{
		"nothing":           {"plain text\r\n\x1b[31mred\x1b[0m \x1b]0;title\x07", ""},
		"full screen":       {"\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[?1049l\x1b[?25h"},
		"tidied up":         {"\x1b[?1049h\x1b[?25l\x1b[?25h\x1b[?1049l", ""},
		"several at once":   {"\x1b[?1000;1002;1003;1006;2004h\x1b[?1002l", "\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?2004l"},
		"other modes":       {"\x1b[?7l\x1b[?12h\x1b[4h\x1b[25l\x1b[?h\x1b[?x1000h", ""},
		"controls within":   {"\x1b[?10\n49\x07h", "\x1b[?1049l"},
		"broken off":        {"\x1b[?1049\x18h \x1b[?1049\x1ah \x1b[?1049\x1b[?2004h", "\x1b[?2004l"},
		"no sequence":       {"[?1049h \x1bX?1049h \x1b ?1049h", ""},
		"endless":           {"\x1b[?" + strings.Repeat("1049;", 1000) + "1049h", ""},
		"keyboard":          {"\x1b[>1u\x1b[>7u\x1b[<u\x1b[?u", "\x1b[<1u"},
		"keyboards no end":  {strings.Repeat("\x1b[>1u", 1000), "\x1b[<8u"},
		"more taken off":    {"\x1b[<99u\x1b[<u\x1b[?25h", ""},
		"zeros before":      {"\x1b[?001000;02004h\x1b[?0001049h\x1b[?00001049l", "\x1b[?1000l\x1b[?2004l"},
		"other mice":        {"\x1b[?9h\x1b[?1016h\x1b[?2031;2048h", "\x1b[?9l\x1b[?1016l\x1b[?2031l\x1b[?2048l"},
		"saved and back":    {"\x1b[?1003h\x1b[?1003s\x1b[?1003l\x1b[?1003r", "\x1b[?1003l"},
		"one letter":        {"\u009b?1049h \u00c2 \u00c3\u009b?25l \u009b?2004h\xc2\xc2\x9b?1003h", "\x1b[?1003l\x1b[?2004l\x1b[?1049l\x1b[?25h"},
		"half a letter":     {"\xc2?1049h\xc2\x1b[?25l", "\x1b[?25h"},
		"keys set":          {"\x1b[=31u\x1b[>4;2m\x1b[4;2m", "\x1b[=0u\x1b[>4m"},
		"numbers of others": {"\x1b[?99999999999999999999h\x1b[?-25l\x1b[?+25l", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for size := 1; size <= len(tt.written); size = size*3 + 1 {
				var out strings.Builder
				s := &Screen{To: &out}
				for rest := tt.written; rest != ""; {
					n := min(size, len(rest))
					if wrote, err := s.Write([]byte(rest[:n])); wrote != n || err != nil {
						t.Fatalf("wrote %d, %v", wrote, err)
					}
					rest = rest[n:]
				}
				if out.String() != tt.written {
					t.Fatalf("in pieces of %d: %q came out as %q", size, tt.written, out.String())
				}
				out.Reset()
				s.Reset()
				s.Reset()
				if out.String() != tt.want {
					t.Errorf("in pieces of %d: got %q, want %q", size, out.String(), tt.want)
				}
			}
		})
	}
	(*Screen)(nil).Reset()
}

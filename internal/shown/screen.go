// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Screen passes on what a program writes to a terminal, as it is, and knows which of the terminal's modes it leaves switched: one that is
// killed on a full screen tidies nothing up, and whoever has the terminal next types into mouse reports. Its methods may be called from
// any goroutine, Reset on nil.
type Screen struct {
	To io.Writer

	mu       sync.Mutex
	sequence []byte       // that has begun: ESC [ and what came of it
	switched map[int]bool // modes
	keys     int          // keyboard protocols that were pushed
	replaced bool         // one was put in the place of the usual one
	modified bool         // keys are reported in xterm's own form
}

type mode struct {
	number int
	usual  byte // what sets it back: h or l
	why    string
}

// modes are those that make a terminal unfit for the next program (xterm, "DEC Private Mode Set"), in the order in which they are set back.
var modes = []mode{
	{1000, 'l', "clicks are typed"}, {1002, 'l', "drags are typed"}, {1003, 'l', "all movement is typed"},
	{9, 'l', "clicks are typed, as of old"}, {1005, 'l', "mouse reports in UTF-8"}, {1006, 'l', "mouse reports in SGR form"},
	{1015, 'l', "mouse reports in urxvt's form"}, {1016, 'l', "mouse reports in pixels"},
	{2026, 'l', "nothing is drawn"}, {2031, 'l', "changes of colours are typed"}, {2048, 'l', "changes of size are typed"},
	{1004, 'l', "focus is typed"}, {2004, 'l', "pastes come in brackets"}, {1, 'l', "arrow keys of applications"},
	{47, 'l', "second screen"}, {1047, 'l', "second screen"}, {1049, 'l', "second screen, and the cursor where it was"},
	{25, 'h', "the cursor is hidden"},
}

// maxSequence is far longer than one that switches modes. What is longer switches none.
const maxSequence = 128

// Write implements io.Writer. It looks at what is written before it is.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range p {
		if len(s.sequence) > 0 || c == '\x1b' || c == c1 {
			s.look(c)
		}
	}
	return s.To.Write(p)
}

// c1 and csi are U+009B in UTF-8, which some terminals take for ESC [.
const c1, csi = 0xc2, 0x9b

// look follows a control sequence: ESC [, parameters, a final byte (ECMA-48, 5.4). A terminal obeys control characters within one and
// goes on; so do we.
func (s *Screen) look(c byte) {
	switch {
	case c == '\x1b' || c == c1:
		s.sequence = append(s.sequence[:0], c)
	case len(s.sequence) == 1 && s.sequence[0] == c1:
		if s.sequence = s.sequence[:0]; c == csi {
			s.sequence = append(s.sequence, '\x1b', '[')
		}
	case c == 0x18, c == 0x1a, len(s.sequence) == 1 && c != '[', len(s.sequence) == maxSequence: // CAN and SUB break off
		s.sequence = s.sequence[:0]
	case c < ' ':
	case len(s.sequence) == 1 || c < '@':
		s.sequence = append(s.sequence, c)
	default:
		s.obeyed(string(s.sequence[2:]), c)
		s.sequence = s.sequence[:0]
	}
}

func (s *Screen) obeyed(parameters string, final byte) {
	private, set := strings.CutPrefix(parameters, "?")
	switch {
	case set && (final == 'h' || final == 'l' || final == 'r'): // r: to what it was when the program saved it
		for p := range strings.SplitSeq(private, ";") {
			number, err := strconv.ParseUint(p, 10, 16) // with zeros before it, too
			i := slices.IndexFunc(modes, func(m mode) bool { return err == nil && uint64(m.number) == number })
			if i < 0 {
				continue
			}
			if s.switched == nil {
				s.switched = map[int]bool{}
			}
			s.switched[modes[i].number] = final != modes[i].usual
		}
	case final == 'm' && strings.HasPrefix(parameters, ">"):
		s.modified = true
	case final == 'u' && strings.HasPrefix(parameters, "="):
		s.replaced = true
	case final == 'u' && strings.HasPrefix(parameters, ">"):
		s.keys = min(s.keys+1, 8) // as many as terminals keep
	case final == 'u' && strings.HasPrefix(parameters, "<"):
		s.keys = max(s.keys-1, 0)
	}
}

// Reset sets the modes back that were left switched.
func (s *Screen) Reset() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	if s.keys > 0 {
		b.WriteString("\x1b[<" + strconv.Itoa(s.keys) + "u")
	}
	if s.replaced {
		b.WriteString("\x1b[=0u")
	}
	if s.modified {
		b.WriteString("\x1b[>4m")
	}
	for _, m := range modes {
		if s.switched[m.number] {
			b.WriteString("\x1b[?" + strconv.Itoa(m.number) + string(m.usual))
		}
	}
	s.switched, s.keys, s.replaced, s.modified = nil, 0, false, false
	if b.Len() > 0 {
		_, _ = io.WriteString(s.To, b.String()) // a terminal that is gone needs nothing
	}
}

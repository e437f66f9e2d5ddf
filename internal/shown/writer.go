// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"bytes"
	"io"
	"strings"
	"unicode/utf8"
)

// Writer writes out what a terminal would obey; line ends and tabs stay. What may be half a character or line
// end waits for the rest.
type Writer struct {
	To   io.Writer
	part []byte
}

// Write implements io.Writer.
func (s *Writer) Write(p []byte) (int, error) {
	text := append(s.part, p...)
	whole := len(text)
	for i := max(0, len(text)-utf8.UTFMax+1); i < len(text); i++ {
		if utf8.RuneStart(text[i]) && !utf8.FullRune(text[i:]) {
			whole = i
			break
		}
	}
	if whole > 0 && text[whole-1] == '\r' {
		whole-- // half of a line end, perhaps
	}
	s.part = bytes.Clone(text[whole:])
	if _, err := io.WriteString(s.To, Output(string(text[:whole]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush writes what waits.
func (s *Writer) Flush() {
	_, _ = io.WriteString(s.To, Output(string(s.part)))
	s.part = nil
}

// Output is Text with tabs, and with "\r\n" as a line end; a lone carriage return could write over what
// stands there.
func Output(text string) string {
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\t")
	for i, part := range lines {
		lines[i] = Text(part)
	}
	return strings.Join(lines, "\t")
}

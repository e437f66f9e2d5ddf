// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
)

// DefaultLine is the longest line that a Writer keeps whole, in bytes.
const DefaultLine = 64 << 10

// cutBack is how much of a cut line's end may go so that no half of a token stays.
const cutBack = 4 << 10

// A Writer masks lines on their way to another writer. A line is held until it is complete, so where it was split
// between two calls of Write doesn't matter. A private key may span lines; they become one mark. It is safe for
// concurrent use, but lines of several goroutines mix if one call doesn't hold a whole line.
type Writer struct {
	mask *Masker
	max  int

	mu      sync.Mutex
	to      io.Writer
	line    []byte
	dropped int // bytes of the current line beyond max
	key     int // bytes that a private key may still have; 0 outside of one
	err     error
}

// Writer returns one that writes masked lines to to. Of a line longer than maxLine bytes (0: DefaultLine) the beginning is
// kept and the rest dropped, with a note: a secret longer than what is held couldn't be found. The caller calls Close.
func (m *Masker) Writer(to io.Writer, maxLine int) *Writer {
	if maxLine <= 0 {
		maxLine = DefaultLine
	}
	return &Writer{mask: m.orStandard(), to: to, max: max(maxLine, 2*cutBack)}
}

// Write takes all of p, or none and gives the error with which writing a line failed before.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(p)
	for len(p) > 0 && w.err == nil {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			w.hold(p)
			break
		}
		w.hold(p[:end])
		w.flush("\n")
		p = p[end+1:]
	}
	if w.err != nil {
		return 0, w.err
	}
	return n, nil
}

// Close writes an unfinished line. It doesn't close what it writes to.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil && len(w.line) > 0 {
		w.flush("")
	}
	return w.err
}

func (w *Writer) hold(p []byte) {
	room := max(w.max-len(w.line), 0)
	w.line = append(w.line, p[:min(len(p), room)]...)
	w.dropped += max(len(p)-room, 0)
}

// flush masks and writes the held line.
func (w *Writer) flush(newline string) {
	line, dropped := string(w.line), w.dropped
	w.line, w.dropped = w.line[:0], 0
	rest, inside := w.skipKey(line, len(newline))
	if inside {
		return
	}
	if dropped > 0 {
		cut := len(rest) - min(cutBack, len(rest))
		if n := strings.LastIndexAny(rest[cut:], " \t,;&"); n >= 0 {
			cut += n
		}
		dropped += len(rest) - cut
		rest = rest[:cut]
	}
	if keyOpen(rest) {
		w.key = maxKey
	}
	rest = w.mask.Text(rest)
	if dropped > 0 {
		rest += fmt.Sprintf(" [cut: %d bytes]", dropped)
	}
	if _, err := io.WriteString(w.to, rest+newline); err != nil {
		w.err = fmt.Errorf("write masked line: %w", err)
	}
}

// skipKey drops what belongs to a key that began on a line before, and tells whether that is the whole line.
func (w *Writer) skipKey(line string, newline int) (rest string, inside bool) {
	if w.key == 0 {
		return line, false
	}
	if end := strings.Index(line, pemEnd); end >= 0 {
		w.key = 0
		return line[pastLabel(line, end+len(pemEnd)):], false
	}
	w.key = max(0, w.key-len(line)-newline)
	return "", true
}

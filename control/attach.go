// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Stream is what a frame of an attached connection carries.
type Stream byte

// Streams. Stdin and Resize go to the run, the others come from it.
const (
	Stdin  Stream = 0 // an empty frame: the end of the input
	Stdout Stream = 1 // an empty frame: the end of this output
	Stderr Stream = 2
	Resize Stream = 3 // rows and columns of the terminal, two bytes each
	Exit   Stream = 4 // the run's exit code, four bytes; the last frame
)

const (
	frameHead = 5
	// MaxFrame is the most bytes that one frame carries.
	MaxFrame = 32 << 10
)

// ErrFrame is what bytes give that are no frames of this direction. Nothing after them can be read.
var ErrFrame = errors.New("no frame of an attached run")

// AttachConn speaks the protocol of an attached run: after the answer 101 each side sends frames of one byte that says which
// stream, four bytes of length, most significant first, and so many bytes. Its methods may be used by one reader and many
// writers at once.
type AttachConn struct {
	rw   io.ReadWriter
	from func(Stream) bool // what the other side may send
	to   func(Stream) bool

	wmu sync.Mutex
	out []byte
	in  []byte
}

func input(s Stream) bool  { return s == Stdin || s == Resize }
func output(s Stream) bool { return s == Stdout || s == Stderr || s == Exit }

// NewAttachServer is the supervisor's end.
func NewAttachServer(rw io.ReadWriter) *AttachConn {
	return &AttachConn{rw: rw, from: input, to: output}
}

// NewAttachClient is the operator's end.
func NewAttachClient(rw io.ReadWriter) *AttachConn {
	return &AttachConn{rw: rw, from: output, to: input}
}

// Next reads a frame. The payload is valid until the next call. io.EOF: the other side ended between two frames.
func (c *AttachConn) Next() (Stream, []byte, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(c.rw, head[:]); err != nil {
		return 0, nil, err
	}
	s, n := Stream(head[0]), binary.BigEndian.Uint32(head[1:])
	if err := checkFrame(s, n, c.from); err != nil {
		return 0, nil, err
	}
	if cap(c.in) < int(n) {
		c.in = make([]byte, max(int(n), 4<<10))
	}
	p := c.in[:n]
	if _, err := io.ReadFull(c.rw, p); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return s, p, nil
}

func checkFrame(s Stream, n uint32, may func(Stream) bool) error {
	switch {
	case !may(s):
		return fmt.Errorf("stream %d: %w", s, ErrFrame)
	case n > MaxFrame, (s == Resize || s == Exit) && n != 4:
		return fmt.Errorf("stream %d with %d bytes: %w", s, n, ErrFrame)
	}
	return nil
}

// Send writes p, in as many frames as it takes. An empty p is the stream's end.
func (c *AttachConn) Send(s Stream, p []byte) error {
	if err := checkFrame(s, uint32(min(len(p), MaxFrame)), c.to); err != nil { //nolint:gosec // at most MaxFrame
		return err
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	for {
		part := p[:min(len(p), MaxFrame)]
		c.out = append(append(c.out[:0], byte(s), 0, 0, 0, 0), part...)
		binary.BigEndian.PutUint32(c.out[1:], uint32(len(part))) //nolint:gosec // at most MaxFrame
		if _, err := c.rw.Write(c.out); err != nil {
			return err
		}
		if p = p[len(part):]; len(p) == 0 {
			return nil
		}
	}
}

// Writer writes to one stream; writing nothing doesn't end it.
func (c *AttachConn) Writer(s Stream) io.Writer { return streamWriter{c, s} }

type streamWriter struct {
	c *AttachConn
	s Stream
}

func (w streamWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := w.c.Send(w.s, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// SendResize tells the run the size of the terminal.
func (c *AttachConn) SendResize(rows, columns uint16) error {
	return c.Send(Resize, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, rows), columns))
}

// SendExit tells the operator how the run ended.
func (c *AttachConn) SendExit(code int) error {
	return c.Send(Exit, binary.BigEndian.AppendUint32(nil, uint32(code&0xff))) //nolint:gosec // one byte
}

// ExitCode reads the payload of an Exit frame, 0 to 255.
func ExitCode(p []byte) (int, error) {
	if len(p) != 4 || p[0] != 0 || p[1] != 0 || p[2] != 0 {
		return 0, ErrFrame
	}
	return int(p[3]), nil
}

// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"slices"
	"strconv"
)

const (
	maxChunkLine = 256      // bytes of a size with its extension, which is dropped
	maxTrailers  = 8 << 10  // bytes, all dropped
	maxSize      = 1 << 40  // bytes of one chunk
	maxTiny      = 16 << 10 // bytes of framing that may come ahead of the content, beside its own amount
)

// chunks decodes a chunked body, strictly. Extensions and trailers are dropped, and trailers that are no
// fields refused. io.EOF comes only after the last chunk and its empty line; whatever follows is left in the
// reader.
type chunks struct {
	br       *bufio.Reader
	left     int64
	begun    bool
	err      error
	overhead int64
}

func (c *chunks) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if c.left == 0 {
		if c.err = c.next(); c.err != nil {
			return 0, c.err
		}
	}
	n, err := c.br.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	c.overhead -= int64(n)
	if err != nil {
		c.err = err
		if errors.Is(err, io.EOF) {
			c.err = io.ErrUnexpectedEOF
		}
	}
	return n, c.err
}

// next reads the end of the chunk before, and the size of the next one.
func (c *chunks) next() error {
	if c.begun {
		line, err := c.line(2)
		if err != nil {
			return err
		}
		if len(line) > 0 {
			return bad("a chunk isn't as long as it says")
		}
	}
	c.begun = true
	line, err := c.line(maxChunkLine)
	if err != nil {
		return err
	}
	// A body of one-byte chunks with long extensions costs more than it brings (CVE-2023-39326).
	if c.overhead = max(c.overhead, 0) + int64(len(line)); c.overhead > maxTiny {
		return bad("chunks with too little in them")
	}
	if c.left, err = size(line); err != nil {
		return err
	}
	if c.left > 0 {
		return nil
	}
	for room := maxTrailers; room > 0; {
		line, err := c.line(min(room, c.br.Size()))
		if err != nil {
			return err
		}
		if len(line) == 0 {
			return io.EOF
		}
		if _, _, err := cutField(line); err != nil { // another reader may take it for something else
			return err
		}
		room -= len(line) + 2
	}
	return bad("trailers longer than 8 KiB")
}

// line returns the next line without its CRLF.
func (c *chunks) line(most int) ([]byte, error) {
	line, err := c.br.ReadSlice('\n')
	switch {
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	case errors.Is(err, bufio.ErrBufferFull), err == nil && len(line) > most:
		return nil, bad("a line of a chunked body is too long")
	case err != nil:
		return nil, err
	case len(line) < 2 || line[len(line)-2] != '\r':
		return nil, bad("a line of a chunked body doesn't end in CRLF")
	}
	return line[:len(line)-2], nil
}

func size(line []byte) (int64, error) {
	digits, extension, _ := bytes.Cut(line, []byte(";"))
	n, err := strconv.ParseUint(string(digits), 16, 64) // takes neither sign, prefix nor underscore
	switch {
	case len(digits) == 0:
		return 0, bad("a chunk without a size")
	case errors.Is(err, strconv.ErrRange), n > maxSize:
		return 0, bad("a chunk of more than 1 TiB")
	case err != nil:
		return 0, bad("a chunk size that isn't hexadecimal")
	case slices.ContainsFunc(extension, control):
		return 0, bad("a control character beside a chunk size")
	}
	return int64(n), nil
}

// exactly reads a body of left bytes. An earlier end is io.ErrUnexpectedEOF.
type exactly struct {
	from io.Reader
	left int64
}

func (e *exactly) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.from.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	switch {
	case e.left == 0:
		return n, io.EOF
	case errors.Is(err, io.EOF):
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"errors"
	"io"
)

const (
	maxChunkLine = 256      // bytes of a size with its extension, which is dropped
	maxTrailers  = 8 << 10  // bytes, all dropped
	maxSize      = 1 << 40  // bytes of one chunk
	maxTiny      = 16 << 10 // bytes of framing that may come ahead of the content, beside its own amount
)

// ChunkReader decodes a chunked body, strictly. Extensions and trailers are dropped, and trailers that are no fields refused. io.EOF comes only after the last
// chunk and its empty line; whatever follows is left in the reader.
type ChunkReader struct {
	br       *bufio.Reader
	left     int64
	begun    bool
	err      error
	overhead int64
}

// NewChunkReader reads from br, whose buffer has at least 256 bytes.
func NewChunkReader(br *bufio.Reader) *ChunkReader { return &ChunkReader{br: br} }

func (c *ChunkReader) Read(p []byte) (int, error) {
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
func (c *ChunkReader) next() error {
	if c.begun {
		if line, err := c.line(2); err != nil || len(line) > 0 {
			return orBad(err, "a chunk isn't as long as it says")
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

func orBad(err error, text string) error {
	if err != nil {
		return err
	}
	return bad("%s", text)
}

// line returns the next line without its CRLF.
func (c *ChunkReader) line(most int) ([]byte, error) {
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
	n, digits := int64(0), 0
	for ; digits < len(line); digits++ {
		c := line[digits]
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			c = 16
		}
		if c > 15 {
			break
		}
		if n = n<<4 | int64(c); n > maxSize {
			return 0, bad("a chunk of more than 1 TiB")
		}
	}
	if digits == 0 {
		return 0, bad("a chunk without a size")
	}
	if ext := line[digits:]; len(ext) > 0 {
		if ext[0] != ';' {
			return 0, bad("a chunk size that isn't hexadecimal")
		}
		for _, c := range ext {
			if c < ' ' && c != '\t' || c == 0x7f {
				return 0, bad("a control character beside a chunk size")
			}
		}
	}
	return n, nil
}

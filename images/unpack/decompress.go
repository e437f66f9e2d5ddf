// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// decompress looks at what a layer begins with, and not at what its manifest says of it.
func (t *Tree) decompress(packed io.Reader) (io.ReadCloser, error) {
	in := &counted{r: packed}
	head := bufio.NewReader(in)
	magic, _ := head.Peek(4) // a shorter one is no archive
	var plain io.ReadCloser
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(head)
		if err != nil {
			return nil, err
		}
		plain = z
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// A frame says how large its window is; 128 MiB is what zstd itself takes without being asked to.
		z, err := zstd.NewReader(head, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		plain = z.IOReadCloser()
	default:
		return io.NopCloser(head), nil
	}
	return &bounded{ReadCloser: plain, in: in, limits: t.limits}, nil
}

type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// bounded ends a layer of which too much comes: a few kilobytes may stand for terabytes.
type bounded struct {
	io.ReadCloser
	in     *counted
	out    int64
	limits Limits
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.out += int64(n)
	if b.out > b.limits.RatioFrom && b.out/b.limits.Ratio > b.in.n {
		return 0, fmt.Errorf("%d bytes have come of %d: %w", b.out, b.in.n, ErrLimit)
	}
	return n, err
}

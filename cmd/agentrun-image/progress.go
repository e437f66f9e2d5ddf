// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"agentrun/images"
)

// progress tells how far the layers are: a bar on a terminal, else a line for each.
type progress struct {
	w              io.Writer
	bar            bool
	read, total    int64
	number, layers int
	last           time.Time
}

// newProgress begins above the layers that are there.
func newProgress(w io.Writer, o images.Order, layers []blob, there int, base string) *progress {
	p := &progress{w: w, bar: o.Bar, number: there, layers: len(layers)}
	if !o.Progress {
		p.w, p.bar = io.Discard, false
	}
	for _, l := range layers[there:] {
		p.total += l.size
	}
	if there > 0 {
		fmt.Fprintf(p.w, "%d of %d layers are there, in %s\n", there, len(layers), base)
	}
	return p
}

// layer counts what is read of the next one.
func (p *progress) layer(r io.Reader) io.Reader {
	p.number++
	if !p.bar {
		fmt.Fprintf(p.w, "layer %d of %d, %s of %s read\n", p.number, p.layers, megabytes(p.read), megabytes(p.total))
	}
	return &progressing{r, p}
}

type progressing struct {
	r io.Reader
	p *progress
}

func (r *progressing) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	r.p.read += int64(n)
	r.p.draw(false)
	return n, err
}

const (
	barWidth = 30
	barEvery = 100 * time.Millisecond
)

func (p *progress) draw(now bool) {
	if !p.bar || !now && time.Since(p.last) < barEvery {
		return
	}
	p.last = time.Now()
	done := 0
	if p.total > 0 {
		done = int(min(barWidth, barWidth*p.read/p.total))
	}
	fmt.Fprintf(p.w, "\r[%s%s] layer %d of %d, %s of %s\x1b[K", strings.Repeat("#", done), strings.Repeat(".", barWidth-done), p.number, p.layers, megabytes(p.read), megabytes(p.total))
}

// end leaves the line.
func (p *progress) end() {
	if p.bar {
		p.draw(true)
		fmt.Fprintln(p.w)
	}
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"agentrun/internal/hinted"
)

// archive is a tar on disk, of which files are read in whatever order, where they lie.
type archive struct {
	file  *os.File
	parts map[string]part
}

// part is a file of it, or a link to one: older dockers save each layer once.
type part struct {
	offset, size int64
	link         string
}

// Bounds of an archive: an image has some hundred files. Names and links are kept, and each may have a mebibyte.
const (
	maxParts = 10_000
	maxPaths = 4 << 20
)

func openArchive(name string) (files, error) {
	f, err := os.Open(name) //nolint:gosec // the operator names it
	if err != nil {
		return nil, err
	}
	a := &archive{f, map[string]part{}}
	if err := a.index(); err != nil {
		f.Close()
		return nil, err
	}
	return a, nil
}

func (a *archive) Close() error { return a.file.Close() }

// index notes where each file lies. The reader of tars reads whole blocks and seeks over content, so that after a header the file
// stands at the content.
func (a *archive) index() error {
	r, paths := tar.NewReader(a.file), 0
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return hinted.New(fmt.Errorf("it is no tar: %w", err), "unpack it first, if it is compressed as a whole: gunzip, zstd -d")
		}
		if len(a.parts) >= maxParts {
			return fmt.Errorf("it has more than %d files", maxParts)
		}
		if paths += len(h.Name) + len(h.Linkname); paths > maxPaths {
			return fmt.Errorf("its names and links have more than %d bytes together", maxPaths)
		}
		at, err := a.file.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		name := strings.Clone(path.Clean(h.Name)) // the reader's may be a part of a header of 1 MiB, which would be kept with it
		switch h.Typeflag {
		case tar.TypeReg:
			a.parts[name] = part{offset: at, size: h.Size}
		case tar.TypeSymlink:
			a.parts[name] = part{link: path.Join(path.Dir(name), h.Linkname)}
		case tar.TypeLink:
			a.parts[name] = part{link: strings.Clone(path.Clean(h.Linkname))}
		}
	}
}

func (a *archive) open(name string) (io.ReadCloser, int64, error) {
	at := path.Clean(name)
	for range 8 {
		p, ok := a.parts[at]
		if !ok {
			break
		}
		if p.link == "" {
			return io.NopCloser(io.NewSectionReader(a.file, p.offset, p.size)), p.size, nil
		}
		at = p.link
	}
	return nil, 0, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

func (a *archive) text(name string, most int64) ([]byte, error) { return textOf(a, name, most) }

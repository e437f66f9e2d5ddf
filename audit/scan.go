// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	errLongLine = errors.New("line is longer than any entry")
	errPartial  = errors.New("line has no end")
)

// scanner cuts a file into lines with a buffer of fixed size. It can be asked again after io.EOF and errPartial: the file
// may have grown.
type scanner struct {
	file  io.ReaderAt
	pos   int64 // of buf[r] in the file
	limit int64 // nothing is read behind it
	buf   []byte
	r, w  int
	long  int64 // where the long line begins that is being dropped, else -1
}

func newScanner(file io.ReaderAt, from, limit int64) *scanner {
	size := min(2*MaxLine, max(limit-from, 1))
	return &scanner{file: file, pos: from, limit: limit, buf: make([]byte, size), long: -1}
}

// next gives a line without its newline, valid until the next call, and where it begins. For errLongLine, only its end is
// given.
func (s *scanner) next() (line []byte, at int64, err error) {
	seen := 0
	for {
		if i := bytes.IndexByte(s.buf[s.r+seen:s.w], '\n'); i >= 0 {
			line, at = s.buf[s.r:s.r+seen+i], s.pos
			s.r, s.pos = s.r+seen+i+1, s.pos+int64(seen+i)+1
			if s.long >= 0 {
				at, s.long, err = s.long, -1, errLongLine
			}
			return line, at, err
		}
		if s.w-s.r > MaxLine {
			if s.long < 0 {
				s.long = s.pos
			}
			drop := s.w - s.r - len(tornMark)
			s.r, s.pos = s.r+drop, s.pos+int64(drop)
		}
		seen = s.w - s.r
		n, err := s.fill()
		if err != nil {
			return nil, s.pos, err
		}
		if n == 0 && seen == 0 {
			return nil, s.pos, io.EOF
		}
		if n == 0 && s.long >= 0 {
			return nil, s.long, errPartial
		}
		if n == 0 {
			return nil, s.pos, errPartial
		}
	}
}

func (s *scanner) fill() (int, error) {
	s.w = copy(s.buf, s.buf[s.r:s.w])
	s.r = 0
	end := s.pos + int64(s.w)
	room := min(int64(len(s.buf)-s.w), s.limit-end)
	if room <= 0 {
		return 0, nil
	}
	n, err := s.file.ReadAt(s.buf[s.w:s.w+int(room)], end)
	s.w += n
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Line is an entry as it stands in a file.
type Line struct {
	Entry  Entry
	Raw    []byte // without newline; valid until the next call
	File   string
	Number int64 // of the line in the file, from 1
}

// Reader reads a chain from its beginning, also while it grows. It checks what DecodeEntry checks and the hash of each
// entry, not whether they follow each other: that is Verify. Torn lines are passed over; their repairs are entries.
type Reader struct {
	folder *folder
	number int
	fd     int
	scan   *scanner
	line   int64
	next   string // the file after this one, once the rotation was read
}

// OpenReader opens the chain at its first file. The error Is fs.ErrNotExist if there is no such chain.
func OpenReader(dir, chain string) (*Reader, error) {
	if err := checkChain(chain); err != nil {
		return nil, err
	}
	f, err := openFolder(dir, chain)
	if err != nil {
		return nil, err
	}
	r := &Reader{folder: f, fd: -1}
	if err := r.enter(1); err != nil {
		f.close()
		return nil, err
	}
	return r, nil
}

// Close closes the files.
func (r *Reader) Close() {
	unix.Close(r.fd)
	r.folder.close()
}

func (r *Reader) enter(n int) error {
	fd, err := r.folder.open(fileName(n), unix.O_RDONLY)
	if err != nil {
		return err
	}
	if r.fd >= 0 {
		unix.Close(r.fd)
	}
	r.fd, r.number, r.line, r.next = fd, n, 0, ""
	r.scan = newScanner(fileAt(fd), 0, MaxInteger)
	return nil
}

// Next gives io.EOF at the present end; a later call may find more. Any other error is final: *DamagedError for a line that
// is no entry.
func (r *Reader) Next() (Line, error) {
	for {
		if r.next != "" {
			if err := r.enter(fileNumber(r.next)); err != nil {
				return Line{}, err
			}
		}
		text, at, err := r.scan.next()
		if errors.Is(err, errPartial) {
			return Line{}, io.EOF
		}
		if err != nil && !errors.Is(err, errLongLine) {
			return Line{}, err
		}
		r.line++
		if bytes.HasSuffix(text, []byte(tornMark)) {
			continue
		}
		return r.read(text, at, err)
	}
}

func (r *Reader) read(text []byte, at int64, err error) (Line, error) {
	var e Entry
	var sum Hash
	if err == nil {
		e, sum, err = decode(text)
	}
	if err == nil && sum != e.Hash {
		err = errEdited
	}
	name := fileName(r.number)
	if err != nil {
		return Line{}, &DamagedError{File: r.folder.path + "/" + name, Offset: at, Reason: err.Error()}
	}
	if rot, ok := e.Data.(*Rotation); ok {
		if fileNumber(rot.Next) != r.number+1 {
			return Line{}, &DamagedError{File: r.folder.path + "/" + name, Offset: at, Reason: "the chain goes on in " + rot.Next}
		}
		r.next = rot.Next
	}
	return Line{Entry: e, Raw: text, File: name, Number: r.line}, nil
}

var errEdited = errors.New("the content has another hash than the entry says")

// OpenTail opens a reader that begins n entries before the end, or at the first.
func OpenTail(dir, chain string, n int) (*Reader, error) {
	r, err := OpenReader(dir, chain)
	if err != nil {
		return nil, err
	}
	if err := r.seekTail(int64(n)); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// seekTail counts lines file by file from the last; torn ones count, so it may begin later than asked by those.
func (r *Reader) seekTail(n int64) error {
	numbers, err := r.folder.files()
	if err != nil {
		return err
	}
	have := int64(0)
	for i := len(numbers) - 1; i >= 0; i-- {
		if err := r.enter(numbers[i]); err != nil {
			return err
		}
		lines, err := countLines(r.scan)
		if err != nil {
			return err
		}
		have += lines
		if have >= n {
			break
		}
	}
	if err := r.enter(r.number); err != nil {
		return err
	}
	for ; have > n; have-- {
		if _, err := r.Next(); err != nil {
			return err
		}
	}
	return nil
}

func countLines(s *scanner) (n int64, err error) {
	for {
		switch _, _, err := s.next(); {
		case err == nil || errors.Is(err, errLongLine):
			n++
		case errors.Is(err, io.EOF) || errors.Is(err, errPartial):
			return n, nil
		default:
			return n, err
		}
	}
}

// Chains lists the chains of which there is a log or a checkpoint, sorted. A chain whose log was removed is still known by
// its checkpoint. Folders that don't exist have none.
func Chains(logs, checkpoints string) ([]string, error) {
	var names []string
	for _, dir := range []string{logs, checkpoints} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			name, err := chainOfFolder(dir, e)
			if err != nil {
				return nil, err
			}
			if name != "" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// chainOfFolder gives "" for what is no chain's.
func chainOfFolder(dir string, e fs.DirEntry) (string, error) {
	if name := e.Name(); checkChain(name) == nil {
		return name, nil
	} else if len(name) < 120 || strings.HasPrefix(name, ".") {
		return "", nil
	}
	// A name shortened by Folder stands whole in the first entry, and in a checkpoint's origin.
	path := filepath.Join(dir, e.Name())
	if e.IsDir() {
		path = filepath.Join(path, fileName(1))
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	line, _, err := newScanner(f, 0, MaxInteger).next()
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if name, ok := strings.CutPrefix(string(line), originPrefix); ok && Folder(name) == e.Name() {
		return name, nil
	}
	first, err := DecodeEntry(line)
	if err == nil && Folder(first.Chain) != e.Name() {
		err = fmt.Errorf("the folder is not that of chain %.40s…", first.Chain)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return first.Chain, nil
}

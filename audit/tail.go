// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// tornMark closes the bytes that a dead writer left. A line that ends in it was no entry when it was found (entries end in
// `"}`); a line that is no entry and doesn't end in it was one, and somebody changed it.
//
// Why a mark, and not just a newline: the writer that closes the torn bytes can itself be cut off, also exactly behind the
// newline. Without a mark the next one would find a whole line that is no entry, and could not tell an accident from an
// edit. It would have to stop for good, or to bless whatever it finds.
const tornMark = "~torn"

// tail is the end of a file.
type tail struct {
	last Entry // the last entry; Data nil if the file has none
	good int64 // where the entries end: behind the last one's newline
	size int64
}

// DamagedError says that the end of a chain is not what a writer left, not even one that died. The log isn't written to
// until an operator has looked: going on would bury the damage under good entries.
type DamagedError struct {
	File   string
	Offset int64
	Reason string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("audit log %s, offset %d: %s", e.File, e.Offset, e.Reason)
}

// readTail finds the last entry of a file of the given size without reading all of it.
func readTail(r io.ReaderAt, size int64) (tail, *DamagedError, error) {
	for window := int64(4 << 10); ; window *= 4 {
		window = min(window, maxTorn+MaxLine, size)
		buf := make([]byte, window)
		if _, err := r.ReadAt(buf, size-window); err != nil && !(errors.Is(err, io.EOF) && window == 0) {
			return tail{}, nil, err
		}
		e, good, why := parseTail(buf, window == size)
		if errors.Is(why, errMoreTail) {
			if window < min(maxTorn+MaxLine, size) {
				continue
			}
			why = fmt.Errorf("no entry in the last %d bytes", window)
		}
		if why != nil {
			return tail{}, &DamagedError{Offset: size - window + int64(good), Reason: why.Error()}, nil
		}
		return tail{last: e, good: size - window + int64(good), size: size}, nil, nil
	}
}

var errMoreTail = errors.New("the window shows no entry")

// parseTail looks at the last bytes of a file. whole means that they are all of it. It gives the last entry and where its
// line ends; everything behind that is torn. No entry and nil means a file with none. On an error, good is where the
// line begins that caused it.
func parseTail(buf []byte, whole bool) (e Entry, good int, err error) {
	end := bytes.LastIndexByte(buf, '\n') + 1
	for end > 0 {
		start := bytes.LastIndexByte(buf[:end-1], '\n') + 1
		if line := buf[start : end-1]; !bytes.HasSuffix(line, []byte(tornMark)) {
			if start == 0 && !whole {
				return Entry{}, 0, errMoreTail
			}
			e, sum, err := decode(line)
			switch {
			case err != nil:
				return Entry{}, start, fmt.Errorf("the last line is no entry: %w", err)
			case sum != e.Hash:
				return Entry{}, start, fmt.Errorf("the last entry, %d, was edited: its content has another hash", e.Seq)
			}
			return e, end, nil
		}
		end = start
	}
	if !whole {
		return Entry{}, 0, errMoreTail
	}
	return Entry{}, 0, nil
}

// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// MaxLine is the longest case, in bytes without its line end.
const MaxLine = 1 << 20

// Run answers the cases of r on w. Answers are written out whenever r has nothing more at hand, so that a program can ask and
// wait for the answer.
func Run(r io.Reader, w io.Writer) error {
	out := bufio.NewWriter(w)
	err := eachLine(r, out.Flush, func(_ int, line []byte, tooLong bool) error {
		_, err := out.Write(reply(line, tooLong).encode())
		return err
	})
	if flushErr := out.Flush(); err == nil { // one error of writing is told once
		err = flushErr
	}
	return err
}

// eachLine calls do for every line that isn't blank, and idle before it may have to wait for more. A line over MaxLine comes without
// its text.
func eachLine(r io.Reader, idle func() error, do func(n int, line []byte, tooLong bool) error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	for n := 1; ; n++ {
		tooLong := false
		line = line[:0]
		var err error
		for more := true; more; {
			if in.Buffered() == 0 {
				if err := idle(); err != nil {
					return err
				}
			}
			var part []byte
			part, err = in.ReadSlice('\n')
			more = errors.Is(err, bufio.ErrBufferFull)
			if !more {
				part = bytes.TrimSuffix(part, []byte{'\n'})
			}
			if tooLong = tooLong || len(line)+len(part) > MaxLine; !tooLong {
				line = append(line, part...)
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if tooLong || len(bytes.TrimSpace(line)) > 0 {
			if err := do(n, line, tooLong); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

// answer has either out or fault.
type answer struct {
	id    json.RawMessage // as the case has it; null if it can't be read
	out   json.RawMessage
	fault *Error
	want  json.RawMessage // of the case, nil if it has none
}

// body is the answer without its id.
func (a answer) body() json.RawMessage {
	if a.fault != nil {
		text, _ := encode(a.fault) // two strings
		return append(append([]byte(`{"error":`), text...), '}')
	}
	return append(append([]byte(`{"out":`), a.out...), '}')
}

func (a answer) encode() []byte {
	return append(append(append([]byte(`{"id":`), a.id...), ','), append(a.body()[1:], '\n')...)
}

// encode is json.Marshal without the escapes that HTML wants.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'}), nil
}

func reply(line []byte, tooLong bool) answer {
	a := answer{id: json.RawMessage("null")}
	if tooLong {
		a.fault = fault(LineTooLong, "a line has at most %d bytes", MaxLine)
		return a
	}
	c, err := readCase(line)
	if c.id != nil {
		a.id = c.id
	}
	a.want = c.want
	if err == nil {
		a.out, err = c.run()
	}
	if err != nil {
		a.fault = asFault(err)
	}
	return a
}

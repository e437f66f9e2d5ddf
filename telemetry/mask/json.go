// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MaxDepth is how deeply JSON may be nested.
const MaxDepth = 64

// ErrJSON is wrapped by every error of JSON. The error has no part of the input.
var ErrJSON = errors.New("mask JSON")

// JSON masks the strings, numbers and names of members of one JSON value. All that a member of a sensitive name holds
// is masked, save for null and booleans. Numbers keep their digits, members their order; spaces go. A masked number
// becomes a string. Two names may become one: both stay.
func (m *Masker) JSON(raw []byte) ([]byte, error) {
	w := jsonWalk{mask: m.orStandard(), in: json.NewDecoder(bytes.NewReader(raw))}
	w.in.UseNumber()
	w.out.Grow(len(raw))
	if err := w.value(Invalid, 0); err != nil {
		return nil, err
	}
	if _, err := w.in.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: more than one value", ErrJSON)
	}
	return w.out.Bytes(), nil
}

type jsonWalk struct {
	mask *Masker
	in   *json.Decoder
	out  bytes.Buffer
}

func (w *jsonWalk) token() (json.Token, error) {
	t, err := w.in.Token()
	if err != nil {
		// The decoder's own errors quote the input.
		return nil, fmt.Errorf("%w: not JSON near byte %d", ErrJSON, w.in.InputOffset())
	}
	return t, nil
}

// value masks the next value; under is the kind of the name it stands under.
func (w *jsonWalk) value(under Kind, depth int) error {
	t, err := w.token()
	if err != nil {
		return err
	}
	switch t := t.(type) {
	case json.Delim:
		if depth >= MaxDepth {
			return fmt.Errorf("%w: nested more than %d deep", ErrJSON, MaxDepth)
		}
		return w.members(t, under, depth+1)
	case string:
		w.text(t, under)
	case json.Number:
		w.number(t.String(), under)
	case bool:
		fmt.Fprint(&w.out, t)
	case nil:
		w.out.WriteString("null")
	}
	return nil
}

func (w *jsonWalk) members(open json.Delim, under Kind, depth int) error {
	w.out.WriteByte(byte(open))
	for first := true; w.in.More(); first = false {
		if !first {
			w.out.WriteByte(',')
		}
		kind := under
		if open == '{' {
			t, err := w.token()
			if err != nil {
				return err
			}
			name, _ := t.(string)
			if k := Sensitive(name); k != Invalid {
				kind = k
			}
			w.text(name, Invalid)
			w.out.WriteByte(':')
		}
		if err := w.value(kind, depth); err != nil {
			return err
		}
	}
	t, err := w.token()
	if err != nil {
		return err
	}
	end, _ := t.(json.Delim)
	w.out.WriteByte(byte(end))
	return nil
}

func (w *jsonWalk) text(s string, under Kind) {
	if under != Invalid && s != "" && markAt(s, 0) != len(s) {
		s = under.Mark()
	} else {
		s = w.mask.Text(s)
	}
	w.quote(s)
}

func (w *jsonWalk) number(n string, under Kind) {
	if under != Invalid {
		w.quote(under.Mark())
	} else if masked := w.mask.Text(n); masked != n {
		w.quote(masked)
	} else {
		w.out.WriteString(n)
	}
}

func (w *jsonWalk) quote(s string) {
	enc := json.NewEncoder(&w.out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s)               // a string always encodes
	w.out.Truncate(w.out.Len() - 1) // the newline
}

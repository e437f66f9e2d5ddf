// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// ErrJSON is wrapped by every error about JSON. The text of the error has nothing of the input.
var ErrJSON = errors.New("malformed JSON")

// MaxDepth is how deep JSON may be nested: what walks it goes down by recursion.
const MaxDepth = 64

// maxValues is how many values a text may have: each takes some hundred bytes here, and a text of 16 MiB may have eight million.
const maxValues = 2 << 20

// node is a JSON value. Order and the spelling of numbers stay as they are.
type node struct {
	kind  jsontext.Kind // '{' '[' '"' '0' 't' 'f' 'n'
	text  string        // of a string
	raw   jsontext.Value
	names []string // of an object's members
	kids  []*node
}

func parseTree(text []byte, most int) (*node, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(text))
	n, err := readNode(dec, 0, &most)
	if err != nil {
		return nil, err
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows the value", ErrJSON)
	}
	return n, nil
}

func readNode(dec *jsontext.Decoder, depth int, left *int) (*node, error) {
	if depth > MaxDepth {
		return nil, fmt.Errorf("%w: nested deeper than %d", ErrJSON, MaxDepth)
	}
	if *left--; *left < 0 {
		return nil, fmt.Errorf("%w: too many values", ErrJSON)
	}
	n := &node{kind: dec.PeekKind()}
	switch n.kind {
	case '{', '[':
		return n, n.readKids(dec, depth, left)
	case '"':
		t, err := dec.ReadToken()
		if err != nil {
			return nil, unreadable()
		}
		n.text = t.String()
		return n, nil
	}
	raw, err := dec.ReadValue()
	if err != nil {
		return nil, unreadable()
	}
	n.raw = raw.Clone()
	return n, nil
}

func (n *node) readKids(dec *jsontext.Decoder, depth int, left *int) error {
	if _, err := dec.ReadToken(); err != nil {
		return unreadable()
	}
	for {
		switch dec.PeekKind() {
		case '}', ']':
			_, err := dec.ReadToken()
			if err != nil {
				return unreadable()
			}
			return nil
		case 0:
			return unreadable()
		}
		if n.kind == '{' {
			name, err := dec.ReadToken()
			if err != nil {
				return unreadable()
			}
			n.names = append(n.names, name.String())
		}
		kid, err := readNode(dec, depth+1, left)
		if err != nil {
			return err
		}
		n.kids = append(n.kids, kid)
	}
}

// unreadable leaves out what the library says: it quotes.
func unreadable() error {
	return fmt.Errorf("%w: not one value of UTF-8 JSON with names that come once", ErrJSON)
}

func (n *node) bytes() ([]byte, error) {
	var b bytes.Buffer
	// Names may have become equal by escaping; the decoder of whoever reads this decides then, so they are refused here.
	enc := jsontext.NewEncoder(&b, jsontext.EscapeForHTML(false))
	if err := n.write(enc); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrJSON, "two names became one")
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

func (n *node) write(enc *jsontext.Encoder) error {
	switch n.kind {
	case '"':
		return enc.WriteToken(jsontext.String(n.text))
	case '{', '[':
	default:
		return enc.WriteValue(n.raw)
	}
	open, end := jsontext.BeginArray, jsontext.EndArray
	if n.kind == '{' {
		open, end = jsontext.BeginObject, jsontext.EndObject
	}
	if err := enc.WriteToken(open); err != nil {
		return err
	}
	for i, kid := range n.kids {
		if n.kind == '{' {
			if err := enc.WriteToken(jsontext.String(n.names[i])); err != nil {
				return err
			}
		}
		if err := kid.write(enc); err != nil {
			return err
		}
	}
	return enc.WriteToken(end)
}

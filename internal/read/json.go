// SPDX-License-Identifier: Apache-2.0

package read

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// JSON reads one value, of what somebody sends. It has no lines: a request is told by its paths. An object
// or a list is looked into where something is read out of it, one level at a time; what is kept as
// json.RawMessage is JSON, and no more is said of it.
func JSON(s Source, text []byte) *Node {
	d, ok := newDocument(s, text)
	if !ok {
		return d.root
	}
	dec := decoder(text)
	_, err := dec.ReadValue()
	if err == nil {
		if _, err = dec.ReadToken(); errors.Is(err, io.EOF) {
			*d.root = *d.json(bytes.Trim(text, " \t\r\n"), s.Path, 0)
			return d.root
		}
	}
	switch bad, ok := errors.AsType[*jsontext.SyntacticError](err); {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		d.report(0, s.Path, "not JSON: it ends early")
	case ok: // in our words: the library's repeat the text, and change between releases
		d.report(0, s.Path, "not JSON: wrong at byte %d", bad.ByteOffset+1)
	default:
		d.report(0, s.Path, "something follows the value")
	}
	return d.root
}

// decoder leaves it to split to find names that are given twice, with their path, and to whoever reads a
// text that it is none.
func decoder(text []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// json returns a value as what it would be in YAML; of an object or a list only that it is one.
func (d *document) json(raw jsontext.Value, path string, depth int) *Node {
	n := &yaml.Node{Kind: yaml.ScalarNode}
	switch raw[0] {
	case '{':
		n.Kind = yaml.MappingNode
	case '[':
		n.Kind = yaml.SequenceNode
	case '"':
		text, err := jsontext.AppendUnquote(nil, raw)
		if n.Tag, n.Value = "!!str", string(text); err != nil {
			n.Tag = "!!broken text" // half a character, by \ud800: two texts would be one
		}
	case 'n':
		n.Tag, n.Value = "!!null", "null"
	case 't', 'f':
		n.Tag, n.Value = "!!bool", string(raw)
	default:
		if n.Tag, n.Value = "!!int", string(raw); strings.ContainsAny(n.Value, ".eE") {
			n.Tag = "!!float"
		}
	}
	return &Node{doc: d, yaml: n, path: path, raw: raw, depth: depth}
}

// split yields what an object or a list has. The text is known to be JSON.
func (n *Node) split(yield func(string, *Node) bool) {
	if n.yaml.Kind == yaml.ScalarNode {
		return
	}
	if n.depth >= maxDepth {
		n.doc.report(0, n.path, "nested deeper than %d", maxDepth)
		return
	}
	dec := decoder(n.raw)
	value := func() jsontext.Value {
		v, _ := dec.ReadValue()
		end := int(dec.InputOffset())
		return n.raw[end-len(v) : end]
	}
	seen := map[string]bool{}
	_, _ = dec.ReadToken()
	for i := 0; dec.PeekKind() != '}' && dec.PeekKind() != ']'; i++ {
		key, path := "", ""
		if n.yaml.Kind == yaml.SequenceNode {
			path = fmt.Sprintf("%s[%d]", n.path, i)
		} else {
			name, _ := jsontext.AppendUnquote(nil, value()) // a broken one is unknown, or no name of ours
			key = string(name)
			path = Join(n.path, key)
			if seen[key] {
				n.doc.report(0, path, "given twice")
			}
			seen[key] = true
		}
		v := value()
		if len(v) == 0 || !yield(key, n.doc.json(v, path, n.depth+1)) {
			return
		}
	}
}

var errNotJSON = errors.New("no JSON that can be read in one way only (names twice, broken text, something behind it)")

// OneMeaning looks through JSON that others will read after it was decided about: names given twice at any
// depth, broken text, what is nested deeper than 64, and numbers that keep refuses, are errors. They quote
// nothing.
func OneMeaning(text []byte, keep func(number string) bool) error {
	d := jsontext.NewDecoder(bytes.NewReader(text))
	for {
		t, err := d.ReadToken()
		switch {
		case err != nil:
			return errNotJSON
		case d.StackDepth() > maxDepth:
			return fmt.Errorf("nested deeper than %d", maxDepth)
		case t.Kind() == '0' && !keep(t.String()):
			return errors.New("a number that can't be kept exactly; send it as a string")
		}
		if d.StackDepth() == 0 {
			break
		}
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return errNotJSON
	}
	return nil
}

// AnyNumber is for OneMeaning.
func AnyNumber(string) bool { return true }

// Canonical returns what has one meaning in the form of RFC 8785, which is one for all spellings of a value.
// keep refuses the numbers that the form would change.
func Canonical(text []byte, keep func(number string) bool) (json.RawMessage, error) {
	if err := OneMeaning(text, keep); err != nil {
		return nil, err
	}
	v := jsontext.Value(bytes.Clone(text))
	if err := v.Canonicalize(); err != nil {
		return nil, errNotJSON
	}
	return json.RawMessage(v), nil
}

// Exactly decodes what a program of ours has written onto v, as encoding/json does, and refuses fields that
// v doesn't have: they are what another version has to say, and to leave them out could be to lift what they
// hold. It is for records and for messages between our processes; what others write goes through JSON.
func Exactly(text []byte, v any) error {
	if string(text) == "null" {
		return errors.New("null") // which json would take for "leave it as it is"
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows it")
	}
	return nil
}

// WriteYAML writes v as YAML, with the keys of its JSON in their order.
func WriteYAML(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil {
		return err
	}
	plain(&n)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	return e.Encode(&n)
}

// plain undoes the flow style that JSON has in YAML's eyes.
func plain(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		plain(c)
	}
}

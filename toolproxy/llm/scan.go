// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// member is a value within a JSON text, and where it stands in it.
type member struct {
	raw jsontext.Value
	at  int
}

// errTwice is of an object that says a thing twice that is read here.
var errTwice = errors.New("a member is there twice")

// scanner reads without changing: what isn't looked for is stepped over. Names that come twice and letters that
// are none pass where nobody looks: they are the provider's to judge.
func scanner(data []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// members finds values in the JSON object that data is, by their paths: names joined by dots. Lists aren't
// entered. A name counts without its case and underscores: Google reads two spellings of each, other servers any
// case, and whoever reads one spelling only would count by another model or limit than the provider answers by.
// For the same reason a member that comes twice is errTwice; other errors mean that data isn't an object.
func members(data []byte, want []string) (map[string]member, error) {
	s := search{dec: scanner(data), data: data, want: want, found: map[string]member{}}
	if err := s.object(""); err != nil {
		return nil, err
	}
	if _, err := s.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errForm
	}
	if s.twice {
		return s.found, errTwice
	}
	return s.found, nil
}

type search struct {
	dec   *jsontext.Decoder
	data  []byte
	want  []string
	found map[string]member
	twice bool
}

// object reads one, at the depth of the wanted paths at most.
func (s *search) object(prefix string) error {
	if t, err := s.dec.ReadToken(); err != nil || t.Kind() != '{' {
		return errForm
	}
	for s.dec.PeekKind() != '}' {
		name, err := s.dec.ReadToken()
		if err != nil {
			return errForm
		}
		path, parent := s.match(prefix, name.String())
		if parent { // of two such objects a provider may read the one or the other
			_, again := s.found[path]
			s.twice, s.found[path] = s.twice || again, member{}
		}
		switch {
		case parent && s.dec.PeekKind() == '{':
			err = s.object(path + ".")
		case path != "" && !parent:
			err = s.keep(path)
		default:
			err = s.dec.SkipValue()
		}
		if err != nil {
			return errForm
		}
	}
	_, err := s.dec.ReadToken()
	return err
}

func (s *search) keep(path string) error {
	v, err := s.dec.ReadValue()
	end := int(s.dec.InputOffset())
	if err != nil {
		return err
	}
	_, again := s.found[path]
	s.twice = s.twice || again
	s.found[path] = member{s.data[end-len(v) : end], end - len(v)}
	return nil
}

// match returns the wanted path that a name leads to, and whether it leads on below it; empty: none.
func (s *search) match(prefix, name string) (path string, parent bool) {
	for _, want := range s.want {
		rest, ok := strings.CutPrefix(want, prefix)
		if !ok {
			continue
		}
		first, _, below := strings.Cut(rest, ".")
		if sameName(name, first) {
			return prefix + first, below
		}
	}
	return "", false
}

func sameName(a, b string) bool {
	return strings.EqualFold(strings.ReplaceAll(a, "_", ""), strings.ReplaceAll(b, "_", ""))
}

// text is a string member's, and whether it is one.
func (m member) text() (string, bool) {
	if m.raw.Kind() != '"' {
		return "", false
	}
	b, err := jsontext.AppendUnquote(nil, m.raw)
	return string(b), err == nil
}

// number is a whole member's that isn't negative; -1: it is none.
func (m member) number() int64 {
	n := int64(0)
	for _, c := range m.raw {
		if c < '0' || c > '9' || n > maxSaid {
			return -1
		}
		n = 10*n + int64(c-'0')
	}
	if len(m.raw) == 0 {
		return -1
	}
	return n
}

// maxSaid bounds numbers that are read: no model has a context of that many tokens.
const maxSaid = 1 << 24

// eachString visits the strings within a JSON value, each with the name of the member that it is or is listed
// in; names themselves aren't visited. It ends where data stops being JSON.
func eachString(data []byte, visit func(name string, quoted jsontext.Value)) {
	dec, names := scanner(data), []string{""}
	for {
		top := len(names) - 1
		kind := dec.PeekKind()
		if in, n := dec.StackIndex(dec.StackDepth()); kind == '"' && (in != '{' || n%2 == 1) {
			v, err := dec.ReadValue()
			if err != nil {
				return
			}
			visit(names[top], v)
			continue
		}
		t, err := dec.ReadToken()
		if err != nil {
			return
		}
		switch kind {
		case '{', '[':
			names = append(names, names[top])
		case '}', ']':
			names = names[:top]
		case '"':
			names[top] = t.String()
		}
	}
}

// eachElement visits the elements of a list; a value that is none is the only one.
func eachElement(v jsontext.Value, visit func(jsontext.Value)) {
	if v.Kind() != '[' {
		visit(v)
		return
	}
	dec := scanner(v)
	if _, err := dec.ReadToken(); err != nil {
		return
	}
	for dec.PeekKind() != ']' {
		e, err := dec.ReadValue()
		if err != nil {
			return
		}
		visit(e)
	}
}

// namesOf are the names of an object's members.
func namesOf(v jsontext.Value) (names []string) {
	dec := scanner(v)
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '{' {
		return nil
	}
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			break
		}
		if names = append(names, name.String()); dec.SkipValue() != nil {
			break
		}
	}
	return names
}

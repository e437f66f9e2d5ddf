// SPDX-License-Identifier: Apache-2.0

package read

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// lastLine puts the problem that there are more behind all others.
const lastLine = math.MaxInt32

// maxDepth is far below what the library takes and far above what people write.
const maxDepth = 64

// Source says what a text is.
type Source struct {
	File string // as problems name it; empty: not at all
	Path string // of the whole text, where it is a part of something; mostly empty
	Max  int    // bytes

	// Partial leaves keys that aren't known to others, who read the whole.
	Partial bool
	// Quiet says of a wrong value what it is and not how it reads: it may be a secret.
	Quiet bool
}

// Node is a part of a document. nil is one that isn't there: it has no keys, and nothing is wrong with it.
type Node struct {
	doc  *document
	yaml *yaml.Node // nil: there is nothing in it
	path string
	line int // of its key, where it has one

	raw   jsontext.Value // of JSON: the value as it is written; nil: YAML
	depth int            // of JSON
}

// document is one text, with what was found wrong so far.
type document struct {
	file     string
	partial  bool
	quiet    bool
	root     *Node
	problems []Problem
	meant    []string // paths that unknown keys were meant to be: that there is nothing at them follows
}

// newDocument holds a text to what is asked of any.
func newDocument(s Source, text []byte) (d *document, ok bool) {
	d = &document{file: s.File, partial: s.Partial, quiet: s.Quiet}
	d.root = &Node{doc: d, path: s.Path}
	switch {
	case len(text) > s.Max:
		d.report(0, s.Path, "longer than %d bytes", s.Max)
	case !utf8.Valid(text):
		d.report(0, s.Path, "not UTF-8")
	default:
		return d, true
	}
	return d, false
}

// YAML reads a document of at most one. What is wrong with it as YAML is told by Done, as everything else.
func YAML(s Source, text []byte) *Node {
	d, ok := newDocument(s, text)
	if !ok {
		return d.root
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) {
			d.syntax(s.Path, err)
		}
		return d.root
	}
	if err := dec.Decode(&second); err == nil {
		d.report(second.Line, s.Path, "more than one document")
		return d.root
	} else if !errors.Is(err, io.EOF) {
		d.syntax(s.Path, err)
		return d.root
	}
	if n := doc.Content[0]; n.Tag != "!!null" {
		d.root.yaml, d.root.line = n, n.Line
		d.shape(d.root, 0)
	}
	return d.root
}

// syntax takes the line out of "yaml: line 7: did not find …".
func (d *document) syntax(path string, err error) {
	msg, line := strings.TrimPrefix(err.Error(), "yaml: "), 0
	if rest, ok := strings.CutPrefix(msg, "line "); ok {
		num, after, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(num); err == nil {
			line, msg = n, after
		}
	}
	d.report(line, path, "not YAML: %s", msg)
}

// shape refuses what could make one text mean another, wherever it stands, whether or not somebody will read
// it.
func (d *document) shape(n *Node, depth int) {
	switch {
	case depth > maxDepth:
		d.report(n.yaml.Line, n.path, "nested deeper than %d", maxDepth)
		n.yaml.Content = nil
	case n.yaml.Kind == yaml.AliasNode || n.yaml.Anchor != "":
		d.report(n.yaml.Line, n.path, "anchors and aliases are not part of the format")
	case n.yaml.Style&yaml.TaggedStyle != 0:
		d.report(n.yaml.Line, n.path, "tag %.40s: tags are not part of the format", n.yaml.Tag)
	case n.yaml.Kind == yaml.MappingNode:
		d.keys(n)
	}
	for _, member := range n.members() {
		d.shape(member, depth+1)
	}
}

func (d *document) keys(n *Node) {
	first := make(map[string]int, len(n.yaml.Content)/2)
	for i := 0; i+1 < len(n.yaml.Content); i += 2 {
		key := n.yaml.Content[i]
		switch at := first[key.Value]; {
		case key.Kind != yaml.ScalarNode || key.Tag != "!!str" || key.Anchor != "" || key.Style&yaml.TaggedStyle != 0:
			d.report(key.Line, n.path, "a key is a plain word, or a text in quotes: got %s", (&Node{doc: d, yaml: key}).describe())
		case at > 0:
			d.report(key.Line, Join(n.path, key.Value), "given twice, first on line %d", at)
		default:
			first[key.Value] = key.Line
		}
	}
}

// members yields the values of a mapping by their keys, or of a list. Values of keys that are none are left
// out.
func (n *Node) members() iter.Seq2[string, *Node] {
	return func(yield func(string, *Node) bool) {
		if n == nil || n.yaml == nil {
			return
		}
		if n.raw != nil {
			n.split(yield)
			return
		}
		switch n.yaml.Kind {
		case yaml.SequenceNode:
			for i, v := range n.yaml.Content {
				if !yield("", &Node{doc: n.doc, yaml: v, path: fmt.Sprintf("%s[%d]", n.path, i), line: v.Line}) {
					return
				}
			}
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.yaml.Content); i += 2 {
				key := n.yaml.Content[i]
				if key.Kind == yaml.ScalarNode && key.Tag == "!!str" && !yield(key.Value, &Node{doc: n.doc, yaml: n.yaml.Content[i+1], path: Join(n.path, key.Value), line: key.Line}) {
					return
				}
			}
		}
	}
}

// Done returns everything that is wrong with the node, nil if nothing is: what reading it found, and what
// checks found, which are given as Problems with paths below the node, any other error as one of the node
// itself.
func (n *Node) Done(found ...error) error {
	if n == nil {
		return errors.Join(found...)
	}
	for _, err := range found {
		n.add(err)
	}
	var own []Problem
	for _, p := range n.doc.problems {
		if within(p.Path, n.path) || within(n.path, p.Path) {
			own = append(own, p)
		}
	}
	if own == nil {
		return nil
	}
	slices.SortStableFunc(own, func(a, b Problem) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path)) })
	if last := &own[len(own)-1]; last.Line == lastLine {
		last.Line = 0
	}
	return &InvalidError{own}
}

func (n *Node) add(err error) {
	switch e := err.(type) { //nolint:errorlint // each error of a joined one is looked at by itself
	case nil:
	case interface{ Unwrap() []error }:
		for _, each := range e.Unwrap() {
			n.add(each)
		}
	case *InvalidError:
		for _, p := range e.Problems {
			switch {
			case len(n.doc.problems) > maxProblems || slices.Contains(n.doc.problems, p):
			case p.File == "" && p.Line == 0: // a check's
				n.add(p)
			default:
				n.doc.problems = append(n.doc.problems, p)
			}
		}
	case Problem:
		n.doc.follow(below(n.path, e.Path), e.Message)
	default:
		n.doc.follow(n.path, err.Error())
	}
}

// follow reports what a check says, unless that follows from what was reported before.
func (d *document) follow(path, message string) {
	if !d.follows(path) {
		d.report(d.root.lineOf(path), path, "%s", message)
	}
}

// follows tells whether a problem at path would say nothing new.
func (d *document) follows(path string) bool {
	return len(d.problems) > maxProblems || slices.ContainsFunc(d.problems, func(p Problem) bool {
		return within(p.Path, path) || within(path, p.Path)
	}) || slices.ContainsFunc(d.meant, func(meant string) bool { return within(path, meant) })
}

func (d *document) report(line int, path, format string, args ...any) {
	switch {
	case len(d.problems) < maxProblems:
		d.problems = append(d.problems, Problem{d.file, line, path, fmt.Sprintf(format, args...)})
	case len(d.problems) == maxProblems:
		d.problems = append(d.problems, Problem{File: d.file, Line: lastLine, Message: "and more problems"})
	}
}

// lineOf returns the line of path, or of what encloses it nearest.
func (n *Node) lineOf(path string) int {
	if n.raw != nil {
		return 0
	}
	for _, member := range n.members() {
		if within(path, member.path) {
			return member.lineOf(path)
		}
	}
	return n.line
}

// within tells whether a path is another or below it.
func within(path, other string) bool {
	rest, ok := strings.CutPrefix(path, other)
	return ok && (other == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}

// Join puts a key behind a path. A key that a person wouldn't write is quoted and cut.
func Join(path, key string) string {
	if len(key) > 128 || strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }) {
		key = fmt.Sprintf("%.128q", key)
	}
	return below(path, key)
}

func below(path, rest string) string {
	if path == "" || rest == "" || rest[0] == '[' {
		return path + rest
	}
	return path + "." + rest
}

// describe says what stands there, in the words of the format.
func (n *Node) describe() string {
	kind := n.kind()
	if n.doc.quiet {
		return kind
	}
	switch kind {
	case "text", "broken text", "the date":
		return fmt.Sprintf("%s %.40q", kind, n.yaml.Value)
	case "a mapping", "an object", "a list", "nothing", "null":
		return kind
	default:
		return fmt.Sprintf("%s %.40s", kind, n.yaml.Value)
	}
}

// kind is describe without the value, which may be a secret that stands in the wrong place.
func (n *Node) kind() string {
	switch {
	case n.yaml.Kind == yaml.MappingNode && n.raw != nil:
		return "an object"
	case n.yaml.Kind == yaml.MappingNode:
		return "a mapping"
	case n.yaml.Kind == yaml.SequenceNode:
		return "a list"
	case n.yaml.Tag == "!!null" && n.raw != nil:
		return "null"
	}
	if known, ok := map[string]string{"!!null": "nothing", "!!str": "text", "!!timestamp": "the date"}[n.yaml.Tag]; ok {
		return known
	}
	return strings.TrimPrefix(n.yaml.Tag, "!!")
}

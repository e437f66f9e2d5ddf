// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"encoding/json"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// ModePublic is the one mode of a team in which plaintext passes (M-15). Every other word, the empty one too, is taken for
// "confidential".
const ModePublic = "public"

// Defaults of Options.
const (
	DefaultString  = 64
	DefaultSummary = 280
	DefaultNumbers = 16
)

// Options of a Filter. The zero value is the strictest.
type Options struct {
	Plaintext []string // further names of fields that bear plaintext
	Reasoning []string // further names of fields that hold reasoning
	Keep      []string // fields that pass in confidential mode whatever they hold; what is in them is on the operator
	String    int      // longest unknown string that passes in confidential mode, in bytes; 0: DefaultString
	Summary   int      // longest summary, in characters; 0: DefaultSummary
	Verbatim  bool     // strings aren't escaped (Escape): for tools whose output a program reads byte by byte
}

// Filter filters replies on their way to an agent. It is safe for concurrent use; the zero value withholds everything.
type Filter struct {
	o                                    Options
	plaintext, reasoning, types, vectors nameSet
	summaries, roles, keep               nameSet
}

// New returns a filter.
func New(o Options) *Filter {
	if o.String <= 0 {
		o.String = DefaultString
	}
	if o.Summary <= 0 {
		o.Summary = DefaultSummary
	}
	return &Filter{
		o:         o,
		plaintext: forbidden(plaintextFields, o.Plaintext),
		reasoning: forbidden(reasoningFields, o.Reasoning),
		types:     names(reasoningTypes, nil),
		vectors:   names(vectorFields, nil),
		summaries: names(summaryFields, nil),
		roles:     names(roleFields, nil),
		keep:      names("", o.Keep),
	}
}

var builtin = sync.OnceValue(func() *Filter { return New(Options{}) })

// Reply filters a tool's output by the default options.
func Reply(mode string, output json.RawMessage) (json.RawMessage, []string, error) {
	return builtin().Reply(mode, output)
}

// turn is held by whoever filters: what is made of a reply takes fifty times its bytes, so that those of all calls at once, each of the
// length that it may have, would be more memory than a gateway has.
var turn sync.Mutex

// Reply returns what of output an agent of a team in this mode may get, and flags for the record: what was done, and what is
// suspicious about what remains. An error comes with no output.
func (f *Filter) Reply(mode string, output json.RawMessage) (json.RawMessage, []string, error) {
	turn.Lock()
	defer turn.Unlock()
	root, err := parseTree(output, maxValues)
	if err != nil {
		return nil, nil, err
	}
	w := &walk{Filter: f, confidential: mode != ModePublic}
	if f.reasoning == nil {
		w.Filter, w.confidential = builtin(), true
	}
	if !w.value(root, place{}) {
		root = &node{kind: 'n', raw: jsontext.Value("null")}
	}
	out, err := root.bytes()
	if err != nil {
		return nil, nil, err
	}
	return out, Merge(w.flags, nil), nil
}

// place is where in the reply a value stands.
type place struct {
	name    string // of the member it is, or that the list is which holds it
	within  bool   // something that bears plaintext
	list    bool   // it stands in a list
	vectors bool   // numbers are vectors here
}

// walk goes through one reply.
type walk struct {
	*Filter
	confidential bool
	flags        []string
}

func (w *walk) flag(names ...string) { w.flags = Merge(w.flags, names) }

// value filters n in place and tells whether it stays.
func (w *walk) value(n *node, at place) bool {
	switch n.kind {
	case '{':
		return w.object(n, at)
	case '[':
		return w.list(n, at)
	case '"':
		return w.text(n, at)
	}
	// A number beside a name that bears plaintext says little; one after the other they are characters: see list.
	return true
}

func (w *walk) object(n *node, at place) bool {
	if at.list && w.isReasoning(n) {
		w.flag(FlagReasoning)
		return false
	}
	kept := 0
	for i, name := range n.names {
		if w.reasoning.like(name) {
			w.flag(FlagReasoning)
			continue
		}
		if !w.member(n.kids[i], name, at) {
			continue
		}
		name, flags := Escape(name)
		w.flag(flags...)
		n.names[kept], n.kids[kept] = name, n.kids[i]
		kept++
	}
	n.names, n.kids = n.names[:kept], n.kids[:kept]
	return true
}

func (w *walk) isReasoning(n *node) bool {
	for i, name := range n.names {
		if typeField.like(name) && n.kids[i].kind == '"' && w.types.like(n.kids[i].text) {
			return true
		}
	}
	return false
}

func (w *walk) member(n *node, name string, at place) bool {
	next := place{name: name, within: at.within, vectors: at.vectors}
	if !w.confidential {
		return w.value(n, next)
	}
	if w.keep.has(name) {
		w.confidential = false
		stays := w.value(n, next)
		w.confidential = true
		return stays
	}
	switch {
	case w.vectors.has(name):
		next.vectors, next.within = true, false
	case w.plaintext.like(name):
		next.within = true
	case len(name) > w.o.String || strings.ContainsFunc(name, unicode.IsSpace):
		w.flag(FlagPlaintext) // names can be sentences too
		return false
	}
	return w.value(n, next)
}

func (w *walk) list(n *node, at place) bool {
	if w.confidential && !at.vectors && w.codes(n, at.within) {
		w.flag(FlagPlaintext)
		return false
	}
	kept := 0
	for _, kid := range n.kids {
		if w.value(kid, place{name: at.name, within: at.within, list: true, vectors: at.vectors}) {
			n.kids[kept] = kid
			kept++
		}
	}
	n.kids = n.kids[:kept]
	return true
}

// codes: a list of numbers may be text, by character or by token.
func (w *walk) codes(n *node, within bool) bool {
	numbers := 0
	for _, kid := range n.kids {
		if kid.kind == '0' {
			numbers++
		}
	}
	return numbers > 0 && (within || numbers > DefaultNumbers)
}

func (w *walk) text(n *node, at place) bool {
	text, cut := StripText(n.text, false)
	if cut {
		w.flag(FlagReasoning)
	}
	n.text = text
	if w.confidential && !w.passes(n, at) {
		w.flag(FlagPlaintext)
		return false
	}
	w.flag(Inspect(n.text)...)
	if !w.o.Verbatim {
		escaped, flags := Escape(n.text)
		n.text = escaped
		w.flag(flags...)
	}
	return true
}

// passes decides on a string in confidential mode, and masks a summary.
func (w *walk) passes(n *node, at place) bool {
	switch {
	case at.vectors:
		return false
	case w.summaries.has(at.name) && !at.list && !at.within:
		if n.text = Summary(n.text, w.o.Summary); n.text == "" {
			return false
		}
		return true
	case w.roles.has(at.name):
		return identifier(n.text, 32)
	case at.within:
		return structural(at.name) && identifier(n.text, 32)
	case at.list, at.name == "":
		return false // words one by one are a text
	}
	return identifier(n.text, w.o.String)
}

// structural names are what is left of a message: that there was one, when, from which role.
func structural(name string) bool {
	switch plainName(name) {
	case "id", "type", "object", "createdat", "updatedat", "created", "finishreason", "model", "index", "lang", "language":
		return true
	}
	return false
}

// identifier: short and without spaces.
func identifier(s string, most int) bool {
	return len(s) <= most && !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || Invisible(r) || r == utf8.RuneError })
}

// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"strings"

	"agentrun/telemetry"
)

// Stripper removes blocks of reasoning from the text of a model's reply as it comes in (M-17): <think>…</think> and its
// like, and the analysis channel of the harmony format. What is held back at any time is shorter than a tag. Pieces may be
// cut anywhere: the result is that of the whole text.
//
// A block that isn't closed goes to the end. A closing tag without an opening one is dropped, and what stood before it was
// already given out: for models whose chat template opens the block itself, start inside.
type Stripper struct {
	held     telemetry.Plaintext[string] // the beginning of what may become a tag
	inside   *fence                      // nil: outside
	depth    int                         // of blocks of one kind within each other
	tail     telemetry.Plaintext[string] // what was given out since the last "<", if that may still become a tag
	cut      bool                        // something was removed since the last that was given out
	stripped bool
}

// seam is put where something was cut out of the middle of what may be a tag: "<thi<think></think>nk>" would otherwise
// become one by the cut. No tag may have this character.
const seam = "·"

// NewStripper returns a stripper. inside: the reply begins within a block whose opening tag is in the prompt.
func NewStripper(inside bool) *Stripper {
	s := &Stripper{}
	if inside {
		s.inside, s.depth, s.stripped = &fences[0], 1, true
	}
	return s
}

// Stripped tells whether anything was removed so far.
func (s *Stripper) Stripped() bool { return s.stripped }

// fence is a kind of block.
type fence struct{ open, close []string }

// The first is what a chat template opens by itself. Tags (in pointed brackets) match in any case, with spaces and with
// attributes; the others as they are.
var fences = [...]fence{
	{[]string{"<think>"}, []string{"</think>"}},
	{[]string{"<thinking>"}, []string{"</thinking>"}},
	{[]string{"<thought>"}, []string{"</thought>"}},
	{[]string{"<thoughts>"}, []string{"</thoughts>"}},
	{[]string{"<reasoning>"}, []string{"</reasoning>"}},
	{[]string{"<scratchpad>"}, []string{"</scratchpad>"}},
	{[]string{"<reflection>"}, []string{"</reflection>"}},
	{[]string{"<inner_monologue>"}, []string{"</inner_monologue>"}},
	{[]string{"<chain_of_thought>"}, []string{"</chain_of_thought>"}},
	{[]string{"<|channel|>analysis<|message|>", "<|channel|>commentary<|message|>"}, []string{"<|end|>", "<|return|>", "<|channel|>final<|message|>"}},
	{[]string{"<|begin_of_thought|>"}, []string{"<|end_of_thought|>"}},
	{[]string{"<seed:think>"}, []string{"</seed:think>"}},
}

// maxTag bounds a tag with its attributes, and so what is held back.
const maxTag = 96

// Write takes the next piece and returns what can be given out.
func (s *Stripper) Write(piece string) string { return s.consume(piece, false) }

// Close returns the rest: the beginning of a tag that never became one.
func (s *Stripper) Close() string { return s.consume("", true) }

// StripText is the whole text at once.
func StripText(text string, inside bool) (string, bool) {
	s := NewStripper(inside)
	out := s.Write(text)
	out += s.Close()
	return out, s.stripped
}

func (s *Stripper) consume(piece string, final bool) string {
	in := s.held.Reveal() + piece
	s.held = telemetry.Plaintext[string]{}
	var out strings.Builder
	for in != "" {
		at := strings.IndexByte(in, '<')
		if at < 0 {
			s.emit(&out, in)
			break
		}
		s.emit(&out, in[:at])
		in = in[at:]
		length, partial := s.tag(in)
		switch {
		case partial && !final:
			s.held = telemetry.NewPlaintext(in)
			return out.String()
		case length == 0:
			s.emit(&out, in[:1])
			in = in[1:]
		default:
			in = in[length:]
		}
	}
	return out.String()
}

func (s *Stripper) emit(out *strings.Builder, text string) {
	if s.inside != nil || text == "" {
		return
	}
	tail := s.tail.Reveal()
	if s.cut && tail != "" && mayBecomeTag(tail) {
		out.WriteString(seam)
		tail = ""
	}
	s.cut = false
	out.WriteString(text)
	if at := strings.LastIndexByte(text, '<'); at >= 0 {
		tail = text[at:]
	} else if tail != "" {
		tail += text
	}
	if len(tail) > maxTag {
		tail = ""
	}
	s.tail = telemetry.NewPlaintext(tail)
}

// tag looks at the start of in: how long the tag there is, having acted on it, or whether it may become one.
func (s *Stripper) tag(in string) (length int, partial bool) {
	for i := range fences {
		f := &fences[i]
		n, more := matchAny(f.open, in)
		if n > 0 {
			s.opened(f)
			return n, false
		}
		m, moreClose := matchAny(f.close, in)
		if m > 0 {
			s.closed(f)
			return m, false
		}
		partial = partial || more || moreClose
	}
	return 0, partial
}

func (s *Stripper) opened(f *fence) {
	s.stripped = true
	switch s.inside {
	case nil:
		s.cut = true
		s.inside, s.depth = f, 1
	case f:
		s.depth++
	}
}

func (s *Stripper) closed(f *fence) {
	if s.inside == nil {
		s.stripped, s.cut = true, true
		return
	}
	if s.inside == f {
		if s.depth--; s.depth == 0 || strings.HasPrefix(f.open[0], "<|") {
			s.inside = nil
		}
	}
}

func mayBecomeTag(tail string) bool {
	for i := range fences {
		_, open := matchAny(fences[i].open, tail)
		_, end := matchAny(fences[i].close, tail)
		if open || end {
			return true
		}
	}
	return false
}

func matchAny(tags []string, in string) (length int, partial bool) {
	for _, t := range tags {
		n, more := match(t, in)
		if n > 0 {
			return n, false
		}
		partial = partial || more
	}
	return 0, partial
}

// match compares the start of in with a tag. A tag in pointed brackets may have spaces and attributes before its end:
// printable ASCII without brackets.
func match(tag, in string) (length int, partial bool) {
	if strings.HasPrefix(tag, "<|") {
		if strings.HasPrefix(in, tag) {
			return len(tag), false
		}
		return 0, strings.HasPrefix(tag, in)
	}
	name := tag[:len(tag)-1]
	n := min(len(name), len(in))
	if !strings.EqualFold(in[:n], name[:n]) {
		return 0, false
	}
	if len(in) <= len(name) {
		return 0, true
	}
	for i := len(name); i < len(in) && i < maxTag; i++ {
		switch c := in[i]; {
		case c == '>':
			return i + 1, false
		case i == len(name) && !blank(c), c == '<', c > '~', c < ' ' && !blank(c):
			return 0, false
		}
	}
	return 0, len(in) < maxTag
}

func blank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

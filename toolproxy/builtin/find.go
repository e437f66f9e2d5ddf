// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"regexp"
	"regexp/syntax"
	"unicode/utf8"

	"agentrun/toolproxy/tools"
)

// Bounds of find. A search takes at most text × program steps and can't be interrupted, so their product is what keeps a
// call within its time: 32 KiB × 1000 are some tenths of a second.
const (
	maxFindText   = 32 << 10
	maxFindProg   = 1000 // instructions; x{1000}{…} and a long pattern make many of them
	maxPattern    = 1000 // bytes
	maxMatches    = 1000
	defaultMatchs = 100
)

type match struct {
	Start  int      `json:"start"` // bytes
	End    int      `json:"end"`
	Text   string   `json:"text"`
	Groups []string `json:"groups,omitempty"`
}

type found struct {
	Matches []match `json:"matches"`
	More    bool    `json:"more"` // there are further ones beyond the limit
}

func findText(ctx context.Context, args textArgs) (any, error) {
	limit := args.Limit
	if limit == 0 {
		limit = defaultMatchs
	}
	if len(args.Text) > maxFindText || limit < 1 || limit > maxMatches {
		return nil, tools.BadArguments("find works on at most %d bytes of text and gives at most %d matches",
			maxFindText, maxMatches)
	}
	f, err := newFinder(args.Pattern)
	if err != nil {
		return nil, tools.BadArguments("pattern: %v", err)
	}
	out := found{Matches: []match{}}
	for at := f.next(args.Text, 0, -1); at != nil; {
		if len(out.Matches) == limit {
			out.More = true
			break
		}
		if ctx.Err() != nil {
			return nil, ended(ctx)
		}
		out.Matches = append(out.Matches, matchOf(args.Text, at))
		from := at[1]
		if at[0] == at[1] { // an empty match: go on behind the next character
			from = afterRune(args.Text, at[1])
		}
		at = f.next(args.Text, from, at[1])
	}
	return out, nil
}

func matchOf(text string, at []int) match {
	m := match{Start: at[0], End: at[1], Text: text[at[0]:at[1]]}
	for i := 2; i < len(at); i += 2 {
		group := ""
		if at[i] >= 0 {
			group = text[at[i]:at[i+1]]
		}
		m.Groups = append(m.Groups, group)
	}
	return m
}

// finder searches step by step, so that a context is looked at between two matches: the standard library's FindAll
// can't be stopped, and takes quadratic time for patterns such as a.*b|a.
type finder struct {
	first *regexp.Regexp
	// later is the pattern behind one character. Searching from the character before a place finds the same as searching
	// from that place, but \b, ^ and \A see what stands before it.
	later *regexp.Regexp
}

func newFinder(unsafePattern string) (finder, error) {
	if len(unsafePattern) == 0 || len(unsafePattern) > maxPattern {
		return finder{}, problem("has %d bytes; 1 to %d are allowed", len(unsafePattern), maxPattern)
	}
	tree, err := syntax.Parse(unsafePattern, syntax.Perl)
	if err != nil {
		return finder{}, err
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return finder{}, err
	}
	if len(prog.Inst) > maxFindProg {
		return finder{}, problem("is too complex: %d steps, at most %d are allowed", len(prog.Inst), maxFindProg)
	}
	var f finder
	if f.first, err = regexp.Compile(unsafePattern); err != nil {
		return finder{}, err
	}
	// The tree's own text: an open \Q would swallow the parenthesis.
	f.later, err = regexp.Compile("(?s:.)(?:" + tree.String() + ")")
	return f, err
}

// next finds the next match at or behind from. An empty one at prevEnd, where the one before ended, is none.
func (f finder) next(text string, from, prevEnd int) []int {
	for from <= len(text) {
		at := f.search(text, from)
		if at == nil || at[0] != at[1] || at[0] != prevEnd {
			return at
		}
		from = afterRune(text, from)
	}
	return nil
}

func (f finder) search(text string, from int) []int {
	if from == 0 {
		return f.first.FindStringSubmatchIndex(text)
	}
	_, back := utf8.DecodeLastRuneInString(text[:from])
	start := from - back
	at := f.later.FindStringSubmatchIndex(text[start:])
	if at == nil {
		return nil
	}
	_, skip := utf8.DecodeRuneInString(text[start+at[0]:])
	for i := range at {
		if at[i] >= 0 {
			at[i] += start
		}
	}
	at[0] += skip
	return at
}

// afterRune is the place behind the character at i; beyond the text at its end.
func afterRune(text string, i int) int {
	if i >= len(text) {
		return len(text) + 1
	}
	_, size := utf8.DecodeRuneInString(text[i:])
	return i + size
}

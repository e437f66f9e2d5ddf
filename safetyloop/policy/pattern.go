// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"agentrun/internal/fold"
	"agentrun/safetyloop/risk"
)

// pattern is one line of a policy, in the forms that hints are compared in.
type pattern struct {
	source string
	// Of a pattern that forbids: as folded, with the words of names apart, and that as a skeleton.
	folded, split, skeleton glob
	// Without the space between two words: drop_table is also droptable. Of letters, digits and spaces alone (and stars), it is
	// looked for among the words whatever stands between them: drop.table, drop;table.
	squeezed glob
	words    bool
	// Of one that approves: the whole operation, and the score that its own words have.
	operation glob
	score     int
}

var (
	errEmpty    = errors.New("an empty pattern matches nothing")
	errSpecial  = errors.New("only * and ? are special: a character class or a choice would match as written, which is hardly ever meant")
	errAll      = errors.New("approves everything; name what is approved")
	errEncoding = errors.New("not UTF-8")
)

func newPattern(s string, approve bool) (pattern, error) {
	p := pattern{source: s}
	r := fold.Read(s)
	key := forbidding(r.Split)
	switch literal := strings.Trim(key, "*? "); {
	case len(s) > MaxPattern:
		return p, fmt.Errorf("%.40q: longer than %d bytes", s, MaxPattern)
	case !utf8.ValidString(s):
		return p, fmt.Errorf("%.40q: %w", s, errEncoding)
	case strings.ContainsAny(s, "[]{}"):
		return p, fmt.Errorf("%.40q: %w", s, errSpecial)
	case strings.TrimSpace(s) == "" || key == "":
		return p, fmt.Errorf("%.40q: %w", s, errEmpty)
	case literal == "" && approve:
		return p, fmt.Errorf("%.40q: %w", s, errAll)
	}
	if approve {
		p.operation = newGlob(approving(r.Split))
		own := risk.Assess(strings.NewReplacer("*", " ", "?", " ").Replace(s), risk.Env{})
		p.score = known(&own)
		return p, nil
	}
	p.squeezed, p.words = newGlob(squeeze(key)), literalWords(key)
	p.folded, p.split, p.skeleton = newGlob(forbidding(r.Folded)), newGlob(key), newGlob(fold.Skeleton(key))
	return p, nil
}

// forbidding is the form that deny and requiresApproval are compared in. Space, underscore, hyphen and brackets are one
// separator, quotes and backslashes are nothing: drop_table, "drop table", drop-table, drop(table) and dr”op table are one.
func forbidding(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	gap := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '\'', '"', '`', '\\':
		case ' ', '_', '-', '(', ')', '[', ']', '{', '}', ',', '\n':
			gap = true
		default:
			if gap {
				b.WriteByte(' ')
				gap = false
			}
			b.WriteByte(c)
		}
	}
	if gap {
		b.WriteByte(' ')
	}
	return b.String()
}

// approving is the form that autoApprove is compared in: names of operations are one however their words are joined, and nothing
// else is. "read the file" isn't read_*.
func approving(s string) string { return strings.ReplaceAll(s, "-", "_") }

func once(s *string, as string) {
	if *s == as {
		*s = ""
	}
}

// squeeze takes out the spaces between two letters or digits. One beside a star stays: drop_* isn't dropbox.
func squeeze(key string) string {
	var b strings.Builder
	for i := range len(key) {
		if key[i] == ' ' && i > 0 && i < len(key)-1 && !strings.ContainsRune("*?", rune(key[i-1])) && !strings.ContainsRune("*?", rune(key[i+1])) {
			continue
		}
		b.WriteByte(key[i])
	}
	return b.String()
}

func literalWords(key string) bool {
	return !strings.ContainsFunc(key, func(r rune) bool { return !alnum(r) && !strings.ContainsRune(" *?", r) })
}

// loosen leaves the words alone.
func loosen(s string) string {
	return pad(strings.Join(strings.FieldsFunc(s, func(r rune) bool { return !alnum(r) }), " "))
}

// spelling is a text in which forbidden patterns are looked for. A hint and each of its operations give one.
type spelling struct {
	folded, split, base string
	folded0, base0      string // as skeletons
	loose, loose0       string // words alone, and that as a skeleton
}

// pad lets a pattern's separator at its edge match the edge of the hint: *_production* is in "production".
func pad(s string) string { return " " + strings.Trim(s, " ") + " " }

func spell(r fold.Reading) spelling {
	s := spelling{folded: pad(forbidding(r.Folded)), split: pad(forbidding(r.Split))}
	s.base = bases(s.split)
	s.folded0, s.base0 = fold.Skeleton(s.folded), fold.Skeleton(s.base)
	s.loose, s.loose0 = loosen(s.base), loosen(s.base0)
	// What is the same isn't looked through twice.
	once(&s.loose0, s.base0)
	once(&s.base0, s.folded0)
	once(&s.loose, s.base)
	once(&s.base, s.split)
	return s
}

// bases puts verbs into their base form: "deleting all records" has delete_all* in it.
func bases(s string) string {
	words := strings.Split(s, " ")
	for i, w := range words {
		trimmed := strings.TrimRight(w, ".:;!?")
		words[i] = risk.Base(trimmed) + w[len(trimmed):]
	}
	return strings.Join(words, " ")
}

// forbids tells whether the pattern is in any spelling.
func (p *pattern) forbids(spellings []spelling) bool {
	for i := range spellings {
		s := &spellings[i]
		switch {
		case p.folded.within(s.folded), p.split.within(s.split), p.split.within(s.base), p.squeezed.within(s.folded),
			p.skeleton.within(s.folded0), p.skeleton.within(s.base0), p.words && (p.split.within(s.loose) || p.skeleton.within(s.loose0)):
			return true
		}
	}
	return false
}

// leadIn is what may stand before an operation's name in a hint that names it and nothing else.
func leadIn(s string) string {
	for _, verb := range [...]string{"calling ", "call ", "invoking ", "invoke ", "using "} {
		if rest, ok := strings.CutPrefix(s, verb); ok {
			rest = strings.TrimPrefix(rest, "the ")
			return strings.TrimPrefix(rest, "tool ")
		}
	}
	return s
}

// approves tells whether the hint is this operation and nothing more, and if it is but may not be approved, why.
func (p *pattern) approves(hint string, a *risk.Assessment) (ok bool, why string) {
	key := approving(hint)
	if !p.operation.whole(key) && !p.operation.whole(leadIn(key)) {
		return false, ""
	}
	switch {
	case a.Hidden:
		return false, "it has characters that can't be seen or stand for others"
	case a.Chained:
		return false, "it is more than one command"
	case strings.Contains(hint, "$") && !strings.Contains(p.source, "$"):
		return false, "it has a variable, whose value isn't in it"
	case joined(hint):
		return false, "it goes on after the operation"
	case known(a) > max(risk.AdvisoryMax, p.score):
		return false, fmt.Sprintf("its score is %d, and the pattern's own words make %d", known(a), p.score)
	}
	return true, ""
}

// joined looks for words that join another action to the first. What it doesn't know is left to the score.
func joined(hint string) bool {
	words := strings.Fields(hint)
	for i, w := range words {
		switch strings.Trim(w, ".,:!?()") {
		case "and", "then", "also", "afterwards", "followed", "plus", "before", "after", "next", "finally", "while":
			return true
		}
		if n := len(w); n > 1 && i < len(words)-1 && (w[n-1] == ',' || w[n-1] == '.' && alnum(rune(w[n-2]))) {
			return true
		}
	}
	return false
}

// known is the score without what was added because too little is known: a pattern makes up for that.
func known(a *risk.Assessment) int {
	score := 0
	for _, f := range a.Factors {
		if f.Name != risk.Vague {
			score += f.Points
		}
	}
	return min(score, 100)
}

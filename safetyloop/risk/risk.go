// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"regexp"
	"strconv"
	"sync"

	"agentrun/internal/fold"
)

// Tier is what a score leads to (S-6). The zero value is none.
type Tier uint8

const (
	TierInvalid Tier = iota
	Advisory         // 0 to 30: continue
	Confirm          // 31 to 60: someone confirms
	Verify           // 61 to 85: out of band
	DangerZone       // 86 to 100: hard stop
)

// The highest scores of the lower tiers.
const (
	AdvisoryMax = 30
	ConfirmMax  = 60
	VerifyMax   = 85
)

// MaxHint is the longest hint that is made for; a longer one is at least the verify tier, whatever it says.
const MaxHint = 64 << 10

// TierOf is the tier of a score. What is no score is the highest.
func TierOf(score int) Tier {
	switch {
	case score < 0 || score > VerifyMax:
		return DangerZone
	case score > ConfirmMax:
		return Verify
	case score > AdvisoryMax:
		return Confirm
	}
	return Advisory
}

// String gives the names of S-6.
func (t Tier) String() string {
	names := [...]string{"invalid", "advisory", "confirm", "verify", "danger_zone"}
	if int(t) >= len(names) {
		t = TierInvalid
	}
	return names[t]
}

// Env is where the action would happen.
type Env struct {
	// Workspace is the absolute path of what the agent works on. Empty: every absolute path but /tmp is
	// outside.
	Workspace string
}

// Factor is one reason of a score.
type Factor struct {
	Name   string `json:"name"`
	Points int    `json:"points"`
	Detail string `json:"detail"` // at most 120 bytes, printable
}

// Assessment is what Assess found.
type Assessment struct {
	Score   int
	Tier    Tier
	Vague   bool     // no verb or no target that could be judged
	Factors []Factor // largest first; Score is their sum, at most 100
	Verb    string   // the operation's name (delete_user, git push), else the verb of the strongest action (delete)
	Target  string   // the first thing that is named, folded; "" if none is
	// Operations are the commands and operations that were recognised, as plain words: no path, no quotes, no
	// wrapper before. A policy's deny patterns are held against them too. At most 64.
	Operations []string
	// Chained tells of more than one command: a separator, a pipe, a substitution, a redirection, or a second
	// line.
	Chained bool
	Hidden  bool // something in the hint can't be seen, or reads as something else
}

// Assess scores a hint. It is read up to three times: as it is shown, as what hidden tag characters spell,
// and with escapes undone, since what reads the hint next may undo them. Each reading can only add. The
// readings share one budget, so that none of them can be made to cost more by what another holds.
func Assess(hint string, env Env) Assessment {
	r := fold.Read(hint)
	f := &finder{env: env, reading: r, budget: 16 * MaxHint}
	f.hide()
	f.text(withoutMessages(r.Clean), 0)
	if r.Shadow != "" {
		f.text(fold.Read(r.Shadow).Clean, 1)
	}
	if plain, needless := unescaped(r.Clean); plain != r.Clean {
		if needless {
			f.add(disguised, "letters or dots written as numbers")
		}
		f.text(fold.Read(plain).Clean, 1)
	}
	if len(hint) > MaxHint {
		f.add(shellUnreadable, "the hint is longer than it may be")
	}
	return f.result()
}

// Unescaped is the hint without the numbers that stand for characters, as %2e, \x2e and \u002e for a dot;
// what reads it may undo them. It is the hint itself if it has none.
func Unescaped(hint string) string {
	plain, _ := unescaped(fold.Read(hint).Clean)
	return plain
}

// maxRounds of decoding: a path that is decoded more often on its way is nobody's.
const maxRounds = 3

// unescaped undoes numbers that stand for characters, as often as a path is decoded on its way: %252e is a
// dot to a server behind a proxy. It tells also whether characters are escaped that never need it: no honest
// hint writes a dot so, or a word. Only what prints is undone. A number that is none stays as it is, and so
// does the number of a line end: it would make two commands of one.
func unescaped(s string) (plain string, needless bool) {
	for range maxRounds {
		before := s
		needless = needless || spelled().MatchString(s)
		s = escape().ReplaceAllStringFunc(s, func(e string) string {
			n, err := strconv.ParseUint(e[len(e)-2:], 16, 8)
			if len(e) == len("%c0%ae") && e[0] == '%' && e[3] == '%' { // too long a form, which careless readers take
				n -= 0x80
			}
			switch {
			case err != nil || n < ' ' || n > '~':
				return e
			case n == '\\': // of a path: a shell's would have been one before
				return "/"
			}
			return string(rune(n))
		})
		if s == before {
			break
		}
	}
	return s, needless
}

const number2 = `(?i)(%|%u00|\\x|\\u00)`

var (
	escape  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)%c0%a[ef]|` + number2 + `[0-9a-f]{2}`) })
	spelled = sync.OnceValue(func() *regexp.Regexp {
		// A single letter may be the format of a number, as %4d.
		return regexp.MustCompile(`(?i)%c0%a[ef]|` + number2 + `(2e|5f)|(` + number2 + `(3[0-9]|[46][1-9a-f]|[57][0-9a])){2}`)
	})
)

func (f *finder) hide() {
	h := f.reading.Hidden
	switch {
	case h.Tags > 0:
		f.add(hiddenCharacters, "tag characters, which no screen shows")
	case h.Bidi > 0:
		f.add(hiddenCharacters, "characters that turn the order of display")
	case h.Alike > 0:
		f.add(hiddenCharacters, "letters of another script within a word")
	case h.Invisible > 0:
		f.add(hiddenCharacters, "characters that can't be seen within words")
	case h.Styled > 0:
		f.add(hiddenCharacters, "letters in another form, such as full width")
	case h.Invalid > 0:
		f.add(hiddenCharacters, "bytes that are no text")
	}
}

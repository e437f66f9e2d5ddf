// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

//go:embed rules.json
var rulesJSON []byte

// rule is one entry of rules.json.
type rule struct {
	Flag    string   `json:"flag"`
	On      string   `json:"on"`    // "letters" or "text": see views
	Needs   []string `json:"needs"` // one of them must occur, or the pattern isn't tried: cheap before dear
	Pattern string   `json:"pattern"`
	Why     string   `json:"why"`
	re      *regexp.Regexp
	wide    bool // its words are of a script beyond ASCII, as long as they aren't folded
}

// ruleSet compiles at the first use. A fault in the embedded rules is a bug that a test finds; should it ever be there,
// every text counts as suspicious.
var ruleSet = sync.OnceValues(func() ([]rule, error) {
	var rules []rule
	if err := json.Unmarshal(rulesJSON, &rules); err != nil {
		return nil, err
	}
	for i := range rules {
		r := &rules[i]
		r.wide = r.Needs[0][0] >= utf8.RuneSelf
		if r.On == "letters" {
			r.Pattern = foldPattern(r.Pattern)
			for j, n := range r.Needs {
				r.Needs[j] = foldPattern(n)
			}
		}
		re, err := regexp.Compile(r.Pattern)
		if err != nil {
			return nil, err
		}
		r.re = re
	}
	return rules, nil
})

// Bounds of Inspect: how deep text is looked for within encodings, and what is long.
const (
	blobBytes    = 256 // a run of base64 or hex that is suspicious in itself: longer than any key, hash or signature in use
	decodeBytes  = 24  // the shortest run worth decoding: 18 bytes of text
	decodeLevels = 2
)

// Inspect names what is suspicious about text: the rules of rules.json, encoded runs, and what Escape would take out. It
// changes nothing and says nothing about who wrote it. The flags are sorted; none: nothing was noticed.
func Inspect(text string) []string {
	_, flags := escape(text, true)
	flags = slices.DeleteFunc(flags, func(f string) bool { return f == FlagEscaped })
	return Merge(flags, inspect(text, decodeLevels))
}

func inspect(text string, levels int) []string {
	rules, err := ruleSet()
	if err != nil {
		return []string{FlagOverride}
	}
	flags := held(rules, view(text), nil)
	if strings.Contains(text, "\x1b[") {
		// To a terminal a letter behind these ends an escape, to a model it is the first of a word.
		flags = held(rules, view(strings.ReplaceAll(text, "\x1b", " ")), flags)
	}
	if levels > 0 {
		flags = append(flags, encoded(text, levels)...)
	}
	return flags
}

// held adds the flags of the rules that match v.
func held(rules []rule, v views, flags []string) []string {
	for i := range rules {
		if r := &rules[i]; !slices.Contains(flags, r.Flag) && r.matches(v) {
			flags = append(flags, r.Flag)
		}
	}
	return flags
}

func (r *rule) matches(v views) bool {
	if r.wide {
		return v.lower != "" && r.in(v.lower)
	}
	if r.On == "text" {
		return r.in(v.text)
	}
	return r.in(v.letters) || v.signs != "" && r.in(v.signs)
}

func (r *rule) in(s string) bool {
	return slices.ContainsFunc(r.Needs, func(n string) bool { return strings.Contains(s, n) }) && r.re.MatchString(s)
}

// encoded looks for runs of base64 (hex is a part of its alphabet), and for text within them.
func encoded(text string, levels int) []string {
	var flags []string
	for start := 0; start < len(text); {
		end := start
		for end < len(text) && base64Byte(text[end]) {
			end++
		}
		if run := text[start:end]; len(run) >= decodeBytes {
			if len(run) >= blobBytes && !strings.HasSuffix(text[:start], ";base64,") {
				flags = append(flags, FlagEncoded)
			}
			if inner := hiddenText(run); inner != "" {
				if found := inspect(inner, levels-1); len(found) > 0 {
					flags = append(append(flags, FlagEncoded), found...)
				}
			}
		}
		start = end + 1
	}
	return flags
}

func base64Byte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '+' || c == '/' || c == '-' || c == '_'
}

// hiddenText decodes run and returns what it says if that is text.
func hiddenText(run string) string {
	std := strings.NewReplacer("-", "+", "_", "/").Replace(run)
	b, err := base64.RawStdEncoding.DecodeString(std[:len(std)-btoi(len(std)%4 == 1)])
	if err != nil || !utf8.Valid(b) || slices.ContainsFunc([]rune(string(b)), func(r rune) bool { return unicode.IsControl(r) && !unicode.IsSpace(r) }) {
		return ""
	}
	return string(b)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

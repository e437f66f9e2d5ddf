// SPDX-License-Identifier: Apache-2.0

package router

import (
	"encoding/json"
	"strings"
	"unicode"

	"agentrun/toolproxy/gate"
)

const maxIntent = 256

// Ways in which a tool was found.
const (
	byRule = "rule"
	byName = "name"
	byWord = "words"
)

// plain lowers case and makes white space one space.
func plain(s string) string { return strings.Join(strings.Fields(strings.ToLower(s)), " ") }

// found is the answer of a match.
type found struct {
	tool string
	how  string
	rule *Rule
}

// match finds the tool for an intent among those listed. ok is false if none fits or several do.
func (c *Config) match(intent string, tools []ToolInfo) (f found, ok bool) {
	intent = plain(intent)
	listed := map[string]bool{}
	for i := range tools {
		listed[tools[i].Name] = true
	}
	for i := range c.Rules {
		if r := &c.Rules[i]; glob(r.Intent, intent) {
			// The first rule that fits decides, also if its tool isn't this agent's: falling through to a likeness would send an
			// intent that the operator has placed somewhere else.
			return found{r.Tool, byRule, r}, listed[r.Tool]
		}
	}
	for i := range tools {
		if plain(tools[i].Name) == intent {
			return found{tools[i].Name, byName, nil}, true
		}
	}
	if !c.Words {
		return found{}, false
	}
	return likeliest(intent, tools)
}

// glob matches a pattern with * for any text, from left to right: with the leftmost place for each piece no backtracking is
// needed.
func glob(pattern, s string) bool {
	pieces := strings.Split(pattern, "*")
	if len(pieces) == 1 {
		return pattern == s
	}
	s, ok := strings.CutPrefix(s, pieces[0])
	if !ok {
		return false
	}
	last := pieces[len(pieces)-1]
	for _, p := range pieces[1 : len(pieces)-1] {
		_, after, ok := strings.Cut(s, p)
		if !ok {
			return false
		}
		s = after
	}
	return strings.HasSuffix(s, last)
}

// likeliest counts words in common: one of the name or of the keywords weighs 4, one of the description 1. Less than 2 is
// chance, and a draw is nobody's.
func likeliest(intent string, tools []ToolInfo) (found, bool) {
	wanted := words(intent)
	best, draw, at := 1, false, -1
	for i := range tools {
		score := 4*common(wanted, words(tools[i].Name+" "+strings.Join(tools[i].Keywords, " "))) + common(wanted, words(tools[i].Description))
		switch {
		case score > best:
			best, draw, at = score, false, i
		case score == best && at >= 0:
			draw = true
		}
	}
	if at < 0 || draw {
		return found{}, false
	}
	return found{tools[at].Name, byWord, nil}, true
}

// words are those of three letters and more: shorter ones are in every sentence.
func words(s string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		if len([]rune(w)) >= 3 {
			set[w] = true
		}
	}
	return set
}

func common(a, b map[string]bool) (n int) {
	for w := range a {
		if b[w] {
			n++
		}
	}
	return n
}

// arguments fills a rule's template.
func (f *found) arguments(args json.RawMessage) (json.RawMessage, *gate.Error) {
	if f.rule == nil || len(f.rule.Args) == 0 {
		return args, nil
	}
	given := map[string]json.RawMessage{}
	if err := json.Unmarshal(args, &given); err != nil {
		return nil, refuse(gate.CodeBadArguments, "args is not an object", "send args as a JSON object")
	}
	var tree map[string]any
	if err := json.Unmarshal(f.rule.Args, &tree); err != nil {
		return nil, refuse(gate.CodeUnavailable, "the rule has no form", "tell the operator")
	}
	filled, missing := fill(tree, given)
	if missing != "" {
		return nil, refuse(gate.CodeBadArguments, "args has no "+missing, "send it, or call the tool itself: GET /internal/tools has its schema")
	}
	out, err := json.Marshal(filled)
	if err != nil {
		return nil, refuse(gate.CodeBadArguments, "args have no form", "correct args")
	}
	return out, nil
}

// fill replaces "$name". Values go in as values: no text of the agent's is read as a template again.
func fill(v any, given map[string]json.RawMessage) (any, string) {
	switch v := v.(type) {
	case string:
		name, ok := strings.CutPrefix(v, "$")
		if !ok {
			return v, ""
		}
		if value, ok := given[name]; ok {
			return value, ""
		}
		return nil, name
	case map[string]any:
		for k := range v {
			filled, missing := fill(v[k], given)
			if missing != "" {
				return nil, missing
			}
			v[k] = filled
		}
	case []any:
		for i := range v {
			filled, missing := fill(v[i], given)
			if missing != "" {
				return nil, missing
			}
			v[i] = filled
		}
	}
	return v, ""
}

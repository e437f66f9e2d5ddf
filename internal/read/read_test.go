// SPDX-License-Identifier: Apache-2.0

package read

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type config struct {
	Name  string            `yaml:"name"`
	Wait  time.Duration     `yaml:"wait"`
	Count int               `yaml:"count"`
	Port  uint16            `yaml:"port"`
	Share *float64          `yaml:"share"`
	On    bool              `yaml:"on"`
	List  []inner           `yaml:"list"`
	ByKey map[string]inner  `yaml:"by_key"`
	Form  json.RawMessage   `yaml:"form"`
	Free  map[string]any    `json:"free"`
	Level level             `yaml:"level"`
	Part  *Node             `yaml:"part"`
	Text  map[string]string `yaml:"text"`
}

type inner struct {
	N     int    `yaml:"n"`
	Words []word `yaml:"words"`
}

// word is a text, or a mapping with one.
type word struct{ text string }

func (w *word) ReadNode(n *Node) {
	if n.Scalar() {
		n.Into(&w.text)
		return
	}
	var long struct {
		Text string `yaml:"text"`
	}
	if n.Into(&long); long.Text == "" {
		_ = n.Done(Bad("text", "missing"))
	}
	w.text = long.Text
}

type level int

func (l *level) UnmarshalText(text []byte) error {
	if *l = level(len(text)); *l > 4 {
		return errors.New("longer than a level")
	}
	return nil
}

func parse(text string) (config, error) {
	c := config{Count: 7}
	n := YAML(Source{File: "f.yaml", Max: 4096}, []byte(text))
	n.Into(&c)
	return c, n.Done()
}

func TestInto(t *testing.T) {
	c, err := parse(`
name: "yes"
wait: 1m30s
port: 65535
share: 0.5
on: true
list: [{n: 1, words: [a, {text: b}]}, {n: -2}]
by_key: {a.b: {n: 3}}
form: {max: 10, min: 0.5, or: [null, true, x]}
free: {a: {b: [1]}}
level: 007
part: {any: [thing]}
text: {"0600": "0600"}
`)
	if err != nil {
		t.Fatal(err)
	}
	half := 0.5
	part := c.Part
	c.Part = nil
	want := config{
		Name: "yes", Wait: 90 * time.Second, Count: 7, Port: 65535, Share: &half, On: true,
		List:  []inner{{N: 1, Words: []word{{"a"}, {"b"}}}, {N: -2}},
		ByKey: map[string]inner{"a.b": {N: 3}}, Form: json.RawMessage(`{"max":10,"min":0.5,"or":[null,true,"x"]}`),
		Free: map[string]any{"a": map[string]any{"b": []any{json.Number("1")}}}, Level: 3, Text: map[string]string{"0600": "0600"},
	}
	if diff := cmp.Diff(want, c, cmp.AllowUnexported(word{})); diff != "" {
		t.Error(diff)
	}
	var kept struct {
		Any []string `yaml:"any"`
	}
	if part.Into(&kept); part.Done() != nil || len(kept.Any) != 1 {
		t.Errorf("part: got %v, %v", kept, part.Done())
	}
	for _, text := range []string{"", "# nothing\n", "null\n", "---\n", "part:\n"} {
		if c, err := parse(text); err != nil || c.Name != "" || c.Count != 7 {
			t.Errorf("%q: got %+v, %v", text, c, err)
		}
	}
}

func TestMistakes(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown key":           {"\n\nnmae: x", "f.yaml:3: nmae: unknown key; did you mean name?"},
		"swapped":               {"prot: 1", "f.yaml:1: prot: unknown key; did you mean port?"},
		"far from all":          {"list:\n- n: 1\n  zebra: 2", "f.yaml:3: list[0].zebra: unknown key; known: n, words"},
		"long key":              {strings.Repeat("x", 200) + ": 1", `f.yaml:1: "` + strings.Repeat("x", 128) + `": unknown key; known: by_key, `},
		"key with a line end":   {`"a\nf.yaml:9: b": 1`, `f.yaml:1: "a\nf.yaml:9: b": unknown key`},
		"other case":            {"Name: x", "f.yaml:1: Name: unknown key; did you mean name?"},
		"twice":                 {"name: a\nwait: 1s\nname: b", "f.yaml:3: name: given twice, first on line 1"},
		"twice, deep and free":  {"free:\n  a:\n    b: 1\n    b: 2", "f.yaml:4: free.a.b: given twice, first on line 3"},
		"twice in a kept part":  {"part: {a: 1, a: 2}", "f.yaml:1: part.a: given twice"},
		"yes":                   {"on: yes", `f.yaml:1: on: want true or false, got text "yes"`},
		"True":                  {"on: True", `f.yaml:1: on: want true or false, got bool True`},
		"octal":                 {"count: 0600", "f.yaml:1: count: want a whole number, got int 0600"},
		"underscores":           {"count: 1_000", "f.yaml:1: count: want a whole number, got int 1_000"},
		"hexadecimal":           {"port: 0x10", "f.yaml:1: port: want a whole number from 0 to 65535, got int 0x10"},
		"too large":             {"port: 65536", "f.yaml:1: port: want a whole number from 0 to 65535"},
		"negative":              {"port: -1", "f.yaml:1: port: want a whole number from 0 to 65535"},
		"fraction":              {"count: 1.0", "f.yaml:1: count: want a whole number, got float 1.0"},
		"infinity":              {"share: .inf", "f.yaml:1: share: want a decimal number, got float .inf"},
		"tilde":                 {"name: ~", "f.yaml:1: name: want text, got nothing"},
		"nothing for a list":    {"list:", "f.yaml:1: list: want a list, got nothing"},
		"number for text":       {"name: 10", "f.yaml:1: name: want text, got int 10; write it in quotes"},
		"version for text":      {"text: {version: 1.10}", "f.yaml:1: text.version: want text, got float 1.10; write it in quotes"},
		"date for text":         {"name: 2026-01-02", `f.yaml:1: name: want text, got the date "2026-01-02"; write it in quotes`},
		"date in JSON":          {"form: {a: 2026-01-02}", `f.yaml:1: form.a: want what JSON has, got the date "2026-01-02"`},
		"octal in JSON":         {"form: {a: 0600}", "f.yaml:1: form.a: want what JSON has, got int 0600"},
		"duration without unit": {"wait: 30", "f.yaml:1: wait: want a duration with a unit, such as 30s, got int 30"},
		"no duration":           {"wait: soon", `f.yaml:1: wait: want a duration with a unit, such as 30s, got text "soon"`},
		"list for a mapping":    {"by_key: [a]", "f.yaml:1: by_key: want a mapping (key: value), got a list"},
		"mapping for a list":    {"list: {n: 1}", "f.yaml:1: list: want a list, got a mapping"},
		"mapping for text":      {"name:\n  a: b", "f.yaml:1: name: want text, got a mapping"},
		"its own words":         {"level: higher", "f.yaml:1: level: longer than a level"},
		"its own reader":        {"list:\n- words:\n  - text: a\n  - {}", "f.yaml:4: list[0].words[1].text: missing"},
		"number as key":         {"text: {1: a}", "f.yaml:1: text: a key is a plain word, or a text in quotes: got int 1"},
		"list as key":           {"? [a]\n: b", "f.yaml:1: a key is a plain word, or a text in quotes: got a list"},
		"anchor":                {"name: &a x", "f.yaml:1: name: anchors and aliases are not part of the format"},
		"alias":                 {"name: x\nfree: {a: &a [1], b: *a}", "f.yaml:2: free.a: anchors and aliases"},
		"merge":                 {"text: {<<: {a: b}}", "f.yaml:1: text: a key is a plain word, or a text in quotes: got merge <<"},
		"tag":                   {"name: !!str 1", "f.yaml:1: name: tag !!str: tags are not part of the format"},
		"deep":                  {"free: {a: " + strings.Repeat("[", 70) + strings.Repeat("]", 70) + "}", "nested deeper than 64"},
		"second document":       {"name: a\n---\nname: b", "f.yaml:2: more than one document"},
		"no YAML":               {"name: a\nlist: [", "f.yaml:2: not YAML: did not find expected node content"},
		"no mapping":            {"- a", "f.yaml:1: want a mapping (key: value), got a list"},
		"no UTF-8":              {"name: \xff", "f.yaml: not UTF-8"},
		"too long":              {"#" + strings.Repeat("x", 4096), "f.yaml: longer than 4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(c.text)
			var invalid *InvalidError
			if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			for _, p := range invalid.Problems {
				if strings.Contains(p.Error(), "\n") {
					t.Errorf("%q is more than a line", p.Error())
				}
			}
		})
	}
}

// Everything is told, by line; what a check finds is told too, unless it only follows.
func TestDoneTellsAll(t *testing.T) {
	const text = `
wiat: 1s
count: many
by_key:
  a: {n: 1}
  b: {n: x}
list: []
`
	n := YAML(Source{File: "f.yaml", Max: 4096}, []byte(text))
	var c config
	n.Into(&c)
	err := n.Done(
		errors.Join(Bad("wait", "missing"), Bad("count", "0 is too few"), Bad("name", "missing")),
		Under("by_key", errors.Join(Bad("a.n", "1 is too few"), Bad("b", "n is missing"))),
		Under("list", errors.New("empty")), nil,
	)
	want := []Problem{
		{"f.yaml", 2, "name", "missing"},
		{"f.yaml", 2, "wiat", "unknown key; did you mean wait?"},
		{"f.yaml", 3, "count", `want a whole number, got text "many"`},
		{"f.yaml", 5, "by_key.a.n", "1 is too few"},
		{"f.yaml", 6, "by_key.b.n", `want a whole number, got text "x"`},
		{"f.yaml", 7, "list", "empty"},
	}
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("got %v, want an InvalidError", err)
	}
	if diff := cmp.Diff(want, invalid.Problems); diff != "" {
		t.Error(diff)
	}
	if again := n.Done(err); again.Error() != err.Error() {
		t.Errorf("told again: got %v, want the same", again)
	}
	many := YAML(Source{Max: 1 << 20}, []byte("list: ["+strings.Repeat("1,", 200)+"]"))
	many.Into(&c)
	if got := strings.Count(many.Done().Error(), "\n"); got != maxProblems {
		t.Errorf("got %d lines after the first, want %d and a last one", got, maxProblems)
	}
	if !errors.As(many.Done(many.Done()), &invalid) || len(invalid.Problems) != maxProblems+1 || invalid.Problems[maxProblems] != (Problem{Message: "and more problems"}) {
		t.Errorf("got %d problems, the last %+v, want it on no line", len(invalid.Problems), invalid.Problems[len(invalid.Problems)-1])
	}
}

// A part tells what is wrong with it, and with what it is a part of, but not with others.
func TestDoneOfAPart(t *testing.T) {
	n := YAML(Source{Max: 4096}, []byte("a: {k: 1}\nb: {k: x}\n"))
	var parts map[string]*Node
	n.Into(&parts)
	var v struct {
		K int `yaml:"k"`
	}
	for name, want := range map[string]string{"a": "<nil>", "b": `line 2: b.k: want a whole number, got text "x"`} {
		if parts[name].Into(&v); fmt.Sprint(parts[name].Done()) != want {
			t.Errorf("%s: got %v, want %v", name, parts[name].Done(), want)
		}
	}
	var none *Node
	if none.Into(&v); none.Done() != nil || none.Done(Bad("k", "missing")).Error() != "k: missing" {
		t.Error("what isn't there has a problem of its own, or a check of it none")
	}
}

func TestPartial(t *testing.T) {
	n := YAML(Source{Max: 4096, Partial: true}, []byte("others: {a: 1}\nn: x\n"))
	var v inner
	if n.Into(&v); fmt.Sprint(n.Done()) != `line 2: n: want a whole number, got text "x"` {
		t.Errorf("got %v", n.Done())
	}
}

func TestNearest(t *testing.T) {
	known := []string{"providers", "limits", "n"}
	for word, want := range map[string]string{
		"providrs": "providers", "provider": "providers", "limit": "limits", "m": "n", "": "n", "zebra": "", "xx": "",
		strings.Repeat("providers", 8): "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("%q: got %q, want %q", word, got, want)
		}
	}
}

func FuzzYAML(f *testing.F) {
	f.Add("name: x\nlist: [{n: 1, words: [a, {text: b}]}]\nform: {a: [1]}")
	f.Add("by_key: {a: {n: 1}}\nby_key: &a {<<: *a}")
	f.Fuzz(func(t *testing.T, text string) {
		_, err := parse(text)
		var invalid *InvalidError
		if err != nil && (!errors.As(err, &invalid) || len(invalid.Problems) == 0) {
			t.Errorf("got %#v, want problems", err)
		}
	})
}

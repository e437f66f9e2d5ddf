// SPDX-License-Identifier: Apache-2.0

package read

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type request struct {
	Name string `json:"name" read:"required"`
	common
	On    bool                       `json:"on"`
	Wait  time.Duration              `json:"wait_ns"`
	At    time.Time                  `json:"at"`
	Mode  mode                       `json:"mode"`
	Inner *part                      `json:"inner"`
	List  []part                     `json:"list"`
	Raw   json.RawMessage            `json:"raw"`
	Free  any                        `json:"free"`
	Some  map[string]json.RawMessage `json:"some"`
}

type common struct {
	Count int     `json:"count"`
	Share float64 `json:"share"`
}

type part struct {
	Text string `json:"text" read:"say which"`
}

type mode string

func (mode) Choices() []string { return []string{"fast", "slow"} }

func parseJSON(text string) (request, error) {
	var r request
	n := JSON(Source{Max: 4096}, []byte(text))
	n.Into(&r)
	return r, n.Done()
}

func TestJSON(t *testing.T) {
	r, err := parseJSON(` {"name":"a\u00e9","count":-7,"share":1e-2,"on":true,"wait_ns":5,"at":"2026-11-22T01:02:03Z","mode":"slow","inner":null,
		"list":[{"text":"x"}],"raw":{"a":1,"a":[1.50]},"free":{"a":[1,1.5,null,"x",{}]},"some":{"k":[ 1 ]}} `)
	if err != nil {
		t.Fatal(err)
	}
	want := request{
		Name: "aé", common: common{-7, 0.01}, On: true, Wait: 5, At: time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC), Mode: "slow",
		List: []part{{"x"}}, Raw: json.RawMessage(`{"a":1,"a":[1.50]}`), Some: map[string]json.RawMessage{"k": json.RawMessage("[ 1 ]")},
		Free: map[string]any{"a": []any{json.Number("1"), json.Number("1.5"), nil, "x", map[string]any{}}},
	}
	if diff := cmp.Diff(want, r, cmp.AllowUnexported(request{})); diff != "" {
		t.Error(diff)
	}
}

func TestJSONMistakes(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown key":        {`{"nmae":"a"}`, "nmae: unknown key; did you mean name?"},
		"other case":         {`{"name":"a","Count":1}`, "Count: unknown key; did you mean count?"},
		"escape in a key":    {`{"name":"a","\u001b[2J":1}`, `"\x1b[2J": unknown key; known: at, count, `},
		"twice":              {`{"name":"a","name":"a"}`, "name: given twice"},
		"twice, spelt apart": {`{"name":"a","n\u0061me":"b"}`, "name: given twice"},
		"twice in a map":     {`{"name":"a","some":{"k":1,"k":2}}`, "some.k: given twice"},
		"twice, free":        {`{"name":"a","free":[{"k":1,"k":2}]}`, "free[0].k: given twice"},
		"missing":            {`{}`, "name: missing"},
		"empty":              {`{"name":""}`, "name: missing"},
		"missing with words": {`{"name":"a","list":[{"text":"x"},{}]}`, "list[1].text: missing: say which"},
		"null":               {`{"name":null}`, "name: want text, got null"},
		"null for a list":    {`{"name":"a","list":null}`, "list: want a list, got null"},
		"number for text":    {`{"name":10}`, "name: want text, got int 10; write it in quotes"},
		"fraction":           {`{"name":"a","count":1.0}`, "count: want a whole number, got float 1.0"},
		"exponent":           {`{"name":"a","count":1e2}`, "count: want a whole number, got float 1e2"},
		"minus zero":         {`{"name":"a","count":-0}`, "count: want a whole number, got int -0"},
		"too large":          {`{"name":"a","share":1e999}`, "share: want a decimal number, got float 1e999"},
		"duration as text":   {`{"name":"a","wait_ns":"5s"}`, `wait_ns: want a whole number, got text "5s"`},
		"no time":            {`{"name":"a","at":"noon"}`, "at: "},
		"no choice":          {`{"name":"a","mode":"soon"}`, `mode: "soon" is none of fast, slow`},
		"half a character":   {`{"name":"\ud800"}`, `name: want text, got broken text "�"`},
		"half, free":         {`{"name":"a","free":"\udc00"}`, `free: want what JSON has, got broken text "�"`},
		"list for an object": {`{"name":"a","inner":[]}`, "inner: want an object, got a list"},
		"no object":          {`[]`, "want an object, got a list"},
		"only null":          {`null`, "want an object, got null"},
		"nothing":            {``, "not JSON: it ends early"},
		"cut":                {`{"name":"a"`, "not JSON: it ends early"},
		"comma":              {`{"name":"a",}`, "not JSON: wrong at byte "},
		"YAML":               {`name: a`, "not JSON: wrong at byte "},
		"no number":          {`{"count":012}`, "not JSON: wrong at byte "},
		"byte order mark":    {"\ufeff{}", "not JSON: wrong at byte "},
		"two":                {`{"name":"a"}{}`, "something follows the value"},
		"no UTF-8":           {"{\"name\":\"\xff\"}", "not UTF-8"},
		"too long":           {strings.Repeat(" ", 4096) + "{}", "longer than 4096 bytes"},
		"deep":               {`{"name":"a","free":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, "]: nested deeper than 64"},
		"deeper still":       {strings.Repeat("[", 4096), "not JSON: it ends early"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseJSON(c.text)
			var invalid *InvalidError
			if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
}

// Everything is told at once, and no value that may be a secret.
func TestJSONTellsAll(t *testing.T) {
	n := JSON(Source{Max: 4096, Quiet: true}, []byte(`{"name":7,"on":"yes","list":[{"text":"hunter2"},{"txet":1}],"nothing":0}`))
	var r request
	n.Into(&r)
	want := `list[0].text: no such text
list[1].txet: unknown key; did you mean text?
name: want text, got int; write it in quotes
nothing: unknown key; known: at, count, free, inner, list, mode, name, on, raw, share, some, wait_ns
on: want true or false, got text`
	if got := fmt.Sprint(n.Done(Bad("name", "missing"), Bad("list[0].text", "no such text"))); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// However many mistakes a text has, they are told shortly and found quickly.
func TestJSONIsBounded(t *testing.T) {
	text := `{"x":1` + strings.Repeat(`,"`+strings.Repeat("y", 60)+`":1,"x":2`, 5000) + "}"
	n := JSON(Source{Max: 1 << 20}, []byte(text))
	var r request
	n.Into(&r)
	if got := len(n.Done().Error()); got > 64<<10 {
		t.Errorf("got %d bytes of problems", got)
	}
}

func TestExactly(t *testing.T) {
	for text, want := range map[string]string{
		`{"text":"a"}`: "", `{"text":"a","more":1}`: "unknown field", `null`: "null", `{}{}`: "something follows it", `[]`: "cannot unmarshal",
	} {
		var p part
		if err := Exactly([]byte(text), &p); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestWriteYAML(t *testing.T) {
	var b bytes.Buffer
	if err := WriteYAML(&b, []any{part{"words"}, map[string]any{"b": []int{1}, "a": "0600"}}); err != nil {
		t.Fatal(err)
	}
	if want := "- text: words\n- a: \"0600\"\n  b:\n    - 1\n"; b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

// What is taken, encoding/json takes too, and finds the same in it.
func FuzzJSON(f *testing.F) {
	f.Add(`{"name":"a","count":1,"share":0.5,"on":true,"wait_ns":1,"mode":"fast","inner":{"text":"x"},"list":[{"text":"y"}],"raw":[1],"free":{"a":[null]},"some":{"k":{}}}`)
	f.Add(`{"name":"\u00e9\ud83d\ude00","NAME":"b","free":-0,"at":"2026-11-22T01:02:03Z"}`)
	f.Add(`{"name":"a","inner":null,"free":[1e5,12345678901234567890]} {}`)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseJSON(text)
		if err != nil {
			var invalid *InvalidError
			if !errors.As(err, &invalid) || len(invalid.Problems) == 0 {
				t.Fatalf("got %#v, want problems", err)
			}
			return
		}
		var want request
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&want); err != nil {
			t.Fatalf("encoding/json refuses %q: %v", text, err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(request{})); diff != "" {
			t.Errorf("%q (-encoding/json +read)\n%s", text, diff)
		}
	})
}

func BenchmarkJSON(b *testing.B) {
	text := []byte(`{"name":"a","count":7,"on":true,"inner":{"text":"x"},"raw":{"a":[1,2,3]}}`)
	b.ReportAllocs()
	for b.Loop() {
		var r request
		n := JSON(Source{Max: 4096}, text)
		if n.Into(&r); n.Done() != nil {
			b.Fatal(n.Done())
		}
	}
}

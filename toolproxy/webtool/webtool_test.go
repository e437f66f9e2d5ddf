// SPDX-License-Identifier: Apache-2.0

package webtool

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"agentrun/internal/read"
	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/tools"
)

func parse(text string) (Search, error) {
	return ParseSearch(read.YAML(read.Source{Path: "search", Max: 1 << 16}, []byte(text)))
}

// The section is read strictly, and the schema agrees.
func TestM11SearchSection(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("search.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("search.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		text, want string // of the error; empty: none
		lax        bool   // the schema doesn't say it
	}{
		{"", "", false},
		{"{engine: searxng, url: https://s.example/search, headers: {A: {secret: k}}}", "", false},
		{"{engine: opensearch, url: https://s.example/i/_search, fields: {title: t}, ca_file: /x, allow_private: true}", "", false},
		{"{engine: searxng}", "search.url: required", false},
		{"{url: https://s.example/}", "want searxng or opensearch", false},
		{"{engine: google, url: https://s.example/}", "want searxng or opensearch", false},
		{"{engine: searxng, url: https://s.example/, fields: {title: t}}", "SearXNG has its own", true},
		{"{engine: searxng, url: https://s.example/, query: x}", "unknown key", false},
		{"[x]", "want", false},
	} {
		_, err := parse(tt.text)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.text, err, tt.want)
		}
		var v any
		if err := yaml.Unmarshal([]byte(tt.text), &v); err != nil {
			t.Fatal(err)
		}
		if got := schema.Validate(v) == nil; got != (tt.want == "" || tt.lax) {
			t.Errorf("%s: the schema says %v", tt.text, got)
		}
	}
	for text, want := range map[string]string{
		"{engine: searxng, url: 'http://s.example/search', headers: {A: {secret: k}}}": "in the clear",
		"{engine: searxng, url: 'ftp://s.example/search'}":                             "url",
		"{engine: searxng, url: https://s.example/, headers: {A: {secret: none}}}":     "no secret none",
	} {
		s, err := parse(text)
		if err != nil {
			t.Fatal(err)
		}
		secrets := func(name string) (string, bool) { return "0123456789abcdef", name == "k" }
		if _, err := Definitions(Options{Search: s, Secrets: secrets}); err == nil || !strings.Contains(err.Error(), "search") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// M-11, H-6: searching reads; a page is fetched where the run has an egress, so ring 2. Neither is for confidential teams (M-15).
func TestM11Definitions(t *testing.T) {
	all, err := Definitions(Options{Search: Search{Engine: searxng, URL: "https://s.example/"}, Way: func() http.RoundTripper { return nil }})
	if err != nil || len(all) != 2 {
		t.Fatalf("got %v, %v", all, err)
	}
	want := map[string]rings.Ring{"search-lite": rings.Sandbox, "browser-lite": rings.Standard}
	for _, d := range all {
		if got := d.Action.RequiredRing(); got != want[d.Name] || d.Category != gate.CategoryB || !d.Plaintext || d.Action.Check() != nil {
			t.Errorf("%s: %v, %v, %v", d.Name, got, d.Category, d.Plaintext)
		}
	}
	if none, err := Definitions(Options{}); err != nil || len(none) != 0 {
		t.Errorf("without anything: %v, %v", none, err)
	}
}

func TestSearchAnswers(t *testing.T) {
	s := &search{Search: Search{Fields: Fields{"title", "url", "content"}}}
	for text, want := range map[string]int{
		`{"results":[{"title":"t","url":"https://a/","content":"c"},{"title":"none"},{"url":5},{"url":""}]}`: 1,
		`{"hits":{"total":1,"hits":[{"_source":{"url":"https://a/","title":["x"]}},{"_source":null}]}}`:      1,
		`{}`: 0, `{"results":[{"url":"` + strings.Repeat("a", maxURL+1) + `"}]}`: 0, `{"results":"x"}`: -1, `[]`: -1,
	} {
		got, err := s.found([]byte(text))
		if (err != nil) != (want < 0) || err == nil && len(got) != want {
			t.Errorf("%.80s: got %+v, %v", text, got, err)
		}
	}
	long, err := s.found([]byte(`{"results":[{"title":"` + strings.Repeat("é", 500) + `","url":"u","content":"` + strings.Repeat("é", 5000) + `"}]}`))
	if err != nil || len(long[0].Title) > maxTitle || len(long[0].Text) > maxText {
		t.Errorf("got %d and %d bytes, %v", len(long[0].Title), len(long[0].Text), err)
	}
}

// replies answers every request with the same.
type replies struct {
	kind, body string
	err        error
}

func (r replies) RoundTrip(q *http.Request) (*http.Response, error) {
	if r.err != nil {
		return nil, r.err
	}
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {r.kind}}, Body: io.NopCloser(strings.NewReader(r.body)), Request: q, ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

func TestM11Pages(t *testing.T) {
	paragraphs := strings.Repeat("<p>A paragraph that is long enough to be one, with a comma, and another one.</p>", 5)
	for name, tt := range map[string]struct {
		replies
		args, want string // of the output, or a code
	}{
		"article":       {replies{kind: "text/html", body: "<title>T</title><nav>menu</nav><article>" + paragraphs + "</article>"}, "", `"title":"T","text":"A paragraph`},
		"no kind":       {replies{body: "<article>" + paragraphs + "</article>"}, "", "A paragraph"},
		"script":        {replies{kind: "text/html", body: "<script>alert(1)</script>"}, "", string(gate.CodeToolFailed)},
		"nothing":       {replies{kind: "text/html"}, "", string(gate.CodeToolFailed)},
		"json":          {replies{kind: "application/json", body: `{"a":1}`}, "", `{\"a\":1}`},
		"cut":           {replies{kind: "text/plain", body: "0123456789"}, `,"limit":9`, `"cut":true`},
		"meta charset":  {replies{kind: "text/html", body: `<meta charset="windows-1251"><article>` + strings.ReplaceAll(paragraphs, "long", "\xe4\xee\xeb\xe3\xee") + `</article>`}, "", "долго"},
		"utf-16":        {replies{kind: "text/plain; charset=utf-16le", body: "h\x00i\x00"}, "", `"text":"hi"`},
		"odd charset":   {replies{kind: "text/plain; charset=none", body: "hi"}, "", "hi"},
		"image":         {replies{kind: "image/png", body: "\x89PNG"}, "", string(gate.CodeToolRestricted)},
		"too long":      {replies{kind: "text/plain", body: strings.Repeat("x", maxPage+1)}, "", string(gate.CodeTooLarge)},
		"many elements": {replies{kind: "text/html", body: strings.Repeat("<p>x</p>", maxElements+1)}, "", string(gate.CodeToolFailed)},
		"deep":          {replies{kind: "text/html", body: strings.Repeat("<div>", 40_000) + "x"}, "", ""},
		"unreachable":   {replies{err: errors.New("dial 10.1.2.3: refused")}, "", string(gate.CodeUnavailable)},
		"denied":        {replies{err: &gate.Error{Code: "egress_denied"}}, "", "egress_denied"},
		"limit":         {replies{}, `,"limit":-1`, string(gate.CodeBadArguments)},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := Definitions(Options{Way: func() http.RoundTripper { return tt.replies }})
			if err != nil {
				t.Fatal(err)
			}
			args := telemetry.NewPlaintext(json.RawMessage(`{"url":"https://example.com/"` + tt.args + `}`))
			r, err := all[0].Tool.Call(t.Context(), tools.Call{Args: args, Limit: 1 << 20})
			got := string(r.Output)
			if e, ok := errors.AsType[*gate.Error](err); ok {
				got = string(e.Code)
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("got %.300s, %v, want %s", got, err, tt.want)
			}
		})
	}
}

func TestM11Addresses(t *testing.T) {
	for text, ok := range map[string]bool{
		"https://example.com/a?b#c": true, "http://example.com": true, "HTTPS://example.com": true,
		"file:///etc/passwd": false, "//example.com/": false, "example.com": false, "https://a:b@example.com/": false, "https:///x": false,
		"javascript:alert(1)": false, "data:text/html,x": false, "ftp://example.com/": false, "https://exa mple.com/": false, "": false,
	} {
		if u, e := address(text); (e == nil) != ok || e == nil && u.Fragment != "" {
			t.Errorf("%q: got %v, %v", text, u, e)
		}
	}
}

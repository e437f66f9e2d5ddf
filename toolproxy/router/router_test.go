// SPDX-License-Identifier: Apache-2.0

package router

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"agentrun/internal/read"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// section is the section router: with that text.
func section(text string) *read.Node {
	return read.YAML(read.Source{Path: "router", Max: 1 << 20}, []byte(text))
}

//go:embed schema.json
var schema []byte

// registry is a fake with three tools; it answers with what it was called with.
type registry struct{ fail *gate.Error }

func (registry) List() []ToolInfo {
	return []ToolInfo{
		{Name: "math", Description: "Evaluates arithmetic expressions.", Keywords: []string{"calculate", "arithmetic"}},
		{Name: "text", Description: "Counts words, changes case."},
		{Name: "calendar", Description: "Adds days to dates, counts days between dates."},
	}
}

func (registry) Refuse(_ context.Context, why *gate.Error) *gate.Error { return why }

func (r registry) Invoke(_ context.Context, name string, args json.RawMessage) (json.RawMessage, *gate.Error) {
	if r.fail != nil {
		return nil, r.fail
	}
	out, _ := json.Marshal(map[string]any{"called": name, "args": args}) // args were parsed before
	return out, nil
}

const example = `
words: true
rules:
- intent: solve *
  tool: math
  args: {expression: $formula, options: {precision: $digits, mode: exact}}
- intent: forbidden thing
  tool: shell
`

func handler(t *testing.T, r registry) http.Handler {
	t.Helper()
	config, err := ParseConfig(section(example))
	if err != nil {
		t.Fatal(err)
	}
	h, err := New(Options{Config: config, Tools: r})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func call(h http.Handler, method, path, body string) (int, string) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(w, r)
	return w.Code, strings.TrimSpace(w.Body.String())
}

func TestM7RouterDispatches(t *testing.T) {
	h := handler(t, registry{})
	for _, c := range []struct {
		body string
		code int
		want string
	}{
		{`{"intent":"Math","args":{"expression":"6*7"}}`, 200, `{"ok":true,"tool":"math","matched":"name","output":{"args":{"expression":"6*7"},"called":"math"}}`},
		{`{"intent":"SOLVE  this","args":{"formula":"$digits","digits":3}}`, 200, `{"ok":true,"tool":"math","matched":"rule","output":{"args":{"expression":"$digits","options":{"mode":"exact","precision":3}},"called":"math"}}`},
		{`{"intent":"please calculate something"}`, 200, `{"ok":true,"tool":"math","matched":"words","output":{"args":{},"called":"math"}}`},
		{`{"intent":"days between dates"}`, 200, `{"ok":true,"tool":"calendar","matched":"words","output":{"args":{},"called":"calendar"}}`},
		{`{"intent":"solve this","args":{}}`, 400, "bad_arguments"},
		{`{"intent":"forbidden thing"}`, 404, "tool_unknown"},
		{`{"intent":"counts"}`, 404, "tool_unknown"}, // a draw
		{`{"intent":"math text"}`, 404, "tool_unknown"},
		{`{"intent":"launch rockets"}`, 404, "tool_unknown"},
		{`{"intent":""}`, 400, "bad_arguments"},
		{`{"intent":"math","args":[]}`, 400, "bad_arguments"},
		{`{"intent":"math","intent":"text"}`, 400, "bad_request"},
		{`{"intent":"math","tool":"shell"}`, 400, "bad_request"},
		{`{"intent":"` + strings.Repeat("x", 300) + `"}`, 400, "bad_arguments"},
		{`{"intent":"` + strings.Repeat("x", 2<<20) + `"}`, 413, "too_large"},
	} {
		code, body := call(h, "POST", "/internal/router/dispatch", c.body)
		if code != c.code || body != c.want && !strings.Contains(body, `"code":"`+c.want+`"`) {
			t.Errorf("%.80s: got %d %s, want %d %s", c.body, code, body, c.code, c.want)
		}
		if code != 200 && !strings.Contains(body, `"next":"`) {
			t.Errorf("%.80s: got %s, want what to do next", c.body, body)
		}
	}
	code, body := call(h, "GET", "/internal/router/intents", "")
	if code != 200 || !strings.Contains(body, `{"intent":"solve *","tool":"math"`) || strings.Contains(body, "shell") {
		t.Errorf("intents: got %d %s", code, body)
	}
	if code, body := call(h, "GET", "/internal/router/dispatch", ""); code != 404 || !strings.Contains(body, "not_found") {
		t.Errorf("wrong method: got %d %s", code, body)
	}
}

func TestM13RouterPassesRefusalsOn(t *testing.T) {
	h := handler(t, registry{&gate.Error{Code: gate.CodeApproval, Message: "needs approval", Next: "wait", Cause: errors.New("secret")}})
	code, body := call(h, "POST", "/internal/router/dispatch", `{"intent":"math"}`)
	if want := `{"ok":false,"tool":"math","error":{"code":"approval_required","message":"needs approval","next":"wait"}}`; code != 403 || body != want {
		t.Errorf("got %d %s, want 403 %s", code, body, want)
	}
}

func TestM19Usage(t *testing.T) {
	b := link.Budget{Plan: "casual", Steps: 7, RunCost: 15000, DayCost: -1, RunSpent: 5000, DaySpent: 9000, RunTokens: 12, Warning: "80 % of the run's cost"}
	var fail error
	h, err := NewUsage(UsageOptions{Budget: func(context.Context) (link.Budget, error) { return b, fail }})
	if err != nil {
		t.Fatal(err)
	}
	_, body := call(h, "GET", "/internal/usage", "")
	want := `{"ok":true,"plan":"casual","unit":"millionths of 1T","run":{"spent":5000,"left":15000},"day":{"spent":9000,"left":null},"tokens":12,"steps_left":7,"warning":"80 % of the run's cost",` +
		`"budget":{"plan":"casual","steps_left":7,"run_cost_left":15000,"day_cost_left":-1,"run_cost_spent":5000,"day_cost_spent":9000,"run_tokens":12,"warning":"80 % of the run's cost"}}`
	if d := cmp.Diff(want, body); d != "" {
		t.Error(d)
	}
	if _, body := call(h, "GET", "/internal/usage/budget", ""); !strings.Contains(body, `"day_cost_left":-1`) {
		t.Errorf("got %s", body)
	}
	ends := time.Now().Add(90*time.Second + 500*time.Millisecond)
	timed, err := NewUsage(UsageOptions{Budget: func(context.Context) (link.Budget, error) { return b, nil }, Ends: func() time.Time { return ends }})
	if _, body := call(timed, "GET", "/internal/usage", ""); err != nil || !strings.Contains(body, `"time_left_s":90,`) {
		t.Errorf("time left: got %s, %v", body, err)
	}
	ends = time.Time{}
	if _, body := call(timed, "GET", "/internal/usage", ""); strings.Contains(body, "time_left_s") {
		t.Errorf("no time limit: got %s", body)
	}
	fail = errors.New("link down")
	if code, body := call(h, "GET", "/internal/usage", ""); code != 503 || !strings.Contains(body, `"unavailable"`) || strings.Contains(body, "link down") {
		t.Errorf("no budget: got %d %s", code, body)
	}
	if code, _ := call(h, "POST", "/internal/usage", ""); code != 404 {
		t.Errorf("POST: got %d", code)
	}
	if _, err := NewUsage(UsageOptions{}); err == nil {
		t.Error("nobody to ask: got no error")
	}
	if _, err := New(Options{}); err == nil {
		t.Error("no tools: got no error")
	}
}

func TestM7RouterConfig(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("router.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("router.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ text, want string }{
		{"", ""}, {"null", ""}, {example, ""}, {"words: false", ""},
		{"rule: []", "router.rule: unknown key"},
		{"rules: [{intent: a, tool: b, why: c}]", "router.rules[0].why: unknown key"},
		{"rules: [{intent: a}]", "a tool"},
		{"rules: [{intent: 7, tool: b}]", "want text"},
		{"rules: [{intent: a, tool: b, args: [1]}]", "want a mapping"},
		{"rules: [{intent: a*b*c*d*e*f, tool: b}]", "more than 4"},
		{"words: 1", "want true or false"},
		{"words: true\nwords: false", "twice"},
	} {
		_, err := ParseConfig(section(c.text))
		if (c.want == "") != (err == nil) || !strings.Contains(fmt.Sprint(err), c.want) && c.want != "" {
			t.Errorf("%s: got %v, want %q", c.text, err, c.want)
		}
		var v any
		if c.want == "" && (yaml.Unmarshal([]byte(c.text), &v) != nil || schema.Validate(v) != nil) {
			t.Errorf("%s: the schema says %v", c.text, schema.Validate(v))
		}
	}
}

func FuzzGlob(f *testing.F) {
	f.Add("a*b*c", "axxbyyc")
	f.Fuzz(func(t *testing.T, pattern, s string) {
		if strings.Count(pattern, "*") > 8 || len(pattern) > 64 || len(s) > 256 {
			return
		}
		if got, want := glob(pattern, s), slow(pattern, s); got != want {
			t.Fatalf("%q on %q: got %v, want %v", pattern, s, got, want)
		}
	})
}

// slow matches by definition: a row of which ends of s each prefix of the pattern can reach.
func slow(pattern, s string) bool {
	reach := make([]bool, len(s)+1)
	reach[0] = true
	for i := range len(pattern) {
		next := make([]bool, len(s)+1)
		for j := range reach {
			if pattern[i] == '*' {
				next[j] = reach[j] || j > 0 && next[j-1]
			} else {
				next[j] = j > 0 && reach[j-1] && s[j-1] == pattern[i]
			}
		}
		reach = next
	}
	return reach[len(s)]
}

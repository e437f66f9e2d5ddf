// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

func fixedClock() time.Time { return time.Date(2026, 3, 28, 23, 30, 0, 0, time.UTC) }

// kit calls tools by name, as one agent.
type kit struct {
	defs   map[string]tools.Definition
	caller link.Caller
}

func newKit(t testing.TB) kit {
	t.Helper()
	k := kit{map[string]tools.Definition{}, link.Caller{Run: "run-1", Agent: "agent-1"}}
	for _, d := range Definitions(Options{Clock: fixedClock}) {
		k.defs[d.Name] = d
	}
	return k
}

func (k kit) call(ctx context.Context, tool, args string) (string, error) {
	r, err := k.defs[tool].Tool.Call(ctx, tools.Call{Caller: k.caller, Tool: tool, Args: telemetry.NewPlaintext(json.RawMessage(args)), Limit: 1 << 20})
	return string(r.Output), err
}

func (k kit) want(t *testing.T, tool, args, want string) {
	t.Helper()
	got, err := k.call(t.Context(), tool, args)
	if err != nil || got != want {
		t.Errorf("%s %.200s: got %.300s, %v, want %s", tool, args, got, err, want)
	}
}

func (k kit) refused(t *testing.T, tool, args string, want rings.Code) {
	t.Helper()
	got, err := k.call(t.Context(), tool, args)
	var e *gate.Error
	if !errors.As(err, &e) || e.Code != want || got != "" {
		t.Errorf("%s %.200s: got %.100q, %v, want %v", tool, args, got, err, want)
	}
}

func TestM11CategoriesAndRing3(t *testing.T) {
	got := map[string]gate.Category{}
	for name, d := range newKit(t).defs {
		got[name] = d.Category
		if ring := d.Action.RequiredRing(); ring != rings.Sandbox {
			t.Errorf("%s requires %v, want ring 3", name, ring)
		}
		if err := d.Action.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d.Description == "" || len(d.Description) > 1024 {
			t.Errorf("%s: description of %d bytes", name, len(d.Description))
		}
	}
	want := map[string]gate.Category{"math": "A", "text": "A", "memory": "A", "embeddings": "A", "calendar": "A", "task": "B"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// The schemas compile, take what the tools take, and refuse names that aren't theirs.
func TestM11Schemas(t *testing.T) {
	for name, d := range newKit(t).defs {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(d.Schema)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource("mem:///"+name, doc); err != nil {
			t.Fatal(err)
		}
		s, err := c.Compile("mem:///" + name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		fine := map[string]string{
			"math": `{"expression":"6*7"}`, "text": `{"op":"upper","text":"a"}`, "memory": `{"op":"put","kind":"summary","summary":"s"}`,
			"embeddings": `{"input":["a"]}`, "calendar": `{"op":"now"}`, "task": `{"op":"create","title":"t"}`,
		}[name]
		for text, want := range map[string]bool{fine: true, `{}`: false, strings.Replace(fine, "{", `{"unknown":1,`, 1): false, `[]`: false} {
			v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Validate(v) == nil; got != want {
				t.Errorf("%s: %s valid: got %v, want %v", name, text, got, want)
			}
		}
		if _, err := newKit(t).call(t.Context(), name, fine); err != nil {
			t.Errorf("%s %s: %v", name, fine, err)
		}
		newKit(t).refused(t, name, strings.Replace(fine, "{", `{"unknown":1,`, 1), gate.CodeBadArguments)
	}
}

func TestM11OutputIsNeverCut(t *testing.T) {
	d := newKit(t).defs["text"]
	args := json.RawMessage(`{"op":"upper","text":"` + strings.Repeat("a", 100) + `"}`)
	r, err := d.Tool.Call(t.Context(), tools.Call{Tool: "text", Args: telemetry.NewPlaintext(args), Limit: 50})
	var e *gate.Error
	if !errors.As(err, &e) || e.Code != gate.CodeTooLarge || r.Output != nil {
		t.Errorf("got %s, %v, want too_large", r.Output, err)
	}
}

func TestM11Text(t *testing.T) {
	k := newKit(t)
	k.want(t, "text", `{"op":"count","text":"one two\nthree"}`, `{"words":3,"lines":2,"chars":13,"bytes":13}`)
	k.want(t, "text", `{"op":"upper","text":"straße"}`, `"STRAßE"`)
	k.want(t, "text", `{"op":"trim","text":"  a "}`, `"a"`)
	k.want(t, "text", `{"op":"replace","text":"aXbX","old":"X","new":"--"}`, `{"replaced":2,"text":"a--b--"}`)
	k.want(t, "text", `{"op":"split","text":"a,b","separator":","}`, `["a","b"]`)
	k.want(t, "text", `{"op":"join","items":["a","b"],"separator":", "}`, `"a, b"`)
	k.want(t, "text", `{"op":"truncate","text":"äöü","limit":2}`, `{"text":"äö","truncated":true}`)
	k.want(t, "text", `{"op":"find","text":"ab12 cd34","pattern":"([a-z]+)([0-9]+)","limit":1}`,
		`{"matches":[{"start":0,"end":4,"text":"ab12","groups":["ab","12"]}],"more":true}`)
	k.refused(t, "text", `{"op":"split","text":"a","separator":""}`, gate.CodeBadArguments)
	k.refused(t, "text", `{"op":"find","text":"a","pattern":"a)(b"}`, gate.CodeBadArguments)
	k.refused(t, "text", `{"op":"sort","text":"a"}`, gate.CodeBadArguments)
}

// What would take too long or grow too much is refused before it begins.
func TestM11TextIsBounded(t *testing.T) {
	k := newKit(t)
	long := strings.Repeat("a", 200_000)
	k.refused(t, "text", `{"op":"replace","text":"`+long+`","old":"a","new":"`+strings.Repeat("b", 1000)+`"}`, gate.CodeTooLarge)
	k.refused(t, "text", `{"op":"split","text":"`+long+`","separator":"a"}`, gate.CodeTooLarge)
	k.refused(t, "text", `{"op":"find","text":"`+long+`","pattern":"a"}`, gate.CodeBadArguments)
	k.refused(t, "text", `{"op":"find","text":"a","pattern":"(a{30}){30}b{1000}"}`, gate.CodeBadArguments)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := k.call(ctx, "text", `{"op":"find","text":"aaa","pattern":"a"}`)
	var e *gate.Error
	if !errors.As(err, &e) || e.Code != gate.CodeCanceled {
		t.Errorf("find after the end of the call: got %v, want %v", err, gate.CodeCanceled)
	}
}

func TestM11Calendar(t *testing.T) {
	k := newKit(t)
	for args, want := range map[string]string{
		`{"op":"now","zone":"Europe/Kyiv"}`:                                                               `"time":"2026-03-29T01:30:00+02:00"`,
		`{"op":"add","zone":"Europe/Kyiv","from":"2026-03-28T12:00:00","days":1}`:                         `"time":"2026-03-29T12:00:00+03:00"`,
		`{"op":"add","zone":"Europe/Kyiv","from":"2026-03-28T12:00:00","seconds":86400}`:                  `"time":"2026-03-29T13:00:00+03:00"`,
		`{"op":"weekday","from":"2026-11-21"}`:                                                            `"weekday":"Saturday"`,
		`{"op":"weekday","from":"2027-01-01"}`:                                                            `"iso_week":"2026-W53"`,
		`{"op":"add","from":"0001-01-01","seconds":10000000000}`:                                          `"year_day"`,
		`{"op":"difference","from":"2026-03-28","to":"2026-04-04"}`:                                       `{"seconds":604800,"days":7,"weekdays":5}`,
		`{"op":"difference","zone":"Europe/Kyiv","from":"2026-03-28","to":"2026-03-30"}`:                  `{"seconds":169200,"days":2,"weekdays":0}`,
		`{"op":"range","from":"2026-02-27","to":"2026-03-01"}`:                                            `"date":"2026-02-28"`,
		`{"op":"difference","zone":"UTC","from":"2026-03-28T00:00:00+02:00","to":"2026-03-28T00:00:00Z"}`: `"seconds":7200`,
	} {
		got, err := k.call(t.Context(), "calendar", args)
		if err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: got %s, %v, want %s", args, got, err, want)
		}
	}
	for _, args := range []string{
		`{"op":"now","zone":"Local"}`, `{"op":"now","zone":"../../etc/passwd"}`, `{"op":"now","zone":"/etc/localtime"}`, `{"op":"now","zone":"Mars/Base"}`,
		`{"op":"add","from":"9999-12-31","days":1}`, `{"op":"add","years":2000000000}`, `{"op":"range","from":"0001-01-01","to":"9999-01-01"}`,
		`{"op":"range","from":"2026-01-02","to":"2026-01-01"}`, `{"op":"difference","from":"2026-02-30","to":"2026-01-01"}`, `{"op":"difference"}`, `{"op":"moon"}`,
	} {
		k.refused(t, "calendar", args, gate.CodeBadArguments)
	}
}

func TestM11Task(t *testing.T) {
	k := newKit(t)
	k.want(t, "task", `{"op":"create","title":"first"}`, `{"id":1,"title":"first","state":"open"}`)
	k.want(t, "task", `{"op":"update","id":1,"state":"doing","note":"n"}`, `{"id":1,"title":"first","note":"n","state":"doing"}`)
	k.want(t, "task", `{"op":"complete","id":1}`, `{"id":1,"title":"first","note":"n","state":"done"}`)
	k.want(t, "task", `{"op":"list","state":"open"}`, `[]`)
	k.refused(t, "task", `{"op":"complete","id":2}`, gate.CodeNotFound)
	k.refused(t, "task", `{"op":"update","id":1,"state":"gone"}`, gate.CodeBadArguments)
	other := k
	other.caller.Run = "run-2"
	other.want(t, "task", `{"op":"list"}`, `[]`)
	for range maxTasks - 1 {
		if _, err := k.call(t.Context(), "task", `{"op":"create","title":"t"}`); err != nil {
			t.Fatal(err)
		}
	}
	k.refused(t, "task", `{"op":"create","title":"one too many"}`, gate.CodeQuota)
}

func TestM11Embeddings(t *testing.T) {
	k := newKit(t)
	d := k.defs["embeddings"]
	call := func(input string) [][]float32 {
		t.Helper()
		r, err := d.Tool.Call(t.Context(), tools.Call{Tool: "embeddings", Args: telemetry.NewPlaintext(json.RawMessage(`{"input":` + input + `}`))})
		if err != nil {
			t.Fatal(err)
		}
		var out struct{ Embeddings [][]float32 }
		if err := json.Unmarshal(r.Output, &out); err != nil || r.Tokens == 0 {
			t.Fatalf("%v, %d tokens", err, r.Tokens)
		}
		return out.Embeddings
	}
	v := call(`["the red house", "a red house", "quantum chromodynamics"]`)
	if near, far := cosine(v[0], v[1]), cosine(v[0], v[2]); near <= far || near > 1 {
		t.Errorf("similarity: got %v for near and %v for far texts", near, far)
	}
	if d := cmp.Diff(v[:1], call(`["the red house"]`)); d != "" {
		t.Errorf("the same text has another vector: %s", d)
	}
	k.refused(t, "embeddings", `{"input":[]}`, gate.CodeBadArguments)
	k.refused(t, "embeddings", `{"input":["a"],"model":"gpt"}`, gate.CodeBadArguments)
}

type lyingEmbedder struct{ v Vectors }

func (l lyingEmbedder) Embed(context.Context, link.Caller, string, []string) (Vectors, error) {
	return l.v, nil
}

func TestM11EmbedderIsHeldToItsWord(t *testing.T) {
	var zero float32
	for name, v := range map[string]Vectors{
		"none": {}, "too many": {Vectors: [][]float32{{1}, {2}}}, "empty": {Vectors: [][]float32{{}}}, "NaN": {Vectors: [][]float32{{zero / zero}}},
		"long": {Vectors: [][]float32{make([]float32, link.MaxMemoryEmbedding+1)}},
	} {
		for _, d := range Definitions(Options{Embedder: lyingEmbedder{v}}) {
			if d.Name != "embeddings" {
				continue
			}
			if r, err := d.Tool.Call(t.Context(), tools.Call{Args: telemetry.NewPlaintext(json.RawMessage(`{"input":["a"]}`))}); err == nil || r.Output != nil {
				t.Errorf("%s: got %s, want an error", name, r.Output)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gowebpki/jcs"

	"agentrun/rings"
	"agentrun/toolproxy/egress"
)

// THREATS, tool proxy: an upstream that lies. A schema from an MCP server must neither end the process nor keep it busy.
func TestSchemasThatWouldNotEndAreRefused(t *testing.T) {
	var doubling strings.Builder
	doubling.WriteString(`{"type":"object","properties":{"a":{"$ref":"#/$defs/d0"}},"$defs":{`)
	for i := range 40 {
		fmt.Fprintf(&doubling, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	doubling.WriteString(`"d40":{"type":"string"}}}`)
	for name, schema := range map[string]string{
		"itself":            `{"type":"object","$ref":"#"}`,
		"circle":            `{"type":"object","$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`,
		"circle in allOf":   `{"type":"object","$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"}`,
		"doubling":          doubling.String(),
		"dynamic":           `{"type":"object","$dynamicRef":"#x"}`,
		"anchor":            `{"type":"object","$anchor":"x","$ref":"#x"}`,
		"id":                `{"type":"object","$id":"http://x/","$ref":"http://x/"}`,
		"remote":            `{"type":"object","$ref":"http://evil/schema"}`,
		"file":              `{"type":"object","$ref":"file:///etc/passwd"}`,
		"pointer elsewhere": `{"type":"object","properties":{"a":{"$ref":"#/properties/a"}}}`,
		"missing":           `{"type":"object","$ref":"#/$defs/a"}`,
		"long":              `{"type":"object","title":"` + strings.Repeat("a", maxSchema) + `"}`,
		"deep":              `{"type":"object","not":` + strings.Repeat(`{"not":`, 100) + `{}` + strings.Repeat("}", 101),
		"no object":         `{"type":"string"}`,
		"no type":           `{}`,
		"pattern":           `{"type":"object","properties":{"a":{"pattern":"("}}}`,
		"true":              `true`,
		"nothing":           ``,
		"twice":             `{"type":"object","type":"object"}`,
	} {
		if _, err := compile(json.RawMessage(schema)); err == nil {
			t.Errorf("%s: compiled", name)
		}
	}
	for name, schema := range map[string]string{
		"definitions": `{"type":"object","properties":{"a":{"$ref":"#/$defs/a"},"b":{"$ref":"#/$defs/a"}},"$defs":{"a":{"type":"string"}}}`,
		"plain":       `{"type":"object","properties":{"$id":{"type":"string"}}}`,
		"draft":       `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object"}`,
	} {
		if _, err := compile(json.RawMessage(schema)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzCompile(f *testing.F) {
	f.Add([]byte(`{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{"type":"string"}}}`), []byte(`{"a":"x"}`))
	f.Add([]byte(`{"type":"object","$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"}]}}}`), []byte(`{}`))
	f.Fuzz(func(_ *testing.T, schema, args []byte) {
		if a, err := compile(schema); err == nil {
			_ = a.validate(args)
		}
	})
}

func FuzzDecodeRequest(f *testing.F) {
	for _, s := range []string{
		`{"args":{"expression":"6*7"}}`, `{}`, `{"args":{"a":1.0e2,"b":[true,null,"\u0000\ud83d\ude00"]}}`, `{"args":{"a":1,"\u0061":2}}`,
		`{"args":{}}x`, "{\"args\":{\"\xff\":1}}", `{"args":{"a":-0,"b":9007199254740993}}`, `{"args":{},"args":{}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		plain, e := decodeRequest(body)
		args := plain.Reveal()
		if (args == nil) == (e == nil) {
			t.Fatalf("got %s, %v, want one of the two", args, e)
		}
		if e != nil {
			return
		}
		again, e := canonicalArgs(args)
		if e != nil || !bytes.Equal(again.Reveal(), args) {
			t.Errorf("got %s, %v, want the same again: %s", again.Reveal(), e, args)
		}
		var standard struct{ Args json.RawMessage }
		if err := json.Unmarshal(body, &standard); err != nil {
			t.Fatalf("accepted what the standard library refuses: %v", err)
		}
		if standard.Args == nil {
			return
		}
		other, err := jcs.Transform(standard.Args)
		if err != nil || !bytes.Equal(other, args) {
			t.Errorf("got %s, another implementation says %s, %v", args, other, err)
		}
	})
}

// Whatever the request line says, a handler sees one of the open routes in its one spelling, or nothing.
func FuzzMux(f *testing.F) {
	for _, target := range []string{
		"/internal/tools/math", "/internal/wallet", "/internal/tools/..%2fwallet", "http://127.0.0.1:7600/internal/tools", "*", "/internal/router/internal/wallet",
		"//internal/tools", "/internal/tools/%6dath", "/v1/chat/completions?x=../", "/mcp;x=1", "/internal/usage/\x00",
	} {
		f.Add("POST", target)
	}
	var seen *http.Request
	trap := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r })
	mounts := map[egress.Family]http.Handler{}
	for _, family := range []egress.Family{egress.Tools, egress.LLMChat, egress.LLMEmbeddings, egress.Router, egress.Usage, egress.MCP} {
		mounts[family] = trap
	}
	mux := NewMux(MuxOptions{Mounts: mounts})
	open := regexp.MustCompile(`^(/internal/llm/(chat|embeddings)|/internal/(router|tools|usage)(/[A-Za-z0-9_:-][A-Za-z0-9._:-]*)*|/v1/(chat/completions|embeddings)|/mcp)$`)
	f.Fuzz(func(t *testing.T, method, target string) {
		seen = nil
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, &http.Request{Method: method, RequestURI: target, Host: "127.0.0.1:7600", Body: http.NoBody, Header: http.Header{}, URL: &url.URL{Path: target}})
		switch {
		case seen == nil:
			if w.Code < 400 || !json.Valid(w.Body.Bytes()) {
				t.Errorf("%q %q: got %d %s, want a refusal", method, target, w.Code, w.Body)
			}
		case !open.MatchString(seen.URL.Path):
			t.Errorf("%q %q: a handler saw %q", method, target, seen.URL.Path)
		default:
			for _, family := range []string{"wallet", "embassy", "rwa", "projects", "messages", "governance"} {
				if strings.Contains(strings.ToLower(seen.URL.Path), "/internal/"+family) {
					t.Errorf("%q %q: a handler saw %q", method, target, seen.URL.Path)
				}
			}
		}
	})
}

func TestNumbersThatWouldChangeAreRefused(t *testing.T) {
	for number, want := range map[string]bool{
		"0": true, "-1": true, "1.5": true, "1e3": true, "9007199254740991": true, "9007199254740992": false, "-9007199254740993": false,
		"123456789012345678901234567890": false, "1e400": false, "1e300": true, "0.1": true,
	} {
		if got := exact(number); got != want {
			t.Errorf("%s: got %v, want %v", number, got, want)
		}
	}
}

func TestBucketWithAClockThatIsSetBack(t *testing.T) {
	now := time.Unix(1000, 0)
	b := newBucket(&Rate{PerSecond: 1, Burst: 1}, func() time.Time { return now })
	if b.take() != nil {
		t.Fatal("the bucket starts full")
	}
	now = now.Add(-time.Hour)
	if b.take() == nil {
		t.Error("time going back filled the bucket")
	}
	now = now.Add(time.Second)
	if e := b.take(); e != nil {
		t.Errorf("got %v, want the bucket to fill again", e)
	}
}

// M3 of the attack round: requests that are refused cost a parser, a decision and a record each, and so ten turns of the pace, which more
// than that have to wait for.
func TestM7RequestsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, began := NewMux(MuxOptions{PerSecond: 100}), time.Now()
		defer mux.Close()
		const n, turns = 51, 50*refusalCosts + 1
		for range n {
			req := httptest.NewRequest(http.MethodGet, "/internal/nowhere", nil)
			req.Host = "127.0.0.1:7600"
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, req)
			if w.Code != http.StatusNotFound {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
		}
		if took, want := time.Since(began), (turns-200)*10*time.Millisecond; took != want {
			t.Errorf("%d refusals took %v, want %v", n, took, want)
		}
	})
}

// H-6: a tool that reads by some operations and writes by others is classified by the call. What can't be told is a write.
func TestH6OperationsThatWrite(t *testing.T) {
	d := Definition{Action: ReadAction("memory"), Writes: []string{"put", "delete"}}
	for args, want := range map[string]rings.Ring{
		`{"op":"get"}`: rings.Sandbox, `{"op":"put"}`: rings.Standard, `{"op":"delete"}`: rings.Standard, `{"OP":"get","op":"put"}`: rings.Standard,
		`{"oP":"get"}`: rings.Standard, `{}`: rings.Standard, `{"op":1}`: rings.Standard, `[]`: rings.Standard, ``: rings.Standard,
	} {
		if got := d.actionOf(json.RawMessage(args)).RequiredRing(); got != want {
			t.Errorf("%s: requires %v, want %v", args, got, want)
		}
	}
	d.Writes = nil
	if got := d.actionOf(json.RawMessage(`{"op":"put"}`)).RequiredRing(); got != rings.Sandbox {
		t.Errorf("by the operator's word: requires %v, want ring 3", got)
	}
}

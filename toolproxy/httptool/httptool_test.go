// SPDX-License-Identifier: Apache-2.0

package httptool

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentrun/internal/read"
	"agentrun/internal/upstream"
	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/tools"
)

const secret = "sk-test-51/very+secret\"value"

func secrets(name string) (string, bool) {
	s, ok := map[string]string{"KEY": secret, "SHORT": "abc", "BASIC": base64.StdEncoding.EncodeToString([]byte("bob:hunter2hunter2")), "CRLF": "abcdef\r\nX: y"}[name]
	return s, ok
}

func toolOf(t testing.TB, text string, o Options) (tools.Tool, error) {
	t.Helper()
	if o.Secrets == nil {
		o.Secrets = secrets
	}
	return Factory(o)("search", read.YAML(read.Source{Path: "tools.search.http", Max: 1 << 20}, []byte(text)))
}

// local starts a server on loopback and a tool for it.
func local(t testing.TB, h http.HandlerFunc, path, more string) tools.Tool {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	tool, err := toolOf(t, "url: "+server.URL+path+"\nallow_private: true\n"+more, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tool.(*Tool).Close() })
	return tool
}

func call(ctx context.Context, tool tools.Tool, args string) (string, error) {
	r, err := tool.Call(ctx, tools.Call{Tool: "search", Args: telemetry.NewPlaintext(json.RawMessage(args)), Limit: 64 << 10})
	return string(r.Output), err
}

func refused(t *testing.T, tool tools.Tool, args string, want rings.Code) *gate.Error {
	t.Helper()
	got, err := call(t.Context(), tool, args)
	var e *gate.Error
	if !errors.As(err, &e) || e.Code != want || got != "" {
		t.Fatalf("%.100s: got %.100q, %v, want %v", args, got, err, want)
	}
	return e
}

func TestM12ArgumentsGoWhereTheOperatorSays(t *testing.T) {
	var got string
	h := func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = r.Method + " " + r.RequestURI + " " + string(b)
		if r.Header.Get("Authorization") != "Bearer "+secret || r.Header.Get("Accept") != "application/json" {
			t.Errorf("headers: got %v", r.Header)
		}
		io.WriteString(w, `{"ok": true}`)
	}
	headers := "headers:\n  Accept: application/json\n  Authorization: {secret: KEY, prefix: \"Bearer \"}\n"
	for _, c := range []struct{ path, more, args, want string }{
		{"/v1/{id}", "method: GET\n", `{"id":"a/b c%","n":1.5,"tags":["x","y&z"],"no":null}`, "GET /v1/a%2Fb%20c%25?n=1.5&tags=x&tags=y%26z "},
		{"/v1/items?k=v", "", `{"a":{"b":[1]}}`, `POST /v1/items?k=v {"a":{"b":[1]}}`},
		{"/v1/{id}/x", "method: PUT\n", `{"id":7,"a":true}`, `PUT /v1/7/x {"a":true}`},
		{"/v1/{id}", "method: DELETE\nsend: none\n", `{"id":"é"}`, "DELETE /v1/%C3%A9 "},
	} {
		tool := local(t, h, c.path, c.more+headers)
		out, err := call(t.Context(), tool, c.args)
		if err != nil || out != `{"ok":true}` || got != c.want {
			t.Errorf("%s %s: got %s, %v and %q, want %q", c.path, c.args, out, err, got, c.want)
		}
	}
}

func TestM12ArgumentsCantLeaveTheirPlace(t *testing.T) {
	tool := local(t, func(http.ResponseWriter, *http.Request) { t.Error("the upstream was asked") }, "/v1/{id}/x?k=v", "method: GET\n")
	for _, args := range []string{
		`{"id":".."}`, `{"id":"."}`, `{"id":""}`, `{"id":"../admin"}`, `{"id":"a/../b"}`, `{"id":"..\\b"}`, `{"id":"%2e%2e"}`, `{"id":"a%2f..%2fb"}`, `{"id":"%252e%252e%252fb"}`,
		`{"id":"..%2fadmin%"}`, `{"id":"a%2f..%2f%zz"}`, `{"id":"%25zz%252f..%252fadmin"}`, `{"id":"%252e%2e%5cadmin%2"}`,
		`{"id":"..;/b"}`, `{"id":"a\r\nHost: evil"}`, `{"id":"a\u0000"}`, `{"id":{}}`, `{"id":[]}`, `{"id":null}`, `{}`, `{"id":"a","k":"w"}`, `{"id":"a","q":{"x":1}}`,
		`{"id":"` + strings.Repeat("a", 1025) + `"}`, `{"id":"a","q":"` + strings.Repeat("a", 10000) + `"}`, `[]`,
	} {
		refused(t, tool, args, gate.CodeBadArguments)
	}
}

// Whatever an upstream answers: the secret is in nothing that the agent gets.
// What the operator's URL has stays, however a server reads names: without their case, or with what makes a list of a value.
func TestM12QueryCantReplaceWhatTheURLHas(t *testing.T) {
	tool := local(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%q", r.URL.RawQuery) }, "/v1/x?tenant_id=a&k=v", "method: GET\nsend: query\n")
	for _, name := range []string{
		"tenant_id", "Tenant_ID", "tenant_\u0131d", "\u212a", "tenant_id[]", "tenant_id[0]", "K[x]", " tenant_id", "tenant_id ", "tenant.id", "tenant id", "tenant[id", "k\x00x",
	} {
		args, err := json.Marshal(map[string]any{name: "b"})
		if err != nil {
			t.Fatal(err)
		}
		refused(t, tool, string(args), gate.CodeBadArguments)
	}
	if got, err := call(t.Context(), tool, `{"tenant":"b","kk":[1,2],"list[]":3}`); err != nil || got != `"tenant_id=a&k=v&kk=1&kk=2&list%5B%5D=3&tenant=b"` {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestM12SecretsAreNotEchoed(t *testing.T) {
	escaped := strings.NewReplacer("s", `\u0073`, `"`, `\"`).Replace(secret)
	for name, body := range map[string]string{
		"plain": `{"a":` + string(must(json.Marshal(secret))) + `}`, "escaped": `{"a":"x` + escaped + `y"}`, "name": `{` + string(must(json.Marshal(secret))) + `:1}`,
		"base64": `"` + base64.StdEncoding.EncodeToString([]byte("xy"+secret+"z")) + `"`, "url": `"k=sk-test-51%2Fvery%2Bsecret%22value"`,
	} {
		tool := local(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) }, "/", "headers: {X-Key: {secret: KEY}}\n")
		out, err := call(t.Context(), tool, "{}")
		if err != nil || strings.Contains(out, "secret") || strings.Contains(out, "very") || strings.Contains(out, "c2VjcmV0") || !strings.Contains(out, "[masked:known]") {
			t.Errorf("%s: got %s, %v", name, out, err)
		}
	}
	for _, code := range []int{206, 301, 302, 307, 400, 401, 404, 429, 500, 502, 503} {
		tool := local(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/?key="+r.Header.Get("X-Key"))
			w.WriteHeader(code)
			io.WriteString(w, `{"error":"bad key `+r.Header.Get("X-Key")+` from 10.0.0.7"}`)
		}, "/", "headers: {X-Key: {secret: KEY}}\n")
		out, err := call(t.Context(), tool, "{}")
		var e *gate.Error
		if !errors.As(err, &e) || out != "" {
			t.Fatalf("%d: got %s, %v", code, out, err)
		}
		if text := string(must(json.Marshal(e))) + e.Error() + e.Cause.Error(); strings.Contains(text, "very") || strings.Contains(text, "10.0.0.7") {
			t.Errorf("%d: the error has %s", code, text)
		}
	}
}

// A reply that is text has a secret as an encoder of JSON or URLs writes it, or its base64, alone or as basic credentials.
func TestM12SpellingsInText(t *testing.T) {
	const secret, user = `a/b+c=d<e>f&g'h"i\~~~j~?>xy`, "x-access-token:"
	basic := base64.StdEncoding.EncodeToString([]byte(user + secret))
	if !strings.ContainsAny(basic, "/") || !strings.ContainsAny(basic, "+") {
		t.Fatalf("%s has nothing to escape", basic)
	}
	h := NewHider([]string{secret})
	for name, echoed := range map[string]string{
		"as it is":        secret,
		"PHP":             `a\/b+c=d<e>f&g'h\"i\\~~~j~?>xy`,
		"Go":              `a/b+c=d\u003ce\u003ef\u0026g'h\"i\\~~~j~?\u003exy`,
		"Django":          `a/b+c=d\u003ce\u003ef\u0026g\u0027h\"i\\~~~j~?\u003exy`,
		"Gson":            `a/b+c\u003dd\u003ce\u003ef\u0026g\u0027h\"i\\~~~j~?\u003exy`,
		".NET":            `a/b\u002Bc=d\u003Ce\u003Ef\u0026g\u0027h\u0022i\\~~~j~?\u003Exy`,
		"a URL":           url.QueryEscape(secret),
		"a URL in .NET":   `a%2fb%2bc%3dd%3ce%3ef%26g%27h%22i%5c~~~j~%3f%3exy`,
		"basic":           basic,
		"basic in PHP":    strings.ReplaceAll(basic, "/", `\/`),
		"basic in .NET":   strings.ReplaceAll(basic, "+", `\u002B`),
		"basic in a URL":  url.QueryEscape(basic),
		"basic, 2f in it": strings.ReplaceAll(strings.ReplaceAll(basic, "/", "%2f"), "+", "%2b"),
	} {
		out, err := h.TextJSON([]byte("Authorization: " + echoed))
		if got := string(out); err != nil || strings.TrimPrefix(got, `"Authorization: `+basic[:20]) != `[masked:known]"` && got != `"Authorization: [masked:known]"` {
			t.Errorf("%s: got %s, %v", name, got, err)
		}
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func TestM12BasicPasswordIsASecretToo(t *testing.T) {
	tool := local(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `"user bob, password hunter2hunter2"`) }, "/",
		"headers: {Authorization: {secret: BASIC, prefix: \"Basic \"}}\n")
	if out, err := call(t.Context(), tool, "{}"); err != nil || out != `"user bob, password [masked:known]"` {
		t.Errorf("got %s, %v", out, err)
	}
}

// Upstreams that hang, lie about the length, never end, or send a bomb.
func TestM12HostileUpstreams(t *testing.T) {
	endless := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(bytes.Repeat([]byte(" "), 4096)); err != nil {
				return
			}
		}
	}
	bomb := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		for range 100 {
			if _, err := z.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
		z.Close()
	}
	short := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, `{"a":1}`)
	}
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		want rings.Code
	}{
		"endless":        {endless, gate.CodeTooLarge},
		"bomb":           {bomb, gate.CodeTooLarge},
		"short":          {short, gate.CodeToolFailed},
		"says too much":  {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "99999999999") }, gate.CodeTooLarge},
		"not JSON":       {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }, gate.CodeToolFailed},
		"two values":     {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{} {}`) }, gate.CodeToolFailed},
		"repeated names": {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"a":1,"a":2}`) }, gate.CodeToolFailed},
		"deep": {func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, strings.Repeat("[", 1000)+strings.Repeat("]", 1000))
		}, gate.CodeToolFailed},
		"unasked encoding": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			io.WriteString(w, "{}")
		}, gate.CodeToolFailed},
		"hangs up": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, gate.CodeUnavailable},
		"big headers": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("a", 1<<20))
		}, gate.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) { refused(t, local(t, c.h, "/", ""), "{}", c.want) })
	}
}

func TestM12HangingUpstreamTimesOut(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"before headers": func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-r.Context().Done() },
		"in the body": func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, `{"a"`)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
	} {
		tool := local(t, h, "/", "")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := call(ctx, tool, "{}")
		cancel()
		var e *gate.Error
		if !errors.As(err, &e) || e.Code != gate.CodeToolTimeout {
			t.Errorf("%s: got %v, want %v", name, err, gate.CodeToolTimeout)
		}
		ended, end := context.WithCancelCause(t.Context())
		end(&gate.Error{Code: gate.CodeRing, Message: "the ring changed"})
		if _, err := call(ended, tool, "{}"); !errors.As(err, &e) || e.Code != gate.CodeRing {
			t.Errorf("%s: got %v, want the cause of the end", name, err)
		}
	}
}

func TestM12RedirectsStayAtHome(t *testing.T) {
	var reached atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer other.Close()
	h := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other.URL+"/", http.StatusTemporaryRedirect)
		case "/home":
			http.Redirect(w, r, "/end", http.StatusTemporaryRedirect)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		default:
			io.WriteString(w, `"end"`)
		}
	}
	refused(t, local(t, h, "/home", ""), "{}", gate.CodeToolFailed)
	refused(t, local(t, h, "/away", "follow: true\n"), "{}", gate.CodeToolFailed)
	refused(t, local(t, h, "/loop", "follow: true\n"), "{}", gate.CodeToolFailed)
	if out, err := call(t.Context(), local(t, h, "/home", "follow: true\n"), `{"a":1}`); err != nil || out != `"end"` {
		t.Errorf("at home: got %s, %v", out, err)
	}
	if reached.Load() {
		t.Error("the other server was reached")
	}
}

func TestM8UpstreamAtAPrivateAddress(t *testing.T) {
	tool, err := toolOf(t, "url: http://127.0.0.1:1/", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if e := refused(t, tool, "{}", gate.CodeUnavailable); !errors.Is(e, upstream.ErrAddress) || strings.Contains(e.Message, "127") {
		t.Errorf("got %v with cause %v", e, e.Cause)
	}
}

func TestM12EnvironmentProxiesHaveNoEffect(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, "http://127.0.0.1:1")
	}
	tool := local(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "1") }, "/", "")
	if out, err := call(t.Context(), tool, "{}"); err != nil || out != "1" {
		t.Errorf("got %s, %v", out, err)
	}
}

func TestM12OwnAuthorities(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `"`+r.Header.Get("Traceparent")+`"`)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{Traceparent: func(context.Context) string { return "00-aa-bb-01" }}
	tool, err := toolOf(t, "url: "+server.URL+"/\nallow_private: true\nca_file: "+file, o)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := call(t.Context(), tool, "{}"); err != nil || out != `"00-aa-bb-01"` {
		t.Errorf("got %s, %v", out, err)
	}
	strange, err := toolOf(t, "url: "+server.URL+"/\nallow_private: true\n", Options{})
	if err != nil {
		t.Fatal(err)
	}
	refused(t, strange, "{}", gate.CodeUnavailable)
}

func TestM12ConfigurationsAreStrict(t *testing.T) {
	for text, want := range map[string]string{
		"url: https://h/{id}\nheders: {}":                "line 2: tools.search.http.heders: unknown key; did you mean headers?",
		"url: https://h/\nheaders: {A: {secert: K}}":     "tools.search.http.headers.A.secert: unknown key",
		"url: https://h/\nheaders: {A: {secret: NONE}}":  "there is no secret NONE",
		"url: https://h/\nheaders: {A: {secret: SHORT}}": "shorter than 6",
		"url: https://h/\nheaders: {A: {secret: CRLF}}":  "characters that no header",
		"url: https://h/\nheaders: {Host: x}":            "proxy's own",
		"url: https://h/\nheaders: {a: x, A: y}":         "given twice",
		"url: http://h/\nheaders: {A: {secret: KEY}}":    "in the clear",
		"url: https://{host}/":                           "malformed",
		"url: https://h/?q={q}":                          "placeholders stand in the path only",
		"url: https://u:p@h/":                            "no user",
		"url: https://h":                                 "no path",
		"url: file:///etc/passwd":                        "http://",
		"url: https://h/a/../b":                          "dot segments",
		"url: https://h/{a}/{a}":                         "each once",
		"url: https://h/{a-b}":                           "placeholder",
		"url: https://h/}":                               "} without {",
		"url: https://h/%zz":                             "percent-encoded",
		"url: https://h/\nmethod: CONNECT":               "method",
		"url: https://h/\nmethod: GET\nsend: json":       "no body",
		"url: https://h/\nsend: form":                    "send",
		"url: https://h/\nreply: xml":                    "reply",
		"url: https://h/\nca_file: /nonexistent":         "ca_file",
		"url: https://h/\nurl: https://i/":               "given twice",
		"url: [a]":                                       "want text, got a list",
		"[]":                                             "want a mapping",
	} {
		_, err := toolOf(t, text, Options{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "very") {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	if _, err := Factory(Options{})("x", nil); err == nil {
		t.Error("no section: got no error")
	}
}

func TestM12TextReplies(t *testing.T) {
	tool := local(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "key is "+r.Header.Get("X-Key")+"\n\x01")
	}, "/", "reply: text\nheaders: {X-Key: {secret: KEY}}\n")
	if out, err := call(t.Context(), tool, "{}"); err != nil || out != `"key is [masked:known]\n\u0001"` {
		t.Errorf("got %s, %v", out, err)
	}
	refused(t, local(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte{0xff}) }, "/", "reply: text\n"), "{}", gate.CodeToolFailed)
}

// A value keeps the path's segments as they are, whatever it is.
func FuzzTemplate(f *testing.F) {
	f.Add("v1/{id}/x", "a/../b")
	f.Add(".{id}", ".")
	f.Add("{id}", "%2e%2e%2f")
	f.Fuzz(func(t *testing.T, path, value string) {
		tmpl, err := parseTemplate("https://h.example/" + path)
		if err != nil {
			return
		}
		if tmpl.base.Host != "h.example" {
			t.Fatalf("host %q", tmpl.base.Host)
		}
		got, err := tmpl.expand(func(string) (string, bool) { return value, true })
		if err != nil {
			return
		}
		want := strings.Count(strings.Join(tmpl.fixed, ""), "/")
		if strings.Count(got, "/") != want || strings.ContainsAny(got, "?#\\ \r\n\x00") || got[0] != '/' {
			t.Fatalf("%q with %q: got %q", path, value, got)
		}
		req, err := http.NewRequest("GET", "https://h.example"+got, nil)
		if err != nil || req.URL.Host != "h.example" || req.URL.RequestURI() != got {
			t.Fatalf("%q with %q: %q became %v, %v", path, value, got, req, err)
		}
	})
}

func FuzzHideJSON(f *testing.F) {
	h := NewHider([]string{secret})
	f.Add([]byte(`{"a":"sk-test-51/very+secret\"value","b":[1,2e5,null]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		out, err := h.JSON(raw)
		if err != nil {
			return
		}
		if !json.Valid(out) {
			t.Fatalf("%q became %q", raw, out)
		}
		var v any
		if err := json.Unmarshal(out, &v); err == nil {
			if s, ok := v.(string); ok && strings.Contains(s, secret) {
				t.Fatalf("%q became %q", raw, out)
			}
		}
	})
}

func BenchmarkCall(b *testing.B) {
	tool := local(b, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"ok":true}`) }, "/v1/{id}", "method: GET\n")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := call(b.Context(), tool, `{"id":"a"}`); err != nil {
			b.Fatal(err)
		}
	}
}

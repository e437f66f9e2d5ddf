// SPDX-License-Identifier: Apache-2.0

package uhttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func readText(text string) (*Request, error) {
	return ReadRequest(NewReader(strings.NewReader(text)), io.Discard)
}

func TestReadRequest(t *testing.T) {
	r, err := readText("POST /v1/a%20b/c?x=1%2B2&y&z=a/b HTTP/1.1\r\nHost: a\r\nX-Id:  7 \r\nContent-Length: 3\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\nabcREST")
	if err != nil {
		t.Fatal(err)
	}
	want := &Request{Method: "POST", Host: "a", Path: []string{"v1", "a b", "c"}, Query: map[string]string{"x": "1+2", "y": "", "z": "a/b"}, Body: []byte("abc"), Upgrade: "raw"}
	if diff := cmp.Diff(want, r, cmpopts.IgnoreUnexported(Request{})); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]string{"x-id": "7", "host": "", "nothing": "", "content-length": ""} {
		if got := r.Header(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if r, err := readText("GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil || len(r.Path) != 0 {
		t.Errorf("got %v, %v, want the root", r, err)
	}
}

func TestTargetHasOneSpelling(t *testing.T) {
	for _, target := range []string{"", "*", "a", "a:1", "http://a/b", "//a", "/a//b", "/a/", "/.", "/..", "/a/../b", "/%2e", "/%2E%2e/a", "/a%2fb", "/a%2Fb", "/a%5cb", `/a\b`, "/%", "/%4", "/%4g",
		"/%00", "/%0a", "/%7f", "/%ff", "/%c3", "/\xc3\xa4", "/a#b", "/a|b", `/a"b`, "/a<b", "/a[b", "/?a=1&a=2", "/?=1", "/?a=%", "/?a=b#c", "/?a=b c", "/?a=b+c", "/?&", "/?a=%0d%0a",
		"/?" + strings.Repeat("&a", 20)} {
		if segments, query, err := parseTarget(target); err == nil {
			t.Errorf("%q: got %q %q, want an error", target, segments, query)
		}
	}
	for target, want := range map[string]string{"/%61": "a", "/a;b": "a;b", "/...": "...", "/%C3%A4": "ä", "/a+b": "a+b", "/%252e%252e": "%2e%2e"} {
		if segments, _, err := parseTarget(target); err != nil || len(segments) != 1 || segments[0] != want {
			t.Errorf("%q: got %q, %v, want %q", target, segments, err, want)
		}
	}
}

func TestReadRequestBounds(t *testing.T) {
	for text, want := range map[string]int{
		"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", MaxHead) + "\r\n\r\n":                   431,
		"GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("X: y\r\n", 200) + "\r\n":                       431,
		"GET /" + strings.Repeat("x", 8300) + " HTTP/1.1\r\nHost: a\r\n\r\n":                             431,
		fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", MaxBody+1):               413,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999999999\r\n\r\n":                       413,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n":                  400,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\na":                                    400,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": 400,
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":                      411,
	} {
		_, err := readText(text)
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != want {
			t.Errorf("%.60q: got %v, want status %d", text, err, want)
		}
	}
	body := strings.Repeat("b", MaxBody)
	if r, err := readText(fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", MaxBody, body)); err != nil || string(r.Body) != body {
		t.Errorf("the largest body: %v", err)
	}
	for _, cut := range []string{"", "GET / HT", "GET / HTTP/1.1\r\nHost: a\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nab", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n"} {
		if _, err := readText(cut); err == nil {
			t.Errorf("%q: got none, want an error", cut)
		} else if _, ok := errors.AsType[*Error](err); ok {
			t.Errorf("%q: got %v: nobody waits for the answer to half a request", cut, err)
		}
	}
}

func TestExpectContinue(t *testing.T) {
	head := "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
	ours, theirs := net.Pipe()
	go func() {
		_, _ = io.WriteString(theirs, head)
		interim := make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))
		_, _ = io.ReadFull(theirs, interim)
		_, _ = io.WriteString(theirs, "ok")
	}()
	if r, err := ReadRequest(NewReader(ours), ours); err != nil || string(r.Body) != "ok" {
		t.Errorf("got %v, %v", r, err)
	}
	var interim bytes.Buffer
	if _, err := ReadRequest(NewReader(strings.NewReader(head+"ok")), &interim); err != nil || interim.Len() > 0 {
		t.Errorf("got %q, %v, want nothing said to who didn't wait", interim.String(), err)
	}
}

// answers sends what a server sends, byte for byte, and returns what the client makes of it.
func answers(t *testing.T, call Call, text string) (*Response, string, error) {
	t.Helper()
	ours, theirs := net.Pipe()
	go func() {
		_, _ = ReadRequest(NewReader(theirs), io.Discard)
		_, _ = io.WriteString(theirs, text)
		_ = theirs.Close()
	}()
	r, err := Do(t.Context(), ours, call)
	if err != nil {
		return nil, "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r.Body)
	return r, string(b), err
}

func TestDoReadsWhatServersSend(t *testing.T) {
	get := Call{Method: "GET", Target: "/"}
	for text, want := range map[string]string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokMORE":                                               "200 ok",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n":                        "200 ok",
		"HTTP/1.0 200 OK\r\n\r\nok":                                                                        "200 ok",
		"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n":                                                        "200 ",
		"HTTP/1.1 204 No\r\n\r\nMORE":                                                                      "204 ",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 404 No\r\n\r\nx": "404 x",
	} {
		r, body, err := answers(t, get, text)
		if err != nil || fmt.Sprintf("%d %s", r.Status, body) != want {
			t.Errorf("%q: got %v %q, %v, want %q", text, r, body, err, want)
		}
	}
	for _, text := range []string{"", "HTTP/1.1 200", "HTTP/2 200 OK\r\n\r\n", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokok\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxAnswerHead) + "\r\n\r\n", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxInterim+1), "HTTP/1.1 999 OK\r\n\r\n"} {
		if r, body, err := answers(t, get, text); err == nil {
			t.Errorf("%.60q: got %v %q, want an error", text, r, body)
		}
	}
	for _, call := range []Call{{Method: "GET\r\nX:", Target: "/"}, {Method: "GET", Target: "/ HTTP/1.1\r\nX: y"}, {Method: "GET", Target: "/", Upgrade: "a\r\nb"}, {Method: "GET", Target: "/ä"}} {
		if _, _, err := answers(t, call, "HTTP/1.1 204 No\r\n\r\n"); err == nil {
			t.Errorf("%q: got none, want an error", call)
		}
	}
}

func TestDoEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, sent := range []string{"", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			ours, theirs := net.Pipe()
			go func() {
				_, _ = ReadRequest(NewReader(theirs), io.Discard)
				_, _ = io.WriteString(theirs, sent)
			}()
			r, err := Do(ctx, ours, Call{Method: "GET", Target: "/"})
			if err == nil {
				_, err = io.ReadAll(r.Body)
				r.Close()
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("after %q: got %v, want the context's end", sent, err)
			}
			cancel()
			theirs.Close()
		}
	})
}

func TestWriterWritesOneAnswer(t *testing.T) {
	talk := func(f func(w *Writer)) string {
		ours, theirs := net.Pipe()
		go func() { f(NewWriter(ours, time.Minute)); ours.Close() }()
		b, _ := io.ReadAll(theirs)
		return string(b)
	}
	got := talk(func(w *Writer) {
		if w.Begun() {
			t.Error("begun before its begin")
		}
		if err := errors.Join(w.Send(404, "text/plain", []byte("no")), w.Finish(nil)); err != nil {
			t.Error(err)
		}
		for _, err := range []error{w.Send(200, "text/plain", nil), w.Start("text/plain"), w.Upgrade("x")} {
			if !errors.Is(err, ErrStarted) || !w.Begun() {
				t.Errorf("got %v, want %v", err, ErrStarted)
			}
		}
		if _, err := w.Write([]byte("x")); err == nil {
			t.Error("got none, want an error after the answer")
		}
	})
	if want := "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nCache-Control: no-store\r\nConnection: close\r\n\r\nno"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for cause, end := range map[error]string{nil: "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", io.ErrClosedPipe: "2\r\nab\r\n1\r\nc\r\n"} {
		got := talk(func(w *Writer) {
			_ = w.Start("text/plain")
			for _, s := range []string{"ab", "", "c"} {
				_, _ = w.Write([]byte(s))
			}
			_ = w.Finish(cause)
		})
		if _, body, _ := strings.Cut(got, "\r\n\r\n"); body != end {
			t.Errorf("got %q, want %q", body, end)
		}
	}
}

func TestWriterGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		w, start := NewWriter(ours, time.Minute), time.Now()
		if err := w.Start("text/plain"); err == nil || time.Since(start) != time.Minute {
			t.Errorf("got %v after %v, want an error after a minute", err, time.Since(start))
		}
		if _, err := w.Write([]byte("x")); err == nil || time.Since(start) != time.Minute {
			t.Errorf("got %v after %v, want the same error at once", err, time.Since(start))
		}
	})
}

// TestClientOfNetHTTP: the client against the standard library's server.
func TestClientOfNetHTTP(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/stream" {
			for range 3 {
				fmt.Fprint(w, strings.Repeat("s", 5000))
				w.(http.Flusher).Flush()
			}
			return
		}
		fmt.Fprintf(w, "%s %s %s %q", r.Method, r.URL.RequestURI(), r.Header.Get("Accept"), body)
	}))
	defer s.Close()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{"/a%2Fb?x=" + Escape("ä &"): `PATCH /a%2Fb?x=%C3%A4%20%26 x/y "{}"`, "/stream": strings.Repeat("s", 15_000)} {
		conn, err := net.Dial("tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Do(t.Context(), conn, Call{Method: "PATCH", Target: target, Body: []byte("{}"), Accept: "x/y"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r.Body)
		r.Close()
		if err != nil || string(got) != want {
			t.Errorf("%s: got %.200q, %v, want %.200q", target, got, err, want)
		}
	}
}

// What we take, the standard library takes, and finds the same in it.
func FuzzReadRequest(f *testing.F) {
	f.Add([]byte("GET /v1/a%20b?x=1&y=2 HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Add([]byte("POST /v1/kill HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n{}"))
	f.Add([]byte("POST /a HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"))
	f.Add([]byte("GET /%2e%2e/a HTTP/1.1\r\nHost: a\r\n X: b\r\n\r\n"))
	f.Fuzz(func(t *testing.T, unsafe []byte) {
		r, err := ReadRequest(NewReader(bytes.NewReader(unsafe)), io.Discard)
		if err != nil {
			if e, ok := errors.AsType[*Error](err); ok && (e.Status < 400 || e.Status > 599) {
				t.Fatalf("%q: status %d", unsafe, e.Status)
			}
			return
		}
		if len(r.Body) > MaxBody {
			t.Fatalf("a body of %d bytes", len(r.Body))
		}
		std, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(unsafe)))
		if err != nil {
			if strings.Contains(err.Error(), "malformed Host header") || strings.Contains(err.Error(), "invalid method") {
				return
			}
			t.Fatalf("%q: taken, and the standard library says %v", unsafe, err)
		}
		body, err := io.ReadAll(std.Body)
		if err != nil || !bytes.Equal(body, r.Body) || std.Method != r.Method {
			t.Fatalf("%q: got %q %q, want %q %q, %v", unsafe, r.Method, r.Body, std.Method, body, err)
		}
		if got := "/" + strings.Join(r.Path, "/"); got != std.URL.Path {
			t.Fatalf("%q: got %q, want %q", unsafe, got, std.URL.Path)
		}
		for _, s := range r.Path {
			if s == "" || s == "." || s == ".." || strings.ContainsAny(s, "/\\\x00\n") {
				t.Fatalf("%q: segment %q", unsafe, s)
			}
		}
		for name, value := range r.Query {
			if got := std.URL.Query()[name]; !strings.Contains(name+value+std.URL.RawQuery, ";") && (len(got) != 1 || got[0] != value) {
				t.Fatalf("%q: parameter %q: got %q, want %q", unsafe, name, value, got)
			}
		}
	})
}

// What we take whole, the standard library takes, with the same content.
func FuzzReadResponse(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 220 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nok\r\n0\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 404 Not Found\r\n\r\nbody"))
	f.Fuzz(func(t *testing.T, unsafe []byte) {
		r := &Response{br: bufio.NewReaderSize(bytes.NewReader(unsafe), maxAnswerHead)}
		if r.read("GET") != nil || r.Status == 101 {
			return
		}
		got, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		br := bufio.NewReader(bytes.NewReader(unsafe))
		for range maxInterim {
			std, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatalf("%q: taken, and the standard library says %v", unsafe, err)
			}
			if std.StatusCode < 200 {
				continue
			}
			want, err := io.ReadAll(std.Body)
			if err != nil || !bytes.Equal(got, want) || std.StatusCode != r.Status {
				t.Fatalf("%q: got %d %q, want %d %q, %v", unsafe, r.Status, got, std.StatusCode, want, err)
			}
			return
		}
	})
}

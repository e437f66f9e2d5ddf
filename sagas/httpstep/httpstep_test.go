// SPDX-License-Identifier: Apache-2.0

package httpstep

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/internal/wire"
	"agentrun/sagas"
)

func aCall() sagas.Call {
	return sagas.Call{SagaID: "trip", StepID: "hotel", Key: "trip/hotel", Attempt: 2}
}

func call(t *testing.T, url string) error {
	t.Helper()
	return Client{}.Call(t.Context(), url, []byte(`{"nights":3}`), aCall())
}

func TestRequest(t *testing.T) {
	var got []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		got = []string{r.Method, r.URL.String(), r.Host, r.Header.Get("Idempotency-Key"), r.Header.Get("Content-Type"), string(raw)}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer s.Close()
	if err := call(t, s.URL+"/book?room=a%20b&x=%0d%0aX:1"); err != nil {
		t.Fatal(err)
	}
	want := []string{"POST", "/book?room=a%20b&x=%0d%0aX:1", strings.TrimPrefix(s.URL, "http://"), "trip/hotel", "application/json",
		`{"saga_id":"trip","step_id":"hotel","attempt_count":2,"action":"execute","idempotency_key":"trip/hotel","input":{"nights":3}}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	undo := aCall()
	undo.Undo, undo.Key = true, "trip/hotel/undo"
	if err := (Client{}).Call(t.Context(), strings.Replace(s.URL, "127.0.0.1", "localhost", 1), nil, undo); err != nil {
		t.Fatal(err)
	}
	var b map[string]any
	if err := json.Unmarshal([]byte(got[5]), &b); err != nil || b["action"] != "undo" || got[1] != "/" {
		t.Errorf("got %v, %v", got, err)
	}
}

// 2xx is success. A redirect is none and isn't followed: the other end could send the call anywhere.
func TestStatus(t *testing.T) {
	calls := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		var code int
		fmt.Sscanf(r.URL.Path, "/%d", &code)
		if code == 103 {
			w.WriteHeader(103)
			code = 201
		}
		w.Header().Set("Location", "/200")
		w.WriteHeader(code)
		io.WriteString(w, strings.Repeat("x", 1<<20)) // more than anyone reads
	}))
	defer s.Close()
	for _, code := range []int{200, 201, 299, 103} {
		if err := call(t, fmt.Sprintf("%s/%d", s.URL, code)); err != nil {
			t.Errorf("%d: %v", code, err)
		}
	}
	for _, code := range []int{300, 301, 302, 307, 308, 400, 409, 500, 503, 599} {
		calls = 0
		err := call(t, fmt.Sprintf("%s/%d", s.URL, code))
		if status, ok := errors.AsType[*StatusError](err); !ok || status.Code != code || errors.Is(err, sagas.ErrUnknown) || calls != 1 {
			t.Errorf("%d: got %v after %d calls", code, err, calls)
		}
	}
}

// serve answers each connection with raw, after reading the request's head.
func serve(t *testing.T, answer func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					if l, err := r.ReadString('\n'); err != nil || l == "\r\n" {
						break
					}
				}
				answer(c)
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// Whatever comes back that isn't an answer leaves open whether the call happened.
func TestUnknown(t *testing.T) {
	for name, raw := range map[string]string{
		"nothing": "", "not HTTP": "hello\r\n\r\n", "cut in the status": "HTTP/1.1 20", "cut in the header": "HTTP/1.1 200 OK\r\nA: b\r\n",
		"HTTP/2": "HTTP/2 200 OK\r\n\r\n", "status 99": "HTTP/1.1 099 X\r\n\r\n", "status 2000": "HTTP/1.1 2000 X\r\n\r\n",
		"status +20": "HTTP/1.1 +20 X\r\n\r\n", "long line": "HTTP/1.1 200 " + strings.Repeat("x", 100<<10),
		"endless header": "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 50<<10), "endless interim": strings.Repeat("HTTP/1.1 100 X\r\n\r\n", 100),
		"lone LF": "HTTP/1.1 200 OK\n\n", "two lengths": "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
		"upgrade": "HTTP/1.1 101 X\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
	} {
		url := serve(t, func(c net.Conn) { io.WriteString(c, raw) })
		if err := call(t, url); !errors.Is(err, sagas.ErrUnknown) {
			t.Errorf("%s: got %v, want ErrUnknown", name, err)
		}
	}
}

func TestContextEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	silent := serve(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	err := Client{}.Call(ctx, silent, nil, aCall())
	if !errors.Is(err, sagas.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	open := serve(t, func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); _, _ = io.Copy(io.Discard, c) })
	if err := call(t, open); err != nil {
		t.Errorf("a server that doesn't hang up: %v", err)
	}
}

// Nothing was sent: the step may be tried again whatever it is.
func TestNotSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := "http://" + l.Addr().String()
	l.Close()
	bad := aCall()
	bad.Key = "trip/hotel\r\nX: y"
	for name, err := range map[string]error{
		"refused":    call(t, free),
		"elsewhere":  call(t, "http://192.0.2.1/"),
		"name":       call(t, "http://example.com/"),
		"https":      call(t, "https://127.0.0.1/"),
		"key":        Client{}.Call(t.Context(), free, nil, bad),
		"input":      Client{}.Call(t.Context(), free, []byte("{"), aCall()),
		"long input": Client{}.Call(t.Context(), free, []byte(`"`+strings.Repeat("x", maxRequest)+`"`), aCall()),
	} {
		if err == nil || errors.Is(err, sagas.ErrUnknown) {
			t.Errorf("%s: got %v, want an error that isn't ErrUnknown", name, err)
		}
	}
}

// Exactly one of status, error; and no more than is bounded is read.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0 404\n\n", "HTTP/1.1 100 C\r\n\r\nHTTP/1.1 204 N\r\nA: b\r\n\r\n", "HTTP/1.1 -20 X\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		code, _, err := answer(bufio.NewReaderSize(bytes.NewReader(raw), wire.MaxHead))
		if (err == nil) == (code == 0) || err == nil && (code < 200 || code > 599) {
			t.Errorf("got %d, %v", code, err)
		}
	})
}

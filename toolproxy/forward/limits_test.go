// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// canned serves the same bytes to every request at a port, and closes if they say so.
func (w *world) canned(t *testing.T, port int, reply string) {
	t.Helper()
	l := listen(t)
	w.site(port, l.Addr().String())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReader(c)
				for {
					if _, err := http.ReadRequest(br); err != nil {
						return
					}
					if _, err := io.WriteString(c, reply); err != nil || !strings.Contains(reply, "Keep: 1") {
						return
					}
				}
			}()
		}
	}()
}

func TestM8RepliesKeepTheirFraming(t *testing.T) {
	for name, c := range map[string]struct{ method, minor, reply, body, connection string }{
		"until close":        {"GET", "1", "HTTP/1.1 200 OK\r\n\r\nhello", "hello", ""},
		"until close, 1.0":   {"GET", "0", "HTTP/1.0 200 OK\r\n\r\nhello", "hello", "close"},
		"length":             {"GET", "1", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nKeep: 1\r\n\r\nhello", "hello", ""},
		"length, kept 1.0":   {"GET", "0", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nKeep: 1\r\n\r\nhello", "hello", "keep-alive"},
		"chunked":            {"GET", "1", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nKeep: 1\r\n\r\n5\r\nhello\r\n0\r\nT: x\r\n\r\n", "hello", ""},
		"chunked to 1.0":     {"GET", "0", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nKeep: 1\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "hello", "close"},
		"HEAD":               {"HEAD", "1", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nKeep: 1\r\n\r\n", "", ""},
		"no content":         {"GET", "1", "HTTP/1.1 204 No Content\r\nKeep: 1\r\n\r\n", "", ""},
		"not modified":       {"GET", "1", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nKeep: 1\r\n\r\n", "", ""},
		"after interim ones": {"GET", "1", "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, rings.Standard, allowed("allowed.example"))
			w.canned(t, 80, c.reply)
			conn := w.dialProxy(t)
			br := bufio.NewReader(conn)
			for range 2 {
				fmt.Fprintf(conn, "%s http://allowed.example/ HTTP/1.%s\r\nHost: allowed.example\r\nConnection: keep-alive\r\n\r\n", c.method, c.minor)
				resp, body := response(t, br, c.method)
				if resp.StatusCode >= 400 || body != c.body || resp.Header.Get("Connection") != c.connection && !(c.connection == "close" && resp.Close) {
					t.Errorf("got %d %q %v", resp.StatusCode, body, resp.Header)
				}
				if resp.Close {
					break
				}
			}
		})
	}
}

// A server isn't believed either: what two readers could read in two ways ends here.
func TestM8RepliesAreReadStrictly(t *testing.T) {
	for name, reply := range map[string]string{
		"both framings":   "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"two lengths":     "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 4\r\n\r\nhello",
		"bare LF":         "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
		"folded":          "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
		"other protocol":  "SSH-2.0-x\r\n\r\n",
		"nothing":         "",
		"unasked upgrade": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"endless interim": strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 100),
		"endless head":    "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 20000),
	} {
		w := newWorld(t, rings.Standard, allowed("allowed.example"))
		w.canned(t, 80, reply)
		resp, body := w.raw(t, "GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
		if t.Run(name, func(t *testing.T) { wantDenied(t, resp, body, 502, "upstream_bad_reply") }); !resp.Close {
			t.Errorf("%s: the connection goes on", name)
		}
	}
}

// A stream that is slow, and whose client says nothing, isn't idle.
func TestM8SlowStreamsLive(t *testing.T) {
	t.Parallel() // it waits
	const idle = 2 * time.Second
	w := newWorld(t, rings.Standard, Options{Config: Config{Allow: []string{"allowed.example:22"}, Limits: Limits{Idle: idle}}})
	l := listen(t)
	w.site(22, l.Addr().String())
	go func() {
		up, err := l.Accept()
		if err != nil {
			return
		}
		defer up.Close()
		_, _ = up.Read(make([]byte, 1))
		for _, err = up.Write([]byte(".")); err == nil; _, err = up.Write([]byte(".")) {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	conn := w.connect(t, "allowed.example:22")
	say(t, conn, "x")
	for begun := time.Now(); time.Since(begun) < idle+idle/2; {
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Fatalf("after %v: %v", time.Since(begun), err)
		}
	}
	_ = conn.Close()
}

func TestM8LimitsOfBytes(t *testing.T) {
	o := allowed("allowed.example", "allowed.example:22")
	o.Config.Limits = Limits{RunBytes: 1 << 20, ConnectionBytes: 600 << 10, Body: 1000}
	w := newWorld(t, rings.Standard, o)
	w.echo(t, 22)
	w.web(t, 80, hello)
	resp, body := w.raw(t, "POST http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 1001\r\n\r\n")
	wantDenied(t, resp, body, 413, "limit_reached")
	total := int64(0)
	for range 4 {
		c, err := net.Dial("tcp", w.proxy)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, "CONNECT allowed.example:22 HTTP/1.1\r\nHost: allowed.example:22\r\n\r\n")
		go func() { _, _ = io.Copy(c, strings.NewReader(strings.Repeat("x", 2<<20))) }()
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}
	w.bytes.Store(0) // a rest is left that neither direction could use whole
	resp, body = w.raw(t, "GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
	wantDenied(t, resp, body, 403, "limit_reached")
	w.sup.await(t, func(r link.Record) bool { return r.Detail == "limit_reached" && r.Name == "allowed.example:80" })
	for _, r := range w.sup.all() {
		total += r.Sent + r.Received
		if r.Sent+r.Received > 600<<10 {
			t.Errorf("a connection moved %d bytes", r.Sent+r.Received)
		}
	}
	if total > 1<<20 {
		t.Errorf("the run moved %d bytes, want at most %d", total, 1<<20)
	}
}

func TestM8LimitOfConnections(t *testing.T) {
	o := allowed("allowed.example")
	o.Config.Limits = Limits{TotalConnections: 1}
	w := newWorld(t, rings.Standard, o)
	w.web(t, 80, hello)
	const request = "GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n"
	if resp, body := w.raw(t, request); resp.StatusCode != 200 {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
	resp, body := w.raw(t, request)
	wantDenied(t, resp, body, 403, "limit_reached")
}

// Slow clients and silent tunnels end by themselves.
func TestM8SlowOnesEnd(t *testing.T) {
	o := allowed("allowed.example", "allowed.example:22")
	o.Config.Limits = Limits{Head: 20 * time.Millisecond, Idle: 100 * time.Millisecond}
	w := newWorld(t, rings.Standard, o)
	w.echo(t, 22)
	for name, c := range map[string]net.Conn{"tunnel": w.connect(t, "allowed.example:22"), "hello": w.slow(t, "\x05\x01\x00\x05"), "head": w.slow(t, "GET http://allowed"), "nothing": w.dialProxy(t)} {
		if rest, err := io.ReadAll(c); err != nil && strings.Contains(err.Error(), "i/o timeout") {
			t.Errorf("%s: still open after %q", name, rest)
		}
	}
}

func (w *world) slow(t *testing.T, begin string) net.Conn {
	t.Helper()
	c := w.dialProxy(t)
	if _, err := io.WriteString(c, begin); err != nil {
		t.Fatal(err)
	}
	return c
}

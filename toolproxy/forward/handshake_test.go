// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentrun/rings"
	"agentrun/test/exit"
	"agentrun/toolproxy/link"
)

// ways are how a client gets a tunnel to allowed.example, and whether it must be TLS.
var ways = []struct {
	name string
	open func(t *testing.T, w *world) net.Conn
}{
	{"CONNECT to 443", func(t *testing.T, w *world) net.Conn { return w.connect(t, "allowed.example:443") }},
	{"CONNECT to 8443", func(t *testing.T, w *world) net.Conn { return w.connect(t, "allowed.example:8443") }},
	{"SOCKS to 443", func(t *testing.T, w *world) net.Conn {
		c := w.dialProxy(t)
		for _, step := range []struct{ send, want string }{{"\x05\x01\x00", "\x05\x00"},
			{"\x05\x01\x00\x03\x0fallowed.example\x01\xbb", "\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"}} {
			if _, err := io.WriteString(c, step.send); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(step.want))
			if _, err := io.ReadFull(c, got); err != nil || string(got) != step.want {
				t.Fatalf("got %q, %v, want %q", got, err, step.want)
			}
		}
		return c
	}},
	{"capture of 443", func(t *testing.T, w *world) net.Conn {
		at, code := w.lookup(t, "allowed.example")
		if !at.IsValid() {
			t.Fatalf("no address: %v", code)
		}
		return w.captured(t, netip.AddrPortFrom(at, 443).String())
	}},
}

// retryWorld has the scripted server behind all ports of allowed.example.
func retryWorld(t *testing.T, serve func(net.Conn)) *world {
	t.Helper()
	w := newWorld(t, rings.Standard, Options{Config: Config{Allow: []string{"allowed.example", "allowed.example:8443"},
		Limits: Limits{Idle: 5 * time.Second}}})
	l := listen(t)
	for _, port := range []int{443, 8443} {
		w.site(port, l.Addr().String())
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return w
}

// A-H2: a server that wants another key share asks for a second hello, in the clear. It is held to the name like the first,
// however the server's question and the client's answer are cut, whatever stands between, and when they come early.
func TestM8SecondHelloIsHeldToTheName(t *testing.T) {
	ask, served := exittest.Record(22, exittest.ServerHello(true)), exittest.Record(22, exittest.ServerHello(false))
	changed := exittest.Record(20, []byte{1})
	hello := func(name string, more ...[]byte) []byte {
		return exittest.Record(22, exittest.ClientHello(name, more...))
	}
	pieces := func(message []byte, size int) (b []byte) {
		for part := range slices.Chunk(message, size) {
			b = append(b, exittest.Record(22, part)...)
		}
		return b
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	good, other := hello("allowed.example"), hello("other.example")
	both := []string{"allowed.example", "allowed.example"}
	for _, c := range []struct {
		name    string
		answers [][]byte
		then    []byte // after the first reply; nil: sent at once, with the first hello
		at      []byte // with the first hello
		names   []string
		reason  string // of the refusal; empty: it passes
		data    string // what must have come beside hellos
	}{
		{name: "the same name", answers: [][]byte{ask, served}, then: good, names: both},
		{name: "a ChangeCipherSpec before", answers: [][]byte{join(ask, changed), served}, then: join(changed, good), names: both, data: "\x01"},
		{name: "early data before", answers: [][]byte{join(ask, changed), served}, then: join(changed, exittest.Record(23, []byte("early")), good), names: both, data: "\x01early"},
		{name: "early data at once", answers: [][]byte{served}, at: join(changed, exittest.Record(23, []byte("early"))), names: both[:1], data: "\x01early"},
		{name: "both in many records", answers: [][]byte{pieces(exittest.ServerHello(true), 2), served}, then: pieces(exittest.ClientHello("allowed.example"), 50), names: both},
		{name: "warnings before the answer", answers: [][]byte{join(exittest.Record(21, []byte{1, 112}), ask), served}, then: good, names: both},

		{name: "another name", answers: [][]byte{ask, served}, then: other, names: both[:1], reason: "name_mismatch"},
		{name: "no name", answers: [][]byte{ask, served}, then: hello(""), names: both[:1], reason: "name_mismatch"},
		{name: "a hidden name", answers: [][]byte{ask, served}, then: hello("allowed.example", exittest.ECH()), names: both[:1], reason: "hidden_name"},
		{name: "another name after a ChangeCipherSpec", answers: [][]byte{join(ask, changed), served}, then: join(changed, other), names: both[:1], reason: "name_mismatch"},
		{name: "another name after early data", answers: [][]byte{ask, served}, then: join(changed, exittest.Record(23, make([]byte, 9000)), other), names: both[:1], reason: "name_mismatch"},
		{name: "another name in many records", answers: [][]byte{ask, served}, then: pieces(exittest.ClientHello("other.example"), 20), names: both[:1], reason: "name_mismatch"},
		{name: "another name in records of a byte", answers: [][]byte{ask, served}, then: pieces(exittest.ClientHello("other.example"), 1), names: both[:1], reason: "bad_client_hello"},
		{name: "another name before the question", answers: [][]byte{ask, served}, at: other, names: both[:1], reason: "name_mismatch"},
		{name: "another name asked for in pieces", answers: [][]byte{pieces(exittest.ServerHello(true), 3), served}, then: other, names: both[:1], reason: "name_mismatch"},
		{name: "another name asked for after warnings", answers: [][]byte{join(exittest.Record(21, []byte{1, 112}), exittest.Record(20, []byte{1}), ask), served},
			then: other, names: both[:1], reason: "name_mismatch"},
		{name: "a good and another hello in a record", answers: [][]byte{ask, served}, names: both[:1], reason: "bad_client_hello",
			then: exittest.Record(22, join(exittest.ClientHello("allowed.example"), exittest.ClientHello("other.example")))},
		{name: "another message before", answers: [][]byte{ask, served}, then: join(exittest.Record(22, []byte{11, 0, 0, 0}), other), names: both[:1], reason: "bad_client_hello"},
		{name: "an alert before", answers: [][]byte{ask, served}, then: join(exittest.Record(21, []byte{1, 90}), other), names: both[:1], reason: "bad_client_hello"},
		{name: "an empty record before", answers: [][]byte{ask, served}, then: join([]byte{22, 3, 3, 0, 0}, other), names: both[:1], reason: "bad_client_hello"},
		{name: "two ChangeCipherSpecs before", answers: [][]byte{ask, served}, then: join(changed, changed, other), names: both[:1], reason: "bad_client_hello"},
		{name: "no TLS", answers: [][]byte{ask, served}, then: []byte("get / of other.example\r\n"), names: both[:1], reason: "bad_client_hello"},
		// TLS 1.2: a client that starts anew inside the handshake ("step-up").
		{name: "another name that nobody asked for", answers: [][]byte{served, served}, then: other, names: both[:1], reason: "bad_client_hello"},
		{name: "another name behind a message", answers: [][]byte{served, served}, names: both[:1], reason: "bad_client_hello",
			then: exittest.Record(22, join([]byte{11, 0, 0, 1, 0}, exittest.ClientHello("other.example")))},
		{name: "another name after an alert", answers: [][]byte{served, served}, then: join(exittest.Record(21, []byte{1, 0}), other), names: both[:1], reason: "bad_client_hello"},
	} {
		for _, way := range ways {
			t.Run(c.name+"/"+way.name, func(t *testing.T) {
				server := &exittest.Retrying{Answers: c.answers}
				w := retryWorld(t, server.Serve)
				conn := way.open(t, w)
				if _, err := conn.Write(join(good, c.at)); err != nil {
					t.Fatal(err)
				}
				if c.at == nil || c.reason == "" { // a second hello that is refused may be so before the answer came through
					first := make([]byte, len(c.answers[0]))
					if _, err := io.ReadFull(conn, first); err != nil || !bytes.Equal(first, c.answers[0]) {
						t.Fatalf("got %x, %v, want the server's answer", first, err)
					}
				}
				if len(c.then) > 0 {
					if _, err := conn.Write(c.then); err != nil {
						t.Fatal(err)
					}
				}
				if c.reason == "" {
					if len(c.answers) > 1 {
						got := make([]byte, len(c.answers[1]))
						if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, c.answers[1]) {
							t.Fatalf("got %x, %v, want the server's second answer", got, err)
						}
					}
					if len(c.answers) > 1 || c.then != nil || c.at != nil {
						if _, err := conn.Write(exittest.Record(23, []byte("after"))); err != nil {
							t.Fatal(err)
						}
					}
					await(t, func() error {
						if got := server.Data(); got != c.data+"after" {
							return fmt.Errorf("got %q beside the hellos, want %q", got, c.data+"after")
						}
						return nil
					})
				} else {
					rest, _ := io.ReadAll(conn)
					if len(rest) < 7 || rest[len(rest)-7] != 21 {
						t.Errorf("got %x, want an alert", rest)
					}
					w.sup.await(t, func(r link.Record) bool {
						return !r.Allowed && strings.Contains(r.Detail+r.Rule+string(r.Code), c.reason)
					})
				}
				if got := server.Names(); !slices.Equal(got, c.names) {
					t.Errorf("the server has read the names %q, want %q", got, c.names)
				}
			})
		}
	}
}

// await asks again until there is no error.
func await(t *testing.T, ask func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err = ask(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// A server that doesn't answer a hello with TLS gets no more of the client; one that ends is ended.
func TestM8AnswersThatAreNone(t *testing.T) {
	hello, ask := exittest.Record(22, exittest.ClientHello("allowed.example")), exittest.Record(22, exittest.ServerHello(true))
	for _, c := range []struct {
		name   string
		answer []byte
		more   int // hellos that may go up after the first
	}{
		{"HTTP", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), 0},
		{"another handshake message", exittest.Record(22, []byte{11, 0, 0, 0}), 0},
		{"a hello that is too short", exittest.Record(22, append([]byte{2, 0, 0, 33}, make([]byte, 34)...)), 0},
		{"many alerts", bytes.Repeat(exittest.Record(21, []byte{1, 112}), 100), 0},
		{"two questions", append(slices.Clone(ask), ask...), 1},
		{"an alert and the end", exittest.Record(21, []byte{2, 40}), 0},
		{"the end", nil, 0},
	} {
		for _, way := range ways {
			t.Run(c.name+"/"+way.name, func(t *testing.T) {
				t.Parallel() // some wait for a second
				got := make(chan []byte, 1)
				w := retryWorld(t, func(up net.Conn) {
					_, _ = io.CopyN(io.Discard, up, int64(len(hello)))
					_, _ = up.Write(c.answer)
					if len(c.answer) <= 7 { // otherwise the proxy must end it
						closeWrite(up)
					}
					_ = up.SetReadDeadline(time.Now().Add(10 * time.Second))
					rest, _ := io.ReadAll(up)
					got <- rest
				})
				conn := way.open(t, w)
				if _, err := conn.Write(append(append(slices.Clone(hello), hello...), "GET / HTTP/1.1\r\n"...)); err != nil {
					t.Fatal(err)
				}
				// A connection that is closed with something unread is reset, which may take what is on its way to us.
				answer, err := io.ReadAll(conn)
				if lost := errors.Is(err, syscall.ECONNRESET) && bytes.HasPrefix(c.answer, answer); !lost && !bytes.HasPrefix(answer, c.answer) {
					t.Errorf("got %q, %v, want %q", answer, err, c.answer)
				}
				rest := <-got
				if len(rest) > c.more*len(hello) || bytes.Contains(rest, []byte("GET")) {
					t.Errorf("%d more bytes have gone up: %.300q", len(rest), rest)
				}
			})
		}
	}
}

// A client and a server of the standard library that need a second hello for their key share get through, with HTTP inside.
func TestM8RetryWorks(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, way := range ways {
			t.Run(tls.VersionName(version)+"/"+way.name, func(t *testing.T) {
				w := retryWorld(t, nil)
				server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(rw, r.Body)
				}))
				server.TLS = &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP384}}
				server.StartTLS()
				t.Cleanup(server.Close)
				for _, port := range []int{443, 8443} {
					w.site(port, server.URL)
				}
				conn := way.open(t, w)
				client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "allowed.example", MaxVersion: version,
					CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}},
					DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}}
				defer client.CloseIdleConnections()
				body := strings.Repeat("0123456789abcdef", 1<<16)
				resp, err := client.Post("https://allowed.example/", "text/plain", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				got, err := io.ReadAll(resp.Body)
				if err != nil || string(got) != body {
					t.Errorf("got %d bytes, %v, want %d", len(got), err, len(body))
				}
				if retried := resp.TLS.HelloRetryRequest; retried != (version == tls.VersionTLS13) {
					t.Errorf("HelloRetryRequest: %v", retried)
				}
			})
		}
	}
}

// Who waits before the first byte, or in the middle of what may be a hello, isn't let off.
func TestM8WaitingIsNoWayAroundTheName(t *testing.T) {
	hello := exittest.Record(22, exittest.ClientHello("other.example"))
	for _, c := range []struct {
		name   string
		before []byte
		hello  []byte
	}{
		{"before the first byte", nil, hello},
		{"in the first record", hello[:3], hello[3:]},
		{"in an alert", []byte{21}, append([]byte{3, 3, 0, 2, 1, 90}, hello...)},
		{"in a hello of SSLv2", []byte{0x80, 31, 1, 3}, []byte("and the rest of it")},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := make(chan []byte, 1)
			w := newWorld(t, rings.Standard, Options{Config: Config{Allow: []string{"allowed.example:8443"},
				Limits: Limits{Idle: 60 * time.Millisecond, Head: 60 * time.Millisecond}}})
			l := listen(t)
			w.site(8443, l.Addr().String())
			go func() {
				up, err := l.Accept()
				if err != nil {
					return
				}
				defer up.Close()
				go func() {
					all, _ := io.ReadAll(up)
					got <- all
				}()
				for { // one that speaks keeps the connection from being idle
					if _, err := up.Write([]byte(".")); err != nil {
						return
					}
					time.Sleep(5 * time.Millisecond)
				}
			}()
			conn := w.connect(t, "allowed.example:8443")
			if _, err := conn.Write(c.before); err != nil {
				t.Fatal(err)
			}
			for begun := time.Now(); time.Since(begun) < 200*time.Millisecond; {
				if _, err := conn.Read(make([]byte, 1)); err != nil {
					break
				}
			}
			_, _ = conn.Write(c.hello) // it may have been cut
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
			if b := <-got; len(b) > 0 {
				t.Errorf("%x has gone up", b)
			}
		})
	}
}

// On ports where bytes pass, what a server could take for TLS must begin with a hello that can be read.
func TestM8DisguisedHellos(t *testing.T) {
	hello := exittest.Record(22, exittest.ClientHello("other.example"))
	old := []byte{1, 3, 3, 0, 6, 0, 0, 0, 16, 0, 0xc0, 0x2f, 0, 0, 0x9c}
	old = append([]byte{0x80, byte(len(old) + 16)}, append(old, make([]byte, 16)...)...)
	for _, c := range []struct {
		name   string
		send   []byte
		passes bool
	}{
		{"an alert before the hello", append(exittest.Record(21, []byte{1, 90}), hello...), false},
		{"a ChangeCipherSpec before it", append(exittest.Record(20, []byte{1}), hello...), false},
		{"data before it", append(exittest.Record(23, []byte{1}), hello...), false},
		{"a heartbeat before it", append(exittest.Record(24, []byte{1}), hello...), false},
		{"a hello of SSLv2", old, false},
		{"text", []byte("EHLO there\r\n"), true},
		{"one byte", []byte{0x80}, true},
		{"telnet", []byte{0xff, 0xfb, 0x18}, true},
		{"RPC", []byte{0x80, 0, 1, 3, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 2}, true},
		{"another control character", []byte{21, 22, 23}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := retryWorld(t, func(up net.Conn) { _, _ = io.Copy(up, up) })
			conn := w.connect(t, "allowed.example:8443")
			if _, err := conn.Write(c.send); err != nil {
				t.Fatal(err)
			}
			closeWrite(conn)
			got, _ := io.ReadAll(conn)
			if passed := bytes.Equal(got, c.send); passed != c.passes || !c.passes && (len(got) != 7 || got[0] != 21) {
				t.Errorf("got %x of %x, want it to pass: %v", got, c.send, c.passes)
			}
		})
	}
}

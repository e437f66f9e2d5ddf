// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"

	"agentrun/rings"
	"agentrun/toolproxy/egress"
)

// switching says 101 and then goes on with whatever comes.
func switching(rw http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		hello(rw, r)
		return
	}
	c, brw, err := rw.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\n\r\n")
	_, _ = io.Copy(c, brw)
}

// A-L9: after a 101 nobody reads what is said, so that entries with methods or paths let none through unless they say so.
func TestM8WebsocketsOnlyWhereAnEntrySaysSo(t *testing.T) {
	rule := func(upgrades bool, paths ...string) Config {
		return Config{Rules: []Rule{{Host: "allowed.example", Methods: []string{"GET"}, Paths: paths, WebSocket: upgrades}}}
	}
	for _, c := range []struct {
		name   string
		config Config
		ring   rings.Ring
		path   string
		reason string
	}{
		{"a line without methods or paths", Config{Allow: []string{"allowed.example"}}, rings.Standard, "/ws", ""},
		{"a line with a path", Config{Allow: []string{"allowed.example/ws"}}, rings.Standard, "/ws", "tunnel_not_listed"},
		{"a line with a method", Config{Allow: []string{"GET allowed.example"}}, rings.Standard, "/ws", "tunnel_not_listed"},
		{"both lines", Config{Allow: []string{"GET allowed.example/ws", "allowed.example"}}, rings.Standard, "/ws", ""},
		{"a rule with a path", rule(false, "/ws"), rings.Standard, "/ws", "tunnel_not_listed"},
		{"a rule that says so", rule(true, "/ws"), rings.Standard, "/ws", ""},
		{"a rule that says so for another path", Config{Allow: []string{"allowed.example/pub"}, Rules: rule(true, "/ws").Rules}, rings.Standard, "/pub", "tunnel_not_listed"},
		{"a path that isn't allowed", rule(true, "/ws"), rings.Standard, "/adm", "path_not_listed"},
		{"a rule that says so for another host", Config{Allow: []string{"allowed.example/pub"}, Rules: []Rule{{Host: "other.example", WebSocket: true}}}, rings.Standard, "/pub", "tunnel_not_listed"},
		{"another port", Config{Allow: []string{"allowed.example/pub"}, Rules: []Rule{{Host: "allowed.example", Ports: []uint16{8080}, WebSocket: true}}}, rings.Standard, "/pub", "tunnel_not_listed"},
		{"ring 3", rule(true, "/ws"), rings.Sandbox, "/ws", "ring_has_no_egress"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.ring, Options{Config: c.config})
			w.web(t, 80, switching)
			conn := w.dialProxy(t)
			br := bufio.NewReader(conn)
			say(t, conn, "GET http://allowed.example"+c.path+" HTTP/1.1\r\nHost: allowed.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			resp, body := response(t, br, "GET")
			if c.reason != "" {
				wantDenied(t, resp, body, 403, c.reason)
				if d := w.dials(); len(d) > 0 {
					t.Errorf("dialled %v", d)
				}
				return
			}
			if resp.StatusCode != 101 {
				t.Fatalf("got %d %s", resp.StatusCode, body)
			}
			if err := ping(conn, br)(); err != nil {
				t.Error(err)
			}
		})
	}
}

// An address that an entry opens for some methods or paths isn't open to a websocket either, whatever the entry for the name says.
func TestM8WebsocketsToRestrictedAddresses(t *testing.T) {
	inner := netip.MustParseAddr("10.1.2.3")
	for _, c := range []struct {
		name   string
		config Config
		want   int
	}{
		{"a restricted address", Config{Allow: []string{"inner.example", "GET 10.1.2.3/ws"}}, 403},
		{"an open address", Config{Allow: []string{"inner.example", "10.1.2.3"}}, 101},
		{"a rule that says so", Config{Allow: []string{"inner.example"}, Rules: []Rule{{Host: "10.1.2.3", Methods: []string{"GET"}}, {Host: "inner.example", WebSocket: true}}}, 101},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, rings.Standard, Options{Config: c.config})
			w.names.addrs["inner.example"] = []netip.Addr{inner}
			w.web(t, 80, switching)
			dial := w.dialer
			w.dialer = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
				if to.Addr() == inner {
					to = netip.AddrPortFrom(loopback, to.Port())
				}
				conn, err := dial(ctx, to)
				if err != nil {
					return nil, err
				}
				return far{conn.(*net.TCPConn), inner}, nil
			}
			conn := w.dialProxy(t)
			say(t, conn, "GET http://inner.example/ws HTTP/1.1\r\nHost: inner.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			if resp, body := response(t, bufio.NewReader(conn), "GET"); resp.StatusCode != c.want {
				t.Errorf("got %d %s, want %d", resp.StatusCode, body, c.want)
			}
		})
	}
}

// far is a connection that says it leads to another address.
type far struct {
	*net.TCPConn
	addr netip.Addr
}

func (f far) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(netip.AddrPortFrom(f.addr, 80)) }

// One that the next ring wouldn't let through is cut when the ring comes, although its request would still be allowed.
func TestM22WebsocketsFollowTheRing(t *testing.T) {
	w := newWorld(t, rings.Privileged, Options{Config: Config{Allow: []string{"GET allowed.example/ws", "127.0.0.1"}}})
	w.web(t, 80, switching)
	conn := w.dialProxy(t)
	br := bufio.NewReader(conn)
	say(t, conn, "GET http://allowed.example/ws HTTP/1.1\r\nHost: allowed.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	if resp, err := http.ReadResponse(br, nil); err != nil || resp.StatusCode != 101 {
		t.Fatalf("got %v, %v", resp, err)
	}
	if err := ping(conn, br)(); err != nil {
		t.Fatal(err)
	}
	w.sup.set(rings.Standard)
	if _, err := io.ReadAll(br); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want the connection cut", err)
	}
}

// No other protocol is switched to, however it is asked for, and an entry with paths opens no tunnel.
func TestM8NoOtherProtocol(t *testing.T) {
	seen := make(chan http.Header, 10)
	w := newWorld(t, rings.Standard, Options{Config: Config{Allow: []string{"allowed.example/pub", "other.example"}}})
	w.web(t, 80, func(rw http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		switching(rw, r)
	})
	for _, c := range []struct {
		name, request string
		status        int
	}{
		{"h2c", "GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n", 200},
		{"h2c beside websocket", "GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\n", 200},
		{"two of Upgrade", "GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n\r\n", 400},
		{"TLS", "OPTIONS http://other.example/ HTTP/1.1\r\nHost: other.example\r\nConnection: Upgrade\r\nUpgrade: TLS/1.2\r\n\r\n", 200},
		{"websocket by POST", "POST http://other.example/ HTTP/1.1\r\nHost: other.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n", 200},
		{"websocket without Connection", "GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\nUpgrade: websocket\r\n\r\n", 200},
		{"websocket in HTTP/1.0", "GET http://other.example/ HTTP/1.0\r\nHost: other.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 200},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
		{"CONNECT to 443", "CONNECT allowed.example:443 HTTP/1.1\r\nHost: allowed.example:443\r\n\r\n", 403},
		{"HTTP/2 in a captured tunnel", "CONNECT allowed.example:80 HTTP/1.1\r\nHost: allowed.example:80\r\n\r\n", 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := w.dialProxy(t)
			br := bufio.NewReader(conn)
			say(t, conn, c.request)
			resp, err := http.ReadResponse(br, &http.Request{Method: strings.Fields(c.request)[0]})
			if err != nil || resp.StatusCode != c.status {
				t.Fatalf("got %+v, %v, want %d", resp, err, c.status)
			}
			switch {
			case c.name == "HTTP/2 in a captured tunnel":
				say(t, conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
				if resp, _ := response(t, br, "GET"); resp.StatusCode != 505 {
					t.Errorf("inside: got %d, want 505", resp.StatusCode)
				}
			case c.status == 200:
				if h := <-seen; h.Get("Upgrade") != "" || h.Get("Connection") != "" || h.Get("Http2-Settings") != "" {
					t.Errorf("the upstream has got %v", h)
				}
			}
		})
	}
	if len(seen) > 0 {
		t.Errorf("a request went up that shouldn't: %v", <-seen)
	}
}

func TestM8WebsocketsInTheConfiguration(t *testing.T) {
	c, err := ParseConfig(section("rules: [{host: a.example, paths: [/ws], websockets: true}]"))
	if err != nil || !c.Rules[0].WebSocket {
		t.Fatalf("got %+v, %v", c, err)
	}
	rules, err := compile(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	target, _ := egress.ParseTarget("a.example", 80)
	path, _ := egress.ParsePath("/ws")
	if ask := (egress.Ask{Ring: rings.Standard, Target: target, Method: "GET", Path: path}); !rules.upgrades(ask) || (&ruleset{}).upgrades(ask) {
		t.Error("the rule doesn't hold, or none does")
	}
}

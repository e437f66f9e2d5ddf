// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// sandboxed is the Datagrams of a test: what it says, and what it hears.
type sandboxed struct {
	said  chan datagram
	heard chan datagram
	done  chan struct{}
}

type datagram struct {
	text     string
	from, to netip.AddrPort
}

func newSandboxed() *sandboxed {
	return &sandboxed{make(chan datagram), make(chan datagram, 64), make(chan struct{})}
}

func (s *sandboxed) Receive(b []byte) (int, netip.AddrPort, netip.AddrPort, error) {
	select {
	case d := <-s.said:
		return copy(b, d.text), d.from, d.to, nil
	case <-s.done:
		return 0, netip.AddrPort{}, netip.AddrPort{}, net.ErrClosed
	}
}

func (s *sandboxed) Reply(b []byte, from, to netip.AddrPort) error {
	s.heard <- datagram{string(b), from, to}
	return nil
}

func (s *sandboxed) Close() error {
	select {
	case <-s.done:
	default:
		close(s.done)
	}
	return nil
}

// echoUDP answers each datagram with itself.
func echoUDP(t *testing.T) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, maxDatagram)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(b[:n], from)
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// H-11, M-8, M-22: datagrams leave in ring 1 only, where their place is allowed and nobody is to read what is said there. They are counted
// and on record; a demotion ends the exchange, and what follows is refused.
func TestH11DatagramsLeaveInRing1(t *testing.T) {
	to := echoUDP(t)
	w := newWorld(t, rings.Privileged, Options{Allow: []string{to.String()}, Config: Config{Rules: []Rule{{Host: "read.example", Intercept: true}}}})
	s := newSandboxed()
	go func() { _ = w.ServeDatagrams(s) }()
	from := netip.MustParseAddrPort("192.0.0.8:40000")
	say := func(port uint16, to netip.AddrPort) {
		s.said <- datagram{"hello", netip.AddrPortFrom(from.Addr(), port), to}
	}
	say(40000, to)
	want := datagram{"hello", to, from}
	if got := <-s.heard; got != want {
		t.Errorf("answer: got %v, want %v", got, want)
	}
	say(40001, netip.MustParseAddrPort("10.1.2.3:123"))
	w.sup.await(t, func(r link.Record) bool {
		return !r.Allowed && r.Name == "10.1.2.3:123/udp" && r.Detail == "private_address"
	})
	w.sup.set(rings.Standard)
	r := w.sup.await(t, func(r link.Record) bool { return r.Allowed })
	if r.Sent != 5 || r.Received != 5 || !strings.HasPrefix(r.Detail, "udp, cut") {
		t.Errorf("record of the exchange: %+v", r)
	}
	say(40002, to)
	w.sup.await(t, func(r link.Record) bool { return !r.Allowed && r.Name == to.String()+"/udp" })
	if len(s.heard) > 0 {
		t.Errorf("after the demotion: %v", <-s.heard)
	}
}

// The rule that has connections read isn't passed by in QUIC.
func TestM8NoDatagramsWhereConnectionsAreRead(t *testing.T) {
	w := newWorld(t, rings.Privileged, Options{Config: Config{Rules: []Rule{{Host: "read.example", Intercept: true}}}})
	s := newSandboxed()
	go func() { _ = w.ServeDatagrams(s) }()
	at, _ := w.lookup(t, "read.example")
	s.said <- datagram{"QUIC", netip.MustParseAddrPort("192.0.0.8:40000"), netip.AddrPortFrom(at, 443)}
	r := w.sup.await(t, func(r link.Record) bool { return r.Name == "read.example:443/udp" })
	if r.Allowed || r.Detail != "tunnel_not_listed" {
		t.Errorf("got %+v", r)
	}
}

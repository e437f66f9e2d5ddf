// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"agentrun/internal/wire"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"

	"agentrun/rings"
)

// session is one connection of the agent, from its first byte to its record. It begins unbound, and each
// request says where it is for; CONNECT, SOCKS or the captured address bind it (fixed), and from then on
// everything that is said in it must be for that place. It may change conn and br once, when it answers TLS
// itself (secure). One goroutine reads from the client; flow and meter are what others may touch meanwhile.
type session struct {
	p      *Proxy
	conn   net.Conn // as it is read and written: TLS inside an intercepted one
	br     *bufio.Reader
	opened time.Time
	meter  meter
	flow   flow
	fixed  egress.Target // where the connection was for; zero while each request says so itself
	secure bool          // inside TLS that we answered
	via    string        // connect, socks, capture, proxy: for the record
	req    wire.Request
	resp   wire.Response
	out    []byte
	tally  tally
}

// tally gathers what one connection was granted for one place.
type tally struct {
	target         egress.Target
	rule           string
	count          int64
	since          time.Time
	sent, received int64 // of the meter, at the beginning
	push           *push // the last request's; nil: it was none to a git repository
}

// grant notes something allowed. The record is made when the place changes or the connection ends.
func (s *session) grant(t egress.Target, d egress.Decision) {
	s.p.granted.Add(1)
	rule := d.Entry
	if rule == "" {
		rule = d.Rule
	}
	if s.tally.count > 0 && s.tally.target == t && s.tally.rule == rule && s.tally.push == nil {
		s.tally.count++
		return
	}
	s.settle()
	s.tally = tally{target: t, rule: rule, count: 1, since: s.p.now(), sent: s.meter.sent.Load(), received: s.meter.received.Load()}
}

// settle puts what was granted on record.
func (s *session) settle() {
	t := s.tally
	if t.count == 0 {
		return
	}
	s.tally = tally{}
	detail := s.via + t.push.String()
	if reason, cut := s.flow.cutReason(); cut {
		detail += ", cut"
		if reason != "" {
			detail += ": " + string(reason)
		}
	}
	name := t.target.String()
	if s.via == viaUDP {
		name += "/udp"
	}
	s.p.ledger.put(link.Record{Kind: "egress", Name: name, Allowed: true, Code: rings.CodeOK, Rule: t.rule, Detail: detail,
		Sent: s.meter.sent.Load() - t.sent, Received: s.meter.received.Load() - t.received, Took: s.p.now().Sub(t.since), Count: t.count})
}

// ready refuses everything while records aren't taken, and when the run has used up what it may.
func (s *session) ready() *refusal {
	switch p := s.p; {
	case p.ledger.broken.Load():
		return unavailable(503, noRecords, "decisions can't be put on record")
	case s.meter.empty():
		return overLimit("bytes")
	}
	return nil
}

func overLimit(what string) *refusal {
	return &refusal{status: 403, code: gate.CodeTooLarge, sub: spent, text: "the limit of " + what + " is used up", next: "end here, or ask the operator for more"}
}

// explicit answers what was sent to the proxy's own port. SOCKS5 begins with 5, which no request does.
func (s *session) explicit() {
	s.via = "proxy"
	s.within(s.p.limits.Idle)
	first, err := s.br.Peek(1)
	if err != nil {
		return
	}
	if s.p.total.Add(-1) < 0 {
		r := overLimit("connections")
		s.p.refuse("(any)", r)
		if first[0] != socksVersion {
			s.last(r.reply(false, true))
		}
		return
	}
	if first[0] == socksVersion {
		s.socks()
		return
	}
	s.serveHTTP()
}

func (s *session) within(d time.Duration) { _ = s.conn.SetDeadline(time.Now().Add(d)) } // an error shows at the next use

// last says b and closes so that it arrives: with bytes of the client unread, closing at once would reset the
// connection.
func (s *session) last(b []byte) {
	s.within(time.Second)
	if _, err := s.conn.Write(b); err != nil {
		return
	}
	closeWrite(s.conn)
	// until the client closes, a second, or more than it should have sent
	_, _ = io.CopyN(io.Discard, s.conn, 256<<10)
}

func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // it is closed in any case soon
	}
}

// Alerts that end a TLS handshake, as whole records (RFC 8446, 6): fatal access_denied and unrecognized_name.
var (
	accessDenied     = []byte{21, 3, 1, 0, 2, 2, 49}
	unrecognizedName = []byte{21, 3, 1, 0, 2, 2, 112}
)

func alert(r *refusal) []byte {
	if r.sub == egress.NameMismatch || r.sub == egress.BadName {
		return unrecognizedName
	}
	return accessDenied
}

// mode is how a connection to one place is treated.
type mode uint8

const (
	refuse    mode = iota
	pass           // bytes; TLS must name the place if the first are TLS
	passTLS        // bytes, which must begin as TLS and name the place
	readPlain      // HTTP in the clear
	readTLS        // HTTP inside TLS that we answer
)

// modeOf says how a connection to t is treated, by what the list and the rules say of it, before anything is
// connected. The order decides who wins. A place that no entry has is refused whatever its port. Interception
// comes before passing: a rule that says so must not be lost because another entry allows the place as a
// whole. Port 80 is read even where bytes would be allowed, since Host headers in it can be held against the
// name; 443 that isn't intercepted must be TLS. A place that is allowed for some methods or paths only is
// read, or, on 443 where nothing can be read, refused. The run's own gateway is always read, which keeps what is
// said to it one request after the other.
func (p *Proxy) modeOf(t egress.Target) (mode, egress.Decision) {
	d := p.decide(egress.Ask{Ring: p.ring(), Target: t})
	if p.isGateway(t) {
		return readPlain, d
	}
	readable := d.Allowed() || d.Sub == egress.TunnelNotListed
	switch {
	case !readable:
		return refuse, d
	case p.rules.intercepts(t):
		if p.minter == nil {
			d.Sub = egress.TunnelNotListed
			d.Decision = rings.Decision{Code: egress.CodeEgressDenied, Reason: t.String() + ": only to be reached by interception, and the run has no CA", Rule: "M-8"}
			return refuse, d
		}
		return readTLS, d
	case t.Port() == 80:
		return readPlain, d
	case d.Allowed() && t.Port() == 443:
		return passTLS, d
	case d.Allowed():
		return pass, d
	case t.Port() == 443:
		return refuse, d
	}
	return readPlain, d
}

// open does what a CONNECT or SOCKS request, or a captured connection, asks for. answer tells the client of a
// refusal, or that there is none (nil), before the first byte goes through. Clients of a proxy wait for that
// answer before they say hello; captured ones know of no proxy and wait for nothing, so there a hello that
// must come is read before the connection is made.
func (s *session) open(t egress.Target, answer func(*refusal) bool) {
	p := s.p
	no := func(r *refusal) {
		p.refuse(t.String(), r)
		answer(r)
	}
	if r := s.ready(); r != nil {
		no(r)
		return
	}
	// Programs that look names up themselves before they ask a proxy name the synthetic address.
	if t.Addr().IsValid() {
		named, err := p.destination(t.Addr(), t.Port())
		if err != nil {
			no(refused(egress.Denied(err)))
			return
		}
		t = named
	}
	s.fixed = t
	how, d := p.modeOf(t)
	switch how {
	case readPlain, readTLS:
		if s.begin(t) && answer(nil) && (how == readPlain || s.answerTLS()) {
			s.serveHTTP()
		}
	case pass, passTLS:
		// it waits for no answer, and a wrong name needs no connection
		if s.via == "capture" && how == passTLS {
			if _, r := s.hello(d, true); r != nil {
				s.deny(r)
				return
			}
		}
		conn, d, r := p.dial(&s.flow, egress.Ask{Ring: p.ring(), Target: t})
		if r != nil {
			no(r)
			return
		}
		defer func() { _ = conn.Close() }() // done
		if answer(nil) {
			s.through(conn, d, how == passTLS)
		}
	default:
		no(refused(d))
	}
}

// begin puts a connection whose requests will be read under the ring: the ask without a method stands for the
// place, so that a ring which has nothing for the place cuts the connection between requests too.
func (s *session) begin(t egress.Target) bool {
	return s.flow.doing(egress.Ask{Target: t}, nil, nil) && s.p.still(&s.flow)
}

// through passes bytes once the names agree. Where TLS must be, the hello is held against the place before
// the grant is booked; elsewhere the server may speak first, so bytes come down at once, and what the client
// says is looked at when it comes, in front of the first byte that goes up. Otherwise a client could wait
// until nobody looks, and then say hello to another name behind the same address.
func (s *session) through(conn net.Conn, d egress.Decision, mustTLS bool) {
	if mustTLS {
		if _, r := s.hello(d, true); r != nil {
			s.deny(r)
			return
		}
	}
	s.grant(s.fixed, d)
	heard := &listening{from: conn, said: make(chan egress.Verdict, 2)}
	s.tunnel(conn, heard, func(down <-chan struct{}) (*refusal, error) {
		defer heard.stop()
		size, r := s.hello(d, mustTLS)
		if r != nil || size == 0 {
			return r, nil
		}
		return s.handshake(conn, heard, size, down, d)
	})
}

// deny ends a connection on which TLS was spoken or expected: with an alert, or in HTTP where the client has
// begun to speak that, so that a person who reads the client's error learns why.
func (s *session) deny(r *refusal) {
	s.p.refuse(s.fixed.String(), r)
	if first, _ := s.br.Peek(min(1, s.br.Buffered())); len(first) == 1 && first[0] >= 'A' && first[0] <= 'Z' {
		s.last(r.reply(false, true))
		return
	}
	s.last(alert(r))
}

// hello waits for the first bytes of the client and holds them against where the connection was for. They
// stay in br. size is that of the hello, 0 if there is none. With must, anything but TLS is refused, and
// silence after the time for a head; without it a silent client is waited for as long as the tunnel lives,
// since a server may be the one who speaks first.
func (s *session) hello(d egress.Decision, must bool) (size int, r *refusal) {
	wait := s.p.limits.Head
	if !must {
		wait = s.p.limits.Idle // a server may speak first
	}
	_ = s.conn.SetReadDeadline(time.Now().Add(wait)) // an error shows at the next use
	first, err := s.br.Peek(1)
	// who waits isn't let off; the other direction ends what is idle
	for !must && errors.Is(err, os.ErrDeadlineExceeded) {
		_ = s.conn.SetReadDeadline(time.Now().Add(wait))
		first, err = s.br.Peek(1)
	}
	if err != nil {
		if !must {
			return 0, nil // the copying will see it
		}
		return 0, unavailable(400, notTLS, "%s: nothing came", s.fixed)
	}
	if first[0] != 22 && !must {
		return 0, s.disguised()
	}
	return s.named(egress.ParseClientHello, d)
}

// named reads a hello and holds its name against where the connection was for. It waits as long as the hello
// may still become whole, within the time for a head; the hello's own bounds (egress.MaxHelloBytes) end it if
// it grows without end. The bytes stay in br: what goes up is what was checked.
func (s *session) named(parse func([]byte) (egress.Hello, error), d egress.Decision) (size int, r *refusal) {
	_ = s.conn.SetReadDeadline(time.Now().Add(s.p.limits.Head)) // an error shows at the next use
	for {
		have, _ := s.br.Peek(s.br.Buffered())
		h, err := parse(have)
		if err == nil {
			agreed := egress.Agree(egress.Claims{Authority: s.fixed, SNI: h.Name, Hidden: h.Hidden, Everything: d.Everything})
			if !agreed.Allowed() {
				return 0, refused(agreed)
			}
			// A server that is named nowhere gives what it likes: on an address of many sites, another one's.
			if h.Name.IsZero() && !s.fixed.Host().IsZero() && !d.Everything {
				return 0, misread(egress.NameMismatch, "asked for %s, but TLS names nobody", s.fixed)
			}
			return h.Len, nil
		}
		if !errors.Is(err, egress.ErrShort) {
			return 0, s.unreadable(err)
		}
		if _, err := s.br.Peek(len(have) + 1); err != nil {
			return 0, unavailable(400, notTLS, "%s: a TLS hello was cut off", s.fixed)
		}
	}
}

// answerTLS makes the connection one that can be read: the agent speaks with us, under a certificate of the
// run's CA. The hello is checked first, as if it were passed on: a client that names another place gets an
// alert and no certificate. After it conn and br are those of the inside; what br held of the outside was
// read by the handshake (buffered).
func (s *session) answerTLS() bool {
	if _, r := s.hello(egress.Decision{}, true); r != nil {
		s.deny(r)
		return false
	}
	conn := tls.Server(&buffered{s.conn, s.br}, s.p.serverTLS(tlsName(s.fixed)))
	s.within(s.p.limits.Head)
	if err := conn.HandshakeContext(s.p.ctx); err != nil {
		s.p.log.Info("egress: TLS with the agent", "target", s.fixed.String(), "error", err)
		return false
	}
	s.conn, s.br, s.secure = conn, bufio.NewReaderSize(conn, wire.MaxHead), true
	return true
}

// buffered is a connection whose first bytes were read already.
type buffered struct {
	net.Conn
	br *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.br.Read(p) }

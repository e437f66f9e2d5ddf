// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"net"
	"net/netip"

	"agentrun/toolproxy/dns"
	"agentrun/toolproxy/egress"
)

// captured answers a connection that was for somewhere else: its local address says where (package netns).
func (s *session) captured() {
	s.via = "capture"
	local, ok := s.conn.LocalAddr().(*net.TCPAddr)
	if !ok {
		return
	}
	s.capturedAt(local)
}

func (s *session) capturedAt(local *net.TCPAddr) {
	p := s.p
	at := unmap(local.AddrPort())
	t, err := p.destination(at.Addr(), at.Port())
	if err != nil {
		s.turnAway(at.String(), at.Port(), refused(egress.Denied(err)))
		return
	}
	s.fixed = t
	if p.total.Add(-1) < 0 {
		s.turnAway(t.String(), t.Port(), overLimit("connections"))
		return
	}
	if r := s.ready(); r != nil {
		s.turnAway(t.String(), t.Port(), r)
		return
	}
	how, d := p.modeOf(t)
	switch how {
	case readPlain, readTLS:
		if s.begin(t) {
			s.read(how)
		}
	case pass, passTLS:
		s.captureTunnel(d, how == passTLS)
	default:
		s.turnAway(t.String(), t.Port(), refused(d))
	}
}

// captureTunnel reads the hello first: there is no answer to give before, and a wrong name needs no connection.
func (s *session) captureTunnel(d egress.Decision, mustTLS bool) {
	if mustTLS {
		if _, r := s.hello(d, true); r != nil {
			s.deny(r)
			return
		}
	}
	conn, d, r := s.p.dial(&s.flow, egress.Ask{Ring: s.p.ring(), Target: s.fixed})
	if r != nil {
		s.turnAway(s.fixed.String(), s.fixed.Port(), r)
		return
	}
	defer func() { _ = conn.Close() }() // done
	s.through(conn, d, mustTLS)
}

// turnAway refuses in the language that belongs to the port; elsewhere silence is all that every client understands.
func (s *session) turnAway(name string, port uint16, r *refusal) {
	s.p.refuse(name, r)
	switch port {
	case 80:
		s.last(r.reply(false, true))
	case 443:
		s.last(alert(r))
	default:
		abort(s.conn)
	}
}

// destination is what an address stands for: a name if it is one of the responder's, else itself.
func (p *Proxy) destination(addr netip.Addr, port uint16) (egress.Target, error) {
	if !dns.Synthetic(addr) {
		return egress.TargetOfAddr(addr, port)
	}
	name, ok := p.names.Name(addr)
	if !ok {
		return egress.Target{}, &egress.Refusal{Sub: egress.BadName, Text: addr.String() + " stands for no name; look the name up first", Addr: addr}
	}
	host, err := egress.ParseHost(name)
	if err != nil {
		return egress.Target{}, err
	}
	return egress.TargetOfName(host, port)
}

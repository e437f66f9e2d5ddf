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
	at := unmap(local.AddrPort())
	t, err := s.p.destination(at.Addr(), at.Port())
	if err != nil {
		s.p.refuse(at.String(), refused(egress.Denied(err)))
		s.turnAway(at.Port(), refused(egress.Denied(err)))
		return
	}
	if s.p.total.Add(-1) < 0 {
		s.p.refuse(t.String(), overLimit("connections"))
		s.turnAway(t.Port(), overLimit("connections"))
		return
	}
	s.open(t, func(r *refusal) bool {
		if r != nil {
			s.turnAway(t.Port(), r)
		}
		return r == nil
	})
}

// turnAway refuses in the language that belongs to the port; elsewhere silence is all that every client
// understands.
func (s *session) turnAway(port uint16, r *refusal) {
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

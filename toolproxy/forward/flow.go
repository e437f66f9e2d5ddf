// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"net"
	"slices"
	"sync"

	"agentrun/rings"
	"agentrun/toolproxy/egress"
)

// flow is what one connection of the agent is doing at the moment, for whoever may have to cut it. The
// session tells it (doing) before each thing it starts, and looks at the ring afterwards; watch reviews it
// when the ring changes. So of a change at the same moment at least one of the two takes notice, whichever
// comes first. An end is final: after it doing returns false and whatever was opened meanwhile is the
// caller's to close.
type flow struct {
	client net.Conn

	mu     sync.Mutex
	ask    egress.Ask // zero: nothing that a ring could forbid
	unread bool       // what the ask has become (a websocket) is not read any more
	// it has no connection of the agent's, and goes by mayRelay; never changed
	datagrams bool
	upstream  net.Conn
	cancel    context.CancelFunc // of a lookup or dial under way
	ended     bool
	reason    egress.Reason // why it was cut
}

// ask tells what is going on from now on. False: it was cut.
func (f *flow) doing(a egress.Ask, upstream net.Conn, cancel context.CancelFunc) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ask, f.unread, f.upstream, f.cancel = a, false, upstream, cancel
	return !f.ended
}

// switched tells that from now on nobody reads what is said.
func (f *flow) switched() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unread = true
}

func (f *flow) idle() { f.doing(egress.Ask{}, nil, nil) }

func (f *flow) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cutLocked("")
}

func (f *flow) cutLocked(reason egress.Reason) {
	if f.ended {
		return
	}
	f.ended, f.reason = true, reason
	if f.cancel != nil {
		f.cancel()
	}
	// Linger 0: what is queued in the kernel must not arrive after the cut either.
	for _, c := range []net.Conn{f.client, f.upstream} {
		if c != nil {
			abort(c)
		}
	}
}

func (f *flow) cutReason() (egress.Reason, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reason, f.ended
}

func abort(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // closed in any case
	}
	_ = c.Close() // cut means that nothing more is wanted of it
}

// flows are all of them.
type flows struct {
	mu    sync.Mutex
	ended bool
	open  map[*flow]struct{}
}

func (s *flows) add(f *flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[*flow]struct{}{}
	}
	s.open[f] = struct{}{}
	if s.ended {
		f.cut()
	}
}

func (s *flows) remove(f *flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, f)
}

func (s *flows) cutAll() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.each((*flow).cut)
}

func (s *flows) each(do func(*flow)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.open {
		do(f)
	}
}

// watch cuts what a new ring doesn't allow (M-22). Whoever starts something says so to its flow first and
// looks at the ring afterwards (still), so that a change is seen by one of the two.
func (p *Proxy) watch() {
	var last <-chan struct{}
	for {
		ring, changed := p.supervisor.Ring()
		if last != nil {
			p.pool.drop()
		}
		p.flows.each(func(f *flow) { p.review(f, ring) })
		if changed == last && last != nil { // a channel that was closed and stays: the run has ended
			p.flows.each((*flow).cut)
			return
		}
		last = changed
		select {
		case <-changed:
		case <-p.ctx.Done():
			return
		}
	}
}

func (p *Proxy) review(f *flow, ring rings.Ring) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || f.ask.Target.IsZero() {
		return
	}
	a := f.ask
	a.Ring = ring
	d := p.allows(a)
	switch {
	case f.datagrams:
		d = p.mayRelay(a)
	case f.unread:
		d = p.mayUpgrade(a)
	}
	if !d.Allowed() {
		p.cuts.Add(1)
		f.cutLocked(d.Sub)
	}
}

// mayUpgrade decides about a websocket to where the request itself may go. What is said in one is read by
// nobody, so that a server which goes on reading HTTP would take any method and path: where those are
// restricted, a rule must say websockets.
func (p *Proxy) mayUpgrade(a egress.Ask) egress.Decision {
	request := p.decide(a)
	tunnel := p.decide(egress.Ask{Ring: a.Ring, Target: a.Target})
	if !request.Allowed() || tunnel.Allowed() || p.rules.upgrades(a) {
		return request
	}
	tunnel.Reason = a.Target.String() + ": allowed for some methods or paths only, which a websocket hides"
	return tunnel
}

// still tells whether what f does is allowed in the ring of this very moment.
func (p *Proxy) still(f *flow) bool {
	p.review(f, p.ring())
	_, ended := f.cutReason()
	return !ended
}

// decide is the list's decision, but for the run's own gateway: every ring reaches that anyhow, and it decides about each request itself
// (M-7).
func (p *Proxy) decide(a egress.Ask) egress.Decision {
	if p.isGateway(a.Target) {
		return egress.Decision{Decision: rings.Decision{Verdict: rings.Allow, Code: rings.CodeOK, Reason: "the run's own tool gateway", Rule: "M-7"}}
	}
	return p.list.Load().Decide(a)
}

func (p *Proxy) isGateway(t egress.Target) bool {
	return p.gateway != nil && slices.Contains(p.ways, t.String())
}

// allows is the list's decision, but for a place whose connections are read: each request in it asks for
// itself.
func (p *Proxy) allows(a egress.Ask) egress.Decision {
	d := p.decide(a)
	if a.Method == "" && d.Sub == egress.TunnelNotListed && p.reads(a.Target) {
		d.Decision = rings.Decision{Verdict: rings.Allow, Code: rings.CodeOK, Reason: "requests are decided one by one", Rule: "M-8"}
		d.Sub = ""
	}
	return d
}

// reads tells whether requests in a connection to that place can be seen: in the clear, or intercepted.
func (p *Proxy) reads(t egress.Target) bool {
	return t.Port() != 443 && !p.rules.intercepts(t) || p.minter != nil && p.rules.intercepts(t)
}

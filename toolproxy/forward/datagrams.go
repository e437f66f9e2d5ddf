// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"agentrun/rings"
	"agentrun/toolproxy/egress"
)

const (
	viaUDP      = "udp"
	maxDatagram = 65507           // bytes, of IPv4
	udpIdle     = 2 * time.Minute // without a datagram ends an exchange (RFC 4787, REQ-5), or the limit Idle if that is less
	refusedFor  = 5 * time.Second // what a refused exchange goes on to send is dropped without another record
	early       = 64 << 10        // bytes that wait for a name's lookup; the rest is lost, as on a busy line
)

// Datagrams are those of a sandbox to anywhere, and the way back (netns.Relay).
type Datagrams interface {
	Receive(b []byte) (n int, from, to netip.AddrPort, err error)
	Reply(b []byte, from, to netip.AddrPort) error
	Close() error
}

// relay keeps the exchanges of datagrams, one for each pair of the agent's socket and where it sends.
type relay struct {
	p    *Proxy
	d    Datagrams
	mu   sync.Mutex
	open map[pair]*exchange
}

type pair struct{ from, to netip.AddrPort }

// exchange is one of them: a session without a stream. It is decided, limited, counted, cut and put on record as a connection is.
type exchange struct {
	session
	at      pair
	mu      sync.Mutex
	conn    net.Conn // nil: not connected yet
	waiting [][]byte // until it is
	size    int      // of waiting
}

// ServeDatagrams carries datagrams until Close (nil) or until d says an error. d is closed then. They go where ring 1 may go (H-11), and
// nowhere in other rings: nothing in them can be held against a method, a path or a name. What is refused hears nothing.
func (p *Proxy) ServeDatagrams(d Datagrams) error {
	if !p.begin() {
		return errors.Join(net.ErrClosed, d.Close())
	}
	defer p.serving.Done()
	defer context.AfterFunc(p.ctx, func() { _ = d.Close() })() // closing is what ends Receive
	defer func() { _ = d.Close() }()                           // closed twice at the run's end
	r := &relay{p: p, d: d, open: map[pair]*exchange{}}
	b := make([]byte, maxDatagram)
	for {
		n, from, to, err := d.Receive(b)
		switch {
		case p.ctx.Err() != nil:
			return nil
		case err == nil:
			r.take(pair{from, to}, b[:n])
		case !transient(err):
			return err
		}
	}
}

// take passes one datagram on, or begins an exchange with it. Where as many are open as the limit says, it is lost.
func (r *relay) take(at pair, b []byte) {
	r.mu.Lock()
	e := r.open[at]
	if e == nil {
		select {
		case r.p.slots <- struct{}{}:
		default:
			r.mu.Unlock()
			return
		}
		e = &exchange{session: session{p: r.p, opened: r.p.now(), via: viaUDP}, at: at}
		e.meter.run = &r.p.bytes
		e.meter.left.Store(r.p.limits.ConnectionBytes)
		e.flow.datagrams = true
		r.open[at] = e
		r.p.serving.Add(1) // never from zero: ServeDatagrams itself is counted
		go r.serve(e)
	}
	r.mu.Unlock()
	e.send(b)
}

// serve holds the place of one exchange until it is over.
func (r *relay) serve(e *exchange) {
	defer r.p.serving.Done()
	defer func() { <-r.p.slots }()
	defer func() {
		r.mu.Lock()
		delete(r.open, e.at)
		r.mu.Unlock()
	}()
	if name, no := e.begin(); no != nil {
		r.p.refuse(name+"/udp", no)
		select {
		case <-time.After(refusedFor):
		case <-r.p.ctx.Done():
		}
		return
	}
	limit := time.AfterFunc(r.p.limits.Total, e.flow.cut)
	e.replies(r.d)
	limit.Stop()
	r.p.flows.remove(&e.flow)
	_ = e.conn.Close() // nothing is left to say
	e.settle()
}

// begin decides and connects; without a refusal the flow is among those that can be cut, and the grant is noted. The name is the place's.
func (e *exchange) begin() (string, *refusal) {
	p := e.p
	t, err := p.destination(e.at.to.Addr(), e.at.to.Port())
	if err != nil {
		return e.at.to.String(), refused(egress.Denied(err))
	}
	if p.total.Add(-1) < 0 {
		return t.String(), overLimit("connections")
	}
	if r := e.ready(); r != nil {
		return t.String(), r
	}
	if d := p.mayRelay(egress.Ask{Ring: p.ring(), Target: t}); !d.Allowed() {
		return t.String(), refused(d)
	}
	p.flows.add(&e.flow)
	conn, d, r := p.dialBy(dialDatagrams, &e.flow, egress.Ask{Ring: p.ring(), Target: t})
	if r != nil {
		p.flows.remove(&e.flow)
		return t.String(), r
	}
	e.grant(t, d)
	e.mu.Lock()
	e.conn = conn
	waiting := e.waiting
	e.waiting = nil
	e.mu.Unlock()
	for _, b := range waiting {
		e.send(b)
	}
	return t.String(), nil
}

func dialDatagrams(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "udp", to.String())
}

// mayRelay is the list's decision in ring 1. Where a rule has connections read, datagrams (QUIC) would be the way around it.
func (p *Proxy) mayRelay(a egress.Ask) egress.Decision {
	d := p.list.Load().Decide(a)
	no := func(text string) egress.Decision {
		d.Decision = rings.Decision{Code: egress.CodeEgressDenied, Reason: a.Target.String() + ": " + text, Rule: "M-8"}
		d.Sub = egress.TunnelNotListed
		return d
	}
	switch {
	case !d.Allowed():
		return d
	case a.Ring != rings.Privileged:
		return no("datagrams leave in ring 1 only")
	case p.isGateway(a.Target):
		return no("the run's own gateway takes no datagrams")
	case p.rules.intercepts(a.Target):
		return no("connections there are read, and datagrams can't be; use TCP")
	}
	return d
}

// send passes on what the agent says; what the limits don't leave room for is lost, and the exchange ends.
func (e *exchange) send(b []byte) {
	e.mu.Lock()
	conn := e.conn
	if conn == nil {
		if e.size += len(b); e.size <= early {
			e.waiting = append(e.waiting, append([]byte(nil), b...))
		}
	}
	e.mu.Unlock()
	if conn == nil {
		return
	}
	if !e.meter.use(int64(len(b))) {
		e.flow.cut()
		return
	}
	if _, err := conn.Write(b); err == nil { // refused by the other side: told by the next Read
		e.meter.sent.Add(int64(len(b)))
	}
}

// replies brings what the other side says, until both are quiet, a limit is reached, or it is cut.
func (e *exchange) replies(d Datagrams) {
	b := make([]byte, maxDatagram)
	idle := min(udpIdle, e.p.limits.Idle)
	for sent := int64(-1); ; {
		_ = e.conn.SetReadDeadline(time.Now().Add(idle)) // an error shows at once
		n, err := e.conn.Read(b)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && e.meter.sent.Load() != sent {
			sent = e.meter.sent.Load()
			continue
		}
		if err != nil || !e.meter.use(int64(n)) || d.Reply(b[:n], e.at.to, e.at.from) != nil {
			return
		}
		e.meter.received.Add(int64(n))
	}
}

// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"agentrun/toolproxy/egress"
)

const (
	lookupAge  = 5 * time.Second // how long the host's answer for a name is taken again
	maxLookups = 512
)

// lookups keeps the host's last answers. It is no way around the check: each connection checks the addresses
// it dials.
type lookups struct {
	mu    sync.Mutex
	known map[egress.Host]answer
}

type answer struct {
	addrs []netip.Addr
	until time.Time
}

func (l *lookups) get(h egress.Host) ([]netip.Addr, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, ok := l.known[h]
	if !ok || time.Now().After(a.until) {
		return nil, false
	}
	return a.addrs, true
}

func (l *lookups) put(h egress.Host, addrs []netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil || len(l.known) >= maxLookups {
		l.known = map[egress.Host]answer{}
	}
	l.known[h] = answer{addrs, time.Now().Add(lookupAge)}
}

// resolve looks a name up on the host, with a final dot: search domains would make another name of it.
func (p *Proxy) resolve(ctx context.Context, h egress.Host) ([]netip.Addr, error) {
	if addrs, ok := p.lookups.get(h); ok {
		return addrs, nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.limits.Lookup)
	defer cancel()
	addrs, err := p.resolver.LookupNetIP(ctx, "ip", h.String()+".")
	if err != nil {
		return nil, err
	}
	p.lookups.put(h, addrs)
	return addrs, nil
}

// dial decides, looks up, decides about the addresses, and connects to one of those and nothing else. The
// flow holds what is asked for meanwhile, so that a new ring ends it too.
func (p *Proxy) dial(f *flow, a egress.Ask) (net.Conn, egress.Decision, *refusal) {
	return p.dialBy(p.dialer, f, a)
}

type dialer func(ctx context.Context, to netip.AddrPort) (net.Conn, error)

func (p *Proxy) dialBy(by dialer, f *flow, a egress.Ask) (net.Conn, egress.Decision, *refusal) {
	if d := p.allows(a); !d.Allowed() { // before the lookup: a question to the DNS is a message too
		return nil, d, refused(d)
	}
	ctx, cancel := context.WithTimeout(p.ctx, p.limits.Lookup+p.limits.Dial)
	defer cancel()
	if !f.doing(a, nil, cancel) || !p.still(f) {
		return nil, egress.Decision{}, cutRefusal(f)
	}
	conn, d, r, err := p.reach(ctx, by, a)
	if r != nil {
		return nil, d, r
	}
	if err != nil {
		p.log.Info("egress: dial", "target", a.Target.String(), "error", err)
		if _, cut := f.cutReason(); cut {
			return nil, d, cutRefusal(f)
		}
		return nil, d, unavailable(502, dialRefused, "%s: no connection", a.Target)
	}
	if !f.doing(a, conn, nil) || !p.still(f) {
		abort(conn)
		return nil, d, cutRefusal(f)
	}
	return conn, d, nil
}

// reach connects to a place that is allowed; the error is of the network.
func (p *Proxy) reach(ctx context.Context, by dialer, a egress.Ask) (net.Conn, egress.Decision, *refusal, error) {
	if p.isGateway(a.Target) {
		conn, err := p.gateway(ctx)
		return conn, p.decide(a), nil, err
	}
	pinned, d, r := p.pin(ctx, a)
	if r != nil {
		return nil, d, r, nil
	}
	conn, err := p.connect(ctx, by, pinned.AddrPorts())
	return conn, d, nil, err
}

func cutRefusal(f *flow) *refusal {
	reason, _ := f.cutReason()
	return &refusal{status: 403, code: egress.CodeEgressDenied, sub: cmp.Or(reason, ended),
		text: "the ring changed meanwhile", next: nextTool}
}

func (p *Proxy) pin(ctx context.Context, a egress.Ask) (egress.Pinned, egress.Decision, *refusal) {
	var addrs []netip.Addr
	if !a.Target.Host().IsZero() {
		var err error
		if addrs, err = p.resolve(ctx, a.Target.Host()); err != nil {
			p.log.Info("egress: lookup", "target", a.Target.String(), "error", err)
			return egress.Pinned{}, egress.Decision{}, unavailable(502, lookupNoAnswer, "%s: the host's resolver gives no address", a.Target)
		}
	}
	return p.check(a, addrs)
}

// check is CheckResolved, and refuses what means something in the sandbox only, and the proxy itself.
func (p *Proxy) check(a egress.Ask, addrs []netip.Addr) (egress.Pinned, egress.Decision, *refusal) {
	if p.isGateway(a.Target) {
		return egress.Pinned{}, p.decide(a), nil
	}
	pinned, d := p.list.Load().CheckResolved(a, addrs)
	if !d.Allowed() {
		return egress.Pinned{}, d, refused(d)
	}
	if i := slices.IndexFunc(pinned.AddrPorts(), p.itself); i >= 0 {
		d := egress.Decision{Sub: egress.OwnAddress, Addr: pinned.AddrPorts()[i].Addr()}
		d.Code, d.Rule, d.Reason = egress.CodeEgressDenied, "M-8", a.Target.String()+": an address of the sandbox's own network"
		return egress.Pinned{}, d, refused(d)
	}
	return pinned, d, nil
}

func (p *Proxy) itself(to netip.AddrPort) bool {
	if inside(to.Addr()) {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.selves[to] || to.Addr().IsLoopback() && p.selves[netip.AddrPortFrom(netip.IPv6Unspecified(), to.Port())]
}

// connect tries the addresses in turn, each with its share of the time that is left: a family that leads
// nowhere must not use up what the other needs. The first error is told, since the resolver's first address
// is the one people look for. All of the addresses were checked; none is looked up again (rebinding).
func (p *Proxy) connect(ctx context.Context, by dialer, to []netip.AddrPort) (net.Conn, error) {
	end := time.Now().Add(p.limits.Dial)
	var first error
	for i, one := range to {
		share := time.Until(end) / time.Duration(len(to)-i)
		dialing, cancel := context.WithTimeout(ctx, share)
		conn, err := by(dialing, one)
		cancel()
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

// upstream is a connection to a server that speaks HTTP, between requests in the pool.
type upstream struct {
	net.Conn            // as it is read and written: TLS, if there is
	raw        net.Conn // beneath
	br         *bufio.Reader
	addr       netip.Addr
	key        poolKey
	idleSince  time.Time
	drops      uint64 // of the pool, before the ring was asked
	used, dead bool
}

// upstreamFor takes a connection from the pool or makes one. Either way the list decides about this very
// request and this very address: what a name resolved to when the connection was made may be refused now.
// fresh leaves the pool out, after one of its connections broke. drops is read before the ring is looked at,
// so that a change in between makes the connection one that put won't keep.
func (p *Proxy) upstreamFor(f *flow, a egress.Ask, secure, fresh bool) (*upstream, egress.Decision, *refusal) {
	key := poolKey{a.Target, secure}
	for !fresh {
		u := p.pool.get(key)
		if u == nil {
			break
		}
		_, d, r := p.check(a, u.addrs())
		if r != nil {
			_ = u.raw.Close() // not for this request
			continue
		}
		u.used = true
		if !f.doing(a, u.raw, nil) || !p.still(f) {
			_ = u.raw.Close() // cut
			return nil, d, cutRefusal(f)
		}
		return u, d, nil
	}
	drops := p.pool.dropped()
	conn, d, r := p.dial(f, a)
	if r != nil {
		return nil, d, r
	}
	u := &upstream{Conn: conn, raw: conn, key: key, addr: remote(conn), drops: drops}
	if secure {
		if r := p.secure(u, a.Target); r != nil {
			abort(conn)
			return nil, d, r
		}
	}
	u.br = bufio.NewReaderSize(u.Conn, 32<<10)
	return u, d, nil
}

// addrs is what the name of the place is taken to resolve to: where the connection leads.
func (u *upstream) addrs() []netip.Addr {
	if u.key.target.Host().IsZero() {
		return nil
	}
	return []netip.Addr{u.addr}
}

func remote(c net.Conn) netip.Addr {
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return unmap(tcp.AddrPort()).Addr()
	}
	return netip.Addr{}
}

// tlsName is what a certificate for the place must name.
func tlsName(t egress.Target) string {
	if t.Addr().IsValid() {
		return t.Addr().String()
	}
	return t.Host().String()
}

// secure makes TLS of a new connection. A server that can't show who it is gets nothing, and no secret above
// all.
func (p *Proxy) secure(u *upstream, t egress.Target) *refusal {
	conn := tls.Client(u.raw, &tls.Config{ServerName: tlsName(t), RootCAs: p.roots, NextProtos: []string{"http/1.1"},
		MinVersion: tls.VersionTLS12, Time: p.now})
	ctx, cancel := context.WithTimeout(p.ctx, p.limits.Dial)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		p.log.Info("egress: TLS with upstream", "target", t.String(), "error", err)
		return unavailable(502, upstreamTLS, "%s: the server's TLS can't be trusted or doesn't work", t)
	}
	u.Conn = conn
	return nil
}

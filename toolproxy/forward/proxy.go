// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentrun/internal/pace"
	"agentrun/internal/wire"
	"agentrun/rings"
	"agentrun/toolproxy/dns"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/forward/intercept"
	"agentrun/toolproxy/link"
)

// Resolver looks names up on the host.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options are what a Proxy is made of. Supervisor is needed; everything else has a default or is optional.
type Options struct {
	Config     Config
	Allow      []string // --allow: entries beside the configuration's
	Supervisor link.Supervisor
	// empty: nothing is intercepted, and rules that need it refuse
	CA     link.CA
	Secret func(name string) (string, bool) // nil: there are none
	// nil: time.Now; for certificates and the pace of records, not for deadlines
	Now      func() time.Time
	Log      *slog.Logger // nil: nothing is logged
	Resolver Resolver     // nil: the host's
	// Dial opens a connection to an address that was checked. Nil: a net.Dialer.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	// Own lists the addresses of the host, which are refused unless named singly. Nil: those of its
	// interfaces, looked up every 30 seconds.
	Own func() ([]netip.Addr, error)
	// Roots are what intercepted upstreams are verified with. Nil: the system's and Config.CAFiles.
	Roots *x509.CertPool
	// Gateway opens a connection to the run's own tool gateway, whose names, each with its port, are GatewayHosts: some clients ask their
	// proxy for it, whatever no_proxy says. None: it is refused like any address of the sandbox's.
	Gateway      func(ctx context.Context) (net.Conn, error)
	GatewayHosts []string
}

// Far more than a client that means well meets: one that is refused doesn't ask again at once.
const (
	refusalsPerSecond = 25
	refusalsAtOnce    = 200
)

// Proxy is the egress of one run. Its methods can be called from several goroutines.
type Proxy struct {
	pace       *pace.Pace // of refusals
	supervisor link.Supervisor
	rules      *ruleset
	list       atomic.Pointer[egress.List] // rules.list with the host's own addresses
	own        func() ([]netip.Addr, error)
	limits     Limits
	secrets    map[string]string
	minter     *intercept.Minter // nil: no CA
	roots      *x509.CertPool
	trusted    func() *x509.CertPool // by tools in this process
	now        func() time.Time
	log        *slog.Logger
	resolver   Resolver
	dialer     dialer
	gateway    func(ctx context.Context) (net.Conn, error)
	ways       []string // to the gateway
	names      *dns.Responder
	ledger     *ledger
	pool       pool
	lookups    lookups
	flows      flows
	slots      chan struct{}
	readers    sync.Pool // of *bufio.Reader

	ctx     context.Context
	cancel  context.CancelFunc
	serving sync.WaitGroup

	mu     sync.Mutex
	closed bool
	selves map[netip.AddrPort]bool

	granted, cuts atomic.Uint64 // requests and tunnels; tests hold them against the records
	total         atomic.Int64  // connections left to the run
	bytes         atomic.Int64  // left to the run
}

// New makes the proxy of one run and watches its ring from then on. Close ends it. What can fail comes first:
// rules, secrets, roots and the host's addresses, none of which leaves anything behind. The goroutines start
// last, when all they look at is in place.
func New(o Options) (*Proxy, error) {
	if o.Supervisor == nil {
		return nil, errors.New("egress proxy: no supervisor")
	}
	rules, err := compile(o.Config, o.Allow)
	if err != nil {
		return nil, err
	}
	p := &Proxy{supervisor: o.Supervisor, rules: rules, own: o.Own, limits: o.Config.Limits.withDefaults(), now: o.Now, log: o.Log,
		resolver: o.Resolver, dialer: o.Dial, gateway: o.Gateway, ways: o.GatewayHosts, roots: o.Roots, selves: map[netip.AddrPort]bool{}}
	p.defaults()
	if err := p.takeSecrets(o.Secret); err != nil {
		return nil, err
	}
	if err := p.trust(o); err != nil {
		return nil, err
	}
	if err := p.refreshOwn(); err != nil {
		return nil, err
	}
	p.names = dns.New(dns.Config{Allow: p.nameExists, Observe: p.lookupRefused})
	p.pace = pace.New(refusalsPerSecond, refusalsAtOnce)
	p.slots = make(chan struct{}, p.limits.Connections)
	p.total.Store(p.limits.TotalConnections)
	p.bytes.Store(p.limits.RunBytes)
	p.readers.New = func() any { return bufio.NewReaderSize(nil, wire.MaxHead) }
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.ledger = newLedger(p.ctx, o.Supervisor, p.now, p.log)
	p.serving.Go(p.watch)
	p.serving.Go(p.keepOwn)
	return p, nil
}

func (p *Proxy) defaults() {
	if p.now == nil {
		p.now = time.Now
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.resolver == nil {
		p.resolver = &net.Resolver{PreferGo: true}
	}
	if p.dialer == nil {
		d := &net.Dialer{KeepAlive: 30 * time.Second}
		p.dialer = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", to.String())
		}
	}
	if p.own == nil {
		p.own = hostAddrs
	}
}

// takeSecrets resolves what rules name once, before anything hostile is read.
func (p *Proxy) takeSecrets(secret func(string) (string, bool)) error {
	p.secrets = map[string]string{}
	for i := range p.rules.rules {
		for _, h := range p.rules.rules[i].headers {
			value, ok := "", false
			if secret != nil {
				value, ok = secret(h.secret)
			}
			if !ok {
				return fmt.Errorf("egress: header %s: secret %q is not configured", h.name, h.secret)
			}
			if !fitSecret(value) {
				return fmt.Errorf("egress: header %s: secret %q: want 6 to 4096 printable ASCII characters", h.name, h.secret)
			}
			p.secrets[h.secret] = value
		}
	}
	return nil
}

// fitSecret: shorter ones couldn't be masked in replies without masking everything.
func fitSecret(value string) bool {
	return len(value) >= 6 && len(value) <= 4096 &&
		!slices.ContainsFunc([]byte(value), func(c byte) bool { return c < ' ' || c > '~' })
}

// trust makes ready what interception needs: the run's CA to answer with, and the roots to verify servers
// with. Without a CA the rules stay, and refuse; falling back to tunnels would open to bytes what was allowed
// as requests.
func (p *Proxy) trust(o Options) (err error) {
	if len(o.CA.Certificate) > 0 {
		if p.minter, err = intercept.New(o.CA, p.now); err != nil {
			return err
		}
	} else if len(p.rules.rules) > 0 {
		p.log.Warn("egress rules with intercept refuse: the run has no CA", "rules", len(p.rules.rules))
	}
	own, err := o.Config.Authorities()
	if err != nil {
		return fmt.Errorf("egress.%w", err)
	}
	if p.minter != nil && p.roots == nil {
		if p.roots, err = roots(own); err != nil {
			return fmt.Errorf("egress: system roots: %w", err)
		}
	}
	p.trusted = p.inner(own, o.CA.Certificate)
	return nil
}

// roots are the system's, and the operator's own.
func roots(own [][]byte) (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	for _, pem := range own {
		pool.AppendCertsFromPEM(pem)
	}
	return pool, nil
}

func hostAddrs() ([]netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the host's addresses: %w", err)
	}
	var own []netip.Addr
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				own = append(own, addr.Unmap())
			}
		}
	}
	return own, nil
}

func (p *Proxy) refreshOwn() error {
	own, err := p.own()
	if err != nil {
		return err
	}
	p.list.Store(p.rules.list.Refusing(own))
	return nil
}

// keepOwn follows the host's addresses: an address that comes with a VPN or a new interface leads to this
// host as well. Without an answer the last ones hold. A connection that is open already isn't looked at
// again.
func (p *Proxy) keepOwn() {
	tick := time.NewTicker(30 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick.C:
			if err := p.refreshOwn(); err != nil {
				p.log.Warn("egress: the host's addresses stay as they were", "error", err)
			}
		}
	}
}

func (p *Proxy) ring() rings.Ring {
	ring, _ := p.supervisor.Ring()
	return ring
}

// nameExists is whether a lookup gets an address: if any port or path of the name may be open. It asks nobody
// (M-8: a question to the DNS is a message too).
func (p *Proxy) nameExists(name string) bool {
	host, err := egress.ParseHost(name)
	if err != nil {
		return false
	}
	target, err := egress.TargetOfName(host, 443)
	if err != nil {
		return false
	}
	d := p.list.Load().Decide(egress.Ask{Ring: p.ring(), Target: target})
	return d.Allowed() || d.Sub == egress.PortNotListed || d.Sub == egress.TunnelNotListed
}

// ServeProxy answers HTTP and SOCKS5 on the connections of l until Close (nil) or until l says an error. l is
// closed then.
func (p *Proxy) ServeProxy(l net.Listener) error {
	if tcp, ok := l.Addr().(*net.TCPAddr); ok {
		p.mu.Lock()
		p.selves[unmap(tcp.AddrPort())] = true
		p.mu.Unlock()
	}
	return p.accept(l, (*session).explicit)
}

// ServeCapture answers connections whose destination is their local address.
func (p *Proxy) ServeCapture(l net.Listener) error { return p.accept(l, (*session).captured) }

// ServeDNS answers lookups with synthetic addresses. See package dns.
func (p *Proxy) ServeDNS(conn net.PacketConn) error { return p.names.Serve(p.ctx, conn) }

// ServeDNSStream is ServeDNS over TCP.
func (p *Proxy) ServeDNSStream(l net.Listener) error { return p.names.ServeTCP(p.ctx, l) }

// Close cuts everything, waits for it, and for the records. The order: no new goroutine is counted once
// closed is set; the context ends listeners and lookups; the cut ends open connections, whose sessions then
// put their records; only when the last has done so is the ledger closed, or a record would come too late.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.flows.cutAll()
	p.serving.Wait()
	p.pool.close()
	return p.ledger.close()
}

// begin counts a goroutine that Close has to wait for; false after Close.
func (p *Proxy) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.serving.Add(1)
	return true
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().WithZone("").Unmap(), a.Port())
}

// serverTLS is how the agent is answered when a connection is read.
func (p *Proxy) serverTLS(name string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, SessionTicketsDisabled: true, Time: p.now,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.minter.Certificate(name) }}
}

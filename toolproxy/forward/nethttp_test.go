// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentrun/internal/wire"
	"agentrun/rings"
	"agentrun/toolproxy/egress"
)

// onNetHTTP is the other way to build this proxy, for docs/benchmarks/forward-proxy.md: http.Server reads
// requests and writes answers, http.Transport sends them on and keeps connections. What decides, dials,
// cuts and records is shared with the real one, and so are tunnels; what is here stands in for exchange.go,
// respond.go, pool.go, upstreamFor in dial.go, half of request.go and package wire.
//
//	go test ./toolproxy/forward -nethttp   // all tests of HTTP against this one; docs say which fail, and why
type onNetHTTP struct {
	p         *Proxy
	server    http.Server
	transport http.Transport
	conns     chan net.Conn // to the server
	wide      sync.Pool     // of *bufio.Reader, for hellos
}

var insteadOnNetHTTP = flag.Bool("nethttp", false, "run the tests against the proxy on net/http")

func newOnNetHTTP(p *Proxy) *onNetHTTP {
	a := &onNetHTTP{p: p, conns: make(chan net.Conn)}
	a.wide.New = func() any { return bufio.NewReaderSize(nil, wire.MaxHead) }
	a.transport = http.Transport{DialContext: a.dial, DialTLSContext: a.dialTLS, DisableCompression: true,
		MaxIdleConns: maxIdle, MaxIdleConnsPerHost: maxIdleKey, IdleConnTimeout: idleAge,
		MaxResponseHeaderBytes: wire.MaxHead}
	a.server = http.Server{Handler: a, ReadHeaderTimeout: p.limits.Head, IdleTimeout: p.limits.Idle,
		MaxHeaderBytes: wire.MaxHead - 4096, DisableGeneralOptionsHandler: true, // the server adds 4096
		ErrorLog: log.New(io.Discard, "", 0), ConnState: func(c net.Conn, state http.ConnState) {
			if state == http.StateIdle {
				c.(*handed).asked.Store(false)
			}
		}, ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, handedKey{}, c)
		}}
	go func() { _ = a.server.Serve(a) }() // ends with the proxy
	return a
}

// serve is ServeProxy.
func (a *onNetHTTP) serve(l net.Listener) error {
	a.p.mu.Lock()
	a.p.selves[unmap(l.Addr().(*net.TCPAddr).AddrPort())] = true
	a.p.mu.Unlock()
	return a.p.accept(l, a.explicit)
}

// Accept makes the proxy's accepted connections a net.Listener.
func (a *onNetHTTP) Accept() (net.Conn, error) {
	select {
	case c := <-a.conns:
		return c, nil
	case <-a.p.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (a *onNetHTTP) Close() error   { return nil }
func (a *onNetHTTP) Addr() net.Addr { return &net.TCPAddr{} }

// explicit is the session's, with HTTP given away.
func (a *onNetHTTP) explicit(s *session) {
	s.via = "proxy"
	s.within(s.p.limits.Idle)
	first, err := s.br.Peek(1)
	if err != nil {
		return
	}
	if first[0] != socksVersion && s.p.total.Add(-1) >= 0 {
		a.hand(s)
		return
	}
	if first[0] != socksVersion {
		s.p.total.Add(1) // the session takes it again, and refuses
	}
	s.br = bufio.NewReaderSize(&buffered{s.conn, s.br}, wire.MaxHead)
	s.explicit()
}

// handed is a connection that the server has.
type handed struct {
	net.Conn
	s     *session
	first []byte      // read before
	asked atomic.Bool // a handler has a request of it
	once  sync.Once
	done  chan struct{}
}

type handedKey struct{}

// hand gives a connection to the server and waits until it is done with it.
func (a *onNetHTTP) hand(s *session) {
	_ = s.conn.SetDeadline(time.Time{}) // the server's from here on
	h := &handed{Conn: s.conn, s: s, done: make(chan struct{})}
	if have, _ := s.br.Peek(s.br.Buffered()); len(have) > 0 {
		h.first = bytes.Clone(have)
		_, _ = s.br.Discard(len(have))
	}
	select {
	case a.conns <- h:
		<-h.done
	case <-a.p.ctx.Done():
	}
}

func (h *handed) Read(b []byte) (int, error) {
	if n := copy(b, h.first); n > 0 {
		h.first = h.first[n:]
		return n, nil
	}
	return h.Conn.Read(b)
}

// Write replaces what the server says by itself to what it can't read: that is a refusal like others, and
// on record.
func (h *handed) Write(b []byte) (int, error) {
	if h.asked.Load() {
		return h.Conn.Write(b)
	}
	status, err := strconv.Atoi(string(b[9:12]))
	if err != nil {
		return 0, err
	}
	no := badRequest(&wire.Error{Status: status, Text: "the request can't be read"})
	h.s.p.refuse(h.s.nameOf(h.s.fixed), no)
	_, err = h.Conn.Write(no.reply(false, true))
	return len(b), err
}

func (h *handed) CloseWrite() error { closeWrite(h.Conn); return nil }

func (h *handed) Close() error {
	h.once.Do(func() { close(h.done) })
	return h.Conn.Close()
}

// ServeHTTP answers one request.
func (a *onNetHTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := r.Context().Value(handedKey{}).(*handed)
	h.asked.Store(true)
	s := h.s
	_ = s.conn.SetWriteDeadline(time.Now().Add(s.p.limits.Idle)) // an error shows at the next use
	s.req = wire.Request{Method: []byte(r.Method), Target: []byte(r.RequestURI), Minor: byte(r.ProtoMinor)}
	if s.req.Chunked, s.req.Length = r.ContentLength < 0, -1; r.ContentLength > 0 {
		s.req.Length = r.ContentLength
	}
	if r.Host != "" {
		s.req.Host = []byte(r.Host)
	}
	ask, rt, no := s.understand()
	switch {
	case no != nil:
		a.refuse(w, s, s.nameOf(ask.Target), no)
	case rt.Form == egress.AuthorityForm:
		a.connect(w, h, rt.Target)
		return
	default:
		a.exchange(w, r, h, ask, rt)
	}
	if s.fixed.IsZero() {
		s.flow.idle()
	} else if !s.begin(s.fixed) { // between requests the ring still decides about the place
		panic(http.ErrAbortHandler)
	}
}

func (a *onNetHTTP) refuse(w http.ResponseWriter, s *session, name string, no *refusal) {
	if name == "" {
		name = unreadable
	}
	s.p.refuse(name, no)
	reply, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(no.reply(false, false))), nil)
	if err != nil {
		panic(err)
	}
	for name, values := range reply.Header {
		w.Header()[name] = values
	}
	w.Header()["Date"] = nil
	if s.req.HasBody() || no.status == 400 {
		w.Header().Set("Connection", "close")
	}
	w.WriteHeader(reply.StatusCode)
	_, _ = io.Copy(w, reply.Body)
}

// connect makes a tunnel, or reads on what is in one.
func (a *onNetHTTP) connect(w http.ResponseWriter, h *handed, t egress.Target) {
	s := h.s
	s.via = "connect"
	if s.req.HasBody() {
		a.refuse(w, s, t.String(), badRequest(&wire.Error{Status: 400, Text: "CONNECT with a body"}))
		return
	}
	br := a.hijack(w, h)
	if br == nil {
		return
	}
	defer a.wide.Put(br)
	defer h.once.Do(func() { close(h.done) })
	how, _ := s.p.modeOf(t)
	if how != readPlain && how != readTLS || s.ready() != nil || t.Addr().IsValid() {
		s.connect(t)
		return
	}
	s.fixed = t
	if !s.begin(t) {
		return
	}
	if _, err := io.WriteString(s.conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	if how == readPlain || s.answerTLS() {
		a.hand(s)
	}
}

// hijack takes a connection back, with what was read of it.
func (a *onNetHTTP) hijack(w http.ResponseWriter, h *handed) *bufio.Reader {
	_, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil
	}
	rest, _ := rw.Reader.Peek(rw.Reader.Buffered())
	br := a.wide.Get().(*bufio.Reader)
	br.Reset(io.MultiReader(bytes.NewReader(bytes.Clone(rest)), h.Conn))
	_, _ = br.Peek(len(rest)) // tunnels send on what is buffered
	h.s.br = br
	return br
}

// crossing is one request on its way.
type crossing struct {
	s       *session
	ask     egress.Ask
	hidden  *hidden
	upgrade bool
	cancel  context.CancelFunc
	idle    *time.Timer
	conn    net.Conn // to the server
	d       egress.Decision
	no      *refusal
}

type crossingKey struct{}

type refusedError struct{ *refusal }

func (r refusedError) Error() string { return r.text }

func (a *onNetHTTP) exchange(w http.ResponseWriter, r *http.Request, h *handed, ask egress.Ask,
	rt egress.RequestTarget,
) {
	s, p := h.s, a.p
	x := &crossing{s: s, ask: ask, hidden: p.hidden(ask, s.secure)}
	x.upgrade = r.ProtoMinor == 1 && r.Method == "GET" && !s.req.HasBody() && protocol(r.Header) == "websocket"
	no := s.ready()
	if no == nil && r.ContentLength > p.limits.Body {
		no = overLimit("bytes of a request")
		no.status = 413
	}
	if no == nil && x.upgrade {
		if d := p.mayUpgrade(ask); !d.Allowed() {
			no = refused(d)
		}
	}
	if no != nil {
		a.refuse(w, s, ask.Target.String(), no)
		return
	}
	// Not the request's context: a client that has closed its half isn't gone.
	ctx, cancel := context.WithCancel(context.WithValue(p.ctx, crossingKey{}, x))
	defer cancel()
	x.cancel, x.idle = cancel, time.AfterFunc(p.limits.Idle, cancel)
	defer x.idle.Stop()
	_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/1 can
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: x.got})
	resp, err := a.transport.RoundTrip(x.request(r, rt, ctx))
	if err == nil {
		defer resp.Body.Close()
		switch {
		case resp.StatusCode == 101 && (!x.upgrade || protocol(resp.Header) != "websocket"):
			err = errors.New("an upgrade that nobody asked for")
		case x.hidden != nil && resp.Header.Get("Content-Encoding") != "":
			err = errors.New("a coded reply, which can't be searched for the secret that was sent")
		}
	}
	if err != nil {
		no := x.failed(err)
		if x.no == nil && no.sub == upstreamBad {
			w.Header().Set("Connection", "close")
		}
		a.refuse(w, s, ask.Target.String(), no)
		return
	}
	s.grant(ask.Target, x.d)
	if resp.StatusCode == 101 {
		a.switched(w, h, x, resp)
		return
	}
	x.respond(w, resp)
}

// protocol is the one of Upgrade, if Connection names it as well.
func protocol(h http.Header) string {
	for _, options := range h["Connection"] {
		for option := range strings.SplitSeq(options, ",") {
			if strings.EqualFold(strings.Trim(option, " \t"), "upgrade") {
				return strings.ToLower(strings.Join(h["Upgrade"], ","))
			}
		}
	}
	return ""
}

// request is what goes up: the canonical target, one Host, no field of the hop before.
func (x *crossing) request(r *http.Request, rt egress.RequestTarget, ctx context.Context) *http.Request {
	u := &url.URL{Scheme: "http", Host: x.ask.Target.String(), Opaque: rt.URI()}
	if x.s.secure {
		u.Scheme = "https"
	}
	h := endToEnd(r.Header)
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = nil
	}
	if x.hidden != nil {
		for name := range h {
			switch lower := strings.ReplaceAll(strings.ToLower(name), "_", "-"); lower {
			case "accept-encoding", "range", "if-range", "a-im", "sec-websocket-extensions":
				delete(h, name)
			default:
				if slices.ContainsFunc(x.hidden.add, func(one addition) bool { return one.lower == lower }) {
					delete(h, name)
				}
			}
		}
		h.Set("Accept-Encoding", "identity")
		for _, one := range x.hidden.add {
			name, value, _ := strings.Cut(strings.TrimSuffix(string(one.line), "\r\n"), ": ")
			h.Set(name, value)
		}
	}
	if x.upgrade {
		h.Set("Connection", "Upgrade")
		h.Set("Upgrade", "websocket")
	}
	out := &http.Request{Method: x.ask.Method, URL: u, Host: hostHeader(x.ask.Target, x.s.secure), Header: h}
	if r.ContentLength != 0 {
		out.Body, out.ContentLength = &sending{ReadCloser: r.Body, x: x}, r.ContentLength
	}
	return out.WithContext(ctx)
}

func endToEnd(from http.Header) http.Header {
	h := from.Clone()
	for _, options := range slices.Concat(from["Connection"], from["Proxy-Connection"]) {
		for option := range strings.SplitSeq(options, ",") {
			h.Del(strings.Trim(option, " \t"))
		}
	}
	for name := range hop {
		delete(h, name)
	}
	return h
}

// got looks at the connection that a request will take, before it does. One that it may not take is closed,
// so that nothing can be written.
func (x *crossing) got(info httptrace.GotConnInfo) {
	p, conn := x.s.p, info.Conn
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	up := conn.(*counted)
	if info.Reused && up.drops != p.pool.dropped() { // of another ring: the transport tries another one
		_ = up.Close()
		return
	}
	u := &upstream{addr: remote(up), key: poolKey{target: x.ask.Target}}
	_, x.d, x.no = p.check(x.ask, u.addrs())
	if x.no == nil && x.upgrade && !p.rules.upgrades(x.ask) {
		_, _, x.no = p.check(egress.Ask{Ring: x.ask.Ring, Target: x.ask.Target}, u.addrs())
	}
	if x.no == nil && (!x.s.flow.doing(x.ask, up.Conn, x.cancel) || !p.still(&x.s.flow)) {
		x.no = cutRefusal(&x.s.flow)
	}
	if x.no != nil {
		_ = up.Close()
		x.cancel()
		return
	}
	x.conn = info.Conn
	up.meter.Store(&x.s.meter)
}

// dial is the transport's. Its dials outlive the requests that they are for, so that they can't be those of
// a flow.
func (a *onNetHTTP) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	f := &flow{}
	a.p.flows.add(f)
	defer a.p.flows.remove(f)
	drops := a.p.pool.dropped()
	conn, _, no := a.p.dial(f, ctx.Value(crossingKey{}).(*crossing).ask)
	if no != nil {
		return nil, refusedError{no}
	}
	return &counted{Conn: conn, drops: drops}, nil
}

func (a *onNetHTTP) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := a.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	u := &upstream{Conn: conn, raw: conn}
	if no := a.p.secure(u, ctx.Value(crossingKey{}).(*crossing).ask.Target); no != nil {
		abort(conn)
		return nil, refusedError{no}
	}
	return u.Conn, nil
}

// counted is a connection to a server that takes its bytes from whoever uses it.
type counted struct {
	net.Conn
	drops uint64
	meter atomic.Pointer[meter]
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if m := c.meter.Load(); m != nil && n > 0 {
		if !m.use(int64(n)) {
			return 0, errSpent
		}
		m.received.Add(int64(n))
	}
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	m := c.meter.Load()
	if m != nil && !m.use(int64(len(b))) {
		return 0, errSpent
	}
	n, err := c.Conn.Write(b)
	if m != nil {
		m.sent.Add(int64(n))
	}
	return n, err
}

// sending is a request's body.
type sending struct {
	io.ReadCloser
	x     *crossing
	total int64
}

func (u *sending) Read(b []byte) (int, error) {
	s := u.x.s
	_ = s.conn.SetReadDeadline(time.Now().Add(s.p.limits.Idle)) // an error shows at once
	n, err := u.ReadCloser.Read(b)
	u.x.idle.Reset(s.p.limits.Idle)
	if u.total += int64(n); u.total > s.p.limits.Body {
		return 0, errBody
	}
	return n, err
}

func (x *crossing) failed(err error) *refusal {
	var no refusedError
	switch _, cut := x.s.flow.cutReason(); {
	case x.no != nil:
		return x.no
	case errors.As(err, &no):
		return no.refusal
	case cut:
		return cutRefusal(&x.s.flow)
	case errors.Is(err, errBody), errors.Is(err, errSpent):
		return overLimit("bytes")
	}
	x.s.p.log.Info("egress: upstream", "target", x.ask.Target.String(), "error", err)
	return unavailable(502, upstreamBad, "%s: the server's reply doesn't come or can't be read", x.ask.Target)
}

// respond sends a response down, piece by piece as it comes.
func (x *crossing) respond(w http.ResponseWriter, resp *http.Response) {
	head := w.Header()
	for name, values := range endToEnd(resp.Header) {
		for i := range values {
			if x.hidden != nil {
				b := []byte(values[i])
				x.hidden.cover(b)
				values[i] = string(b)
			}
		}
		head[name] = values
	}
	for _, name := range []string{"Date", "Content-Type"} { // the server would make them up
		if _, ok := head[name]; !ok {
			head[name] = nil
		}
	}
	if resp.ContentLength >= 0 {
		head.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	w.WriteHeader(resp.StatusCode)
	rc := http.NewResponseController(w)
	if resp.ContentLength < 0 {
		_ = rc.Flush() // the client learns at least that there is an answer
	}
	from := x.hidden.reader(resp.Body)
	buf := buffers.Get().(*[copySize + 64]byte)
	defer buffers.Put(buf)
	for sent := int64(0); ; {
		n, err := from.Read(buf[:copySize])
		x.idle.Reset(x.s.p.limits.Idle)
		_ = x.s.conn.SetWriteDeadline(time.Now().Add(x.s.p.limits.Idle)) // an error shows at the next use
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				panic(http.ErrAbortHandler)
			}
			if sent += int64(n); sent != resp.ContentLength {
				_ = rc.Flush()
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler) // half a response must not look like a whole one
		}
	}
}

// switched turns the connection into a tunnel.
func (a *onNetHTTP) switched(w http.ResponseWriter, h *handed, x *crossing, resp *http.Response) {
	s := h.s
	if s.flow.switched(); !s.p.still(&s.flow) {
		return
	}
	br := a.hijack(w, h)
	if br == nil {
		return
	}
	defer a.wide.Put(br)
	defer h.once.Do(func() { close(h.done) })
	under := x.conn
	if secure, ok := under.(*tls.Conn); ok {
		under = secure.NetConn()
	}
	under.(*counted).meter.Store(nil) // the tunnel counts
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = endToEnd(resp.Header).Write(&b)
	b.WriteString("Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	x.hidden.cover(b.Bytes())
	if _, err := s.conn.Write(b.Bytes()); err == nil {
		x.idle.Stop()
		s.tunnel(x.conn, x.hidden.reader(resp.Body), nil)
	}
}

// readByNetHTTP are the ambiguous messages that net/http makes up its mind about and sends on.
var readByNetHTTP = []string{
	"both framings", "two equal lengths", "coding in 1.0", "folded", "bare LF", "many fields",
}

// What goes up is written anew by both, so that none of these smuggles anything. But the one on net/http
// can't tell what was said: nothing of it is refused or on record. docs/benchmarks/forward-proxy.md counts
// that among the reasons for a reader of our own; a Go that reads more strictly fails this, and the page is
// to be judged anew.
func TestM8WhatNetHTTPMakesOfAmbiguousMessages(t *testing.T) {
	w := worldOn(t, rings.Standard, allowed("allowed.example"), true)
	w.web(t, 80, hello)
	for name, request := range ambiguous {
		t.Run(name, func(t *testing.T) {
			resp, body := w.raw(t, request)
			refused := resp.StatusCode >= 400 && resp.Header.Get("X-Agentrun-Denied") != ""
			if want := !slices.Contains(readByNetHTTP, name); refused != want {
				t.Errorf("got %d %v %q, want it refused: %v", resp.StatusCode, resp.Header, body, want)
			}
		})
	}
}

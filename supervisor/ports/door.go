// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Code says what became of a connection, as the audit has it. The zero value is none.
type Code string

// Codes of connections.
const (
	OK         Code = "ok"
	TooMany    Code = "too_many"
	NoToken    Code = "no_token"
	WrongHost  Code = "wrong_host"
	OtherSite  Code = "other_site" // a request that a page of another place made
	BadRequest Code = "bad_request"
	BadAnswer  Code = "bad_answer" // the sandbox's server speaks no HTTP
	NoServer   Code = "no_server"  // nobody listens in the sandbox
	Idle       Code = "idle"       // nothing came for too long
	CutOff     Code = "cut"        // by Cut or Close
	// Of Allow.
	Frozen      Code = "frozen"
	Quarantined Code = "quarantined"
	KeyInvalid  Code = "key_invalid"
	Stopped     Code = "agent_stopped"
	Ended       Code = "run_ended"
	Unknown     Code = "unavailable" // it can't be told what holds for the run
)

const (
	handshake = 10 * time.Second // for a whole head, and for a connection to the sandbox
	idleTime  = 10 * time.Minute // without a byte either way
	halfTime  = 10 * time.Second // the same, when one side has said all
	farewell  = 2 * time.Second  // for a client to read the last words
	restTime  = 100 * time.Millisecond

	// maxWaiting connections of a door may have shown no secret yet. One more ends the oldest of them: who has the secret shows it at once.
	maxWaiting = 256
)

// Passage is one connection, after its end.
type Passage struct {
	Code    Code
	Peer    netip.Addr
	In, Out int64 // bytes that came for the sandbox, and from it; 0: it was never connected to
	Took    time.Duration
}

// Options of a Door. Dial, Allow, Record and Slots are required.
type Options struct {
	At   netip.AddrPort // to listen on; port 0: a free one
	Port uint16         // in the sandbox; for those who read
	Raw  bool           // no token: bytes are passed as they are
	// Own says that nobody else is published at this address later. Elsewhere nothing of a page may stay in a browser.
	Own  bool
	Dial func(ctx context.Context) (*net.TCPConn, error)
	// Allow decides about each connection, and each request: OK, or why not.
	Allow func(ctx context.Context) Code
	// Record is told of each connection after its end. Its error closes the Door.
	Record func(Passage) error
	// Slots holds one for each connection that was let in; Doors may share it.
	Slots chan struct{}
	// Idle is how long a connection may be without a byte; 0: 10 minutes.
	Idle time.Duration
}

// Door is a published port. Its methods may be called from any goroutine.
type Door struct {
	opt    Options
	at     netip.AddrPort
	l      *net.TCPListener
	ctx    context.Context //nolint:containedctx // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
	token  string
	cookie string // its value

	mu      sync.Mutex
	links   []string // that were not used yet
	open    map[*passage]struct{}
	waiting []*passage // those of open that were not let in, the oldest first
	shut    bool
}

// Listen takes the address. Nothing is answered before Serve.
func Listen(o Options) (*Door, error) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(o.At))
	if err != nil {
		return nil, err
	}
	at := l.Addr().(*net.TCPAddr).AddrPort() //nolint:forcetypeassert // it listens on TCP
	d := &Door{
		opt: o, at: netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), l: l, token: secret(), cookie: secret(), open: map[*passage]struct{}{},
	}
	d.opt.Idle = cmp.Or(o.Idle, idleTime)
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d, nil
}

// Addr is where it listens.
func (d *Door) Addr() netip.AddrPort { return d.at }

// Port is the sandbox's.
func (d *Door) Port() uint16 { return d.opt.Port }

// Raw tells that it asks for no token.
func (d *Door) Raw() bool { return d.opt.Raw }

// Open is how many connections there are now.
func (d *Door) Open() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for p := range d.open {
		if p.admitted {
			n++
		}
	}
	return n
}

// Shut tells that it is closed, by whomever.
func (d *Door) Shut() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shut
}

// Serve takes connections until Close.
func (d *Door) Serve() {
	for {
		conn, err := d.l.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptor is free, or the peer has gone
			select {
			case <-time.After(restTime):
			case <-d.ctx.Done():
			}
			continue
		}
		p := &passage{door: d, began: time.Now()}
		p.client = &end{TCPConn: conn, p: p, n: &p.in}
		if peer, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
			p.peer = peer.AddrPort().Addr().Unmap()
		}
		if !d.enter(p) {
			_ = conn.Close()
			return
		}
		go func() {
			defer d.work.Done()
			d.carry(p)
		}()
	}
}

// enter makes p one that Cut ends.
func (d *Door) enter(p *passage) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		return false
	}
	d.open[p] = struct{}{}
	d.work.Add(1)
	if d.waiting = append(d.waiting, p); len(d.waiting) > maxWaiting {
		d.waiting[0].end(TooMany)
		d.waiting = slices.Delete(d.waiting, 0, 1)
	}
	return true
}

// admit gives p one of the places, of which a stranger gets none: whoever can connect could hold them all.
func (d *Door) admit(p *passage) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.admitted {
		return true
	}
	select {
	case d.opt.Slots <- struct{}{}:
	default:
		return false
	}
	p.admitted = true
	d.waiting = without(d.waiting, p)
	return true
}

func (d *Door) leave(p *passage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, p)
	d.waiting = without(d.waiting, p)
	if p.admitted {
		<-d.opt.Slots
	}
}

func without(list []*passage, p *passage) []*passage {
	return slices.DeleteFunc(list, func(other *passage) bool { return other == p })
}

// carry is one connection, from its acceptance to its record.
func (d *Door) carry(p *passage) {
	p.within(handshake, Idle)
	p.end(p.pass())
	d.leave(p)
	d.record(p, p.why)
}

// pass is what a connection is for. A mistake of ours that a server inside finds ends its connection, and not the supervisor of other runs.
func (p *passage) pass() (code Code) {
	defer func() {
		if e := recover(); e != nil {
			fmt.Fprintf(os.Stderr, "agentrun: published port: %v\n%s", e, debug.Stack())
			code = BadAnswer
		}
	}()
	if p.door.opt.Raw {
		return p.raw()
	}
	return p.http()
}

func (d *Door) record(p *passage, code Code) {
	done := Passage{Code: code, Peer: p.peer, Took: time.Since(p.began)}
	p.mu.Lock()
	if p.server != nil {
		done.In, done.Out = p.in.Load(), p.out.Load()
	}
	p.mu.Unlock()
	if d.opt.Record(done) != nil {
		d.Stop()
	}
}

// Cut ends every connection that is open. Others may come, if Allow lets them.
func (d *Door) Cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := range d.open {
		p.end(CutOff)
	}
}

// Stop is Close that waits for nobody, and for no record.
func (d *Door) Stop() {
	d.mu.Lock()
	d.shut = true
	d.mu.Unlock()
	d.cancel()
	_ = d.l.Close()
	d.Cut()
}

// Close ends the Door and all connections, and returns when they are recorded.
func (d *Door) Close() {
	d.Stop()
	d.work.Wait()
}

// passage is one connection while it lasts.
type passage struct {
	door    *Door
	client  *end
	peer    netip.Addr
	began   time.Time
	in, out atomic.Int64

	admitted bool // it has one of the places; of the door's mu

	mu     sync.Mutex
	server *end // nil: none yet
	why    Code // it has ended; empty: it hasn't
	timer  *time.Timer
	late   Code          // what it ends for when the timer fires
	limit  time.Duration // of the timer, from each byte on; 0: bytes don't prolong it
}

// within has the connection end after a time: what must be done by then could otherwise drip for ever.
func (p *passage) within(limit time.Duration, late Code) { p.set(limit, 0, late) }

// lively has it end when nothing comes for so long.
func (p *passage) lively() { p.set(p.door.opt.Idle, p.door.opt.Idle, Idle) }

func (p *passage) set(limit, more time.Duration, late Code) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit, p.late = more, late
	if p.timer == nil {
		p.timer = time.AfterFunc(limit, p.tooLate)
	} else if p.why == "" {
		p.timer.Reset(limit)
	}
}

func (p *passage) tooLate() {
	p.mu.Lock()
	late := p.late
	p.mu.Unlock()
	p.end(late)
}

// moved is told of each read and write.
func (p *passage) moved() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why == "" && p.limit > 0 {
		p.timer.Reset(p.limit)
	}
}

// end closes both ends. The first reason stays.
func (p *passage) end(why Code) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why != "" {
		return
	}
	p.why = why
	if p.timer != nil {
		p.timer.Stop()
	}
	_ = p.client.Close()
	if p.server != nil {
		_ = p.server.Close()
	}
}

// connect dials the sandbox. The order matters: it is asked for leave when Cut can already end p, so that what is forbidden meanwhile is
// either seen here or cut there.
func (p *passage) connect() Code {
	ctx, cancel := context.WithTimeout(p.door.ctx, handshake)
	defer cancel()
	if code := p.door.opt.Allow(ctx); code != OK {
		return code
	}
	if !p.door.admit(p) {
		return TooMany
	}
	conn, err := p.door.opt.Dial(ctx)
	if err != nil {
		if code := p.door.opt.Allow(ctx); code != OK { // meanwhile
			return code
		}
		return NoServer
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why != "" {
		_ = conn.Close()
		return p.why
	}
	p.server = &end{TCPConn: conn, p: p, n: &p.out}
	return OK
}

// raw passes bytes.
func (p *passage) raw() Code {
	if !p.door.admit(p) { // there is no secret to wait for
		return TooMany
	}
	if code := p.connect(); code != OK {
		return code
	}
	p.lively()
	p.relay(p.client, p.server)
	return OK
}

// relay passes bytes both ways until both have said all. What has said all is told to the other side, as TCP does.
func (p *passage) relay(client, server io.Reader) {
	var both sync.WaitGroup
	pass := func(to *end, from io.Reader) {
		if _, err := io.Copy(to, from); err != nil {
			p.end(OK) // one side is gone, and nobody hears the other any more
			return
		}
		_ = to.CloseWrite()
		p.set(halfTime, halfTime, OK) // TCP doesn't tell one that has left from one that only listens
	}
	both.Go(func() { pass(p.server, client) })
	pass(p.client, server)
	both.Wait()
}

// end is one side of a passage, whose bytes count.
type end struct {
	*net.TCPConn
	p *passage
	n *atomic.Int64 // bytes that came from it
}

func (e *end) Read(b []byte) (int, error) {
	n, err := e.TCPConn.Read(b)
	e.n.Add(int64(n))
	e.p.moved()
	return n, err
}

func (e *end) Write(b []byte) (int, error) {
	n, err := e.TCPConn.Write(b)
	e.p.moved()
	return n, err
}

// ReadFrom and WriteTo of TCPConn would pass by the count.
func (e *end) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{e}, struct{ io.Reader }{r}, make([]byte, 32<<10))
}

// WriteTo is Read's.
func (e *end) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{e}, make([]byte, 32<<10))
}

// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"errors"
	"io"
	"strconv"
	"time"

	"agentrun/internal/wire"
	"agentrun/toolproxy/egress"
)

const graceForRequests = 500 * time.Millisecond

const maxInterim = 8 // 1xx responses before the real one; they are dropped

// One exchange goes through these states, in this order:
//
//  1. The head is in s.br and parsed in s.req, whose slices point into it. Whatever can refuse does so here,
//     while the connection to the client can still go on.
//  2. upstreamFor has a connection, and the flow knows it: from here on a new ring cuts both sides. The head
//     to send is written to a buffer of its own; then s.br is discarded, and s.req must not be read any more.
//  3. The request is sent (send). A body goes up beside that in a goroutine (upload), since servers answer
//     early. Without a body, a kept connection that broke before any answer is tried once more, for methods
//     that change nothing.
//  4. The response's head is in s.resp, which points into u.br. The grant is booked; the response goes down
//     (respond).
//  5. finish waits for the upload, lets the flow go, and only then gives the connection to the pool: the
//     other way round a cut for this request could hit the next one's connection.
//
// Two things can look whole and aren't: a request and a response that broke off. Where either does, the side
// that would believe it is closed or reset, never given an end.

// exchange sends one request that was understood up, and its response down. False ends the connection.
func (s *session) exchange(ask egress.Ask, rt egress.RequestTarget, headLen int) bool {
	p := s.p
	name := ask.Target.String()
	if r := s.ready(); r != nil {
		return s.refuseRequest(name, r, headLen)
	}
	most, mostReply := p.rules.bound(ask, p.limits.Body)
	if s.req.Length > most {
		r := overLimit("bytes of a request")
		r.status = 413
		return s.refuseRequest(name, r, headLen)
	}
	upgrade := s.req.Minor == 1 && ask.Method == "GET" && !s.req.HasBody() && s.req.WebSocket()
	if upgrade {
		if d := p.mayUpgrade(ask); !d.Allowed() {
			return s.refuseRequest(name, refused(d), headLen)
		}
	}
	x := &transfer{s: s, ask: ask, method: ask.Method, keep: !s.closing(), minor: s.req.Minor, start: time.Now(),
		mostBody: most, mostReply: mostReply, push: pushTo(ask)}
	u, d, r := p.upstreamFor(&s.flow, ask, s.secure, false)
	if r != nil {
		return s.refuseRequest(name, r, headLen)
	}
	if upgrade && !p.rules.upgrades(ask) { // an entry for the address may restrict methods or paths too
		if _, _, r := p.check(egress.Ask{Ring: ask.Ring, Target: ask.Target}, u.addrs()); r != nil {
			_ = u.raw.Close() // not used
			return s.refuseRequest(name, r, headLen)
		}
	}
	x.u = u
	x.hidden = p.hidden(ask, s.secure)
	x.upgrade = upgrade
	out := s.requestHead(s.out[:0], ask, rt, x)
	bodied, expects := s.req.HasBody(), s.req.Continue && s.req.Minor == 1
	body, length, chunked := s.req.Body(s.br), s.req.Length, s.req.Chunked
	_, _ = s.br.Discard(headLen) // it is buffered; from here on the request's own slices are gone
	if bodied && !chunked && length <= int64(s.br.Buffered()) {
		whole, _ := s.br.Peek(int(length))
		out = append(out, whole...)
		x.push.read(whole)
		_, _ = s.br.Discard(int(length)) // it is buffered
		bodied = false
	}
	s.keepBuffer(out)
	if !bodied {
		return x.run(out, nil, d)
	}
	if expects {
		if _, err := io.WriteString(s.conn, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
			abort(u.raw)
			return false
		}
	}
	x.once = true
	return x.run(out, &upload{from: body, chunked: chunked, done: make(chan struct{})}, d)
}

// keepBuffer keeps a buffer for the next request, unless it has grown unusually.
func (s *session) keepBuffer(b []byte) {
	if cap(b) <= 64<<10 {
		s.out = b[:0]
	}
}

// requestHead writes what goes up: the canonical target, one Host, framing of our own, no field of the hop
// before. Where a secret is put in, the agent's own fields of that name go, in every spelling that a server
// may take for it, and with them whatever would have the reply come in a form that can't be searched.
func (s *session) requestHead(b []byte, ask egress.Ask, rt egress.RequestTarget, x *transfer) []byte {
	b = append(b, ask.Method...)
	b = append(b, ' ')
	b = append(b, rt.URI()...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, hostHeader(ask.Target, s.secure)...)
	b = append(b, "\r\n"...)
	if x.hidden != nil {
		// What can't be searched can't be masked: no coding, no pieces, also by instance manipulations (RFC
		// 3229) and in the frames of a websocket (RFC 7692).
		for _, name := range []string{"accept-encoding", "range", "if-range", "a-im", "sec-websocket-extensions"} {
			s.req.Drop(name)
		}
		for _, h := range x.hidden.add {
			s.req.Drop(h.lower)
		}
	}
	b = s.req.AppendFields(b)
	if x.hidden != nil {
		b = append(b, "Accept-Encoding: identity\r\n"...)
		for _, h := range x.hidden.add {
			b = append(b, h.line...)
		}
	}
	switch {
	case s.req.Chunked:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	case s.req.Length >= 0:
		b = appendLength(b, s.req.Length)
	}
	if x.upgrade {
		b = append(b, "Connection: Upgrade\r\nUpgrade: websocket\r\n"...)
	}
	return append(b, "\r\n"...)
}

func appendLength(b []byte, n int64) []byte {
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, n, 10)
	return append(b, "\r\n"...)
}

// transfer is one request on its way.
type transfer struct {
	s       *session
	ask     egress.Ask
	u       *upstream
	method  string
	minor   byte
	keep    bool // the client's connection
	upgrade bool
	once    bool // the request can't be sent again
	hidden  *hidden
	start   time.Time
	push    *push // nil: none to a git repository

	mostBody, mostReply int64 // bytes; a reply's 0: any number
}

// upload is a request body that is sent while the response may already come.
type upload struct {
	from    io.Reader
	chunked bool
	done    chan struct{}
	err     error
}

// run is steps 3 to 5. The bytes of the head are taken from the meter before they are sent, those of the body
// as they go. A second try isn't charged again. A grant is booked only when a head came back, since until
// then the request may turn out to have reached nobody; a request that failed is on record as refused, with
// why.
func (x *transfer) run(out []byte, up *upload, d egress.Decision) bool {
	s := x.s
	name := x.ask.Target.String()
	if !s.meter.use(int64(len(out))) {
		_ = x.u.raw.Close() // not used
		s.no(name, overLimit("bytes"), x.method == "HEAD")
		return false
	}
	err := x.send(out, up)
	if err != nil && up == nil && x.u.used && x.again() {
		// The server closed a connection that was kept. Nothing came back, and the request may be made twice.
		_ = x.u.raw.Close() // broken
		u, _, r := s.p.upstreamFor(&s.flow, x.ask, s.secure, true)
		if r != nil {
			s.no(name, r, x.method == "HEAD")
			return false
		}
		x.u = u
		err = x.send(out, nil)
	}
	if err != nil {
		return x.broken(err, up)
	}
	s.meter.sent.Add(int64(len(out)))
	s.grant(x.ask.Target, d)
	s.tally.push = x.push
	if s.resp.Status == 101 {
		x.switched()
		return false
	}
	keep := x.respond()
	return x.finish(up, keep)
}

// again tells whether a request may be made twice: safe methods (RFC 9110, 9.2.1).
func (x *transfer) again() bool {
	return !x.once && (x.method == "GET" || x.method == "HEAD" || x.method == "OPTIONS") && x.u.br.Buffered() == 0
}

// send writes the request and waits for the head of the final response. Interim ones are dropped (RFC 9110,
// 15.2): the client that waits for 100 has had ours, and 103 is advice. A 101 that wasn't asked for would
// turn what follows into bytes that nobody reads; so would one to another protocol than the one that was
// asked for. While a body goes up the server may take its time: the deadline for the answer is set when the
// upload ends.
func (x *transfer) send(out []byte, up *upload) error {
	idle := x.s.p.limits.Idle
	_ = x.u.raw.SetDeadline(time.Now().Add(idle)) // an error shows at once
	if _, err := x.u.Write(out); err != nil {
		return err
	}
	if up != nil {
		_ = x.u.raw.SetReadDeadline(time.Time{}) // the body has its own, and sets this one at its end
		go x.upload(up)
	}
	for range maxInterim {
		head, err := wire.Peek(x.u.br)
		if err != nil {
			return err
		}
		if err := x.s.resp.Parse(head); err != nil {
			return err
		}
		if status := x.s.resp.Status; status >= 200 {
			return nil
		} else if status == 101 {
			if !x.upgrade || !x.s.resp.WebSocket() {
				return &wire.Error{Status: 502, Text: "an upgrade that nobody asked for"}
			}
			return nil
		}
		_, _ = x.u.br.Discard(len(head)) // it is buffered
	}
	return &wire.Error{Status: 502, Text: "too many interim responses"}
}

// broken answers for a server that didn't. The connection is reset, since it may hold half a response; then
// the upload is ended, which may tell why it all failed: the client's body was too long, or the bytes are
// used up. A cut by a new ring looks like a broken connection from here, so it is asked for first.
func (x *transfer) broken(err error, up *upload) bool {
	abort(x.u.raw)
	x.stop(up, 0)
	s := x.s
	s.p.log.Info("egress: upstream", "target", x.ask.Target.String(), "error", err)
	r := unavailable(502, upstreamBad, "%s: the server's reply doesn't come or can't be read", x.ask.Target)
	if _, cut := s.flow.cutReason(); cut {
		r = cutRefusal(&s.flow)
	} else if up != nil && (errors.Is(up.err, errSpent) || errors.Is(up.err, errBody)) {
		r = overLimit("bytes")
	}
	s.no(x.ask.Target.String(), r, x.method == "HEAD")
	return false
}

var errBody = errors.New("the request's body is too long")

// upload copies a body up. Its framing is made anew, so that what the client wrote beside it (extensions of
// chunks, trailers) stays here. It runs beside the response, and owns the read deadline of the client and the
// write deadline of the server until done is closed, but for stop, which wakes it by them; an end that isn't
// whole resets the server's connection, as RFC 9112, 8 has it for a message that is incomplete.
func (x *transfer) upload(up *upload) {
	defer close(up.done)
	buf := buffers.Get().(*[copySize + 64]byte)
	defer buffers.Put(buf)
	total := int64(0)
	for {
		now := time.Now().Add(x.s.p.limits.Idle)
		_ = x.s.conn.SetReadDeadline(now) // errors show at once, here and below
		n, err := up.from.Read(buf[frame : frame+copySize])
		if n > 0 {
			if total += int64(n); total > x.mostBody {
				up.err = errBody
				break
			}
			x.push.read(buf[frame : frame+n])
			_ = x.u.raw.SetWriteDeadline(now)
			if up.err = x.sendPiece(buf[:], n, up.chunked); up.err != nil {
				break
			}
		}
		if errors.Is(err, io.EOF) {
			if up.chunked {
				_, up.err = io.WriteString(x.u, "0\r\n\r\n")
			}
			break
		}
		if err != nil {
			up.err = err
			break
		}
	}
	if up.err != nil {
		abort(x.u.raw) // half a request must not look like a whole one
		return
	}
	_ = x.u.raw.SetReadDeadline(time.Now().Add(x.s.p.limits.Idle))
}

const frame = 20 // bytes before a piece, for the size of a chunk

func (x *transfer) sendPiece(buf []byte, n int, chunked bool) error {
	if !x.s.meter.use(int64(n)) {
		return errSpent
	}
	x.s.meter.sent.Add(int64(n))
	piece := buf[frame : frame+n]
	if chunked {
		piece = chunk(buf, n)
	}
	_, err := x.u.Write(piece)
	return err
}

// chunk puts the framing of a chunk around buf[frame:frame+n].
func chunk(buf []byte, n int) []byte {
	var digits [frame]byte
	size := strconv.AppendInt(digits[:0], int64(n), 16)
	size = append(size, "\r\n"...)
	start := frame - len(size)
	copy(buf[start:], size)
	copy(buf[frame+n:], "\r\n")
	return buf[start : frame+n+2]
}

// stop waits for an upload's end, for a moment; then it ends it. finished is whether all of the request went
// up. Deadlines in the past wake both ends of the copy without closing either connection: the client must
// still get its response. It doesn't return before the upload has, so that nobody writes to a connection that
// is given away.
func (x *transfer) stop(up *upload, grace time.Duration) (finished bool) {
	if up == nil {
		return true
	}
	select {
	case <-up.done:
		return up.err == nil
	case <-time.After(grace):
	}
	_ = x.s.conn.SetReadDeadline(time.Unix(1, 0)) // wakes it
	_ = x.u.raw.SetWriteDeadline(time.Unix(1, 0))
	<-up.done
	return false
}

// finish keeps the connections that can be used again. A response that ends before its request leaves
// neither.
func (x *transfer) finish(up *upload, keep bool) bool {
	u, s := x.u, x.s
	reuse := !u.dead && u.br.Buffered() == 0
	// the end of a request whose response is complete may just be on its way
	if !x.stop(up, graceForRequests) {
		reuse, keep = false, false
		_ = u.raw.Close() // half a request must not look like a whole one
		s.last(nil)       // the response must arrive although the request isn't read to its end
	}
	s.flow.idle() // before another request can get the connection
	if reuse {
		s.p.pool.put(u)
	} else {
		_ = u.raw.Close() // not to be used again
	}
	return keep && x.keep
}

// switched turns the connection into a tunnel (RFC 9110, 7.8). The flow still has it, so that a new ring cuts
// it: it is told first that nobody reads any more, and the ring is asked again, since what was allowed as a
// request may not be as a tunnel. The secret is looked for in the replies as before, the extensions that
// would pack frames having been taken out of the request.
func (x *transfer) switched() {
	s := x.s
	defer func() { _ = x.u.raw.Close() }() // done
	if s.flow.switched(); !s.p.still(&s.flow) {
		return
	}
	head, err := wire.Peek(x.u.br)
	if err != nil {
		return
	}
	b := append(s.out[:0], "HTTP/1.1 101 Switching Protocols\r\n"...)
	b = s.resp.AppendFields(b)
	b = append(b, "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"...)
	x.hidden.cover(b)
	_, _ = x.u.br.Discard(len(head)) // it is buffered
	if _, err := s.conn.Write(b); err != nil {
		return
	}
	s.tunnel(x.u.Conn, x.hidden.reader(&buffered{x.u.Conn, x.u.br}), nil)
}

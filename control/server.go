// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"agentrun/internal/uhttp"
)

// How long others may take. A peer that stops reading or writing costs its place for that long and nothing more.
const (
	requestTime = 10 * time.Second // to send a whole request, from the connection on
	stallTime   = time.Minute      // to take the next part of an answer
	lingerTime  = time.Second      // to take a refusal of what it is still sending
	graceTime   = 2 * time.Second  // for answers that are under way when the server is told to end
	heartbeat   = 15 * time.Second // between two signs of life in a stream of events
	maxLinger   = 256 << 10        // bytes
	maxPause    = time.Second      // after an error of accept that may pass
)

// Server answers operators for one supervisor. Controller is required; the zero value of the rest gives access to root and
// the supervisor's own user only. A Server serves once.
type Server struct {
	Controller Controller
	Access     Access
	Version    string      // of agentrun, for GET /v1/version
	More       []Route     // beside those about runs
	Report     func(error) // told of panics and of what isn't a peer's fault; nil: nobody is

	places places
	peerOf func(net.Conn) (peer, error) // nil: the kernel's word; tests have other words
	stall  time.Duration                // 0: stallTime
	mu     sync.Mutex
	busy   map[net.Conn]bool // connections; true: its request was read
	ending bool
	work   sync.WaitGroup
}

// Serve answers the connections of l until ctx ends, and closes l. Then whoever hasn't finished its request is hung up on;
// answers under way have two seconds to end by themselves (a kill's goes out before its supervisor does), are cancelled, and
// are left behind if that doesn't end them. The error is nil after ctx ended.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if s.Controller == nil {
		return errors.Join(errors.New("control server: no controller"), l.Close())
	}
	if s.peerOf == nil {
		s.peerOf = peerOf
	}
	s.busy = map[net.Conn]bool{}
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	err := s.accept(ctx, work, l)
	_ = l.Close()
	s.end(cancel)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// accept gives each connection a goroutine, unless it is one that is never answered.
func (s *Server) accept(ctx, work context.Context, l net.Listener) error {
	pause := time.Millisecond
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return err
			}
			// Out of descriptors, or the peer was gone at once: both pass, and a server that gave up would leave the runs without
			// anybody to kill them.
			s.report(fmt.Errorf("control server: accept: %w", err))
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return ctx.Err()
			}
			pause = min(2*pause, maxPause)
			continue
		}
		pause = time.Millisecond
		s.admit(work, c)
	}
}

// admit decides by the credentials, before a byte is read: what somebody says who may say nothing reaches no parser.
func (s *Server) admit(work context.Context, c net.Conn) {
	p, err := s.peerOf(c)
	if err != nil {
		if !errors.Is(err, errSilence) {
			s.report(fmt.Errorf("control server: peer's credentials: %w", err))
		}
		_ = c.Close()
		return
	}
	r := s.Access.of(p)
	refusal := &Error{Status: 403, Code: CodeForbidden, Message: "forbidden"}
	if r != nothing {
		if free := s.places.take(p.uid, r); free != nil {
			s.start(c, free, func() { s.answer(work, c, p, r) })
			return
		}
		refusal = &Error{Status: 503, Code: CodeBusy, Message: "too many connections"}
	}
	free := s.places.refuse()
	if free == nil {
		_ = c.Close()
		return
	}
	s.start(c, free, func() { refuse(c, refusal) })
}

// start runs one connection's goroutine.
func (s *Server) start(c net.Conn, free func(), run func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		free()
		_ = c.Close()
		return
	}
	s.busy[c] = false
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		defer free()
		defer s.forget(c)
		run()
	}()
}

func (s *Server) forget(c net.Conn) {
	_ = c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, c)
}

// begun marks a request as read. False: the server ends, and nothing may begin any more.
func (s *Server) begun(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy[c] = true
	return !s.ending
}

// end is what Serve says of it.
func (s *Server) end(cancel func()) {
	s.hangUp(func(busy bool) bool { return !busy })
	if s.wait(graceTime) {
		return
	}
	cancel()
	s.hangUp(func(bool) bool { return true })
	s.wait(graceTime)
}

func (s *Server) hangUp(which func(busy bool) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	for c, busy := range s.busy {
		if which(busy) {
			_ = c.Close()
		}
	}
}

func (s *Server) wait(limit time.Duration) bool {
	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

func (s *Server) report(err error) {
	if s.Report != nil {
		s.Report(err)
	}
}

// refuse tells somebody no without reading what it wants.
func refuse(c net.Conn, e *Error) {
	w := uhttp.NewWriter(c, lingerTime)
	if sendError(w, e) == nil {
		linger(c, c)
	}
}

// linger lets a peer that is still sending find the refusal. Closing at once would break its sending, and many programs don't look
// for an answer then.
func linger(c net.Conn, r io.Reader) {
	if u, ok := c.(interface{ CloseWrite() error }); !ok || u.CloseWrite() != nil {
		return
	}
	if c.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.CopyN(io.Discard, r, maxLinger)
	}
}

// answer reads the request of a connection and answers it.
func (s *Server) answer(work context.Context, c net.Conn, p peer, r right) {
	if c.SetReadDeadline(time.Now().Add(requestTime)) != nil {
		return
	}
	br := uhttp.NewReader(c)
	w := uhttp.NewWriter(c, cmp.Or(s.stall, stallTime))
	request, err := uhttp.ReadRequest(br, c)
	if err != nil {
		if bad, ok := errors.AsType[*uhttp.Error](err); ok && sendError(w, &Error{Status: bad.Status, Code: CodeBadRequest, Message: bad.Text}) == nil {
			linger(c, br)
		}
		return
	}
	if c.SetReadDeadline(time.Time{}) != nil || !s.begun(c) {
		return
	}
	q := &call{s: s, peer: p, right: r, request: request, w: w, conn: c, in: br, ctx: work}
	err = q.contained()
	switch {
	case err == nil:
	case w.Begun():
		// Too late to say why; that the answer is not whole can still be seen.
	default:
		_ = sendError(w, s.asError(err))
	}
	_ = w.Finish(err)
}

// asError is what a peer is told. What isn't an *Error of the Controller's is the node's failure, or its end.
func (s *Server) asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		if e.Status < 400 || e.Status > 599 {
			return &Error{Status: 500, Code: e.Code, Message: e.Message, Hint: e.Hint}
		}
		return e
	}
	if errors.Is(err, context.Canceled) {
		return &Error{Status: 503, Code: CodeBusy, Message: "the supervisor is ending"}
	}
	return &Error{Status: 500, Code: CodeInternal, Message: err.Error()}
}

// contained runs the handler. A fault in it is this request's end and nobody else's: with the supervisor its runs would die.
func (q *call) contained() (err error) {
	defer func() {
		if r := recover(); r != nil {
			q.s.report(fmt.Errorf("control server: %s %v: panic: %v\n%s", q.request.Method, q.request.Path, r, debug.Stack()))
			err = errors.New("a fault in agentrun; its log has the place")
		}
	}()
	return q.route()
}

// reading is a context for what only reads: it ends when the peer leaves. What changes something runs to its end instead:
// nobody gains from a kill that stops half way because who ordered it lost the terminal.
func (q *call) reading() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(q.ctx)
	go func() {
		// Nothing that comes now is part of the request. A few bytes may; then it is hung up on.
		_, _ = io.CopyN(io.Discard, q.in, maxLinger)
		cancel()
	}()
	return ctx, cancel
}

func sendError(w *uhttp.Writer, e *Error) error {
	return sendJSON(w, e.Status, errorBody{e})
}

type errorBody struct {
	Error *Error `json:"error"`
}

func sendJSON(w *uhttp.Writer, status int, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	return w.Send(status, "application/json", b.Bytes())
}

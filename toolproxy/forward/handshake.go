// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"agentrun/toolproxy/egress"
)

// A tunnel that begins with a ClientHello is held to the name in it. That isn't all that a client says in the
// clear: a server that wants another key share answers HelloRetryRequest, and the second hello names a server
// too (RFC 8446, 4.1.2 forbids another name, but not all servers look: OpenSSL serves the second one). So,
// until the server has taken a hello:
//
//  1. Up go the hello that was checked, and nothing after it: what the client sends meanwhile waits in its
//     socket.
//  2. Down everything goes, and is read on the way (listening).
//  3. HelloRetryRequest: the client's next hello is checked like the first, once. A second request is
//     refused.
//  4. ServerHello: what is in the clear after it is looked through for another hello (TLS 1.2), then bytes
//     are bytes.
//
// Anything else from the server ends the tunnel. What stays possible is what happens inside the encryption:
// renegotiation of TLS 1.2 and before can name another server, and nobody on the way sees it.

var errAnswer = errors.New("the server's answer to a TLS hello can't be read")

// listening reads what a server says while it matters. Its zero value hears nothing until a hello is on its
// way. Read runs in the goroutine that copies down, begin and stop in the one that copies up. said has room
// for the two verdicts there can be, so that copying never waits for the one that listens.
type listening struct {
	from io.Reader

	mu     sync.Mutex
	answer *egress.Answer // nil: nobody has asked
	over   bool
	said   chan egress.Verdict // at most two of them
}

func (l *listening) Read(b []byte) (int, error) {
	n, err := l.from.Read(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := b[:n]; len(rest) > 0 && l.answer != nil && !l.over; {
		var v egress.Verdict
		if v, rest = l.answer.Next(rest); v == egress.Unanswered {
			continue
		}
		select {
		case l.said <- v:
		default: // nobody waits for so many
		}
		l.over = v != egress.Retry
	}
	return n, err
}

// begin is called before a hello goes up: its answer is the next thing that counts.
func (l *listening) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer = &egress.Answer{}
}

// stop is called when nothing matters any more.
func (l *listening) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
}

func (l *listening) done() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// handshake passes the hello, which has size bytes, and what follows it in the clear. down is closed when the
// server has ended. A refusal is the agent's fault; after an error there is nothing left to say.
func (s *session) handshake(up net.Conn, l *listening, size int, down <-chan struct{}, d egress.Decision) (*refusal, error) {
	l.begin()
	for retried := false; ; retried = true {
		if err := s.sendBuffered(up, size); err != nil {
			return nil, err
		}
		var said egress.Verdict
		select {
		case said = <-l.said:
		case <-down:
			select { // it may have said so and gone
			case said = <-l.said:
			default:
			}
		}
		switch {
		case said == egress.Served:
			return s.clear(up)
		case said == egress.Unanswered: // an alert, mostly, which must arrive
			s.last(nil)
			return nil, io.EOF
		case said != egress.Retry || retried:
			return nil, errAnswer
		}
		var r *refusal
		if size, r = s.named(egress.ParseSecondHello, d); r != nil {
			return r, nil
		}
	}
}

// clear passes the rest of a handshake that isn't encrypted yet.
func (s *session) clear(up net.Conn) (*refusal, error) {
	var c egress.Clear
	for need := 5; ; {
		_ = s.conn.SetReadDeadline(time.Now().Add(s.p.limits.Idle)) // an error shows at the next use
		have, err := s.br.Peek(need)
		if err != nil {
			return nil, err
		}
		size, encrypted, err := c.Next(have)
		switch {
		case err != nil:
			return s.unreadable(err), nil
		case encrypted:
			return nil, nil
		case size > len(have):
			need = size
			continue
		}
		need = 5
		if err := s.sendBuffered(up, size); err != nil {
			return nil, err
		}
	}
}

// sendBuffered sends the first n bytes of what is buffered up.
func (s *session) sendBuffered(up net.Conn, n int) error {
	if n == 0 {
		return nil
	}
	b, err := s.br.Peek(n)
	if err != nil {
		return err
	}
	if !s.meter.use(int64(n)) {
		return errSpent
	}
	if _, err := up.Write(b); err != nil {
		return err
	}
	s.meter.sent.Add(int64(n))
	_, _ = s.br.Discard(n) // they are buffered
	return nil
}

// disguised refuses what isn't a TLS hello at first sight, but might be for a server.
func (s *session) disguised() *refusal {
	_ = s.conn.SetReadDeadline(time.Now().Add(s.p.limits.Head)) // an error shows at the next use
	for need := 1; ; {
		have, err := s.br.Peek(need)
		yes, more := egress.MayHello(have)
		switch {
		case yes, errors.Is(err, os.ErrDeadlineExceeded): // what would tell may still come
			return misread(egress.BadClientHello,
				"%s: TLS must begin with a hello of TLS 1.0 or later, and nothing before it", s.fixed)
		case more <= len(have), err != nil:
			return nil
		}
		need = more
	}
}

func (s *session) unreadable(err error) *refusal {
	r := refused(egress.Denied(err))
	r.text = s.fixed.String() + ": only TLS with a name that can be read passes here"
	return r
}

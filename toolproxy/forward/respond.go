// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"agentrun/internal/wire"
)

// respond sends the response down whose head was parsed, and tells whether the connections' framing is intact
// on the client's side. What the server's side is worth is in u.dead.
//
// How long a body is, is decided once, by RFC 9112, 6.3: none after HEAD, 1xx, 204 and 304 whatever the
// fields say; chunked; Content-Length; else until the server closes. To a client of HTTP/1.1 the last of
// these goes as chunks, so that an end can be told from a break; to one of HTTP/1.0 it ends with the
// connection. A coded reply to a request that carries a secret is refused: the secret can't be searched for
// in it.
func (x *transfer) respond() bool {
	s, u, resp := x.s, x.u, &x.s.resp
	head, err := wire.Peek(u.br)
	if err != nil {
		u.dead = true
		return false
	}
	if x.hidden != nil && resp.Encoded {
		u.dead = true
		r := unavailable(502, upstreamBad, "%s: a coded reply, which can't be searched for the secret that was sent", x.ask.Target)
		s.last(r.reply(x.method == "HEAD", true))
		return false
	}
	bodiless := resp.Bodiless(x.method)
	if !bodiless && x.mostReply > 0 && resp.Length > x.mostReply {
		u.dead = true
		s.no(x.ask.Target.String(), overLimit("bytes of a reply"), false)
		return false
	}
	untilClose := !bodiless && !resp.Chunked && resp.Length < 0
	u.dead = untilClose || resp.Close || resp.Minor == 0 && !resp.KeepAlive
	rechunk := (resp.Chunked || untilClose) && !bodiless && x.minor == 1
	keep := x.keep && (bodiless || resp.Length >= 0 || rechunk)
	b := x.responseHead(s.out[:0], bodiless, rechunk, keep)
	x.hidden.cover(b)
	body, left := x.bounded(resp.Body(u.br)), resp.Length
	_, _ = u.br.Discard(len(head)) // it is buffered; from here on the response's own slices are gone
	s.within(s.p.limits.Idle)
	var ok bool
	switch {
	case bodiless || left == 0:
		ok = x.write(b)
	case left > 0:
		ok = x.copyLength(b, body, left)
	default:
		ok = x.copyBody(b, body, rechunk)
	}
	s.keepBuffer(b)
	u.dead = u.dead || !ok
	return ok && keep
}

// bounded ends a body that doesn't say how long it is where the rule has it end: broken off, as if the server had.
func (x *transfer) bounded(body io.Reader) io.Reader {
	if x.mostReply == 0 || x.s.resp.Length >= 0 {
		return body
	}
	return &atMost{body, x.mostReply}
}

type atMost struct {
	from io.Reader
	left int64
}

func (a *atMost) Read(b []byte) (int, error) {
	n, err := a.from.Read(b)
	if a.left -= int64(n); a.left < 0 {
		return 0, errSpent
	}
	return n, err
}

// responseHead writes the head that goes down. A bodiless reply keeps a Content-Length only where it tells
// the length of what a GET would bring (HEAD, 304); in 1xx and 204 it must not stand (RFC 9110, 8.6). b
// points into a buffer of the session, the fields into that of the server: after this the head may be
// discarded.
func (x *transfer) responseHead(b []byte, bodiless, rechunk, keep bool) []byte {
	resp := &x.s.resp
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(resp.Status), 10)
	b = append(b, ' ')
	b = append(b, resp.Reason...)
	b = append(b, "\r\n"...)
	b = resp.AppendFields(b)
	switch {
	case rechunk:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	case resp.Length >= 0 && resp.Status >= 200 && resp.Status != http.StatusNoContent && (!bodiless || x.method == "HEAD" || resp.Status == http.StatusNotModified):
		b = appendLength(b, resp.Length)
	}
	if !keep {
		b = append(b, "Connection: close\r\n"...)
	} else if x.minor == 0 {
		b = append(b, "Connection: keep-alive\r\n"...)
	}
	return append(b, "\r\n"...)
}

// write sends what was received down.
func (x *transfer) write(b []byte) bool {
	if !x.s.meter.use(int64(len(b))) {
		return false
	}
	n, err := x.s.conn.Write(b)
	x.s.meter.received.Add(int64(n))
	return err == nil
}

// copyLength sends a body of a known length: what is there together with the head, the rest within the kernel
// if it can (splice(2), through net.TCPConn.ReadFrom). That needs TCP on both sides and nothing to mask.
// Bytes are reserved by strides and given back where they didn't come, so that a limit ends a long body
// within a stride and a slow one holds little.
func (x *transfer) copyLength(b []byte, body io.Reader, left int64) bool {
	s, u := x.s, x.u
	from, plainFrom := u.Conn.(*net.TCPConn)
	_, plainTo := s.conn.(*net.TCPConn)
	if x.hidden != nil || !plainFrom || !plainTo || left <= int64(copySize) {
		return x.copyBody(b, body, false)
	}
	n := min(int64(u.br.Buffered()), left)
	have, _ := u.br.Peek(int(n))
	if !x.write(append(b, have...)) {
		return false
	}
	_, _ = u.br.Discard(int(n)) // it is buffered
	for left -= n; left > 0; {
		room := s.meter.share(min(left, stride))
		if room == 0 {
			return false
		}
		x.touch()
		n, err := s.conn.(*net.TCPConn).ReadFrom(&io.LimitedReader{R: from, N: room})
		s.meter.refund(room - n)
		s.meter.received.Add(n)
		left -= n
		if err != nil || n < room {
			return false
		}
	}
	return true
}

func (x *transfer) touch() {
	end := time.Now().Add(x.s.p.limits.Idle)
	_ = x.u.raw.SetReadDeadline(end)   // errors show at the next use
	_ = x.s.conn.SetWriteDeadline(end) // also
}

// copyBody sends a body in pieces as they come, the first together with the head: a packet less, and a client
// that reads once finds both. A piece that is there already isn't waited for; without one the head goes
// alone, since a server may be silent for long after it. The last chunk is written only for a body that was
// whole.
func (x *transfer) copyBody(b []byte, from io.Reader, rechunk bool) bool {
	if x.hidden != nil {
		from = x.hidden.reader(from)
	}
	buf := buffers.Get().(*[copySize + 64]byte)
	defer buffers.Put(buf)
	for first := true; ; first = false {
		if !first || x.u.br.Buffered() == 0 {
			if first { // nothing to send along: the client learns at least that there is an answer
				if !x.write(b) {
					return false
				}
				b = b[:0]
			}
			x.touch()
		}
		n, err := from.Read(buf[frame : frame+copySize])
		last := errors.Is(err, io.EOF)
		if n > 0 || last {
			b = appendPiece(b, buf[:], n, rechunk, last)
			if len(b) > 0 && !x.write(b) {
				return false
			}
			b = b[:0]
		}
		if err != nil {
			return last
		}
	}
}

func appendPiece(b, buf []byte, n int, rechunk, last bool) []byte {
	if n > 0 {
		piece := buf[frame : frame+n]
		if rechunk {
			piece = chunk(buf, n)
		}
		b = append(b, piece...)
	}
	if last && rechunk {
		b = append(b, "0\r\n\r\n"...)
	}
	return b
}

// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	stride   = 1 << 20  // bytes between two looks at limits and clock; what one splice(2) moves at most
	copySize = 32 << 10 // bytes
)

var errSpent = errors.New("the limit of bytes is used up")

var buffers = sync.Pool{New: func() any { return new([copySize + 64]byte) }}

// tunnel moves bytes both ways until both sides have ended, one breaks, or it is cut. before, if any, is run
// before anything goes up, while replies come down; it gets a channel that is closed when those have ended.
// replies is what replaces the connection for reading, if something must be masked or seen in it or was read
// already.
func (s *session) tunnel(up net.Conn, replies io.Reader, before func(down <-chan struct{}) (*refusal, error)) {
	var active atomic.Int64
	active.Store(time.Now().UnixNano())
	_ = s.conn.SetDeadline(time.Time{}) // from here on by direction
	_ = up.SetDeadline(time.Time{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if s.move(s.conn, up, replies, &s.meter.received, &active) != nil {
			abort(up)
			_ = s.conn.Close() // the other direction is blocked in it
		}
	}()
	if s.up(up, before, done, &active) != nil {
		abort(up)
		_ = s.conn.Close() // as above
	}
	<-done
}

func (s *session) up(up net.Conn, before func(<-chan struct{}) (*refusal, error), down <-chan struct{}, active *atomic.Int64) error {
	if before != nil {
		r, err := before(down)
		if r != nil {
			s.tally = tally{} // one decision, one record: this one
			s.deny(r)         // before the other direction is ended, which closes the client's connection
			return errors.New("refused")
		}
		if err != nil {
			return err
		}
	}
	if err := s.sendBuffered(up, s.br.Buffered()); err != nil {
		return err
	}
	return s.move(up, s.conn, nil, &s.meter.sent, active)
}

// move copies from src to dst until src ends, which it passes on: nil. reader, if any, stands before src.
func (s *session) move(dst, src net.Conn, reader io.Reader, count, active *atomic.Int64) error {
	_, fromTCP := src.(*net.TCPConn)
	_, toTCP := dst.(*net.TCPConn)
	heard, listens := reader.(*listening)
	for {
		if listens && heard.done() {
			reader, listens = nil, false
			_ = dst.SetWriteDeadline(time.Time{}) // the last one of copySome; a splice has none
		}
		one := s.copySome
		if fromTCP && toTCP && reader == nil {
			one = s.splice
		}
		// Shorter than the limit: a splice tells what it has moved only when it returns, and until then the
		// other direction would take this one for silent.
		if err := src.SetReadDeadline(time.Now().Add(s.p.limits.Idle / 4)); err != nil {
			return err
		}
		n, err := one(dst, src, reader)
		if n > 0 {
			count.Add(n)
			active.Store(time.Now().UnixNano())
		}
		switch {
		case errors.Is(err, io.EOF):
			closeWrite(dst)
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			// Silence in one direction is no end while the other one speaks.
			if time.Since(time.Unix(0, active.Load())) > s.p.limits.Idle {
				return err
			}
		case err != nil:
			return err
		}
	}
}

// splice moves up to a stride within the kernel (splice(2), through net.TCPConn.ReadFrom).
func (s *session) splice(dst, src net.Conn, _ io.Reader) (int64, error) {
	room := s.meter.share(stride)
	if room == 0 {
		return 0, errSpent
	}
	n, err := dst.(*net.TCPConn).ReadFrom(&io.LimitedReader{R: src, N: room})
	s.meter.refund(room - n)
	if err == nil && n < room {
		err = io.EOF
	}
	return n, err
}

// copySome moves what one read brings, where splice can't: TLS, bytes to be masked or heard, or read already.
func (s *session) copySome(dst, src net.Conn, reader io.Reader) (int64, error) {
	if reader == nil {
		reader = src
	}
	buf := buffers.Get().(*[copySize + 64]byte)
	defer buffers.Put(buf)
	n, err := reader.Read(buf[:copySize])
	if n == 0 {
		return 0, err
	}
	if !s.meter.use(int64(n)) {
		return 0, errSpent
	}
	_ = dst.SetWriteDeadline(time.Now().Add(s.p.limits.Idle)) // an error shows at once
	if _, werr := dst.Write(buf[:n]); werr != nil {
		return 0, werr
	}
	return int64(n), err
}

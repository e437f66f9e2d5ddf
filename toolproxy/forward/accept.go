// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// accept runs serve for each connection, as many at once as the limit says; further ones wait in the kernel's
// queue, which bounds them.
func (p *Proxy) accept(l net.Listener, serve func(*session)) error {
	if !p.begin() {
		return errors.Join(net.ErrClosed, l.Close())
	}
	defer p.serving.Done()
	defer context.AfterFunc(p.ctx, func() { _ = l.Close() })() // closing is what ends Accept
	defer func() { _ = l.Close() }()                           // closed twice at the run's end
	for {
		select {
		case p.slots <- struct{}{}:
		case <-p.ctx.Done():
			return nil
		}
		conn, err := l.Accept()
		if err != nil {
			<-p.slots
			if p.ctx.Err() != nil {
				return nil
			}
			if !transient(err) {
				return err
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-p.ctx.Done():
			}
			continue
		}
		p.serving.Add(1) // never from zero: this function itself is counted
		go p.connection(conn, serve)
	}
}

// transient errors are about one connection, or pass when others end.
func transient(err error) bool {
	errno, _ := errors.AsType[unix.Errno](err)
	return slices.Contains([]unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED,
		unix.EPROTO, unix.EINTR}, errno)
}

// connection serves one connection and settles it. Whatever serve does, three things hold: the total time
// ends it; it can be cut from the moment it is served to the moment its flow is removed; and its record is
// made after the last byte, when the counts are final. The reader goes back to the pool with no connection in
// it.
func (p *Proxy) connection(conn net.Conn, serve func(*session)) {
	defer p.serving.Done()
	defer func() { <-p.slots }()
	br := p.readers.Get().(*bufio.Reader)
	br.Reset(conn)
	s := &session{p: p, conn: conn, br: br, opened: p.now()}
	s.meter.run = &p.bytes
	s.meter.left.Store(p.limits.ConnectionBytes)
	s.flow.client = conn
	// The end of everything about this connection, whatever it does.
	limit := time.AfterFunc(p.limits.Total, s.flow.cut)
	p.flows.add(&s.flow)
	serve(s)
	limit.Stop()
	p.flows.remove(&s.flow)
	_ = conn.Close() // nothing is left to say, and the record is made
	s.settle()
	br.Reset(nil)
	p.readers.Put(br)
}

// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	tcpConnections = 16
	tcpQueries     = 256              // on one connection
	tcpLifetime    = 60 * time.Second // of one connection
	tcpPatience    = 5 * time.Second  // for one message, from its first byte awaited to its last, and for taking the answer
	acceptPause    = 50 * time.Millisecond
)

// Serve answers datagrams until ctx ends (nil) or conn says an error. conn is closed then. Answers go to
// the address that ReadFrom gave: a conn of netns has them come from where the question went.
func (r *Responder) Serve(ctx context.Context, conn net.PacketConn) error {
	defer closeWith(ctx, conn)()
	msg := make([]byte, maxMessage+1) // one more, so that a longer one is seen to be
	out := make([]byte, 0, maxMessage)
	for {
		n, from, err := conn.ReadFrom(msg)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("DNS over UDP: %w", err)
		}
		if !r.pace.Wait(ctx) {
			return nil
		}
		if answer := r.reply(out, msg[:n]); len(answer) > 0 {
			// An answer that can't be sent (to port 0, say) is the asker's loss.
			_, _ = conn.WriteTo(answer, from)
		}
	}
}

// ServeTCP answers on the connections of l until ctx ends (nil) or l says an error; l and all connections
// are closed then. Lack of descriptors is waited out.
func (r *Responder) ServeTCP(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var connections sync.WaitGroup
	defer connections.Wait()
	defer cancel()
	defer closeWith(ctx, l)()
	slots := make(chan struct{}, tcpConnections)
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if c != nil {
				_ = c.Close()
			}
			return nil
		}
		if scarce(err) {
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done(): // ends Accept as well
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("DNS over TCP: %w", err)
		}
		select {
		case slots <- struct{}{}:
		default: // slow connections of the agent's stand in nobody's way but its own
			r.refused.add(nil, 0, ConnectionLimit)
			_ = c.Close()
			continue
		}
		connections.Go(func() {
			defer func() { <-slots }()
			r.serveConn(ctx, c)
		})
	}
}

func scarce(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// serveConn closes c at the first thing it doesn't like: after a length that is a lie there is no next message.
func (r *Responder) serveConn(ctx context.Context, c net.Conn) {
	defer closeWith(ctx, c)()
	end := time.Now().Add(tcpLifetime)
	msg := make([]byte, maxMessage)
	out := make([]byte, 2, maxMessage)
	for range tcpQueries {
		n, err := readMessage(c, msg, end)
		if errors.Is(err, errLength) {
			r.refused.add(nil, 0, Malformed)
		}
		if err != nil || !r.pace.Wait(ctx) {
			return
		}
		answer := r.reply(out, msg[:n])
		if len(answer) == len(out) {
			return
		}
		binary.BigEndian.PutUint16(answer, uint16(len(answer)-len(out))) //nolint:gosec // at most 310
		if c.SetWriteDeadline(time.Now().Add(tcpPatience)) != nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

var errLength = errors.New("length of a DNS message")

// readMessage has one deadline for the whole message, so that single bytes now and then gain nothing.
func readMessage(c net.Conn, msg []byte, end time.Time) (int, error) {
	deadline := time.Now().Add(tcpPatience)
	if end.Before(deadline) {
		deadline = end
	}
	if err := c.SetReadDeadline(deadline); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(c, msg[:2]); err != nil {
		return 0, err
	}
	n := int(binary.BigEndian.Uint16(msg))
	if n < headerSize || n > len(msg) {
		return 0, errLength
	}
	return io.ReadFull(c, msg[:n])
}

// closeWith closes c when ctx ends or the function it returns is called, which also waits for that.
func closeWith(ctx context.Context, c io.Closer) func() {
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.Close()
		close(closed)
	})
	return func() {
		if stop() {
			_ = c.Close()
			return
		}
		<-closed
	}
}

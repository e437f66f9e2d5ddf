// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// pipes is a listener whose connections are in memory, so that synctest's clock sees them.
type pipes struct {
	conns  chan net.Conn
	errs   chan error
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes {
	return &pipes{conns: make(chan net.Conn), errs: make(chan error), closed: make(chan struct{})}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case err := <-p.errs:
		return nil, err
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.closed) }); return nil }
func (*pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// serving runs ServeTCP in a bubble; what f leaves behind, synctest reports.
func serving(t *testing.T, c Config, f func(t *testing.T, r *Responder, p *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r, p, ended := responder(t, c), newPipes(), make(chan error)
		go func() { ended <- r.ServeTCP(ctx, p) }()
		f(t, r, p)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ServeTCP: %v", err)
		}
	})
}

func framed(msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...) //nolint:gosec // short
}

func exchange(t *testing.T, c net.Conn, msg []byte) dnsmessage.Message {
	t.Helper()
	if _, err := c.Write(framed(msg)); err != nil {
		t.Fatal(err)
	}
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, answer); err != nil {
		t.Fatal(err)
	}
	return unpack(t, answer)
}

func TestM8OverTCP(t *testing.T) {
	serving(t, Config{Allow: only("a.test")}, func(t *testing.T, _ *Responder, p *pipes) {
		c := p.dial()
		defer c.Close()
		for range 3 {
			if got := addresses(exchange(t, c, query(t, "a.test.", dnsmessage.TypeA))); got != "198.18.1.0" {
				t.Errorf("got %q, want 198.18.1.0", got)
			}
		}
		if m := exchange(t, c, query(t, "b.test.", dnsmessage.TypeA)); m.RCode != dnsmessage.RCodeNameError {
			t.Errorf("got %v, want %v", m.RCode, dnsmessage.RCodeNameError)
		}
	})
}

// A length that can't be ends the connection; so does what can't be answered.
func TestM8TCPLengthLies(t *testing.T) {
	for name, sent := range map[string][]byte{
		"zero": {0, 0}, "less than a header": {0, 11}, "all there is": {0xff, 0xff}, "one too many": {maxMessage >> 8, maxMessage&0xff + 1},
		"a response": framed([]byte{1, 2, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0}),
	} {
		t.Run(name, func(t *testing.T) {
			serving(t, Config{}, func(t *testing.T, r *Responder, p *pipes) {
				c, begin := p.dial(), time.Now()
				if _, err := c.Write(sent); err != nil {
					t.Fatal(err)
				}
				if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) || time.Since(begin) != 0 {
					t.Errorf("read %d bytes, %v after %v: want the end, at once", n, err, time.Since(begin))
				}
				if n := r.refused.sum(); n != 1 {
					t.Errorf("refused %d times, want once", n)
				}
			})
		})
	}
}

// Slowloris: neither silence nor a byte now and then nor not taking the answer holds a connection.
func TestM8SlowConnections(t *testing.T) {
	trickle := func(c net.Conn) {
		for _, b := range framed(make([]byte, maxMessage)) {
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(tcpPatience / 10)
		}
	}
	for name, slow := range map[string]func(net.Conn){
		"silent":           func(net.Conn) {},
		"length only":      func(c net.Conn) { _, _ = c.Write([]byte{1, 0}) },
		"byte by byte":     trickle,
		"not reading":      func(c net.Conn) { _, _ = c.Write(framed(query(t, "a.test.", dnsmessage.TypeA))) },
		"length too short": func(c net.Conn) { _, _ = c.Write([]byte{0, 12, 1}) },
	} {
		t.Run(name, func(t *testing.T) {
			serving(t, Config{}, func(t *testing.T, _ *Responder, p *pipes) {
				c, begin := p.dial(), time.Now()
				slow(c)
				time.Sleep(2*tcpPatience - time.Since(begin))
				synctest.Wait()
				if _, err := c.Write([]byte{0}); !errors.Is(err, io.ErrClosedPipe) {
					t.Errorf("after %v: got %v, want it closed", time.Since(begin), err)
				}
			})
		})
	}
	t.Run("busy for ever", func(t *testing.T) {
		serving(t, Config{}, func(t *testing.T, _ *Responder, p *pipes) {
			c, begin := p.dial(), time.Now()
			_ = c.SetDeadline(begin.Add(2 * tcpLifetime))
			q := framed(query(t, "a.test.", dnsmessage.TypeA))
			for time.Since(begin) <= tcpLifetime {
				if _, err := c.Write(q); err != nil {
					break
				}
				if _, err := c.Read(make([]byte, 512)); err != nil {
					break
				}
				time.Sleep(tcpPatience - time.Second)
			}
			if age := time.Since(begin); age > tcpLifetime+tcpPatience {
				t.Errorf("open for %v, want at most %v", age, tcpLifetime)
			}
		})
	})
	t.Run("pipelining for ever", func(t *testing.T) {
		serving(t, Config{}, func(t *testing.T, _ *Responder, p *pipes) {
			c, n := p.dial(), 0
			q := framed(query(t, "a.test.", dnsmessage.TypeA))
			for ; n < 2*tcpQueries; n++ {
				if _, err := c.Write(q); err != nil {
					break
				}
				if _, err := c.Read(make([]byte, 512)); err != nil {
					break
				}
			}
			if n != tcpQueries {
				t.Errorf("%d answers on one connection, want %d", n, tcpQueries)
			}
		})
	})
}

// Connections beyond the limit are closed at once and counted; the slots come back.
func TestM8ConnectionLimit(t *testing.T) {
	serving(t, Config{Allow: only("a.test")}, func(t *testing.T, r *Responder, p *pipes) {
		for range tcpConnections {
			defer p.dial().Close()
		}
		more := p.dial()
		if _, err := more.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("one too many: got %v, want %v", err, io.EOF)
		}
		if n := r.refused.sum(); n != 1 {
			t.Errorf("refused %d, want 1", n)
		}
		time.Sleep(tcpPatience + time.Second)
		c := p.dial()
		defer c.Close()
		if got := addresses(exchange(t, c, query(t, "a.test.", dnsmessage.TypeA))); got != "198.18.1.0" {
			t.Errorf("after the slow ones have gone: got %q", got)
		}
	})
}

// When the sandbox ends nothing goes on, whatever the connections are at: serving reports what stays.
func TestM5EndsWithItsContext(t *testing.T) {
	serving(t, Config{}, func(t *testing.T, _ *Responder, p *pipes) {
		p.dial()
		_, _ = p.dial().Write([]byte{0, 20, 1})
		_, _ = p.dial().Write(framed(query(t, "a.test.", dnsmessage.TypeA)))
	})
}

// Being short of descriptors passes; any other error ends ServeTCP, with its connections.
func TestAcceptErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p, ended := responder(t, Config{Allow: only("a.test")}), newPipes(), make(chan error)
		go func() { ended <- r.ServeTCP(t.Context(), p) }()
		p.errs <- &net.OpError{Op: "accept", Err: syscall.EMFILE}
		c := p.dial()
		if got := addresses(exchange(t, c, query(t, "a.test.", dnsmessage.TypeA))); got != "198.18.1.0" {
			t.Errorf("after EMFILE: got %q", got)
		}
		p.errs <- syscall.EINVAL
		if err := <-ended; !errors.Is(err, syscall.EINVAL) {
			t.Errorf("got %v, want %v", err, syscall.EINVAL)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a connection afterwards: got %v, want %v", err, io.EOF)
		}
	})
}

func TestM8OverUDP(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r, ended := responder(t, Config{Allow: only("a.test")}), make(chan error)
	go func() { ended <- r.Serve(ctx, server) }()
	client, err := net.Dial("udp", server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_ = client.SetDeadline(time.Now().Add(10 * time.Second))
	for _, junk := range [][]byte{nil, {1}, make([]byte, 60_000)} {
		if _, err := client.Write(junk); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 512)
	if n, err := client.Read(b); err != nil || unpack(t, b[:n]).RCode != dnsmessage.RCodeFormatError {
		t.Errorf("to 60 kB: % x, %v, want %v", b[:n], err, dnsmessage.RCodeFormatError)
	}
	if _, err := client.Write(query(t, "a.test.", dnsmessage.TypeAAAA)); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Read(b); err != nil || addresses(unpack(t, b[:n])) != "fd61:6772:756e::100" {
		t.Errorf("got % x, %v", b[:n], err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := server.WriteTo(nil, client.LocalAddr()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the socket afterwards: got %v, want %v", err, net.ErrClosed)
	}
	if err := r.Serve(context.Background(), server); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve on a closed socket: got %v, want %v", err, net.ErrClosed)
	}
}

// One client that waits for each answer, over loopback: the round trip rather than the responder.
func BenchmarkUDP(b *testing.B) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r, ended := responder(b, Config{Allow: only("a.test")}), make(chan error)
	go func() { ended <- r.Serve(ctx, server) }()
	client, err := net.Dial("udp", server.LocalAddr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	q, buf := query(b, "a.test.", dnsmessage.TypeA), make([]byte, 512)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Write(q); err != nil {
			b.Fatal(err)
		}
		if _, err := client.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "queries/s")
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}

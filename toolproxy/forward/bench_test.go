// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"

	"agentrun/rings"
)

// BenchmarkRequest is one request over a kept connection, to a server on loopback; direct is the same without the proxy.
func BenchmarkRequest(b *testing.B) {
	w := newWorld(b, rings.Standard, allowed("allowed.example"))
	server := w.web(b, 80, func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("hello")) })
	for name, c := range map[string]struct{ addr, request string }{
		"direct": {server.Listener.Addr().String(), "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n"},
		"proxy":  {w.proxy, "GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				conn, err := net.Dial("tcp", c.addr)
				if err != nil {
					b.Error(err)
					return
				}
				defer conn.Close()
				br := bufio.NewReader(conn)
				for pb.Next() {
					if _, err := io.WriteString(conn, c.request); err != nil {
						b.Error(err)
						return
					}
					resp, err := http.ReadResponse(br, nil)
					if err != nil {
						b.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
				}
			})
		})
	}
}

// BenchmarkTunnel is the throughput of one CONNECT tunnel, one way.
func BenchmarkTunnel(b *testing.B) {
	w := newWorld(b, rings.Standard, allowed("allowed.example:22"))
	l := listen(b)
	w.site(22, l.Addr().String())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				block := make([]byte, 256<<10)
				for {
					if _, err := c.Write(block); err != nil {
						return
					}
				}
			}()
		}
	}()
	for name, dial := range map[string]func() (net.Conn, error){
		"direct": func() (net.Conn, error) { return net.Dial("tcp", l.Addr().String()) },
		"proxy":  func() (net.Conn, error) { return w.connect(b, "allowed.example:22"), nil },
	} {
		b.Run(name, func(b *testing.B) {
			conn, err := dial()
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			block := make([]byte, 256<<10)
			b.SetBytes(int64(len(block)))
			for b.Loop() {
				if _, err := io.ReadFull(conn, block); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkConnect is a tunnel from its beginning to its end.
func BenchmarkConnect(b *testing.B) {
	w := newWorld(b, rings.Standard, allowed("allowed.example:22"))
	w.echo(b, 22)
	for b.Loop() {
		_ = w.connect(b, "allowed.example:22").Close()
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

// origin is the upstream of all proxies alike: HTTP with small answers, and a stream of bytes behind a tunnel.
type origin struct {
	http, bulk net.Listener
	stop       context.CancelFunc
}

const answerBody = 512 // bytes; an API's small reply

func newOrigin(ctx context.Context) (*origin, error) {
	ctx, stop := context.WithCancel(ctx)
	o := &origin{stop: stop}
	var err error
	if o.http, err = new(net.ListenConfig).Listen(ctx, "tcp4", "127.0.0.1:0"); err != nil {
		stop()
		return nil, err
	}
	if o.bulk, err = new(net.ListenConfig).Listen(ctx, "tcp4", "127.0.0.1:0"); err != nil {
		_ = o.http.Close()
		stop()
		return nil, err
	}
	reply := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: " + strconv.Itoa(answerBody) + "\r\n\r\n" + string(bytes.Repeat([]byte("x"), answerBody)))
	go each(o.http, func(c net.Conn) { answerAll(c, reply) })
	block := make([]byte, 256<<10)
	go each(o.bulk, func(c net.Conn) {
		// Nothing is sent before something came, as in TLS.
		if _, err := c.Read(make([]byte, 64)); err != nil {
			return
		}
		for {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	})
	return o, nil
}

func (o *origin) close() {
	o.stop()
	_ = o.http.Close()
	_ = o.bulk.Close()
}

func each(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }()
			serve(c)
		}()
	}
}

// answerAll answers each request, whatever it asks for. By hand, so that the upstream's own cost stays small beside what
// is measured.
func answerAll(c net.Conn, reply []byte) {
	br := bufio.NewReader(c)
	for {
		h, err := readHead(br)
		if err != nil {
			return
		}
		if _, err := c.Write(reply); err != nil || h.close {
			return
		}
	}
}

// answerHead is what the load generator has to know of a message.
type answerHead struct {
	status string
	length int64
	close  bool
}

func readHead(br *bufio.Reader) (h answerHead, err error) {
	for first := true; ; first = false {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return h, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return h, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case first:
			h.status = string(line)
			h.close = bytes.HasPrefix(line, []byte("HTTP/1.0"))
		case bytes.EqualFold(name, []byte("Content-Length")):
			if h.length, err = strconv.ParseInt(string(value), 10, 64); err != nil {
				return h, err
			}
		case bytes.EqualFold(name, []byte("Connection")), bytes.EqualFold(name, []byte("Proxy-Connection")):
			h.close = h.close || bytes.EqualFold(value, []byte("close"))
		}
	}
}

// tried is what a client saw within its time.
type tried struct {
	latency []float64 // µs, of each request
	opened  int       // connections
}

// ask sends requests one after the other, on one connection as long as the other side keeps it.
func ask(ctx context.Context, at string, request []byte, until time.Time) (t tried, err error) {
	var c net.Conn
	var br *bufio.Reader
	defer func() {
		if c != nil {
			_ = c.Close()
		}
	}()
	for time.Now().Before(until) {
		began := time.Now() // opening counts: who closes after each answer makes its clients pay for it
		for {
			reused := c != nil
			if c == nil {
				if c, err = new(net.Dialer).DialContext(ctx, "tcp4", at); err != nil {
					return t, err
				}
				t.opened++
				br = bufio.NewReader(c)
				_ = c.SetDeadline(until.Add(patience))
			}
			closing, err := once(c, br, request)
			if closing || err != nil {
				_ = c.Close()
				c = nil
			}
			if err == nil {
				break
			}
			if !reused { // else it was closed without a word, and every client tries again
				return t, err
			}
		}
		t.latency = append(t.latency, float64(time.Since(began).Nanoseconds())/1e3)
	}
	return t, nil
}

// once is one request and its answer.
func once(c net.Conn, br *bufio.Reader, request []byte) (closing bool, err error) {
	if _, err := c.Write(request); err != nil {
		return true, err
	}
	h, err := readHead(br)
	if err != nil {
		return true, fmt.Errorf("read an answer: %w", err)
	}
	if len(h.status) < 12 || h.status[9:12] != "200" {
		return true, fmt.Errorf("answer %q", h.status)
	}
	_, err = io.CopyN(io.Discard, br, h.length)
	return h.close, err
}

// crowd is ask by several clients at once.
func crowd(ctx context.Context, clients int, at string, request []byte, d time.Duration) (tried, error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var all tried
	var errs []error
	until := time.Now().Add(d)
	for range clients {
		wg.Go(func() {
			t, err := ask(ctx, at, request, until)
			mu.Lock()
			defer mu.Unlock()
			all.latency, all.opened = append(all.latency, t.latency...), all.opened+t.opened
			errs = append(errs, err)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return all, err
	}
	if len(all.latency) == 0 {
		return all, errors.New("no request was answered")
	}
	slices.Sort(all.latency)
	return all, nil
}

// pull reads from behind a tunnel for a time and returns MB/s. With an empty proxy it connects directly.
func pull(ctx context.Context, proxy, target string, d time.Duration) (float64, error) {
	at := proxy
	if at == "" {
		at = target
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp4", at)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(d + patience))
	if proxy != "" {
		if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target); err != nil {
			return 0, err
		}
		// A byte at a time, so that nothing of the tunnel is read with it.
		h, err := readHead(bufio.NewReaderSize(oneByte{c}, 4096))
		if err != nil {
			return 0, err
		}
		if len(h.status) < 12 || h.status[9:12] != "200" {
			return 0, fmt.Errorf("CONNECT: %q", h.status)
		}
	}
	if _, err := io.WriteString(c, "go\n"); err != nil {
		return 0, err
	}
	b := make([]byte, 256<<10)
	var n int64
	began := time.Now()
	for time.Since(began) < d {
		m, err := c.Read(b)
		if err != nil {
			return 0, err
		}
		n += int64(m)
	}
	return float64(n) / 1e6 / time.Since(began).Seconds(), nil
}

type oneByte struct{ io.Reader }

func (r oneByte) Read(b []byte) (int, error) { return r.Reader.Read(b[:1]) }

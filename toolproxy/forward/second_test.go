// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrun/internal/pace"
	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// canned is a client that has said all it will say. What comes back is kept.
type canned struct {
	net.Conn // nil: nothing else is used
	in       *bytes.Reader
	pieces   int // bytes a read gives at most
	mu       sync.Mutex
	out      bytes.Buffer
	asked    chan struct{} // closed by the first write or the end; nil: it speaks first
	once     sync.Once
}

func (c *canned) Read(b []byte) (int, error) {
	if c.asked != nil {
		<-c.asked
	}
	return c.in.Read(b[:min(len(b), c.pieces)])
}
func (c *canned) Write(b []byte) (int, error) {
	defer c.wake()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Write(b)
}
func (c *canned) wake() {
	if c.asked != nil {
		c.once.Do(func() { close(c.asked) })
	}
}
func (c *canned) Close() error                     { c.wake(); return nil }
func (*canned) SetDeadline(_ time.Time) error      { return nil }
func (*canned) SetReadDeadline(_ time.Time) error  { return nil }
func (*canned) SetWriteDeadline(_ time.Time) error { return nil }
func (*canned) LocalAddr() net.Addr                { return nil }
func (*canned) RemoteAddr() net.Addr               { return (*second)(nil).RemoteAddr() }

// second is a server that reads requests with net/http and answers each: the second parser.
type second struct {
	net.Conn
	mu     sync.Mutex
	news   sync.Cond
	in     []byte // all that came
	used   int    // of it, by requests that were answered
	out    bytes.Buffer
	closed bool
	got    []request
	err    error // what net/http says of in[used:]
}

// read is one request as net/http reads it.
type request struct {
	*http.Request
	body []byte
}

func newSecond() *second {
	s := &second{}
	s.news.L = &s.mu
	return s
}

// readRequest reads one request and tells how many bytes it took.
func readRequest(b []byte) (r request, size int, err error) {
	from := bytes.NewReader(b)
	br := bufio.NewReaderSize(from, 64<<10)
	if r.Request, err = http.ReadRequest(br); err != nil {
		return request{}, 0, err
	}
	r.body, err = io.ReadAll(r.Body)
	return r, len(b) - from.Len() - br.Buffered(), err
}

func (s *second) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.news.Broadcast()
	if s.closed {
		return 0, net.ErrClosed
	}
	s.in = append(s.in, b...)
	for s.used < len(s.in) {
		r, size, err := readRequest(s.in[s.used:])
		if err != nil {
			s.err = err
			break
		}
		s.err = nil
		s.used += size
		s.got = append(s.got, r)
		s.out.WriteString("HTTP/1.1 200 OK\r\nX-Second: yes\r\nContent-Length: 2\r\n\r\n")
		if r.Method != http.MethodHead {
			s.out.WriteString("ok")
		}
	}
	return len(b), nil
}

func (s *second) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.out.Len() == 0 && !s.closed {
		s.news.Wait()
	}
	if s.out.Len() == 0 {
		return 0, net.ErrClosed
	}
	return s.out.Read(b)
}

func (s *second) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.news.Broadcast()
	return nil
}
func (*second) SetDeadline(_ time.Time) error      { return nil }
func (*second) SetReadDeadline(_ time.Time) error  { return nil }
func (*second) SetWriteDeadline(_ time.Time) error { return nil }
func (*second) RemoteAddr() net.Addr               { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// between is a proxy between canned clients and second parsers.
type between struct {
	*Proxy
	once   func(net.Conn)
	mu     sync.Mutex
	ups    []*second
	passed int // requests, of all exchanges
}

func newBetween(t testing.TB) *between { return betweenOn(t, false) }

func betweenOn(t testing.TB, other bool) *between {
	t.Helper()
	b := &between{}
	sup := newSupervisor(rings.Standard)
	p, err := New(Options{Supervisor: quietly{sup}, Own: func() ([]netip.Addr, error) { return nil, nil },
		Resolver: &names{addrs: map[string][]netip.Addr{"allowed.example": {loopback}, "narrow.example": {loopback}}},
		Config:   Config{Allow: []string{"allowed.example", "GET,POST narrow.example/pub"}, Private: []string{"127.0.0.1:80"}, Limits: Limits{TotalConnections: 1 << 50, RunBytes: 1 << 60}},
		Dial: func(_ context.Context, to netip.AddrPort) (net.Conn, error) {
			if to.Port() != 80 {
				return nil, errors.New("nothing is there")
			}
			up := newSecond()
			b.mu.Lock()
			defer b.mu.Unlock()
			b.ups = append(b.ups, up)
			return up, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	p.pace = pace.New(1e9, 1) // thousands of refusals are the point here
	b.Proxy = p
	_, b.once = entrance(p, other)
	t.Cleanup(func() { _ = p.Close() })
	return b
}

// exchange gives the proxy what a client says, and returns what came back and went up.
func (b *between) exchange(said []byte, pieces int) (back []byte, up []*second, granted uint64) {
	b.ups = nil
	before := b.granted.Load()
	c := &canned{in: bytes.NewReader(said), pieces: max(1, pieces)}
	b.once(c)
	b.mu.Lock()
	defer b.mu.Unlock()
	return c.out.Bytes(), b.ups, b.granted.Load() - before
}

// checkSecond holds what went up and came back against what net/http reads in what was said.
func (b *between) checkSecond(said []byte, tunnel string, pieces int) error {
	all := said
	if tunnel != "" {
		all = append([]byte("CONNECT "+tunnel+":80 HTTP/1.1\r\nHost: "+tunnel+":80\r\n\r\n"), said...)
	}
	back, ups, granted := b.exchange(all, pieces)
	var up []request
	for _, u := range ups {
		u.mu.Lock()
		rest := u.in[u.used:]
		if len(rest) > 0 && !errors.Is(u.err, io.ErrUnexpectedEOF) && !errors.Is(u.err, io.EOF) {
			return fmt.Errorf("net/http can't read what went up: %w\n%q", u.err, rest)
		}
		// Half a request may have gone up where the client's was cut. It must not be read as a whole one, and isn't.
		up = append(up, u.got...)
		b.passed += len(u.got)
		u.mu.Unlock()
	}
	if uint64(len(up)) != granted {
		return fmt.Errorf("%d requests are on record, %d went up", granted, len(up))
	}
	for _, r := range up {
		if err := allowedUp(r); err != nil {
			return err
		}
	}
	// Answers come in the order of the requests that net/http reads, one each; those from a server are for what went up.
	br := bufio.NewReader(bytes.NewReader(back))
	if tunnel != "" {
		if _, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"}); err != nil {
			return fmt.Errorf("the answer to CONNECT: %w", err)
		}
	}
	at := 0
	for n := 0; ; n++ {
		theirs, size, err := readRequest(said[at:])
		if err != nil {
			rest, _ := io.ReadAll(br)
			if head, _, _ := bytes.Cut(rest, []byte("\r\n\r\n")); bytes.Contains(head, []byte("X-Second")) {
				return fmt.Errorf("request %d went up, and net/http refuses it: %w", n, err)
			}
			return nil // refused by both; net/http has stopped, the proxy may read on
		}
		resp, err := final(br, theirs.Method)
		switch {
		case errors.Is(err, io.EOF) && len(up) > 0:
			return fmt.Errorf("%d requests went up for which there is no answer", len(up))
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("net/http can't read what came back: %w\n%q", err, back)
		case resp.Header.Get("X-Second") == "":
			at += size
			continue
		}
		if len(up) == 0 {
			return fmt.Errorf("request %d has an answer and didn't go up", n)
		}
		if err := same(theirs, up[0], tunnel); err != nil {
			return fmt.Errorf("request %d: %w", n, err)
		}
		up = up[1:]
		at += size
	}
}

func final(br *bufio.Reader, method string) (*http.Response, error) {
	for {
		if _, err := br.Peek(1); err != nil {
			return nil, err
		}
		resp, err := http.ReadResponse(br, &http.Request{Method: method})
		if err != nil {
			return nil, fmt.Errorf("head: %w", err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return nil, fmt.Errorf("body: %w", err)
		}
		if resp.StatusCode >= 200 {
			return resp, nil
		}
	}
}

// allowedUp is the policy, said in net/http's words.
func allowedUp(r request) error {
	clean := path.Clean(r.URL.Path)
	switch {
	case r.Host == "allowed.example":
		return nil
	case r.Host != "narrow.example":
		return fmt.Errorf("a request for %q went up", r.Host)
	case r.Method != "GET" && r.Method != "POST", clean != "/pub" && !strings.HasPrefix(clean, "/pub/"):
		return fmt.Errorf("%s %s went up to narrow.example", r.Method, r.RequestURI)
	}
	return nil
}

var hop = map[string]bool{"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true, "Upgrade": true, "Expect": true,
	"Proxy-Authorization": true, "Proxy-Authenticate": true, "Proxy-Authentication-Info": true, "Content-Length": true, "Transfer-Encoding": true, "Host": true}

func same(theirs, ours request, tunnel string) error {
	host := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(theirs.Host), ":80"), ".")
	if host == "" {
		host = tunnel
	}
	switch {
	case theirs.Method != ours.Method:
		return fmt.Errorf("%s went up as %s", theirs.Method, ours.Method)
	case host != ours.Host:
		return fmt.Errorf("%s went up to %s", host, ours.Host)
	case theirs.URL.Path != ours.URL.Path && (theirs.URL.Path != "" || ours.URL.Path != "/") && theirs.RequestURI != "*":
		return fmt.Errorf("path %q went up as %q", theirs.URL.Path, ours.URL.Path)
	case theirs.URL.RawQuery != ours.URL.RawQuery:
		return fmt.Errorf("query %q went up as %q", theirs.URL.RawQuery, ours.URL.RawQuery)
	case !bytes.Equal(theirs.body, ours.body):
		return fmt.Errorf("body %q went up as %q", theirs.body, ours.body)
	case len(ours.TransferEncoding) > 1 || len(ours.Trailer) > 0:
		return fmt.Errorf("framing %v, %v", ours.TransferEncoding, ours.Trailer)
	}
	dropped := map[string]bool{}
	for _, line := range append(append([]string{}, theirs.Header["Connection"]...), theirs.Header["Proxy-Connection"]...) {
		for name := range strings.SplitSeq(line, ",") {
			dropped[http.CanonicalHeaderKey(strings.Trim(name, " \t"))] = true
		}
	}
	for name, values := range ours.Header {
		if name == "Content-Length" { // the proxy's own, and checked with the body
			continue
		}
		if hop[name] || dropped[name] {
			return fmt.Errorf("%s: %q went up", name, values)
		}
		if fmt.Sprint(values) != fmt.Sprint(theirs.Header[name]) {
			return fmt.Errorf("%s: %q went up as %q", name, theirs.Header[name], values)
		}
	}
	for name, values := range theirs.Header {
		if !hop[name] && !dropped[name] && len(ours.Header[name]) != len(values) {
			return fmt.Errorf("%s: %q went up as %q", name, values, ours.Header[name])
		}
	}
	return nil
}

// quietly keeps no records.
type quietly struct{ *supervisor }

func (q quietly) Record(context.Context, link.Record) error { return nil }

// smuggling is what is known to make two readers of one connection disagree, and what is fine beside it. HOST stands for the
// place, T for how it is written in a target.
var smuggling = []string{
	"GET T/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"GET T/a?b=c HTTP/1.1\r\nHost: HOST\r\nX-A: 1\r\nx-a: 2\r\n\r\nHEAD T/ HTTP/1.1\r\nHost: HOST\r\n\r\nGET T/c HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\n\r\nhelloGET T/2 HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET T/2 HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n5;a=b\r\nhello\r\n0\r\nX-T: v\r\n\r\nGET T/2 HTTP/1.1\r\nHost: HOST\r\n\r\n",
	// Content-Length and Transfer-Encoding against each other, twice, in lists, with signs and in other bases.
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET T/2 HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\nGPOST / HTTP/1.1\r\n\r\n0\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\nGET T/2 HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5, 5\r\n\r\nhello",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: +5\r\n\r\nhello", "POST T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0x5\r\n\r\nhello",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\nhello", "POST T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5 \r\n\r\nhello",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length : 5\r\n\r\nhello", "POST T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: \r\n 5\r\n\r\nhello",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 18446744073709551621\r\n\r\nhello", "GET T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 44\r\n\r\nGET T/2 HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n", "POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", "POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello", "POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", "POST T/ HTTP/1.1\r\nHost: HOST\r\nX: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"POST T/ HTTP/1.0\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer_Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nConnection: Content-Length\r\nContent-Length: 5\r\n\r\nhello", "POST T/ HTTP/1.1\r\nHost: HOST\r\nConnection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	// Chunks.
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n", "POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n5;a\nb\r\nhello\r\n0\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n05\r\nhello\r\n00\r\n\r\n", "POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n5 ;a=\"b;c\"\r\nhello\r\n0\r\n\r\n", "POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n1_0\r\nhello\r\n0\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nContent-Length: 9\r\nHost: evil\r\n\r\nGET T/2 HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n X: folded\r\n\r\n", "POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nGET T/2 HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n", "POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
	// Lines.
	"GET T/ HTTP/1.1\nHost: HOST\n\n", "GET T/ HTTP/1.1\r\nHost: HOST\r\nX: a\rb\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST\r\nX: a\r\n\tb\r\n\r\n", "\r\nGET T/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"GET T/ HTTP/1.1\r\n Host: evil\r\nHost: HOST\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST\r\nX\x00: a\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST\r\nX: a\x00b\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST\r\nno colon\r\n\r\n",
	"GET  T/ HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/ HTTP/1.1 \r\nHost: HOST\r\n\r\n", "GET\tT/\tHTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/\r\n\r\n", "GET T/ HTTP/0.9\r\n\r\n", "GET T/ HTTP/1.2\r\nHost: HOST\r\n\r\n",
	"GET T/ http/1.1\r\nHost: HOST\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST\r\n: empty\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST\r\nX: \xff\xfe\r\n\r\n", "GET T/ HTTP/1.10\r\nHost: HOST\r\n\r\n",
	// Hosts.
	"GET T/ HTTP/1.1\r\nHost: HOST\r\nHost: evil.example\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST:80\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST.\r\n\r\n",
	"GET T/ HTTP/1.1\r\nHost: HOST:81\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST, evil.example\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST@evil.example\r\n\r\n", "GET T/ HTTP/1.1\r\nHost:\r\n\r\n", "GET T/ HTTP/1.1\r\n\r\n",
	"GET T/ HTTP/1.0\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST#@evil.example\r\n\r\n", "GET http://user@HOST/ HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET http://HOST@evil.example/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"GET http://HOST\\@evil.example/ HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET http://HOST:80:80/ HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET http://HOST#.evil.example/ HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET http://HOST?.evil.example/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"GET http://[fe80::1%25lo]/ HTTP/1.1\r\nHost: [fe80::1%25lo]\r\n\r\n", "GET http://[::ffff:127.0.0.1]/ HTTP/1.1\r\nHost: [::ffff:127.0.0.1]\r\n\r\n", "GET https://HOST/ HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET //HOST/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"GET HTTP://HOST/ HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET http:/HOST/ HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET http:///HOST/ HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET http://HOST./ HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET http://HOST../ HTTP/1.1\r\nHost: HOST..\r\n\r\n",
	"GET http://HOST%2eevil.example/ HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET http://HOST%00.evil.example/ HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET * HTTP/1.1\r\nHost: HOST\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: HOST\r\n\r\n",
	// Paths.
	"GET T/pub/../adm HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/pub/%2e%2e/adm HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/pub/..%2fadm HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/pub%2f..%2fadm HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"GET T/pub/..;/adm HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/pub/..\\adm HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/pub/%252e%252e/adm HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/pub#/../adm HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"GET T/pub/%zz HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T//pub HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/pub//..//adm HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/p%75b/x%2Fy HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/pub?/../adm HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"GET T/pub/a%0d%0aX:%20y HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/PUB HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/pubx HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/pub;x=1/a HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/pub/caf%C3%A9 HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T?x HTTP/1.1\r\nHost: HOST\r\n\r\n",
	// Methods.
	"get T/pub HTTP/1.1\r\nHost: HOST\r\n\r\n", "DELETE T/pub HTTP/1.1\r\nHost: HOST\r\n\r\n", "GETT T/pub HTTP/1.1\r\nHost: HOST\r\n\r\n", "TRACE T/pub HTTP/1.1\r\nHost: HOST\r\nMax-Forwards: 0\r\n\r\n", "CONNECT HOST:443 HTTP/1.1\r\nHost: HOST:443\r\n\r\n",
	"CONNECT HOST:80 HTTP/1.1\r\nHost: HOST:80\r\n\r\nCONNECT evil.example:80 HTTP/1.1\r\nHost: evil.example:80\r\n\r\n", "HEAD T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\n\r\nhello",
	// Fields of the hop, expectations, versions.
	"GET T/ HTTP/1.1\r\nHost: HOST\r\nConnection: close, X-Secret\r\nX-Secret: 1\r\nX-Open: 2\r\n\r\nGET T/2 HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST\r\nConnection: Host\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST\r\nConnection: x-a , ,X-B\r\nX-A: 1\r\nx-b: 2\r\n\r\n",
	"GET T/ HTTP/1.1\r\nHost: HOST\r\nProxy-Authorization: Basic eDp5\r\nProxy-Authenticate: x\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\nKeep-Alive: 5\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST\r\nConnection: \xe2\x84\xaaeep-Alive\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello", "POST T/ HTTP/1.1\r\nHost: HOST\r\nExpect: 200-ok\r\nContent-Length: 5\r\n\r\nhello", "POST T/ HTTP/1.0\r\nHost: HOST\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nExpect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello", "POST T/ HTTP/1.1\r\nHost: HOST\r\nExpect: 100-continue\r\n\r\nGET T/2 HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"POST T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 9\r\n\r\nhello", "POST T/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", "GET T/ HTTP/1.0\r\nHost: HOST\r\nConnection: keep-alive\r\n\r\nGET T/2 HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"PUT T/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 3\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nabcGET T/2 HTTP/1.1\r\nHost: HOST\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET T/ HTTP/1.1\r\nHost: HOST\r\nHTTP2-Settings: AAMAAABk\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
}

// spell puts a place into one of the texts above.
func spell(text, host string, tunnel bool) []byte {
	target := "http://" + host
	if tunnel {
		target = ""
	}
	return []byte(strings.NewReplacer("HOST", host, " T", " "+target, "\tT", "\t"+target).Replace(text))
}

var places = []string{"allowed.example", "narrow.example", "evil.example"}

// What goes up is what net/http reads in what came, and what was decided about: requests, their targets, fields and bodies,
// nothing between and nothing after.
func TestM8TwoParsersAgree(t *testing.T) {
	b := newBetween(t)
	for _, text := range smuggling {
		for _, host := range places {
			for _, tunnel := range []string{"", "allowed.example", "narrow.example"} {
				for _, pieces := range []int{1 << 16, 1} {
					said := spell(text, host, tunnel != "")
					if err := b.checkSecond(said, tunnel, pieces); err != nil {
						t.Errorf("%q, tunnel %q, in pieces of %d: %v", said, tunnel, pieces, err)
					}
				}
			}
		}
	}
	if b.passed < 200 {
		t.Errorf("%d requests went up: the proxy refuses what is fine, and nothing was compared", b.passed)
	}
}

func FuzzTwoParsers(f *testing.F) {
	for i, text := range smuggling {
		f.Add(spell(text, places[i%2], i%3 == 0), i%3, i%11)
	}
	b := newBetween(f)
	f.Fuzz(func(t *testing.T, said []byte, tunnel, pieces int) {
		through := []string{"", "allowed.example", "narrow.example"}[uint(tunnel)%3]
		if err := b.checkSecond(said, through, 1+int(uint(pieces)%9000)); err != nil {
			t.Fatalf("%q, tunnel %q: %v", said, through, err)
		}
	})
}

// replies are what servers say to make a client, or the proxy's next request, read something else.
var replies = []string{
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nuntil the end", "HTTP/1.0 200 OK\r\n\r\nold",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk", "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nSet-Cookie: a=b\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\nok\n0\n\n",
	"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfree",
	strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 100) + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 100 Continue\r\nContent-Length: 40\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
	"HTTP/1.1 302 Found\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\nContent-Length: 0\n\n", "HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nX-Agentrun-Denied: egress_denied\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nConnection: close, X-Secret\r\nX-Secret: 1\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 407 Proxy\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1  200 OK\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n", "HTTP/1.1 99 x\r\n\r\n", "HTTP/2 200\r\n\r\n", "ICY 200 OK\r\n\r\n", "<html>", "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", "\r\nHTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 600 x\r\n\r\n", "HTTP/1.1 200 a\x00b\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", "HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok",
}

// checkReply gives a client what a server says, and holds what the client gets against what net/http reads in it.
func checkReply(once func(net.Conn), up **canned, method string, old bool, said []byte, pieces int) error {
	version := map[bool]string{true: "1.0", false: "1.1"}[old]
	*up = &canned{in: bytes.NewReader(said), pieces: max(1, pieces), asked: make(chan struct{})}
	c := &canned{in: bytes.NewReader([]byte(method + " http://allowed.example/ HTTP/" + version + "\r\nHost: allowed.example\r\n\r\n")), pieces: 1 << 16}
	once(c)
	if c.out.Len() == 0 {
		return nil // broken off before its first byte
	}
	br := bufio.NewReader(bytes.NewReader(c.out.Bytes()))
	got, err := http.ReadResponse(br, &http.Request{Method: method})
	if err != nil {
		return fmt.Errorf("net/http can't read what came back: %w\n%q", err, c.out.Bytes())
	}
	body, cut := io.ReadAll(got.Body)
	if rest, _ := io.ReadAll(br); cut == nil && len(rest) > 0 {
		return fmt.Errorf("%q after the response", rest)
	}
	if got.StatusCode < 200 {
		return fmt.Errorf("got status %d", got.StatusCode)
	}
	if got.StatusCode == 502 && got.Header.Get("X-Agentrun-Reason") == string(upstreamBad) && cut == nil && got.Close {
		return nil // the proxy's own
	}
	sr := bufio.NewReader(bytes.NewReader(said))
	want, err := http.ReadResponse(sr, &http.Request{Method: method})
	for range maxInterim {
		if err == nil && want.StatusCode < 200 && want.StatusCode != 101 {
			want, err = http.ReadResponse(sr, &http.Request{Method: method})
		}
	}
	if err != nil {
		return fmt.Errorf("net/http can't read what the server said, and it was passed on: %w", err)
	}
	wanted, broken := io.ReadAll(want.Body)
	switch {
	case got.StatusCode != want.StatusCode:
		return fmt.Errorf("status %d came as %d", want.StatusCode, got.StatusCode)
	case !bytes.Equal(body, wanted) && cut == nil && broken == nil, cut == nil && broken != nil && !old:
		return fmt.Errorf("body %q (%w) came as %q", wanted, broken, body)
	case len(got.Trailer) > 0 || got.Header.Get("Proxy-Authenticate") != "":
		return fmt.Errorf("trailer %v, header %v", got.Trailer, got.Header)
	}
	return nil
}

// oneSaying is a proxy whose upstream is whatever the pointer points to.
func oneSaying(t testing.TB, other bool) (once func(net.Conn), up **canned) {
	t.Helper()
	up = new(*canned)
	p, err := New(Options{Supervisor: quietly{newSupervisor(rings.Standard)}, Own: func() ([]netip.Addr, error) { return nil, nil },
		Resolver: &names{addrs: map[string][]netip.Addr{"allowed.example": {loopback}}},
		Config:   Config{Allow: []string{"allowed.example"}, Private: []string{"127.0.0.1:80"}, Limits: Limits{TotalConnections: 1 << 50, RunBytes: 1 << 60}},
		Dial: func(context.Context, netip.AddrPort) (net.Conn, error) {
			one := *up
			if one == nil {
				return nil, errors.New("nothing is there any more")
			}
			*up = nil
			return one, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	p.pace = pace.New(1e9, 1) // thousands of refusals are the point here
	t.Cleanup(func() { _ = p.Close() })
	_, once = entrance(p, other)
	return once, up
}

// What a client gets of a server's reply is one response, and the one that net/http reads.
func TestM8TwoParsersAgreeAboutReplies(t *testing.T) {
	once, up := oneSaying(t, false)
	for _, said := range replies {
		for _, method := range []string{"GET", "HEAD"} {
			for _, pieces := range []int{1 << 16, 1, 7} {
				for _, old := range []bool{false, true} {
					if err := checkReply(once, up, method, old, []byte(said), pieces); err != nil {
						t.Errorf("%s, HTTP/1.0 %v, %q in pieces of %d: %v", method, old, said, pieces, err)
					}
				}
			}
		}
	}
}

func FuzzReplies(f *testing.F) {
	for i, said := range replies {
		f.Add([]byte(said), i%3, i%11)
	}
	once, up := oneSaying(f, false)
	f.Fuzz(func(t *testing.T, said []byte, how, pieces int) {
		method := []string{"GET", "HEAD"}[uint(how)%2]
		if err := checkReply(once, up, method, uint(how)%4 > 1, said, 1+int(uint(pieces)%9000)); err != nil {
			t.Fatalf("%s, HTTP/1.0 %v, %q: %v", method, uint(how)%4 > 1, said, err)
		}
	})
}

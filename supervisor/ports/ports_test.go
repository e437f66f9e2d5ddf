// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrun/internal/wire"
)

// site is a Door to a server of the test's.
type site struct {
	*Door
	t     *testing.T
	mu    sync.Mutex
	allow Code
	fails error
	told  []Passage
}

func newSite(t *testing.T, o Options, serve func(c net.Conn)) *site {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { serve(c); c.Close() }()
		}
	}()
	s := &site{t: t, allow: OK}
	if !o.At.IsValid() {
		o.At = netip.MustParseAddrPort("127.0.0.1:0")
	}
	o.Dial = func(ctx context.Context) (*net.TCPConn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		if err != nil {
			return nil, err
		}
		return c.(*net.TCPConn), nil //nolint:forcetypeassert // TCP
	}
	o.Allow = func(context.Context) Code {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.allow == "" {
			panic("a mistake of ours")
		}
		return s.allow
	}
	o.Record = func(p Passage) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = append(s.told, p)
		return s.fails
	}
	if o.Slots == nil {
		o.Slots = make(chan struct{}, 8)
	}
	if s.Door, err = Listen(o); err != nil {
		t.Fatal(err)
	}
	go s.Serve()
	t.Cleanup(s.Close)
	return s
}

// say sends text and gives all that comes back.
func (s *site) say(text string) string {
	s.t.Helper()
	c, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", s.Addr().Port()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, strings.NewReplacer("HOST", s.Addr().String(), "TOKEN", s.Token()).Replace(text)); err != nil {
		s.t.Fatal(err)
	}
	b, _ := io.ReadAll(c)
	return string(b)
}

// echo answers with what it was sent, decoded.
func echo(c net.Conn) {
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	body, _ := io.ReadAll(r.Body)
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
	for _, part := range []string{r.Method, " ", r.RequestURI, " ", string(body), "."} {
		if part != "" {
			_, _ = io.WriteString(c, "1\r\n"+part[:1]+"\r\n")
			if len(part) > 1 {
				_, _ = io.WriteString(c, hexOf(len(part)-1)+"\r\n"+part[1:]+"\r\n")
			}
		}
	}
	_, _ = io.WriteString(c, "0\r\nTrailer: x\r\n\r\n")
}

func hexOf(n int) string {
	const digits = "0123456789abcdef"
	if n < 16 {
		return digits[n : n+1]
	}
	return hexOf(n/16) + digits[n%16:n%16+1]
}

// A mistake that a connection finds ends that, is on record, and harms no other.
func TestM23MistakesEndOneConnection(t *testing.T) {
	s := newSite(t, Options{}, echo)
	const get = "GET / HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer TOKEN\r\n\r\n"
	set := func(c Code) { s.mu.Lock(); defer s.mu.Unlock(); s.allow = c }
	set("")
	if got := s.say(get); got != "" {
		t.Errorf("answered %q", got)
	}
	set(OK)
	if got := s.say(get); !strings.HasPrefix(got, "HTTP/1.1 200") {
		t.Errorf("the next one: %q", got)
	}
	s.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.told) != 2 || !slices.ContainsFunc(s.told, func(p Passage) bool { return p.Code == BadAnswer }) {
		t.Errorf("on record: %+v", s.told)
	}
}

// Bodies come whole in each framing, and nothing behind them does.
func TestM23BodiesAreFramedAnew(t *testing.T) {
	s := newSite(t, Options{}, echo)
	const head = " /a?b HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer TOKEN\r\n"
	for text, want := range map[string]string{
		"GET" + head + "\r\nGET /more HTTP/1.1\r\n\r\n":                                            "GET /a?b .",
		"PUT" + head + "Content-Length: 5\r\n\r\nhelloMORE":                                        "PUT /a?b hello.",
		"POST" + head + "Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x\r\nlo\r\n0\r\n\r\nMORE": "POST /a?b hello.",
		"POST" + head + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi":                      "POST /a?b hi.",
	} {
		r, err := http.ReadResponse(bufio.NewReader(strings.NewReader(s.say(text))), nil)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != want || !r.Close {
			t.Errorf("%q: got %q, %v, close %v, want %q", text, body, err, r.Close, want)
		}
	}
}

// A page of a response that breaks off must not look whole.
func TestM23BrokenAnswers(t *testing.T) {
	s := newSite(t, Options{}, func(c net.Conn) {
		_, _ = bufio.NewReader(c).ReadString('\n')
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
	})
	text := s.say("GET / HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer TOKEN\r\n\r\n")
	r, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(r.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %q, %v, want an early end", body, err)
	}
}

// A browser says where a request comes from to loopback addresses alone. Elsewhere a page of another port of the host, which is sent the
// cookie as well, must not be answered either.
func TestM23PagesOfOtherPorts(t *testing.T) {
	s := newSite(t, Options{At: netip.MustParseAddrPort("0.0.0.0:0")}, func(c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nReferrer-Policy: no-referrer\r\nContent-Length: 0\r\n\r\n")
	})
	port := fmt.Sprint(s.Addr().Port())
	for _, tt := range []struct {
		name, host, fields, want string
	}{
		{"typed", "192.0.2.1:", "Upgrade-Insecure-Requests: 1\r\n", "HTTP/1.1 200"},
		{"its own picture", "192.0.2.1:", "Referer: http://192.0.2.1:" + port + "/page?x\r\n", "HTTP/1.1 200"},
		{"its own script's", "192.0.2.1:", "Origin: http://192.0.2.1:" + port + "\r\n", "HTTP/1.1 200"},
		{"a picture of another port", "192.0.2.1:", "Referer: http://192.0.2.1:8001/\r\n", "HTTP/1.1 403"},
		{"of a port that begins so", "192.0.2.1:", "Referer: http://192.0.2.1:" + port + "1/\r\n", "HTTP/1.1 403"},
		{"a link of another port", "192.0.2.1:", "Referer: http://192.0.2.1:8001/\r\nUpgrade-Insecure-Requests: 1\r\n", "HTTP/1.1 403"},
		{"a script of another port, which doesn't say so", "192.0.2.1:", "", "HTTP/1.1 403"},
		{"an older browser on the loopback", "127.0.0.1:", "", "HTTP/1.1 200"},
		{"by its name", "localhost:", "", "HTTP/1.1 200"},
	} {
		host := tt.host + port
		got := s.say("GET /x HTTP/1.1\r\nHost: " + host + "\r\nCookie: " + s.cookieName() + "=" + s.cookie + "\r\n" + tt.fields + "\r\n")
		if !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: got %q, want %s", tt.name, got, tt.want)
		}
		if silent := strings.Contains(got, "Referrer-Policy:"); strings.Contains(got, " 200 ") && silent != (tt.host != "192.0.2.1:") {
			t.Errorf("%s: the page's own Referer: got %q", tt.name, got)
		}
	}
}

// What holds for the run is asked at each request, and before a link is used up.
func TestM23LinksOutliveARefusal(t *testing.T) {
	s := newSite(t, Options{}, echo)
	_, token, _ := strings.Cut(s.Link(), "?")
	ask := "GET /?" + token + " HTTP/1.1\r\nHost: HOST\r\n\r\n"
	for _, tt := range []struct {
		allow Code
		want  string
	}{{Frozen, "503"}, {Quarantined, "403"}, {Ended, "503"}, {Unknown, "503"}, {OK, "303"}, {OK, "401"}} {
		s.mu.Lock()
		s.allow = tt.allow
		s.mu.Unlock()
		if got := s.say(ask); !strings.HasPrefix(got, "HTTP/1.1 "+tt.want) {
			t.Errorf("%s: got %q, want %s", tt.allow, got, tt.want)
		}
	}
	for range maxLinks + 1 {
		s.Link()
	}
	if n := len(s.links); n != maxLinks {
		t.Errorf("%d links are kept, want %d", n, maxLinks)
	}
}

// What is published at an address is another agent's later. A browser keeps neither a page of this one's nor a worker that would answer there;
// nor does one that has it by the name localhost, which is every server's that a tunnel leads to.
func TestM23NothingStaysInABrowser(t *testing.T) {
	page := func(c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\ncache-control: max-age=31536000, immutable\r\nExpires: Fri, 01 Jan 2100 00:00:00 GMT\r\nPragma: x\r\n"+
			"Cache-Control: public\r\nContent-Length: 2\r\n\r\nhi")
	}
	for _, tt := range []struct {
		name       string
		own, local bool
	}{{"an address of others", false, false}, {"its own", true, false}, {"its own by localhost", true, true}} {
		s := newSite(t, Options{Own: tt.own}, page)
		stays, host := tt.own && !tt.local, s.Addr().String()
		if tt.local {
			host = "LocalHost" + host[strings.LastIndex(host, ":"):]
		}
		get := "GET /sw.js HTTP/1.1\r\nHost: " + host + "\r\nAuthorization: Bearer TOKEN\r\n"
		text := s.say(get + "\r\n")
		r, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Header; slices.Equal(got["Cache-Control"], []string{"no-store"}) == stays || (got["Expires"] != nil) != stays || (got["Pragma"] != nil) != stays {
			t.Errorf("%s: what may be kept: %v, want anything: %v", tt.name, got, stays)
		}
		if got := s.say(get + "service-Worker: script\r\n\r\n"); strings.HasPrefix(got, "HTTP/1.1 400") == stays {
			t.Errorf("%s: the script of a service worker: got %q, want it to pass: %v", tt.name, got, stays)
		}
	}
}

// Fail closed: a connection that can't be put on record is the last one.
func TestM23UnrecordedClosesTheDoor(t *testing.T) {
	s := newSite(t, Options{Raw: true}, func(c net.Conn) { _, _ = io.WriteString(c, "hello") })
	s.mu.Lock()
	s.fails = errors.New("the disk is full")
	s.mu.Unlock()
	if got := s.say(""); got != "hello" {
		t.Errorf("got %q", got)
	}
	for !s.Shut() {
		time.Sleep(time.Millisecond) // the test's time limit is the bound
	}
	if c, err := net.Dial("tcp", s.Addr().String()); err == nil {
		c.Close()
		t.Error("it is still open")
	}
}

// A connection on which nothing comes ends, and its slot is free.
func TestM23IdleEnds(t *testing.T) {
	slots := make(chan struct{}, 1)
	s := newSite(t, Options{Raw: true, Idle: 50 * time.Millisecond, Slots: slots}, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.ReadAll(c); err != nil {
		t.Error(err)
	}
	s.Close()
	if len(s.told) != 1 || s.told[0].Code != Idle || len(slots) != 0 {
		t.Errorf("told %+v, %d slots are taken", s.told, len(slots))
	}
}

func FuzzRequests(f *testing.F) {
	f.Add("GET /?agentrun_token=x HTTP/1.1", "Cookie: a=b; agentrun_port_1=c")
	f.Fuzz(func(t *testing.T, line, field string) {
		d := &Door{opt: Options{Allow: func(context.Context) Code { return OK }}, at: netip.MustParseAddrPort("127.0.0.1:1"), token: secret(), cookie: secret()}
		r, ok := parsed(line + "\r\nHost: 127.0.0.1:1\r\n" + field + "\r\n\r\n")
		if ok && d.judge(r).code == OK {
			t.Errorf("let in by %q %q", line, field)
		}
	})
}

func parsed(head string) (*wire.Request, bool) {
	var r wire.Request
	return &r, r.Parse([]byte(head)) == nil
}

// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// agentsServer is a server as an agent may write one, honest or not. It needs threads alone, so that ring 3 has it too.
const agentsServer = `
import socket, sys, threading, errno
def big(c, n):
    c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % n)
    block = b"x" * 65536
    while n > 0:
        c.sendall(block[:min(n, 65536)]); n -= 65536
def serve(c):
    try:
        head = b""
        while b"\r\n\r\n" not in head:
            part = c.recv(65536)
            if not part: return
            head += part
        path = head.split(b" ")[1].split(b"?")[0].decode()
        say = lambda body, more=b"Content-Type: text/html\r\n": c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(body) + more + b"\r\n" + body)
        if path == "/close": return
        if path == "/never":
            while c.recv(65536): pass
        if path == "/headers":
            c.sendall(b"HTTP/1.1 200 OK\r\n")
            while True: c.sendall(b"X-More: " + b"x" * 1000 + b"\r\n")
        if path == "/interim":
            while True: c.sendall(b"HTTP/1.1 103 Early\r\n\r\n")
        if path == "/noise":
            while True: c.sendall(b"\0\xff no http " * 1000)
        if path.startswith("/big/"): return big(c, int(path[5:]))
        if path == "/keep": # goes on as if there were a second request
            say(head, b"Connection: keep-alive\r\n")
            say(b"SECOND " + c.recv(65536))
        if path == "/101":
            c.sendall(b"HTTP/1.1 101 OK\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            c.sendall(b"GOT " + c.recv(65536))
        if path == "/ws":
            c.sendall(b"HTTP/1.1 101 OK\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            while True:
                part = c.recv(65536)
                if not part: return
                c.sendall(part)
        if path == "/cookies": say(b"set", b"Set-Cookie: AGENTRUN_port_1=stolen; Path=/\r\nSet-Cookie: mine=1\r\nClear-Site-Data: \"cookies\"\r\n")
        if path.startswith("/connect/"):
            out = []
            for host in ["127.0.0.1", "::1", "192.0.2.1"]:
                try:
                    socket.create_connection((host, int(path[9:])), 5).close(); out.append("REACHED")
                except OSError as e: out.append(errno.errorcode.get(e.errno, str(e)))
            say(" ".join(out).encode())
        if path == "/sw.js": say(b"self.onfetch = e => e.respondWith(new Response('of another run'))", b"Content-Type: text/javascript\r\n")
        if path == "/stay": say(b"<p id=p>no</p><script>let it; navigator.serviceWorker.register('/sw.js').then(() => it = 'stays', () => it = 'goes'); (async () => { while (!it) await fetch('/echo'); p.innerText = 'it ' + it })()</script>")
        if path == "/page": say(b"<p id=p>no</p><script>fetch('/echo').then(r => r.text()).then(t => p.innerText = 'fetched ' + t.includes('agentrun') + document.cookie.length)</script>")
        say(head)
    except OSError: pass
    finally: c.close()
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", 8000)); s.listen(300)
full = socket.socket(socket.AF_INET, socket.SOCK_STREAM); full.bind(("127.0.0.1", 8001)); full.listen(300)
threading.stack_size(256 << 10)
print("serving", flush=True)
while True:
    c = s.accept()[0]
    try: threading.Thread(target=serve, args=(c,), daemon=True).start()
    except RuntimeError: c.close()
`

// portInfo is what publish says.
type portInfo struct {
	Port    int    `json:"port"`
	Address string `json:"address"`
	URL     string `json:"url"`
	Token   string `json:"token"`
	Open    int    `json:"open"`
}

// served begins a detached run of the agent's server.
func (p place) served(name, profile string, flags ...string) {
	p.t.Helper()
	needProgram(p.t, "python3")
	o := opts{profile: profile, flags: append([]string{"-d", "--name", name, "--timeout", "300s", "--cpu-time", "300s"}, flags...)}
	if !strings.Contains(strings.Join(flags, " "), "--gateway") {
		o.flags = append(o.flags, "--no-gateway")
	}
	c := p.at(prepare(p.t, o, "/usr/bin/python3", "-c", agentsServer))
	if out, err := c.output(); err != nil {
		p.t.Fatalf("detach: %v: %q %s", err, out, c.errOut.String())
	}
	p.t.Cleanup(func() { p.do("kill", name) })
	eventually(p.t, 30*time.Second, "the agent serves", func() bool { return strings.Contains(p.do("output", name).stdout, "serving") })
}

// get asks for a path with the token, which may be empty, and gives status and body.
func (i portInfo) get(t *testing.T, path, token string, fields ...string) (status int, body string, response http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+i.Address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for n := 0; n < len(fields); n += 2 {
		r.Header.Add(fields[n], fields[n+1])
		if fields[n] == "Host" {
			r.Host = fields[n+1]
		}
	}
	client := &http.Client{Timeout: hang(), Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	a, err := client.Do(r)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		text = append(text, err.Error()...)
	}
	return a.StatusCode, string(text), a.Header
}

// open connects, says something and leaves the connection open.
func (i portInfo) open(t *testing.T, say string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", i.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(hang()))
	if say != "" { // one that is refused may be gone already
		if _, err := io.WriteString(c, say); err != nil {
			t.Fatal(err)
		}
	}
	return c, bufio.NewReader(c)
}

// socket opens a web socket.
func (i portInfo) socket(t *testing.T, path string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, br := i.open(t, "GET "+path+" HTTP/1.1\r\nHost: "+i.Address+"\r\nAuthorization: Bearer "+i.Token+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	r, err := http.ReadResponse(br, nil)
	if err != nil || r.StatusCode != 101 {
		t.Fatalf("web socket: %v %v", r, err)
	}
	return c, br
}

// echoes tells whether what is sent comes back.
func echoes(c net.Conn, br *bufio.Reader, text string) error {
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(br, got); err != nil || string(got) != text {
		return fmt.Errorf("got %q, %w", got, err)
	}
	return nil
}

// cut waits for the end of a connection that nothing is sent on.
func cut(t *testing.T, what string, br *bufio.Reader) {
	t.Helper()
	if b, err := io.ReadAll(br); len(b) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: the connection is still there: %q, %v", what, b, err)
	}
}

// M-23, M-7: a server inside is reached from the host by who has the secret and nobody else, and the secret stays outside.
func TestM23PortsOfALiveRun(t *testing.T) {
	p := newPlace(t)
	for _, profile := range []string{"ring2", "ring3"} {
		p.served(profile, profile)
		i := asked[portInfo](p, "port", "publish", profile, "8000")
		own := "agentrun_port_" + i.Address[strings.LastIndex(i.Address, ":")+1:]
		local := "localhost" + i.Address[strings.LastIndex(i.Address, ":"):]
		link, err := url.Parse(strings.TrimSpace(p.must("port", "link", profile, "8000").stdout))
		if err != nil || link.Host != i.Address {
			t.Fatalf("link %v, %v, want one of %s", link, err, i.Address)
		}
		deep := "//evil.example/a?x=1&" + link.RawQuery + "&y=2"
		status, text, header := i.get(t, deep, "")
		if want := "http://" + i.Address + "//evil.example/a?x=1&y=2"; status != 303 || header.Get("Location") != want {
			t.Fatalf("%s, link: got %d to %q %s, want 303 to %s", profile, status, header.Get("Location"), text, want)
		}
		set := header.Get("Set-Cookie")
		cookie, attributes, _ := strings.Cut(set, ";")
		if !strings.HasPrefix(cookie, own+"=") || attributes != " Path=/; HttpOnly; SameSite=Strict" {
			t.Errorf("cookie %q", set)
		}
		value := strings.TrimPrefix(cookie, own+"=")
		for _, tt := range []struct {
			name, path, token string
			fields            []string
			want              int
		}{
			{"nothing", "/echo", "", nil, 401},
			{"a link that was used", "/?" + link.RawQuery, "", nil, 401},
			{"a link that was used, again", deep, "", nil, 401},
			{"a wrong token", "/echo", strings.Repeat("0", 32), nil, 401},
			{"the cookie as token", "/echo", value, nil, 401},
			{"the token as cookie", "/echo", "", []string{"Cookie", own + "=" + i.Token}, 401},
			{"the cookie of another port", "/echo", "", []string{"Cookie", "agentrun_port_1=" + value}, 401},
			{"the cookie", "/echo", "", []string{"Cookie", "a=1; " + cookie + "; b=2; agentrun_port_9=x"}, 200},
			{"the token", "/echo", i.Token, []string{"Authorization", "Basic other"}, 200},
			{"both, by localhost", "/echo", i.Token, []string{"Cookie", cookie, "Host", local}, 200},
			{"a worker's script", "/echo", i.Token, []string{"Service-Worker", "script"}, 200},
			{"a worker's script, by localhost", "/echo", i.Token, []string{"Service-Worker", "script", "Host", local}, 400},
			{"a used link with the cookie", "/?" + link.RawQuery, "", []string{"Cookie", cookie}, 303},
			{"another host", "/echo", i.Token, []string{"Host", "rebound.example"}, 403},
			{"another port of the host", "/echo", i.Token, []string{"Host", "127.0.0.1:1"}, 403},
			{"a page of another port", "/echo", "", []string{"Cookie", cookie, "Origin", "http://127.0.0.1:1"}, 403},
			{"a picture of another page", "/echo", "", []string{"Cookie", cookie, "Sec-Fetch-Site", "same-site"}, 403},
			{"its own page", "/echo", "", []string{"Cookie", cookie, "Origin", "http://" + i.Address, "Sec-Fetch-Site", "same-origin"}, 200},
			{"a token that is sent on", "/echo?" + i.Token, i.Token, nil, 400},
			{"a cookie that is sent on", "/echo", i.Token, []string{"X", value}, 400},
		} {
			status, text, _ := i.get(t, tt.path, tt.token, tt.fields...)
			if status != tt.want {
				t.Errorf("%s, %s: got %d %q, want %d", profile, tt.name, status, text, tt.want)
			}
			for _, s := range []string{i.Token, value, "agentrun_", "Bearer"} {
				if status == 200 && strings.Contains(text, s) {
					t.Errorf("%s, %s: the server inside has seen %q: %s", profile, tt.name, s, text)
				}
			}
		}
		_, text, _ = i.get(t, "/echo", "", "Cookie", "a=1; "+cookie+"; b=2", "Authorization", "Basic other")
		if !strings.Contains(text, "Cookie: a=1; b=2\r\n") || !strings.Contains(text, "Authorization: Basic other\r\n") || !strings.Contains(text, "Host: "+i.Address+"\r\n") {
			t.Errorf("the server inside has seen %q, want the rest of it", text)
		}
		if _, _, header := i.get(t, "/cookies", i.Token); strings.Join(header.Values("Set-Cookie"), "") != "mine=1" || header.Get("Clear-Site-Data") != "" {
			t.Errorf("the server has set %v", header)
		}
	}
	if got := asked[[]portInfo](p, "port", "ls", "ring3"); len(got) != 1 || got[0].Port != 8000 || got[0].URL != "" || got[0].Token != "" {
		t.Errorf("ls: got %+v", got)
	}
	for _, tt := range [][]string{
		{"not_found", "port", "rm", "ring2", "8001"}, {"not_found", "port", "link", "ring2", "8001"},
		{"conflict", "port", "publish", "ring2", "8000", "--no-token"}, {"conflict", "port", "publish", "ring2", "8001", "--to", "192.0.2.1:0", "--anywhere"},
	} {
		p.refused(tt[0], tt[1:]...)
	}
	for _, to := range []string{"0.0.0.0:0", "192.0.2.1:80", "[::]:0", "there:80", "80"} {
		if r := p.do("port", "publish", "ring2", "8001", "--to", to); r.exit != 2 || !strings.Contains(r.stderr, "--to") || !strings.Contains(r.stderr, "hint: ") {
			t.Errorf("--to %s: exit %d\n%s", to, r.exit, r.stderr)
		}
	}
	p.must("port", "rm", "ring2", "8000")
	p.must("kill", "ring3")
	count := map[string]int{}
	for _, e := range p.audit() {
		switch e.Kind {
		case "port_publish":
			count[fmt.Sprint(e.Data["event"])]++
			if e.Data["by"] != "uid:0" || e.Data["port"] != 8000.0 {
				t.Errorf("on record: %v", e.Data)
			}
		case "egress":
			count[fmt.Sprint(e.Data["code"])] += int(e.Data["count"].(float64)) //nolint:forcetypeassert // a number
			if e.Data["type"] != "ingress" || e.Data["destination"] != "sandbox:8000" {
				t.Errorf("on record: %v", e.Data)
			}
		}
	}
	for what, least := range map[string]int{"published": 2, "linked": 2, "removed": 1, "ok": 14, "no_token": 14, "wrong_host": 4, "other_site": 4, "bad_request": 4} {
		if count[what] < least {
			t.Errorf("on record: %v, want at least %d %s", count, least, what)
		}
	}
}

// M-23, M-7: browsers send the cookies of a host to all of its ports. The agent's server is sent none of the operator's other servers on the
// loopback, and none that another run's has set.
func TestM23PortsShareNoCookies(t *testing.T) {
	p := newPlace(t)
	p.served("a", "ring3")
	p.served("b", "ring3")
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Timeout: hang(), Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
	look := func(at string) string {
		t.Helper()
		r, err := browser.Get(at)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != 200 {
			t.Fatalf("%s: got %d %q, %v", at, r.StatusCode, text, err)
		}
		return string(text)
	}
	operators := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "operators", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	}))
	defer operators.Close()
	look(operators.URL)
	link := func(name, path string) string {
		return strings.Replace(asked[portInfo](p, "port", "publish", name, "8000").URL, "/?", path+"?", 1)
	}
	if text := look(link("a", "/echo")); strings.Contains(text, "operators") {
		t.Errorf("the agent's server was sent the operator's session elsewhere: %q", text)
	}
	look(link("b", "/cookies"))
	if text := look(link("a", "/echo")); strings.Contains(text, "mine") {
		t.Errorf("the agent's server was sent what another run's has set: %q", text)
	}
}

// A paused run goes on for who has the token, and for nobody else; one that an operator has frozen for nobody.
func TestM23PortsEndAPause(t *testing.T) {
	p := newPlace(t)
	p.served("dev", "ring2")
	var at portInfo
	if err := json.Unmarshal([]byte(p.must("port", "publish", "dev", "8000", "--json").stdout), &at); err != nil {
		t.Fatal(err)
	}
	p.must("pause", "dev")
	if status, _, _ := at.get(t, "/echo", ""); status != 401 {
		t.Errorf("without the token: %d", status)
	}
	if live := p.lives("dev"); len(live) > 0 {
		t.Error("it goes on for somebody without the token")
	}
	if status, body, _ := at.get(t, "/echo", at.Token); status != 200 {
		t.Errorf("with the token: %d %s", status, body)
	}
	if live := p.lives("dev"); len(live) != 1 {
		t.Error("it doesn't go on")
	}
	p.must("freeze", "dev")
	p.must("pause", "dev")
	if status, _, _ := at.get(t, "/echo", at.Token); status != 503 {
		t.Errorf("frozen by an operator: %d", status)
	}
}

// M-23, M-22: what is open is cut when the run has less than before, and when it ends; a freeze holds it.
func TestM23PortsAreCut(t *testing.T) {
	p := newPlace(t)
	ws := workspace(t)
	p.served("a", "ring3", "--workspace", ws)
	i := asked[portInfo](p, "port", "publish", "a", "8000")
	open := func() (net.Conn, *bufio.Reader) {
		t.Helper()
		c, br := i.socket(t, "/ws")
		if err := echoes(c, br, "hello"); err != nil {
			t.Fatalf("web socket: %v", err)
		}
		return c, br
	}
	c, br := open()
	p.must("elevate", "a", "--to", "2", "--reason", "a test")
	if err := echoes(c, br, "more"); err != nil {
		t.Errorf("elevated: %v", err)
	}
	p.must("revoke", "a")
	cut(t, "demotion", br)

	c, br = open()
	p.must("freeze", "a")
	if _, err := io.WriteString(c, "frozen"); err != nil {
		t.Error(err)
	}
	if status, text, _ := i.get(t, "/echo", i.Token); status != 503 || !strings.Contains(text, "frozen") {
		t.Errorf("frozen: got %d %s, want 503", status, text)
	}
	p.must("thaw", "a")
	got := make([]byte, 6)
	if _, err := io.ReadFull(br, got); err != nil || string(got) != "frozen" {
		t.Errorf("thawed: %q, %v", got, err)
	}
	c.Close()

	_, br = open()
	p.must("port", "rm", "a", "8000")
	cut(t, "rm", br)
	if _, err := net.Dial("tcp", i.Address); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("rm: %v, want nobody there", err)
	}
	i = asked[portInfo](p, "port", "publish", "a", "8000")
	_, br = open()
	p.must("kill", "a")
	cut(t, "kill", br)
	if _, err := net.Dial("tcp", i.Address); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("kill: %v, want nobody there", err)
	}

	p.must("agent", "score", "planner", "0.8")
	p.served("b", "ring2", "--agent", "planner")
	i = asked[portInfo](p, "port", "publish", "b", "8000")
	_, br = open()
	p.must("quarantine", "b", "--reason", "a test")
	cut(t, "quarantine", br)
	eventually(t, 30*time.Second, "quarantine is told", func() bool { // the demotion that comes with it may cut once more
		status, text, _ := i.get(t, "/echo", i.Token)
		if status == 200 {
			t.Error("let in in quarantine")
		}
		return status == 403 && strings.Contains(text, "quarantine")
	})
	p.refused("conflict", "port", "publish", "b", "8001")

	p.served("c", "ring2")
	i = asked[portInfo](p, "port", "publish", "c", "8000")
	_, br = open()
	if err := unix.Kill(asked[box](p, "inspect", "c").Supervisor, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	cut(t, "killed supervisor", br)
	eventually(t, 10*time.Second, "nobody listens for a killed supervisor", func() bool {
		_, err := net.Dial("tcp", i.Address)
		return errors.Is(err, unix.ECONNREFUSED)
	})
	noAgents(t)
}

// M-9, M-23: a key that ends takes no ring from a run of ring 3, and cuts its connections as well; once, and whoever watches hears of it.
func TestM9KeyThatEndsCutsPorts(t *testing.T) {
	p := newPlace(t)
	p.must("agent", "set", "planner", "--role", "reader")
	p.must("agent", "score", "planner", "0.8")
	file := filepath.Join(t.TempDir(), "key")
	var key struct {
		ID string `json:"key_id"`
	}
	if err := json.Unmarshal([]byte(p.must("key", "issue", "--agent", "planner", "--ttl", "1h", "--may", bothKinds, "--out", file, "--json").stdout), &key); err != nil {
		t.Fatal(err)
	}
	p.served("a", "ring3", "--agent", "planner", "--key-file", file)
	i := asked[portInfo](p, "port", "publish", "a", "8000")
	c, br := i.socket(t, "/ws")
	if err := echoes(c, br, "hello"); err != nil {
		t.Fatalf("web socket: %v", err)
	}
	p.must("key", "revoke", key.ID)
	cut(t, "revoked key", br)
	if status, text, _ := i.get(t, "/echo", i.Token); status != 403 {
		t.Errorf("with the key revoked: got %d %s, want 403", status, text)
	}
	var told []string
	for line := range strings.Lines(p.must("events", "a", "--json").stdout) {
		var e happened
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Kind == "key_ended" {
			told = append(told, fmt.Sprint(e.Data))
		}
	}
	if want := fmt.Sprint(map[string]string{"key_id": key.ID}); !slices.Equal(told, []string{want}) {
		t.Errorf("told %q, want %s once", told, want)
	}
	p.must("kill", "a")
	noAgents(t)
}

// M-23, M-3: a server that means harm costs the supervisor nothing and gets nothing that wasn't for it.
func TestM23HostileServer(t *testing.T) {
	p := newPlace(t)
	p.served("bad", "ring2")
	i := asked[portInfo](p, "port", "publish", "bad", "8000")
	for _, path := range []string{"/close", "/headers", "/interim", "/noise", "/101"} {
		if status, text, _ := i.get(t, path, i.Token); status != 502 {
			t.Errorf("%s: got %d %.200q, want 502", path, status, text)
		}
	}
	never, _ := i.open(t, "GET /never HTTP/1.1\r\nHost: "+i.Address+"\r\nAuthorization: Bearer "+i.Token+"\r\n\r\n")
	eventually(t, 10*time.Second, "one connection is open", func() bool { return asked[[]portInfo](p, "port", "ls", "bad")[0].Open == 1 })
	never.Close()
	eventually(t, 10*time.Second, "who left is gone inside too", func() bool { return asked[[]portInfo](p, "port", "ls", "bad")[0].Open == 0 })

	// A second request on the same connection would go to the server as it is, its token too.
	request := "GET /keep HTTP/1.1\r\nHost: " + i.Address + "\r\nAuthorization: Bearer " + i.Token + "\r\n\r\n"
	_, br := i.open(t, request+request)
	text, _ := io.ReadAll(br)
	if !bytes.Contains(text, []byte("Connection: close")) || bytes.Contains(text, []byte("SECOND")) || bytes.Contains(text, []byte(i.Token)) {
		t.Errorf("two requests on one connection: %s", text)
	}
	for _, request := range []string{
		"GET /echo HTTP/1.1\r\nHost: H\r\nAuthorization: Bearer T\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
		"GET /echo HTTP/1.1\r\nHost: H\r\nHost: H\r\nAuthorization: Bearer T\r\n\r\n", "CONNECT H HTTP/1.1\r\nHost: H\r\nAuthorization: Bearer T\r\n\r\n",
		"GET http://H/echo HTTP/1.1\r\nHost: H\r\nAuthorization: Bearer T\r\n\r\n", "GET /echo HTTP/1.1\nHost: H\n\n",
		"GET /echo HTTP/1.1\r\nHost: H\r\nAuthorization: Bearer T\r\n folded: x\r\n\r\n",
		"GET /" + strings.Repeat("x", 9000) + " HTTP/1.1\r\nHost: H\r\n\r\n", "GET / HTTP/1.1\r\nX: " + strings.Repeat("x", 40000) + "\r\n\r\n",
	} {
		_, br := i.open(t, strings.NewReplacer("H\r", i.Address+"\r", "/H/", "/"+i.Address+"/", "T\r", i.Token+"\r").Replace(request))
		if line, err := br.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 4") {
			t.Errorf("%.60q: got %q, %v, want 4xx", request, line, err)
		}
	}
	if status, text, _ := i.get(t, "/echo", i.Token); status != 200 {
		t.Errorf("after all: got %d %s", status, text)
	}
	size := 1 << 30
	if slow > 1 {
		size = 64 << 20
	}
	supervisor := asked[box](p, "inspect", "bad").Supervisor
	before := peak(t, supervisor)
	r, err := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("http://%s/big/%d", i.Address, size), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+i.Token)
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	n, err := io.Copy(io.Discard, a.Body)
	if err != nil || n != int64(size) {
		t.Errorf("%d bytes of %d: %v", n, size, err)
	}
	if grown := peak(t, supervisor) - before; grown > 16<<20 {
		t.Errorf("the supervisor grew by %d MiB", grown>>20)
	}
	p.must("port", "rm", "bad", "8000")
	p.must("kill", "bad")
}

// peak is the most memory that a process has had, in bytes.
func peak(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// M-23, M-7: there are bounds, and a published port opens nothing for the agent: not the host's address, not agentrun's own ports, and none by
// itself.
func TestM23PortsAreBounded(t *testing.T) {
	p := newPlace(t)
	p.served("a", "ring2", "--pids", "64")
	raw := asked[portInfo](p, "port", "publish", "a", "8000", "--no-token")
	if raw.URL != "" || raw.Token != "" {
		t.Errorf("without a token: %+v", raw)
	}
	host := raw.Address[strings.LastIndex(raw.Address, ":")+1:]
	status, text, _ := raw.get(t, "/connect/"+host, "")
	if status != 200 || strings.Contains(text, "REACHED") {
		t.Errorf("the agent at the host's address: %d %s", status, text)
	}
	if r := p.inside("a", nil, "/usr/bin/sh", "-c", "ls "+p.run+" "+filepath.Join(p.run, "control")); r.exit == 0 {
		t.Errorf("the agent sees the control sockets: %s", r.stdout)
	}
	waits := asked[portInfo](p, "port", "publish", "a", "8001", "--no-token") // nobody accepts there
	open := func() int { return asked[[]portInfo](p, "port", "ls", "a")[1].Open }
	var all []net.Conn
	for range 256 {
		c, err := net.Dial("tcp", waits.Address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all = append(all, c)
	}
	eventually(t, 30*time.Second, "256 connections are open", func() bool { return open() == 256 })
	for _, i := range []portInfo{raw, waits} {
		c, err := net.Dial("tcp", i.Address)
		if errors.Is(err, unix.ECONNRESET) { // so early that connect(2) saw it
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(hang()))
		if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("one connection more to port %d: %d bytes, %v", i.Port, n, err)
		}
		c.Close()
	}
	for _, c := range all {
		c.Close()
	}
	eventually(t, time.Minute, "all are gone", func() bool { return open() == 0 })
	if status, text, _ := raw.get(t, "/echo", ""); status != 200 {
		t.Errorf("afterwards: got %d %s", status, text)
	}
	for port := 9001; port <= 9014; port++ {
		p.must("port", "publish", "a", strconv.Itoa(port))
	}
	p.refused("conflict", "port", "publish", "a", "9016")
	silent := asked[portInfo](p, "port", "publish", "a", "9001")
	if status, text, _ := silent.get(t, "/", silent.Token); status != 502 {
		t.Errorf("nobody inside: got %d %s, want 502", status, text)
	}
	p.must("kill", "a")
	if !strings.Contains(fmt.Sprint(p.audit()), "too_many") {
		t.Error("no connection too many is on record")
	}
}

// M-23: any user of the host can connect; whoever has no secret keeps nobody out who has it, and isn't use of the run.
func TestM23StrangersLeaveRoom(t *testing.T) {
	p := newPlace(t)
	p.served("a", "ring3")
	i := asked[portInfo](p, "port", "publish", "a", "8000")
	for range 300 {
		i.open(t, "")
	}
	for range 3 {
		if status, text, _ := i.get(t, "/echo", i.Token); status != 200 {
			t.Errorf("beside 300 strangers: got %d %.200s, want 200", status, text)
		}
	}
	eventually(t, 10*time.Second, "none of them counts", func() bool { return asked[[]portInfo](p, "port", "ls", "a")[0].Open == 0 })
	p.must("port", "rm", "a", "8000")
	p.must("kill", "a")
	if !strings.Contains(fmt.Sprint(p.audit()), "too_many") {
		t.Error("no stranger too many is on record")
	}
}

// M-23: agentrun's own ports inside speak for the agent; they can't be published.
func TestM23OwnPortsStay(t *testing.T) {
	p := newPlace(t)
	p.served("own", "ring2", "--gateway", write(t, filepath.Join(t.TempDir(), "g.yaml"), "tools: {}\n", 0o600))
	for _, port := range []string{"53", "7600", "7601"} {
		p.refused("conflict", "port", "publish", "own", port)
	}
	i := asked[portInfo](p, "port", "publish", "own", "8000")
	if status, text, _ := i.get(t, "/echo", i.Token); status != 200 {
		t.Errorf("with a gateway: got %d %s", status, text)
	}
}

// M-23: a browser is let in by the link, its page works, and its scripts see no secret. Where others may be published
// later it leaves no worker, which would answer for them, and take their links.
func TestM23BrowserLooksAtAServer(t *testing.T) {
	needProgram(t, "chromium")
	p := newPlace(t)
	p.served("web", "ring3")
	for _, look := range []struct{ path, to, want string }{
		{"/page", "", "fetched false0"},
		{"/stay", "", "it stays"}, // nobody else is published at its address
		{"/stay", "127.0.0.1:0", "it goes"},
	} {
		words := []string{"port", "publish", "web", "8000"}
		if look.to != "" {
			p.must("port", "rm", "web", "8000")
			words = append(words, "--to", look.to)
		}
		i := asked[portInfo](p, words...)
		link := strings.Replace(i.URL, "/?", look.path+"?", 1)
		cmd := exec.CommandContext(t.Context(), "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--user-data-dir="+t.TempDir(),
			"--virtual-time-budget=20000", "--dump-dom", link)
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), `<p id="p">`+look.want+`</p>`) {
			t.Errorf("chromium, %v: %v\n%s", look, err, out)
		}
	}
}

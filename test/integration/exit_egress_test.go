// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentrun/internal/hostcaps"
	"agentrun/test/exit"
)

// This file started again in a sandbox is a Go program with net/http and nothing of ours. TestMain would first look for
// the binaries under test.
var _ = func() int {
	if len(os.Args) == 3 && os.Args[1] == "go-http-client" {
		os.Exit(goClient(os.Args[2]))
	}
	return 0
}()

func goClient(url string) int {
	r, err := http.Get(url)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	fmt.Print(string(b))
	if err != nil || r.StatusCode != http.StatusOK {
		return 1
	}
	return 0
}

// direct takes the proxy variables away: what follows is caught on its way (M-8).
var direct = []string{"env", "-u", "HTTP_PROXY", "-u", "HTTPS_PROXY", "-u", "ALL_PROXY", "-u", "http_proxy", "-u", "https_proxy", "-u", "all_proxy"}

func with(argv []string, more ...string) []string { return append(slices.Clone(argv), more...) }

const nodeFetch = `const r = await fetch(process.argv[2]); console.log(await r.text());`

// M-8: programs that know nothing of agentrun reach an allowed name, by proxy variables and without.
func TestM8UnmodifiedClients(t *testing.T) {
	t.Parallel() // it mostly waits
	x := newExit(t)
	need(t, hostcaps.IDMappedMounts(base))
	needProgram(t, "curl", "node", "git", "python3")
	git, err := exittest.Git(t.TempDir(), "tool", "text of the file\n")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", exittest.Site())
	mux.Handle("/git/", git)
	repo := x.host("repo.test", mux)
	x.file("fetch.mjs", nodeFetch)
	x.file("fetch_requests.py", "import requests, sys\nprint(requests.get(sys.argv[1]).text)")
	x.file("urllib.py", "import sys\ndel sys.path[0]\nimport urllib.request\nprint(urllib.request.urlopen(sys.argv[1]).read().decode())")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var steps []step
	both := func(name string, argv ...string) {
		steps = append(steps, step{name, argv}, step{name + ", captured", with(direct, argv...)})
	}
	for _, scheme := range []string{"http", "https"} {
		url := scheme + "://repo.test/"
		both("curl "+scheme, "curl", "-sS", url)
		both("curl with http2 "+scheme, "curl", "-sS", "--http2", url)
		both("urllib "+scheme, "/usr/bin/python3", "urllib.py", url)
		both("requests "+scheme, "/usr/bin/python3", "fetch_requests.py", url)
		both("node fetch "+scheme, "node", "fetch.mjs", url)
		both("go "+scheme, "/goclient", "go-http-client", url)
		steps = append(steps,
			step{"curl noproxy " + scheme, []string{"curl", "-sS", "--noproxy", "*", url}},
			step{"curl noproxy IPv6 " + scheme, []string{"curl", "-sS", "-6", "--noproxy", "*", url}},
			step{"curl socks5 " + scheme, []string{"curl", "-sS", "--proxy", "socks5h://" + proxyAt, url}},
			step{"curl socks5, resolved " + scheme, []string{"curl", "-sS", "--proxy", "socks5://" + proxyAt, url}},
			step{"curl tunnel " + scheme, []string{"curl", "-sS", "-p", "--proxy", "http://" + proxyAt, url}},
			step{"curl upper case, final dot " + scheme, []string{"curl", "-sS", scheme + "://REPO.test./"}},
		)
	}
	both("git clone", "sh", "-c", "rm -rf c && git clone -q https://repo.test/git/tool.git c && cat c/README")
	got, r := x.programs(x.opts("ring2", "--allow", "repo.test", "--memory", "1G", "--timeout", "300s", "--cpu-time", "240s", "--ro-bind", self+":/goclient"), steps...)
	r.want(t, 0, "exited")
	for _, s := range steps {
		want := "hello from "
		if strings.HasPrefix(s.Name, "git") {
			want = "text of the file"
		}
		if o := got[s.Name]; o.Exit != 0 || !strings.Contains(o.Out, want) {
			t.Errorf("%s: got exit %d, %q\n%s", s.Name, o.Exit, o.Out, o.Err)
		}
	}
	for _, v := range repo.Visits() {
		if name := strings.ToLower(strings.TrimSuffix(v.Host, ".")); name != "repo.test" {
			t.Errorf("a request for %q has reached repo.test", v.Host)
		}
		for _, h := range []string{"Proxy-Authorization", "Proxy-Connection", "X-Forwarded-For", "Forwarded", "Via"} {
			if v.Header.Get(h) != "" {
				t.Errorf("the upstream gets %s: %s", h, v.Header.Get(h))
			}
		}
	}
	if len(calls(x.n.audit("node"), "egress")) == 0 {
		t.Error("no connection is on record")
	}
}

// M-7, M-8: ring 3 has no egress. The proxy says so in a way that an agent can read, and nothing leaves.
func TestM8Ring3HasNoEgress(t *testing.T) {
	x := newExit(t)
	repo := x.host("repo.test", exittest.Site())
	get := func(name, to string) exchange {
		return exchange{Name: name, To: to, Send: []string{"GET http://repo.test/ HTTP/1.1\r\nHost: repo.test\r\nConnection: close\r\n\r\n"}}
	}
	x.settings.section("egress")["allow"] = []string{"repo.test"} // the operator's list is for all rings
	got, r := x.raw(x.opts("ring3"),
		get("absolute", proxyAt),
		exchange{Name: "connect", To: proxyAt, Send: []string{"CONNECT repo.test:443 HTTP/1.1\r\nHost: repo.test:443\r\n\r\n"}},
		exchange{Name: "socks5", To: proxyAt, Send: []string{"\x05\x01\x00", "\x05\x01\x00\x03\x09repo.test\x01\xbb"}},
		exchange{Name: "captured", To: "192.0.2.1:80", Send: []string{"GET / HTTP/1.1\r\nHost: repo.test\r\nConnection: close\r\n\r\n"}},
		exchange{Name: "by name", To: "repo.test:443", Send: []string{"x"}})
	r.want(t, 0, "exited")
	for _, name := range []string{"absolute", "connect"} {
		if a := got[name].Reply; !denied(a, "egress_denied") || !strings.Contains(strings.ToLower(a), strings.ToLower(whyHeader)+":") {
			t.Errorf("%s: got %.500q %s, want egress_denied in body and header", name, a, got[name].Error)
		}
	}
	// 2 is "connection not allowed by ruleset" (RFC 1928, section 6).
	if a := got["socks5"]; !strings.Contains(a.Reply, "\x05\x02") {
		t.Errorf("socks5: got %q %s", a.Reply, a.Error)
	}
	for _, name := range []string{"captured", "by name"} {
		if a := got[name]; strings.Contains(a.Reply, "200 OK") || strings.Contains(a.Reply, "hello") {
			t.Errorf("%s: got %q", name, a.Reply)
		}
	}
	quiet(t, repo)
	records := calls(x.n.audit("node"), "egress")
	if len(records) < 2 || slices.Contains(codes(records), "ok") {
		t.Errorf("records: %v", codes(records))
	}
}

// THREATS "egress": every form of an address that isn't public, by every way in, in the rings that have egress.
func TestM8AddressesAreRefused(t *testing.T) {
	t.Parallel() // it mostly waits
	x := newExit(t)
	// What listens on the host and was not named by the operator.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	reached := make(chan string, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case reached <- c.RemoteAddr().String():
			default:
			}
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	var tries []exchange
	for _, host := range []string{
		"169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "0xa9.254.0251.0xfe", "[::ffff:169.254.169.254]",
		"[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "[fd00:ec2::254]", "metadata.google.internal", "169.254.169.254.",
		"127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "0", "0.0.0.0", "[::]", "[::1]", "[::ffff:127.0.0.1]", "[::127.0.0.1]", "[::1%lo]",
		"localhost", "LOCALHOST.", "localhost.localdomain", "ip6-localhost", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "[fe80::1]", "[fc00::1]",
		"198.18.0.1", "198.19.255.255", "[fd61:6772:756e::1]", "224.0.0.1", "255.255.255.255", "240.0.0.1", "[ff02::1]", "１２７.0.0.1", "127。0。0。1",
	} {
		at := host + ":" + port
		tries = append(tries,
			exchange{Name: "CONNECT " + at, To: proxyAt, Send: []string{"CONNECT " + at + " HTTP/1.1\r\nHost: " + at + "\r\n\r\n"}},
			exchange{Name: "GET " + at, To: proxyAt, Send: []string{"GET http://" + at + "/ HTTP/1.1\r\nHost: " + at + "\r\nConnection: close\r\n\r\n"}},
			exchange{Name: "captured, Host " + host, To: "192.0.2.1:80", Send: []string{"GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"}})
	}
	for _, at := range []string{"169.254.169.254:80", "10.0.0.1:80", "192.168.0.1:443", "100.64.0.1:80", "127.1.2.3:80", "[fd00:ec2::254]:80", "[fe80::1]:80", "198.18.255.254:80"} {
		tries = append(tries, exchange{Name: "to " + at, To: at, Send: []string{"GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n"}})
	}
	tries = append(tries, exchange{Name: "SOCKS4", To: proxyAt, Send: []string{"\x04\x01\x00\x50\xa9\xfe\xa9\xfe\x00"}},
		exchange{Name: "SOCKS4a", To: proxyAt, Send: []string{"\x04\x01\x00\x50\x00\x00\x00\x01\x00169.254.169.254\x00"}},
		exchange{Name: "SOCKS5", To: proxyAt, Send: []string{"\x05\x01\x00", "\x05\x01\x00\x01\xa9\xfe\xa9\xfe\x00\x50"}},
		exchange{Name: "SOCKS5 bind", To: proxyAt, Send: []string{"\x05\x01\x00", "\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50"}},
		exchange{Name: "SOCKS5 udp", To: proxyAt, Send: []string{"\x05\x01\x00", "\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00"}})
	for profile, flags := range map[string][]string{"ring2": {"--allow", "*:*"}, "ring1": nil} {
		t.Run(profile, func(t *testing.T) {
			got, r := x.raw(x.opts(profile, flags...), tries...)
			r.want(t, 0, "exited")
			for _, tt := range tries {
				a := got[tt.Name].Reply
				if strings.Contains(a, " 200 ") || strings.HasPrefix(a, "\x00\x5a") || strings.Contains(a, "\x05\x00\x00\x01") {
					t.Errorf("%s: got %.200q, want a refusal", tt.Name, a)
				}
				if strings.HasPrefix(tt.Name, "CONNECT ") && !strings.HasPrefix(a, "HTTP/1.1 4") {
					t.Errorf("%s: got %.200q %s, want an answer that says why", tt.Name, a, got[tt.Name].Error)
				}
			}
		})
	}
	select {
	case from := <-reached:
		t.Errorf("a service of the host was reached from %s", from)
	default:
	}
}

// THREATS "egress": one name allowed never leads to another, whatever the several places that name one say.
func TestM8NamesMustAgree(t *testing.T) {
	t.Parallel() // it mostly waits
	x := newExit(t)
	repo, other := x.host("repo.test", exittest.Site()), x.host("other.test", exittest.Site())
	sni := func(name string) *string { return &name }
	connect := "CONNECT repo.test:443 HTTP/1.1\r\nHost: repo.test:443\r\n\r\n"
	get := func(target, host string) []string {
		return []string{"GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"}
	}
	socks := "\x05\x01\x00\x03\x09repo.test\x01\xbb"
	inside := "GET / HTTP/1.1\r\nHost: repo.test\r\nConnection: close\r\n\r\n"
	tries := []exchange{
		{Name: "other SNI in a tunnel", To: proxyAt, TLS: sni("other.test"), Send: []string{connect, inside}},
		{Name: "no SNI in a tunnel", To: proxyAt, TLS: sni(""), Send: []string{connect, inside}},
		{Name: "other SNI by SOCKS5", To: proxyAt, TLS: sni("other.test"), Send: []string{"\x05\x01\x00", socks, inside}},
		{Name: "other SNI, captured", To: "repo.test:443", TLS: sni("other.test"), Send: []string{inside}},
		{Name: "allowed SNI, unnamed address", To: "192.0.2.1:443", TLS: sni("other.test"), Send: []string{inside}},
		{Name: "CONNECT with other Host", To: proxyAt, Send: []string{"CONNECT repo.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n", "x"}},
		{Name: "absolute with other Host", To: proxyAt, Send: get("http://repo.test/", "other.test")},
		{Name: "other Host, captured", To: "repo.test:80", Send: get("/", "other.test")},
		{Name: "absolute form, captured", To: "repo.test:80", Send: get("http://other.test/", "repo.test")},
		{Name: "userinfo", To: proxyAt, Send: get("http://repo.test@other.test/", "repo.test")},
		{Name: "userinfo with port", To: proxyAt, Send: get("http://repo.test:80@other.test/", "repo.test")},
		{Name: "backslash", To: proxyAt, Send: get(`http://other.test\@repo.test/`, "repo.test")},
		{Name: "fragment", To: proxyAt, Send: get("http://other.test#@repo.test/", "repo.test")},
		{Name: "question mark", To: proxyAt, Send: get("http://other.test?@repo.test/", "repo.test")},
		{Name: "NUL", To: proxyAt, Send: get("http://other.test\x00.repo.test/", "repo.test")},
		{Name: "escaped", To: proxyAt, Send: get("http://other.test%2f.repo.test/", "repo.test")},
		{Name: "space", To: proxyAt, Send: get("http://other.test .repo.test/", "repo.test")},
		{Name: "line feed", To: proxyAt, Send: get("http://repo.test/\nHost: other.test", "repo.test")},
		{Name: "CONNECT with a path", To: proxyAt, Send: []string{"CONNECT repo.test:443/../other.test HTTP/1.1\r\nHost: repo.test\r\n\r\n", "x"}},
		{Name: "CONNECT with userinfo", To: proxyAt, Send: []string{"CONNECT repo.test:443@other.test:443 HTTP/1.1\r\nHost: other.test\r\n\r\n", "x"}},
		{Name: "CONNECT to a URL", To: proxyAt, Send: []string{"CONNECT http://other.test:443/ HTTP/1.1\r\nHost: other.test\r\n\r\n", "x"}},
		{Name: "CONNECT, no port", To: proxyAt, Send: []string{"CONNECT repo.test HTTP/1.1\r\nHost: repo.test\r\n\r\n", "x"}},
		{Name: "CONNECT, port 0", To: proxyAt, Send: []string{"CONNECT repo.test:0 HTTP/1.1\r\nHost: repo.test\r\n\r\n", "x"}},
		{Name: "CONNECT, port too large", To: proxyAt, Send: []string{"CONNECT repo.test:65979 HTTP/1.1\r\nHost: repo.test\r\n\r\n", "x"}},
		{Name: "CONNECT, other port", To: proxyAt, Send: []string{"CONNECT repo.test:22 HTTP/1.1\r\nHost: repo.test:22\r\n\r\n", "x"}},
		{Name: "CONNECT, database", To: proxyAt, Send: []string{"CONNECT repo.test:5432 HTTP/1.1\r\nHost: repo.test:5432\r\n\r\n", "x"}},
		{Name: "CONNECT with a body", To: proxyAt, Send: []string{"CONNECT repo.test:443 HTTP/1.1\r\nHost: repo.test:443\r\nContent-Length: 5\r\n\r\nhello", "x"}},
		{Name: "CONNECT in CONNECT", To: proxyAt, Send: []string{"CONNECT repo.test:80 HTTP/1.1\r\nHost: repo.test:80\r\n\r\n", "CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n", "x"}},
		{Name: "other Host in a tunnel", To: proxyAt, Send: []string{"CONNECT repo.test:80 HTTP/1.1\r\nHost: repo.test:80\r\n\r\n", get("/", "other.test")[0]}},
		{Name: "second request for another", To: proxyAt, Send: []string{"GET http://repo.test/ HTTP/1.1\r\nHost: repo.test\r\n\r\n", get("http://other.test/", "other.test")[0]}},
		{Name: "smuggled by length", To: proxyAt, Send: []string{"POST http://repo.test/put HTTP/1.1\r\nHost: repo.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /SMUGGLED HTTP/1.1\r\nHost: other.test\r\n\r\n"}},
		{Name: "smuggled by two lengths", To: proxyAt, Send: []string{"POST http://repo.test/put HTTP/1.1\r\nHost: repo.test\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\nGET /SMUGGLED HTTP/1.1\r\nHost: other.test\r\n\r\n"}},
		{Name: "hop by hop headers", To: proxyAt, Send: []string{"GET http://repo.test/HOP HTTP/1.1\r\nHost: repo.test\r\nConnection: close, X-Gone\r\nX-Gone: 1\r\nProxy-Authorization: Basic eA==\r\n\r\n"}},
		{Name: "internal route of another", To: proxyAt, Send: get("http://repo.test/internal/wallet/x", "repo.test")},
		{Name: "the tool gateway by the proxy", To: proxyAt, Send: get("http://"+toolsAt+"/internal/tools", toolsAt)},
		{Name: "the proxy by the proxy", To: proxyAt, Send: []string{"CONNECT " + proxyAt + " HTTP/1.1\r\nHost: " + proxyAt + "\r\n\r\n", "x"}},
	}
	got, r := x.raw(x.opts("ring2", "--allow", "repo.test"), tries...)
	r.want(t, 0, "exited")
	quiet(t, other)
	for _, v := range repo.Visits() {
		if strings.Contains(v.Host, "other") || strings.Contains(v.URI, "SMUGGLED") || strings.Contains(v.URI, "/internal/") || v.Method == http.MethodConnect {
			t.Errorf("repo.test was asked for what isn't its own: %+v", v)
		}
		if strings.Contains(v.URI, "HOP") && (v.Header.Get("X-Gone") != "" || v.Header.Get("Proxy-Authorization") != "") {
			t.Errorf("headers between agent and proxy were passed on: %+v", v.Header)
		}
	}
	for _, name := range repo.Hellos() {
		if name != "repo.test" {
			t.Errorf("a hello for %q has reached repo.test", name)
		}
	}
	for _, tt := range tries {
		if a := got[tt.Name].Reply; strings.Contains(a, "hello from other") {
			t.Errorf("%s: got %.300q", tt.Name, a)
		}
	}
}

// M-8: names that the proxy looks up are pinned: the address that was checked is the one that is dialled.
func TestM8Rebinding(t *testing.T) {
	x := newExit(t)
	need(t, hostcaps.Root)
	inner := x.host("unused.test", exittest.Site())
	resolver := x.resolver
	public := mustAddr("192.0.2.77") // documentation: nothing answers there
	resolver.Answer("rebind.example.com", addrs(public), addrs(mustAddr("127.0.0.1")))
	resolver.Answer("inner.example.com", addrs(mustAddr("127.0.0.1")))
	resolver.Answer("mixed.example.com", addrs(public, mustAddr("169.254.169.254")))
	var tries []exchange
	for _, name := range []string{"rebind", "rebind", "inner", "mixed"} {
		at := name + ".example.com"
		tries = append(tries, exchange{Name: fmt.Sprint(len(tries), " ", at), To: proxyAt, Send: []string{"GET http://" + at + "/ HTTP/1.1\r\nHost: " + at + "\r\nConnection: close\r\n\r\n"}})
	}
	o := x.opts("ring2", "--allow", "*.example.com")
	got, r := x.raw(o, tries...)
	r.want(t, 0, "exited")
	for name, a := range got {
		if strings.Contains(a.Reply, "200 OK") {
			t.Errorf("%s: got %.200q", name, a.Reply)
		}
	}
	quiet(t, inner)
}

// onOtherHost gives a call an /etc/hosts and an /etc/resolv.conf of its own, as on another machine.
func onOtherHost(t *testing.T, c *call, hosts, resolv string) {
	t.Helper()
	dir := t.TempDir()
	h, r := write(t, filepath.Join(dir, "hosts"), hosts, 0o644), write(t, filepath.Join(dir, "resolv.conf"), resolv, 0o644)
	real, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err != nil {
		t.Fatal(err)
	}
	argv := []string{"unshare", "--mount", "--propagation", "private", "--", "sh", "-c",
		`mount --bind "$1" /etc/hosts && mount --bind "$2" "$3" && shift 3 && exec "$@"`, "sh", h, r, real, agentrun}
	c.Args = append(argv, c.Args[1:]...)
	if c.Path, err = lookPath("unshare"); err != nil {
		t.Fatal(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/internal/hostcaps"
	"agentrun/test/exit"
)

// A-H2: a server that serves several names from one address and asks for a second hello (HelloRetryRequest) reads no other name
// in it than the one that was decided about, by every way out, also when the second hello comes before the question.
func TestM8SecondHelloFromInside(t *testing.T) {
	need(t, hostcaps.IDMappedMounts(base))
	needProgram(t, "python3")
	x := newExit(t)
	server := &exittest.Retrying{Answers: [][]byte{exittest.Record(22, exittest.ServerHello(true)), exittest.Record(22, exittest.ServerHello(false))}}
	if _, err := x.w.Raw("many.test", server.Serve); err != nil {
		t.Fatal(err)
	}
	hello := func(name string, more ...[]byte) string {
		return string(exittest.Record(22, exittest.ClientHello(name, more...)))
	}
	first := hello("many.test")
	changed := string(exittest.Record(20, []byte{1}))
	ways := []struct {
		name, to string
		before   []string
	}{
		{"CONNECT", proxyAt, []string{"CONNECT many.test:443 HTTP/1.1\r\nHost: many.test:443\r\n\r\n"}},
		{"SOCKS", proxyAt, []string{"\x05\x01\x00", "\x05\x01\x00\x03\x09many.test\x01\xbb"}},
		{"capture", "many.test:443", nil},
	}
	attacks := []struct {
		name string
		send []string
	}{
		{"another name", []string{first, hello("other.test")}},
		{"another name after a ChangeCipherSpec", []string{first, changed + hello("third.test")}},
		{"no name", []string{first, hello("")}},
		{"hidden", []string{first, hello("many.test", exittest.ECH())}},
		{"at once", []string{first + hello("fourth.test")}},
	}
	var tries []exchange
	for _, way := range ways {
		for _, a := range attacks {
			tries = append(tries, exchange{Name: way.name + ", " + a.name, To: way.to, Send: append(slices.Clone(way.before), a.send...)})
		}
	}
	_, r := x.raw(x.opts("ring2", "--allow", "many.test"), tries...)
	r.want(t, 0, "exited")
	want := slices.Repeat([]string{"many.test"}, len(tries))
	if got := server.Names(); !slices.Equal(got, want) {
		t.Errorf("the server has read the names %q, want many.test once for each of %d tries", got, len(tries))
	}
	refused := 0
	for _, e := range calls(x.n.audit("node"), "egress") {
		if d := fmt.Sprint(e.Data); strings.Contains(d, "name_mismatch") || strings.Contains(d, "hidden_name") {
			count, _ := e.Data["count"].(float64)
			refused += max(int(count), 1)
		}
	}
	if refused != len(tries) {
		t.Errorf("%d refusals on record, want %d", refused, len(tries))
	}

	// The same name passes, as clients send it.
	tries = tries[:0]
	for _, way := range ways {
		tries = append(tries, exchange{Name: way.name, To: way.to, Send: append(slices.Clone(way.before), first, changed+first)})
	}
	got, r := x.raw(x.opts("ring2", "--allow", "many.test"), tries...)
	r.want(t, 0, "exited")
	for name, a := range got {
		if !strings.HasSuffix(a.Reply, string(server.Answers[1])) {
			t.Errorf("%s: got %q %s, want the server's second answer", name, a.Reply, a.Error)
		}
	}
	if n := len(server.Names()) - len(want); n != 2*len(tries) {
		t.Errorf("%d hellos of clients that behave, want %d", n, 2*len(tries))
	}
}

// A-L3: no spelling of dots in an argument of a tool's path leaves its place, a broken escape behind it neither.
func TestM12BrokenEscapesFromInside(t *testing.T) {
	x := newExit(t)
	site := x.host("api.test", exittest.Site())
	definition := x.httpTool("http://api.test/v1/{text}/x", "A")
	definition["args"].(object)["required"] = []string{"text"}
	x.settings.tool("lookup", definition)
	var tries []exchange
	for _, value := range []string{"..%2fadmin%", "..%2fadmin%2", "%2e%2e%2fadmin%zz", "%252e%252e%252fadmin%", "a%2f..%2f..%5cadmin%", "..%5c%"} {
		tries = append(tries, exchange{Name: value, To: toolsAt, Send: post("/internal/tools/lookup", `{"args":{"text":"`+value+`"}}`)})
	}
	tries = append(tries, exchange{Name: "harmless", To: toolsAt, Send: post("/internal/tools/lookup", `{"args":{"text":"50% off"}}`)})
	got, r := x.raw(x.opts("ring3"), tries...)
	r.want(t, 0, "exited")
	for name, a := range got {
		if name != "harmless" && !denied(a.Reply, "bad_arguments") {
			t.Errorf("%s: got %.500q %s, want bad_arguments", name, a.Reply, a.Error)
		}
	}
	if v := site.Visits(); len(v) != 1 || v[0].URI != "/v1/50%25%20off/x" {
		t.Errorf("the upstream has got %+v, want the harmless one", v)
	}
}

// A-L6: a browser on the node can't be made to read a run's metrics by a name that was made to mean 127.0.0.1.
func TestM20MetricsAreNoPage(t *testing.T) {
	x := newExit(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	c := x.prepare(x.opts("ring3", "--metrics-addr", at), "python3", "-c", "import time; print('ready', flush=True); time.sleep(600)")
	c.startUntil(t, "ready")
	eventually(t, 10*time.Second, "a socket for metrics", func() bool {
		conn, err := net.Dial("tcp", at)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	for host, want := range map[string]int{at: 200, "localhost": 200, "evil.example": 403, "evil.example:9464": 403} {
		q, err := http.NewRequest(http.MethodGet, "http://"+at+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Host = host
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want || want != 200 && strings.Contains(string(b), "agentrun_") {
			t.Errorf("Host %s: got %d %.200q, want %d", host, resp.StatusCode, b, want)
		}
	}
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	c.finish(t)
}

// A-L9: after a 101 nobody reads what is said, so that a rule with methods and paths lets no websocket through unless it says so.
func TestM8WebsocketsFromInside(t *testing.T) {
	need(t, hostcaps.IDMappedMounts(base))
	x := newExit(t)
	got := make(chan string, 16)
	serve := func(c net.Conn) {
		br := bufio.NewReader(c)
		for {
			q, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			got <- q.Method + " " + q.Host + q.RequestURI
			if q.Header.Get("Upgrade") == "" {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfree")
				continue
			}
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		}
	}
	for _, name := range []string{"narrow.test", "open.test"} {
		if _, err := x.w.Raw(name, serve); err != nil {
			t.Fatal(err)
		}
	}
	x.settings.section("egress")["rules"] = []object{
		{"host": "narrow.test", "methods": []string{"GET"}, "paths": []string{"/ws"}},
		{"host": "open.test", "methods": []string{"GET"}, "paths": []string{"/ws"}, "websockets": true},
	}
	try := func(host string) exchange {
		return exchange{Name: host, To: proxyAt, Send: []string{
			"GET http://" + host + "/ws HTTP/1.1\r\nHost: " + host + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
			"DELETE /adm HTTP/1.1\r\nHost: other.test\r\n\r\n"}}
	}
	answers, r := x.raw(x.opts("ring2"), try("narrow.test"), try("open.test"))
	r.want(t, 0, "exited")
	if a := answers["narrow.test"].Reply; !denied(a, "egress_denied") || !strings.Contains(a, "tunnel_not_listed") || strings.Contains(a, "free") {
		t.Errorf("narrow: got %.600q, want it refused", a)
	}
	if a := answers["open.test"].Reply; !strings.Contains(a, " 101 ") || !strings.HasSuffix(a, "free") {
		t.Errorf("open: got %.600q, want it switched", a)
	}
	close(got)
	var all []string
	for one := range got {
		all = append(all, one)
	}
	if want := []string{"GET open.test/ws", "DELETE other.test/adm"}; !slices.Equal(all, want) {
		t.Errorf("the servers have got %q, want %q", all, want)
	}
}

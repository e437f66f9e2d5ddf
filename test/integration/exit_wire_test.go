// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
	"agentrun/test/exit"
)

// A-H2: a server that serves several names from one address and asks for a second hello (HelloRetryRequest) reads no other name
// in it than the one that was decided about, by every way out, also when the second hello comes before the question.
func TestM8SecondHelloFromInside(t *testing.T) {
	t.Parallel() // it mostly waits
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

// M-20, M-7: any user of the host can connect to a run's metrics; that takes no descriptors from its way out.
func TestM20ScrapersLeaveTheWayOut(t *testing.T) {
	x := newExit(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	c := x.prepare(x.opts("ring3", "--metrics-addr", at), "python3", "-c", "import time; print('ready', flush=True); time.sleep(600)")
	c.startUntil(t, "ready")
	eventually(t, 30*time.Second, "the gateway listens, which the agent doesn't wait for", func() bool {
		conn, err := net.Dial("tcp", at)
		return err == nil && conn.Close() == nil
	})
	open := func() int {
		all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", gatewayOf(t).pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := open()
	for n := range 300 {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if n%2 == 0 { // a whole request, after which it stays
			if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: "+at+"\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
	}
	time.Sleep(time.Second)
	if now := open(); now > before+100 {
		t.Errorf("300 connections: the gateway has %d descriptors open, %d before", now, before)
	}
	eventually(t, 30*time.Second, "metrics are served beside them", func() bool {
		client := &http.Client{Timeout: 5 * time.Second}
		resp, err := client.Get("http://" + at + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == 200
	})
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	c.finish(t)
}

// A-L9: after a 101 nobody reads what is said, so that a rule with methods and paths lets no websocket through unless it says so.
func TestM8WebsocketsFromInside(t *testing.T) {
	t.Parallel() // it mostly waits
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

const lookingForKeys = `
import base64, json, os, re, sys, urllib.request
print(urllib.request.urlopen("https://api.test/v1/x").read().decode(), flush=True)
marks = [re.compile(re.escape(bytes.fromhex("301306072a8648ce3d020106082a8648ce3d030107046d306b02010104")) + b"|MIGHAgEAMBMGByqGSM49Ag|BEGIN (EC )?PRIVATE KEY")]
found, read = [], 0
def look(path):
    global read
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    with os.fdopen(fd, "rb", buffering=0) as f:
        try:
            b = f.read(4 << 20) or b""
        except OSError:
            return
    read += 1
    if marks[0].search(b) and os.path.abspath(path) != os.path.abspath(sys.argv[0]):
        found.append(path)
for root in ["/etc", "/run", "/tmp", "/dev", "/workspace", "/var"]:
    for folder, _, names in os.walk(root):
        for n in names: look(os.path.join(folder, n))
for pid in os.listdir("/proc"):
    if pid.isdigit() and int(pid) != os.getpid():
        for n in ["environ", "cmdline", "mem", "maps", "auxv"]: look("/proc/%s/%s" % (pid, n))
for n in ["environ", "cmdline"]: look("/proc/self/" + n)
print(json.dumps({"read": read, "found": found}), flush=True)
import time; time.sleep(600)
`

// The key of a run's CA is in the memory of its gateway and supervisor. It is in no file of the host's or the agent's, in no
// argument or environment, and the gateway's memory opens to nobody but root: not to the agent, not to the gateway's own user.
func TestM8TheKeyOfTheCAIsInMemoryOnly(t *testing.T) {
	needProgram(t, "python3")
	x := newExit(t)
	x.host("api.test", exittest.Site())
	x.settings.section("egress")["rules"] = []object{{"host": "api.test", "intercept": true}}
	x.file("look.py", lookingForKeys)
	o := x.opts("ring2", "--timeout", "60s")
	o.flags = slices.DeleteFunc(slices.Clone(o.flags), func(f string) bool { return f == "--env" || strings.HasSuffix(f, "=/ca.pem") })
	c := x.prepare(o, "/usr/bin/python3", "look.py")
	c.startUntil(t, `"found"`)
	var said struct {
		Read  int
		Found []string
	}
	lines := strings.Split(strings.TrimSpace(c.told), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &said); err != nil || said.Read < 50 || len(said.Found) > 0 || !strings.HasPrefix(lines[0], "hello from") {
		t.Errorf("the agent says %q: %v", lines, err)
	}

	hasKey := func(b []byte) bool {
		return slices.ContainsFunc([]string{"\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x04\x6d\x30\x6b\x02\x01\x01\x04", "MIGHAgEAMBMGByqGSM49Ag", "PRIVATE KEY"},
			func(mark string) bool { return bytes.Contains(b, []byte(mark)) })
	}
	if made, err := exec.Command(filepath.Join(filepath.Dir(agentrun), "agentrun-gateway"), "ca", "run_1").Output(); err != nil || !hasKey(made) {
		t.Fatalf("the marks don't fit the keys that are made: %v", err)
	}
	looked := 0
	look := func(path string) {
		b, err := os.ReadFile(path)
		if err != nil {
			return
		}
		looked++
		if hasKey(b) {
			t.Errorf("%s has a key in it", path)
		}
	}
	for _, folder := range []string{x.n.dir, runDir} {
		_ = filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				look(path)
			}
			return nil
		})
	}
	gateways := 0
	for _, pid := range below(t, c.Process.Pid) {
		for _, name := range []string{"cmdline", "environ"} {
			look(fmt.Sprintf("/proc/%d/%s", pid, name))
		}
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if !strings.HasPrefix(string(comm), "agentrun-gatewa") {
			continue
		}
		gateways++
		var st unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("/proc/%d/mem", pid), &st); err != nil || st.Uid != 0 {
			t.Errorf("the gateway's memory belongs to %d, %v; want root, as that of undumpable processes does", st.Uid, err)
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		own := regexp.MustCompile(`(?m)^Uid:\t(\d+)`).FindSubmatch(status)
		limits, _ := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		if own == nil || string(own[1]) == "0" || !regexp.MustCompile(`(?m)^Max core file size +0 +0 `).Match(limits) {
			t.Errorf("the gateway is %s, with limits\n%s", own, limits)
			continue
		}
		uid, _ := strconv.Atoi(string(own[1]))
		for _, name := range []string{"mem", "environ", "maps", "fd"} {
			cat := exec.Command("/bin/ls", "-l", fmt.Sprintf("/proc/%d/%s/", pid, name))
			if name != "fd" {
				cat = exec.Command("/bin/head", "-c", "1", fmt.Sprintf("/proc/%d/%s", pid, name))
			}
			cat.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
			if out, err := cat.CombinedOutput(); err == nil || !strings.Contains(string(out), "Permission denied") {
				t.Errorf("the gateway's own user reads its %s: %q, %v", name, out, err)
			}
		}
	}
	if gateways != 1 || looked < 5 {
		t.Errorf("%d gateways, %d files looked at", gateways, looked)
	}
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	c.finish(t)
}

// below are the processes below one, as /proc tells.
func below(t *testing.T, root int) (pids []int) {
	t.Helper()
	for todo := []int{root}; len(todo) > 0; todo = todo[1:] {
		pids = append(pids, todo[0])
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", todo[0]))
		for _, task := range tasks {
			b, _ := os.ReadFile(task)
			for _, field := range strings.Fields(string(b)) {
				pid, err := strconv.Atoi(field)
				if err != nil {
					t.Fatal(err)
				}
				todo = append(todo, pid)
			}
		}
	}
	return pids
}

// What is held to names is TCP: datagrams go nowhere, to an allowed name as little as to an address, so there is no QUIC whose
// hello somebody would have to read.
func TestM8NoDatagramsOut(t *testing.T) {
	x := newExit(t)
	h := x.host("quic.test", exittest.Site())
	c, err := net.ListenPacket("udp", net.JoinHostPort(h.Addr.String(), "443"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var tries []exchange
	for _, to := range []string{"quic.test:443", h.Addr.String() + ":443", "192.0.2.1:443", "127.0.0.1:443", "[2001:db8::1]:443"} {
		tries = append(tries, exchange{Name: to, Net: "udp", To: to, Send: []string{"\xc0\x00\x00\x00\x01 a datagram"}})
	}
	got, r := x.raw(x.opts("ring2", "--allow", "quic.test", "--allow", h.Addr.String()), tries...)
	r.want(t, 0, "exited")
	for name, a := range got {
		if a.Reply != "" {
			t.Errorf("%s: got %q", name, a.Reply)
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, from, err := c.ReadFrom(make([]byte, 100)); err == nil {
		t.Errorf("%d bytes from %v have got out", n, from)
	}
}

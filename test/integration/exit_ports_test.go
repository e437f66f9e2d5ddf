// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"agentrun/internal/hostcaps"
)

// anyPort speaks to ports that no program expects a proxy at: one that lets the server speak first, one that waits.
const anyPort = `
import socket, sys
def say(to, port):
    try:
        for last in (False, False, True): # the first question for a name waits for the gateway's start
            try:
                s = socket.create_connection((to, port), timeout=20)
                break
            except socket.gaierror:
                if last: raise
        s.sendall(b"hello\n")
        return s.makefile("rb").readline().decode().strip() or "closed"
    except OSError as e:
        return type(e).__name__
def tell(to, port): # a datagram to the same port
    at = socket.getaddrinfo(to, port, type=socket.SOCK_DGRAM)[0]
    s = socket.socket(at[0], socket.SOCK_DGRAM)
    s.settimeout(20 if "%s:%d" % (to, port) == sys.argv[2] and sys.argv[1] == "all" else 0.5)
    s.sendto(b"hello", at[4])
    try:
        text, back = s.recvfrom(9000)
        return text.decode() if back[:2] == at[4][:2] else "from " + str(back)
    except OSError as e:
        return type(e).__name__
own = socket.create_server(("127.0.0.1", 8022))
for line in sys.argv[2:]:
    to, port = line.rsplit(":", 1)
    print(line, say(to, int(port)), flush=True)
    print(line + "/udp", tell(to, int(port)), flush=True)
mine = socket.create_connection(("127.0.0.1", 8022), timeout=5)
print("own", "ok" if own.accept()[0] else "", flush=True)
`

// H-11, M-8: "network: all" of ring 1 is every TCP and UDP port, for programs that know of no proxy: by the way out, its addresses checked,
// on record. What isn't public and not allowed, and the ports of databases, are refused and on record too. Rings 2 and 3 stay as they are.
func TestH11Ring1ReachesEveryPort(t *testing.T) {
	t.Parallel()
	need(t, hostcaps.SocketLookup)
	needProgram(t, "python3")
	x := newExit(t)
	far := x.host("far.test", nil)
	l, err := net.Listen("tcp", net.JoinHostPort(far.Addr.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { fmt.Fprintln(c, "SSH-2.0-far"); _, _ = io.Copy(io.Discard, c); c.Close() }()
		}
	}()
	port := l.Addr().(*net.TCPAddr).Port
	u, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(append([]byte("far:"), b[:n]...), from)
		}
	}()
	x.settings.section("egress")["allow"] = []string{"far.test:*", far.Addr.String() + ":*"}
	x.file("any.py", anyPort)
	to, shut, db := fmt.Sprintf("far.test:%d", port), fmt.Sprintf("10.1.2.3:%d", port), "far.test:5432"
	for _, ring := range []string{"ring1", "ring2"} {
		before := len(x.n.audit("node"))
		r := x.run(x.opts(ring), "python3", "any.py", map[string]string{"ring1": "all", "ring2": "listed"}[ring], to, shut, db)
		r.want(t, 0, "exited")
		got := map[string]string{}
		for line := range strings.Lines(r.stdout) {
			name, said, _ := strings.Cut(strings.TrimSpace(line), " ")
			got[name] = said
		}
		seen := map[string]string{}
		for _, e := range x.n.audit("node")[before:] {
			if e.Kind == "egress" && e.Data["type"] == "egress" {
				seen[e.Data["destination"].(string)] = fmt.Sprint(e.Data["allowed"], " ", e.Data["code"])
			}
		}
		if got["own"] != "ok" {
			t.Errorf("%s: its own server on loopback: %v", ring, got)
		}
		if ring == "ring2" {
			if got[to] != "ConnectionRefusedError" || got[to+"/udp"] != "ConnectionRefusedError" && got[to+"/udp"] != "TimeoutError" || len(seen) != 0 {
				t.Errorf("ring 2: got %v, on record %v, want a port that is not captured", got, seen)
			}
			continue
		}
		if got[to] != "SSH-2.0-far" || seen[to] != "true ok" {
			t.Errorf("ring 1: %s says %q, on record %v", to, got[to], seen)
		}
		if got[to+"/udp"] != "far:hello" || seen[to+"/udp"] != "true ok" {
			t.Errorf("ring 1: a datagram to %s hears %q, on record %v", to, got[to+"/udp"], seen)
		}
		for _, at := range []string{shut, db, shut + "/udp", db + "/udp"} {
			if strings.Contains(got[at], "far") || !strings.HasPrefix(seen[at], "false ") {
				t.Errorf("ring 1: %s says %q, on record %v", at, got[at], seen)
			}
		}
	}
}

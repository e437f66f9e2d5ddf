// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

// endedBox is a run of ps, or of inspect, that is over.
type endedBox struct {
	box
	End *struct {
		State    string            `json:"state"`
		ExitCode int               `json:"exit_code"`
		Refused  map[string]uint64 `json:"refused"`
	} `json:"end"`
}

// M-23, M-6: a detached run that has ended was gone a second later, although its output and its exit code
// were on the disk. It is found by its id and by its name, with the daemon and without one, also when its
// supervisor was killed.
func TestM23EndedRunsAreFound(t *testing.T) {
	n := startDaemon(t)
	p := place{t, n.run, n.state}
	for name, env := range map[string][]string{"served": nil, "alone": {"AGENTRUN_NO_DAEMON=1"}} {
		c := n.prepare(t, opts{env: env, flags: []string{"-d", "--name", name}}, "/probe", "exit", "3")
		out, err := c.output()
		id := strings.TrimSpace(string(out))
		if err != nil || id == "" {
			t.Fatalf("%s: %v\n%s", name, err, c.errOut.String())
		}
		eventually(t, 20*time.Second, "the run is over", func() bool { return len(p.list()) == 0 })
		for _, ref := range []string{id, id[:8], name} {
			if r := p.do("wait", ref); r.exit != 3 {
				t.Errorf("wait %s: got exit %d, want the run's 3\n%s", ref, r.exit, r.stderr)
			}
			if got := asked[endedBox](p, "inspect", ref); got.ID != id || got.State != "ended" || got.End == nil || got.End.ExitCode != 3 {
				t.Errorf("inspect %s: %+v", ref, got)
			}
			for _, verb := range []string{"logs", "output"} {
				p.must(verb, ref)
			}
		}
		if r := p.must("inspect", name); !strings.Contains(r.stdout, "exited 3") || !strings.Contains(r.stdout, "/probe") {
			t.Errorf("inspect %s:\n%s", name, r.stdout)
		}
	}
	if r := p.do("wait", "served", "nosuch"); r.exit != 125 || !strings.Contains(r.stderr, `no live run "nosuch"`) {
		t.Errorf("wait for nobody: exit %d\n%s", r.exit, r.stderr)
	}
	for _, flags := range [][]string{{"--all"}, {"--state", "ended"}, {"-a", "--ring", "3"}} {
		var states []string
		for _, r := range asked[[]endedBox](p, append([]string{"ps"}, flags...)...) {
			states = append(states, r.Name+" "+r.State)
		}
		if len(states) != 2 || !strings.Contains(strings.Join(states, ","), "served ended") {
			t.Errorf("ps %v: %q, want both runs", flags, states)
		}
	}
	if got := asked[[]endedBox](p, "ps", "--all", "--ring", "2"); len(got) != 0 {
		t.Errorf("of ring 2: %+v", got)
	}
	if list := p.list(); len(list) != 0 {
		t.Errorf("ps without --all: %+v", list)
	}
	n.drain(t)
}

// The supervisor of a detached run is killed: nobody was left to write an end, and that is what is told.
func TestM23LostRunsAreTold(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	c := p.at(prepare(t, opts{flags: []string{"--no-gateway", "-d", "--name", "cut-off"}}, "/probe", "sleep", "100"))
	if out, err := c.output(); err != nil {
		t.Fatalf("%v\n%s%s", err, out, c.errOut.String())
	}
	live := p.list()
	if len(live) != 1 {
		t.Fatalf("live: %+v", live)
	}
	supervisor, err := os.FindProcess(live[0].Supervisor)
	if err != nil {
		t.Fatal(err)
	}
	if err := supervisor.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the run is gone", func() bool { return p.do("ps", "-q").stdout == "" })
	if r := p.must("ps", "--all"); !strings.Contains(r.stdout, "lost 125") || !strings.Contains(r.stdout, "cut-off") {
		t.Errorf("ps --all:\n%s", r.stdout)
	}
	if r := p.do("wait", "cut-off"); r.exit != 125 || !strings.Contains(r.stderr, "supervisor was killed") {
		t.Errorf("wait: exit %d\n%s", r.exit, r.stderr)
	}
	p.must("gc")
}

// M-8: a refused connection was in the audit alone: npm says nothing, git "could not resolve host". The
// account has each, and stderr says what failed and the flags that would allow it, with the address where a
// name leads to one that isn't public.
func TestM8RefusedConnectionsAreTold(t *testing.T) {
	t.Parallel()
	needProgram(t, "python3")
	x := newExit(t)
	x.resolver.Answer("db.example.com", []netip.Addr{netip.MustParseAddr("10.0.0.5")})
	x.file("ask.py", `
import socket, sys
def ask(at):
    s = socket.create_connection(("127.0.0.1", 7601)); s.settimeout(15)
    s.sendall(("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (at, at)).encode()); s.recv(4096); s.close()
for at in sys.argv[1:]: ask(at)
try: socket.getaddrinfo("looked-up.example.com", 443)
except OSError: pass
raise SystemExit(4)
`)
	found := func(ring string, flags ...string) (map[string]refusedOut, result) {
		r := x.run(x.opts(ring, flags...), "python3", "ask.py", "pypi.org:443", "pypi.org:443", "pypi.org:8443",
			"db.example.com:8080", "x;reboot:443")
		r.want(t, 4, "exited")
		m := map[string]refusedOut{}
		for _, o := range r.status.GatewayRefused {
			m[o.Kind+" "+o.Name] = o
		}
		return m, r
	}
	got, r := found("ring2", "--allow", "db.example.com:8080")
	for name, want := range map[string]refusedOut{
		"egress pypi.org:443":        {Code: "not_listed", Count: 2, Hint: "--allow pypi.org"},
		"egress pypi.org:8443":       {Code: "not_listed", Count: 1, Hint: "--allow pypi.org:8443"},
		"egress db.example.com:8080": {Code: "private_address", Count: 1, Hint: "--allow db.example.com:8080 --allow 10.0.0.5:8080"},
		"dns looked-up.example.com":  {Code: "name_not_allowed", Hint: "--allow looked-up.example.com"},
	} {
		if o := got[name]; o.Code != want.Code || o.Hint != want.Hint || o.Count < want.Count {
			t.Errorf("%s: got %+v, want %+v", name, o, want)
		}
	}
	for name, o := range got {
		if strings.Contains(name, "reboot") && o.Hint != "" {
			t.Errorf("%s: a name that no command line should have is in the hint %q", name, o.Hint)
		}
	}
	for _, want := range []string{"connections refused: ", "pypi.org:443 (not_listed)", "\nhint: --allow pypi.org --allow pypi.org:8443 --allow db.example.com:8080 --allow 10.0.0.5:8080"} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("stderr lacks %q:\n%s", want, r.stderr)
		}
	}
	if strings.Contains(r.stderr, "memory at most") {
		t.Errorf("nobody watches, and what it used is told:\n%s", r.stderr)
	}
	if _, r = found("ring3"); !strings.Contains(r.stderr, "\nhint: --ring 2 --allow pypi.org") {
		t.Errorf("ring 3:\n%s", r.stderr)
	}
}

// What a run took is told where somebody watches, by a daemon too; with --json it stands there.
func TestM6ClosingSummaryOnATerminal(t *testing.T) {
	n := startDaemon(t)
	for _, env := range [][]string{nil, {"AGENTRUN_NO_DAEMON=1"}} {
		term := openTerminal(t, 100, 30)
		c := term.begin(n.prepare(t, opts{profile: "ring3", env: env}, "/probe", "fork"))
		shown := term.until("agentrun: refused: system calls")
		if !strings.Contains(shown, "agentrun: ran ") || !strings.Contains(shown, "memory at most ") {
			t.Errorf("%v: %q", env, shown)
		}
		c.finish(t).want(t, 0, "exited")
	}
	c := n.prepare(t, opts{profile: "ring3", flags: []string{"--json"}}, "/probe", "exit", "5")
	term := openTerminal(t, 100, 30)
	r := term.begin(c).finish(t)
	r.want(t, 5, "exited")
	shown := term.until(`"plan_digest"`) // the JSON line is the last
	if strings.Contains(shown, "agentrun: ran") {
		t.Errorf("with --json: %q", shown)
	}
	n.drain(t)
}

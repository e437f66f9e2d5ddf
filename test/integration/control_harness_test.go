// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// place is a run folder and a state folder of its own: `--all` means what runs there.
type place struct {
	t          *testing.T
	run, state string
}

func newPlace(t *testing.T) place {
	t.Helper()
	needSandbox(t)
	at := filepath.Join(base, fmt.Sprintf("place-%d", counter.Add(1)))
	p := place{t, filepath.Join(at, "run"), filepath.Join(at, "state")}
	for _, d := range []string{p.run, p.state} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// do is any command there.
func (p place) do(args ...string) result {
	p.t.Helper()
	return p.doWith(nil, args...)
}

// doWith is do with an input.
func (p place) doWith(in io.Reader, args ...string) result {
	p.t.Helper()
	ran(p.t, "root", args)
	ctx, cancel := context.WithTimeout(context.Background(), hang())
	defer cancel()
	cmd := exec.CommandContext(ctx, agentrun, append([]string{"--state-dir", p.state, "--run-dir", p.run}, args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errOut
	began := time.Now()
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		p.t.Errorf("agentrun %v: %v", args, err)
	}
	return result{exit: cmd.ProcessState.ExitCode(), stdout: out.String(), stderr: errOut.String(), wall: time.Since(began)}
}

// must is do of what has to work.
func (p place) must(args ...string) result {
	p.t.Helper()
	r := p.do(args...)
	if r.exit != 0 {
		p.t.Fatalf("agentrun %v: exit %d\n%s%s", args, r.exit, r.stdout, r.stderr)
	}
	return r
}

// refused is do of what must not work, for a reason that has this code.
func (p place) refused(code string, args ...string) {
	p.t.Helper()
	if r := p.do(args...); r.exit == 0 || !strings.Contains(r.stderr, "("+code+")") || !strings.Contains(r.stderr, "hint: ") {
		p.t.Errorf("agentrun %v: exit %d, want a refusal with %s and a hint:\n%s%s", args, r.exit, code, r.stdout, r.stderr)
	}
}

// asked is the JSON answer of a command.
func asked[T any](p place, args ...string) (v T) {
	p.t.Helper()
	r := p.must(append(slices.Clone(args), "--json")...)
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		p.t.Fatalf("agentrun %v: %v\n%s", args, err, r.stdout)
	}
	return v
}

// box is what ps says of a run.
type box struct {
	ID          string     `json:"id"`
	Name        string     `json:"name"`
	State       string     `json:"state"`
	BaseRing    int        `json:"base_ring"`
	Ring        int        `json:"ring"`
	Quarantined bool       `json:"quarantined"`
	Elevation   *loan      `json:"elevation"`
	PID         int        `json:"pid"`
	Supervisor  int        `json:"supervisor"`
	Limits      liveLimits `json:"limits"`
	Processes   []struct {
		PID   int  `json:"pid"`
		First bool `json:"first"`
	} `json:"processes"`
}

type loan struct {
	ID      string    `json:"elevation_id"`
	Target  int       `json:"target_ring"`
	Expires time.Time `json:"expires_at"`
}

type liveLimits struct {
	CPU    float64 `json:"cpu"`
	Memory int64   `json:"memory_bytes"`
	PIDs   int64   `json:"pids"`
}

var (
	limits3 = liveLimits{0.5, 256 << 20, 64}
	limits2 = liveLimits{0.75, 512 << 20, 128}
)

func (p place) list() []box { p.t.Helper(); return asked[[]box](p, "ps") }

// told is a run of the real binary whose agent does what it is told.
type told struct {
	*call
	place
	name string
	say  *os.File
	hear *bufio.Reader
}

// at makes a call one of the place's.
func (p place) at(c *call) *call {
	for flag, dir := range map[string]string{"--state-dir": p.state, "--run-dir": p.run} {
		c.Args[slices.Index(c.Args, flag)+1] = dir
	}
	return c
}

// agent begins a run with a name whose agent does what it is told: the probe, without a way out.
func (p place) agent(name string, o opts, argv ...string) *told {
	p.t.Helper()
	if argv == nil {
		argv = []string{"/probe", "live"}
	}
	// Time enough to be slow in: a storm under emulation burns the usual 20 s while one looks at the others.
	o.flags = append([]string{"--no-gateway", "--timeout", "300s", "--cpu-time", "300s"}, o.flags...)
	return p.begin(name, p.at(prepare(p.t, o, argv...)))
}

func (p place) begin(name string, c *call) *told {
	p.t.Helper()
	a := p.beginOnly(name, c)
	if got := a.line(); got != "ready" {
		p.t.Fatalf("%s says %q, want ready", name, got)
	}
	return a
}

func (p place) beginOnly(name string, c *call) *told {
	p.t.Helper()
	c.Args = slices.Insert(c.Args, slices.Index(c.Args, "exec")+1, "--name", name)
	return p.talk(name, c)
}

// talk begins a call whose program does what it is told.
func (p place) talk(name string, c *call) *told {
	p.t.Helper()
	stdin, say, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	hear, stdout, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	c.Stdin, c.Stdout = stdin, stdout
	c.started = time.Now()
	err = c.Start()
	stdin.Close()
	stdout.Close()
	if err != nil {
		p.t.Fatal(err)
	}
	a := &told{c, p, name, say, bufio.NewReader(hear)}
	p.t.Cleanup(func() {
		c.cancel()
		_ = c.Wait()
		say.Close()
		hear.Close()
		if c.ProcessState.ExitCode() < 0 { // the supervisor was killed here, and what that leaves is gc's
			p.do("gc")
		}
		if b, err := os.ReadFile(c.statusFile); err == nil && p.t.Failed() {
			p.t.Logf("how %s ended: %s\n%s", name, b, c.errOut.String())
		}
	})
	return a
}

func (a *told) line() string {
	a.t.Helper()
	s, err := a.hear.ReadString('\n')
	if err != nil {
		_ = a.Wait()
		b, _ := os.ReadFile(a.statusFile)
		a.t.Fatalf("hear %s: %v (%q)\nstatus: %s\nstderr: %s", a.name, err, s, b, a.errOut.String())
	}
	return strings.TrimSuffix(s, "\n")
}

// try has the agent try something and gives what came of it: ok, errno=X, value=X.
func (a *told) try(words string) string {
	a.t.Helper()
	a.tell(words)
	return a.answer(words)
}

// tell begins a try, for who does something before the answer comes.
func (a *told) tell(words string) { fmt.Fprintln(a.say, words) }

func (a *told) answer(words string) string {
	a.t.Helper()
	for {
		line := a.line()
		if line == "ok: ok" { // a program that it has started
			continue
		}
		got, ok := strings.CutPrefix(line, words+": ")
		if !ok {
			a.t.Fatalf("%s: %s says %q", words, a.name, line)
		}
		return got
	}
}

func (a *told) expect(want string, tries ...string) {
	a.t.Helper()
	for _, words := range tries {
		if got := a.try(words); got != want {
			a.t.Errorf("%s, %s: got %s, want %s", a.name, words, got, want)
		}
	}
}

// quit lets the agent end by itself.
func (a *told) quit() result { a.say.Close(); return a.finish(a.t) }

// seen is what ps and inspect say of it.
func (a *told) seen() box { a.t.Helper(); return asked[box](a.place, "inspect", a.name) }

func (a *told) elevate(ttl time.Duration, flags ...string) loan {
	a.t.Helper()
	return asked[loan](a.place, append([]string{"elevate", a.name, "--to", "2", "--ttl", ttl.String(), "--reason", "a test"}, flags...)...)
}

// holds waits until the last change of the ring has come to hold, in all its parts: the event is sent then, ps shows it before.
func (a *told) holds(ring int) {
	a.t.Helper()
	eventually(a.t, 20*time.Second, fmt.Sprintf("%s in ring %d", a.name, ring), func() bool {
		e := a.events("ring_changed")
		return len(e) > 0 && e[len(e)-1].Data["to"] == strconv.Itoa(ring)
	})
}

// happened is a line of `agentrun events`.
type happened struct {
	Kind string            `json:"kind"`
	Ring int               `json:"ring"`
	At   time.Time         `json:"at"`
	Data map[string]string `json:"data"`
}

func (a *told) events(kind string) []happened {
	a.t.Helper()
	var list []happened
	for line := range strings.Lines(a.must("events", a.name, "--json").stdout) {
		var e happened
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			a.t.Fatalf("events: %v: %s", err, line)
		}
		if e.Kind == kind {
			list = append(list, e)
		}
	}
	return list
}

// ringChanges fails the test unless every change of the ring came to hold in time.
func (a *told) ringChanges(want ...string) {
	a.t.Helper()
	var got []string
	for _, e := range a.events("ring_changed") {
		got = append(got, e.Data["from"]+">"+e.Data["to"])
		if took, err := time.ParseDuration(e.Data["took"]); err != nil || took <= 0 || took > soon() {
			a.t.Errorf("%v took %q, want at most %v (M-22)", e.Data, e.Data["took"], soon())
		}
	}
	if !slices.Equal(got, want) {
		a.t.Errorf("changes of the ring: got %v, want %v", got, want)
	}
}

// hostLimits are what the kernel has for the cgroup of a process; -1 where it says nothing.
func hostLimits(t *testing.T, pid int) liveLimits {
	t.Helper()
	l := liveLimits{-1, -1, -1}
	for _, line := range lines(fmt.Sprintf("/proc/%d/cgroup", pid)) {
		f := strings.SplitN(line, ":", 3)
		read := func(name string) []string {
			mount := "/sys/fs/cgroup"
			if f[1] != "" {
				mount = filepath.Join(mount, f[1])
			}
			b, _ := os.ReadFile(filepath.Join(mount, groupOf(f[2]), name))
			return strings.Fields(string(b))
		}
		number := func(words []string, i int, to *int64) {
			if len(words) > i {
				if n, err := strconv.ParseInt(words[i], 10, 64); err == nil {
					*to = n
				}
			}
		}
		number(read("pids.max"), 0, &l.PIDs)
		number(read("memory.max"), 0, &l.Memory)
		number(read("memory.limit_in_bytes"), 0, &l.Memory)
		quota, period := int64(-1), int64(100_000)
		number(read("cpu.cfs_quota_us"), 0, &quota)
		number(read("cpu.cfs_period_us"), 0, &period)
		number(read("cpu.max"), 0, &quota)
		number(read("cpu.max"), 1, &period)
		if quota > 0 {
			l.CPU = float64(quota) / float64(period)
		}
	}
	return l
}

// audit reads the node's chain.
func (p place) audit() []entry { p.t.Helper(); return node{p.t, p.state}.audit("node") }

// causes are the causes of ended elevations on record, in order.
func causes(log []entry) (granted int, ended []string) {
	for _, e := range log {
		switch {
		case e.Kind == "elevation" && e.Data["granted"] == true:
			granted++
		case e.Kind == "elevation_end":
			ended = append(ended, fmt.Sprint(e.Data["cause"]))
		}
	}
	return granted, ended
}

// obeyer is the probe's life on command for what takes a network, in Python. watch counts what it gets that its ring must allow.
const obeyer = `
import errno, json, os, socket, sys, threading, time
held = []
last = {}
def fork():
    p = os.fork()
    if p == 0: os._exit(0)
    os.waitpid(p, 0)
def create(path): os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
def hold(path): held.append(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
def child():
    if os.fork() == 0:
        while True: time.sleep(60)
def dial(at):
    host, port = at.rsplit(":", 1)
    s = socket.create_connection((host, int(port)), timeout=30)
    return s
def say(at, text):
    s = dial(at)
    s.sendall(text.encode())
    got = b""
    while True:
        b = s.recv(65536)
        if not b: break
        got += b
    s.close()
    return got.decode("latin-1")
def code(reply): return reply.split(" ", 2)[1] if " " in reply else "none"
def get(host): return "value=" + code(say("127.0.0.1:7601", "GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (host, host)))
def post(path, body):
    return say("127.0.0.1:7600", "POST %s HTTP/1.1\r\nHost: 127.0.0.1:7600\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (path, len(body), body))
def answer(reply):
    try: body = json.loads(reply.split("\r\n\r\n", 1)[1])
    except (ValueError, IndexError): return reply[:300]
    if body.get("ok") is True or body.get("granted") is True or body.get("elevation_id"): return "ok"
    e = body.get("error", body)
    return e.get("code", str(body)) if isinstance(e, dict) else str(e)
def reach(at, text):
    s = socket.socket(socket.AF_UNIX); s.settimeout(5)
    try:
        s.connect(at.replace("@", "\0"))
        s.sendall((text.replace("_", " ") + "\r\nHost: x\r\n\r\n").encode())
        got = s.recv(4096)
        return "value=" + (got.decode("latin-1") if got else "silence")
    except ConnectionError: return "value=silence"
def look(path):
    try: return "value=" + ",".join(os.listdir(path))
    except OSError as e: return "errno=" + errno.errorcode[e.errno]
def roots():
    found = []
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try: found += [pid + "/" + e for e in os.listdir("/proc/%s/root/run/agentrun" % pid) if e != "tools.sock"]
            except OSError: pass
    return "value=" + ",".join(found)
def tool(name): return "value=" + answer(post("/internal/tools/" + name, '{"args":{}}'))
def tools(name, n):
    got = []
    ts = [threading.Thread(target=lambda: got.append(tool(name))) for _ in range(int(n))]
    for t in ts: t.start()
    for t in ts: t.join()
    return "value=" + ",".join(sorted(g[6:] for g in got))
def elevate(target, wait):
    while True:
        a = answer(post("/internal/elevation", json.dumps({"target_ring": int(target), "ttl_seconds": 60, "reason": "a test", "wait_seconds": int(wait)})))
        if a != "rate_limited": return "value=" + a
        time.sleep(0.6) # each try costs two
def tunnel(host):
    s = dial("127.0.0.1:7601")
    s.sendall(("CONNECT %s:80 HTTP/1.1\r\nHost: %s:80\r\n\r\n" % (host, host)).encode())
    got = s.recv(4096).decode("latin-1")
    held.append(s)
    if code(got) != "200": return "value=" + code(got)
    s.sendall(("GET /drip HTTP/1.1\r\nHost: %s\r\n\r\n" % host).encode())
    def read():
        try:
            while s.recv(4096): last["tunnel"] = time.time()
        except OSError: pass
        last["cut"] = time.time()
    threading.Thread(target=read, daemon=True).start()
    return "value=200"
def watch(path):
    def loop(name, do):
        while True:
            try:
                do()
                last[name] = time.time()
            except OSError: pass
            time.sleep(0.004)
    threading.Thread(target=loop, args=("fork", fork), daemon=True).start()
    threading.Thread(target=loop, args=("create", lambda: create(path)), daemon=True).start()
def seen(): return "value=" + json.dumps(last)
print("ready", flush=True)
for line in sys.stdin:
    words = line.split()
    try: r = globals()[words[0].replace("-", "_")](*words[1:]) or "ok"
    except OSError as e: r = "errno=" + errno.errorcode.get(e.errno, str(e))
    print(line.strip() + ": " + r, flush=True)
`

// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// watcher says when it was given what ring 3 doesn't have: between the time at which it began to ask and that at which it had it. Frozen,
// or waiting for a processor, the two lie far apart, and which of them it was is not known.
const watcher = `
import os, time
pause, n, given = float(os.environ["PAUSE"]), 0, False
print("ready", flush=True)
if os.environ.get("ASK"):
    import ask # slow to load
    ask.begin()
while True:
    n += 1
    for what in ("create", "fork"):
        if what == "fork" and not given and n % int(10 / pause): continue # refused ones soon amount to a breach
        t, given = time.time(), False
        try:
            if what == "fork":
                p = os.fork()
                if p == 0: os._exit(0)
                os.waitpid(p, 0)
            else:
                os.close(os.open("/workspace/new-" + os.environ["NAME"], os.O_WRONLY | os.O_CREAT, 0o644))
            print(what, "%.6f" % t, "%.6f" % time.time(), flush=True)
            given = True
        except OSError: pass
    time.sleep(pause)
`

// soaked is an agent whose runs are started again whenever they have died.
type soaked struct {
	soak  *soak
	id    string
	base  int
	alone bool // its runs have a supervisor of their own; else the daemon's
	asks  bool // a remote policy decides about its runs and what it asks for

	mu      sync.Mutex // one verb at a time, so that it is known what holds
	name    string
	call    *call
	done    chan struct{}
	low     bool
	held    bool
	unsure  bool     // a score was said, and the command failed
	fresh   bool     // begin with an elevation
	windows []window // in which it may have more than ring 3
	lowered []window // verbs that took it away, from their beginning to their end

	gotMu       sync.Mutex
	got         []given
	asked       []request
	askedBefore int // how many of them are of earlier runs
}

// given is something of ring 2's that an agent was given, between two times.
type given struct {
	what     string
	from, to time.Time
}

type soak struct {
	place
	daemon   *daemonNode
	policy   *policyPoint
	full     spells // the disk
	gone     spells // the daemon
	ws       string
	release  func(agent string) []string
	pause    string
	countsMu sync.Mutex
	counts   map[string]int
	lent     map[string][]window // to agents who asked, by the audit
}

func (s *soak) count(what string) {
	s.countsMu.Lock()
	defer s.countsMu.Unlock()
	s.counts[what]++
}

// soakTime is how long, and with how many agents: AGENTRUN_TEST_SOAK is a duration.
func soakTime(t *testing.T) (time.Duration, int) {
	v := os.Getenv("AGENTRUN_TEST_SOAK")
	if v == "" {
		return time.Duration(min(slow, 3) * float64(6*time.Second)), 8
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatalf("AGENTRUN_TEST_SOAK: %v", err)
	}
	return d, 50
}

// M-22, M-23, M-9: everything that operators do, in any order, to many at once, while supervisors die, the disk fills and the policy
// decision point is down: no agent ever has more than its ring, or what nobody decided about; nothing that no fault explains keeps a
// run from starting, nothing is left, and the record is whole.
func TestM23Soak(t *testing.T) {
	needSandbox(t)
	needProgram(t, "python3")
	length, many := soakTime(t)
	at := filepath.Join(base, "soak")
	n := &daemonNode{run: filepath.Join(at, "run"), state: filepath.Join(at, "state"), log: filepath.Join(at, "log")}
	for _, d := range []string{n.run, n.state} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	size := 64 + 16*int(length.Minutes()) // MiB: the records take some four a minute
	if err := unix.Mount("soak", n.state, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=0700", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(n.state, 0); err != nil {
			t.Errorf("the state folder is still held: %v", err)
		}
	})
	n.start(t)
	s := &soak{place: place{t, n.run, n.state}, daemon: n, ws: workspace(t), counts: map[string]int{}, lent: map[string][]window{}, pause: fmt.Sprint(0.01 * float64(many) / 4)}
	s.policy = startPolicyPoint(t)
	write(t, filepath.Join(s.ws, "watch.py"), watcher, 0o644)
	write(t, filepath.Join(s.ws, "ask.py"), asker, 0o644)
	s.release = s.operator()
	agents := make([]*soaked, many)
	for i := range agents {
		agents[i] = &soaked{soak: s, id: fmt.Sprint("agent-", i), base: 2 + i%2, alone: i%4 < 2, asks: i%8 == 1 || i%8 == 3}
		s.must("agent", "score", agents[i].id, "0.7")
		if agents[i].asks {
			s.must("agent", "set", agents[i].id, "--self-elevation")
		}
	}
	end := time.Now().Add(length)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 5)) //nolint:gosec // the same soak every time, as far as it goes
			for i := w; time.Now().Before(end); i++ {
				a := agents[i%len(agents)]
				if i >= 4*len(agents) {
					a = agents[r.IntN(len(agents))]
				}
				if a.mu.TryLock() {
					a.turn(r)
					a.mu.Unlock()
				}
			}
		})
	}
	wg.Go(func() { s.faults(end) })
	wg.Go(func() { s.outages(end) })
	wg.Go(func() { s.breaches(end) })
	wg.Wait()

	// A supervisor may be about to end by itself.
	if r := s.do("kill", "--all", "--yes"); code(r.stderr) == "unreached" {
		s.must("kill", "--all", "--yes")
	} else if r.exit != 0 {
		t.Errorf("kill --all: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	for _, a := range agents {
		a.over()
	}
	noAgents(t)
	s.must("gc")
	names, _ := filepath.Glob(filepath.Join(s.run, "control", "*.sock"))
	if !slices.Equal(names, []string{filepath.Join(s.run, "control", "daemon.sock")}) {
		t.Errorf("control sockets left: %v", names)
	}
	log := s.wholeAudit()
	for _, a := range agents {
		a.check()
	}
	granted, ended := causes(log)
	breaches := s.held(log)
	s.whole(log)
	t.Logf("%v; %d records, %d elevations granted, %d ended on record, %d breaches", s.counts, len(log), granted, len(ended), breaches)
	if breaches == 0 || granted == 0 || s.counts["started"] < many/2 || s.counts["given"] == 0 {
		t.Error("nothing was tried")
	}
	_ = n.Process.Signal(unix.SIGTERM)
	if err := n.Wait(); err != nil {
		t.Errorf("the daemon: %v", err)
	}
}

// wholeAudit is audit where a full disk has left lines that were never finished, which are no records.
func (s *soak) wholeAudit() (all []entry) {
	if r := s.do("audit", "verify", "--all"); r.exit != 0 {
		s.t.Errorf("audit verify: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	files, _ := filepath.Glob(filepath.Join(s.state, "audit", "node", "*.jsonl"))
	for _, f := range files {
		for _, line := range lines(f) {
			var e struct {
				entry
				Time time.Time `json:"time"`
			}
			if json.Unmarshal([]byte(line), &e) == nil {
				all = append(all, e.entry)
				s.keepLent(e.entry, e.Time)
			}
		}
	}
	return all
}

// start begins a run and waits until it is ready, or over.
func (a *soaked) start() {
	s := a.soak
	a.name = fmt.Sprint(a.id, "-", counter.Add(1))
	flags := []string{"--agent", a.id, "--name", a.name, "--workspace", s.ws, "--timeout", "300s", "--cpu-time", "240s", "--env", "PAUSE=" + s.pause, "--env", "NAME=" + a.name}
	if a.asks {
		flags = append(flags, "--gateway", s.policy.settings, "--env", "ASK="+a.whatFor())
	} else {
		flags = append(flags, "--no-gateway")
	}
	o := opts{profile: fmt.Sprint("ring", a.base), flags: flags, dir: s.ws}
	if a.alone {
		o.env = []string{"AGENTRUN_NO_DAEMON=1"}
	}
	c := s.at(prepare(s.t, o, "python3", "watch.py"))
	r, w, err := os.Pipe()
	if err != nil {
		s.t.Error(err)
		return
	}
	c.Stdout = w
	began := time.Now()
	err = c.Start()
	w.Close()
	if err != nil {
		s.t.Error(err)
		r.Close()
		return
	}
	a.call, a.done = c, make(chan struct{})
	a.gotMu.Lock()
	a.askedBefore = len(a.asked)
	a.gotMu.Unlock()
	ready := make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		defer r.Close()
		var once sync.Once
		for lines := bufio.NewScanner(r); lines.Scan(); {
			if lines.Text() == "ready" {
				once.Do(func() { close(ready) })
				continue
			}
			a.heard(lines.Text())
		}
		_ = c.Wait()
		c.cancel()
	}(a.done)
	select {
	case <-ready:
		s.count("started")
		if a.asks && !s.policy.up.meet(began, time.Now()) {
			s.t.Errorf("%s started, and nobody decided that it may", a.name)
		}
		a.fresh = true
		if a.base == 2 {
			a.open(began, forEver)
		}
	case <-a.done:
		s.count("not started: " + a.whyNot(began))
	}
}

// whatFor is what a run asks its gateway for. The steady agent is to have nothing that others could take away.
func (a *soaked) whatFor() string {
	if a.id == "steady" {
		return "calls"
	}
	return "elevation"
}

func (a *soaked) open(from, to time.Time) { a.windows = append(a.windows, window{from, to}) }

// shut ends what is open: from now on the agent has ring 3 and no more. It was taken away by a verb that began at a time.
func (a *soaked) shut(began time.Time) {
	now := time.Now()
	a.lowered = append(a.lowered, window{began, now})
	for i := range a.windows {
		if a.windows[i].to.After(now) {
			a.windows[i].to = now
		}
	}
}

// heard keeps what the agent says until the end.
func (a *soaked) heard(line string) {
	a.gotMu.Lock()
	defer a.gotMu.Unlock()
	words := strings.Fields(line)
	var asked, had float64
	if len(words) < 3 {
		a.soak.t.Errorf("%s says %q", a.id, line)
		return
	}
	if _, err := fmt.Sscan(words[1]+" "+words[2], &asked, &had); err != nil {
		a.soak.t.Errorf("%s says %q: %v", a.id, line, err)
		return
	}
	from, until := time.UnixMicro(int64(asked*1e6)), time.UnixMicro(int64(had*1e6))
	if len(words) == 3 {
		a.got = append(a.got, given{words[0], from, until})
		return
	}
	a.asked = append(a.asked, request{words[0], words[3], from, until})
}

func (a *soaked) dead() bool {
	if a.done == nil {
		return true
	}
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// code is the one in brackets of a refusal.
func code(stderr string) string {
	first, _, _ := strings.Cut(stderr, "\n")
	if i := strings.LastIndexByte(first, '('); i >= 0 && strings.HasSuffix(first, ")") {
		return strings.Trim(first[i:], "()")
	}
	return ""
}

func (a *soaked) turn(r *rand.Rand) {
	s := a.soak
	if a.dead() {
		a.shut(time.Now())
		switch {
		case a.held:
			a.releaseIt()
		case a.low:
			a.score("0.7")
		default:
			a.start()
		}
		return
	}
	do := func(args ...string) result {
		res := s.do(args...)
		s.count(strings.TrimSpace(fmt.Sprint(args[0], " ", res.exit, " ", code(res.stderr))))
		return res
	}
	verb := r.IntN(20)
	if a.fresh {
		a.fresh, verb = false, 10
	}
	switch {
	case verb < 2:
		do("freeze", a.name)
	case verb < 5:
		do("thaw", a.name)
	case verb < 6:
		do("update", a.name, "--pids", fmt.Sprint(64+r.IntN(100)))
	case verb < 11 && (a.base == 3 && !a.low && !a.held || verb == 10):
		began := time.Now()
		res := do("elevate", a.name, "--to", "2", "--ttl", fmt.Sprint(1+r.IntN(3), "s"), "--reason", "soak", "--json")
		var l loan
		if res.exit == 0 && json.Unmarshal([]byte(res.stdout), &l) == nil {
			a.open(began, l.Expires)
		}
	case verb < 13:
		if began := time.Now(); do("revoke", a.name).exit == 0 && a.base == 3 {
			a.shut(began)
		}
	case verb < 15 && !a.low:
		a.score("0.3")
	case verb < 16 && !a.held:
		if began := time.Now(); do("quarantine", a.name, "--reason", "soak").exit == 0 {
			a.held = true
			a.shut(began)
		}
	case verb < 17:
		if do("kill", a.name).exit == 0 {
			a.over()
		}
	case verb < 18 && a.alone:
		_ = a.call.Process.Kill()
		s.count("supervisor killed")
		a.over()
	case a.held:
		a.releaseIt()
	case a.low:
		a.score("0.7")
	}
}

// over waits for the end that must come.
func (a *soaked) over() {
	if a.done == nil {
		return
	}
	select {
	case <-a.done:
	case <-time.After(hang() / 4):
		a.soak.t.Errorf("%s doesn't end", a.name)
	}
	a.shut(time.Now())
}

func (a *soaked) score(to string) {
	began := time.Now()
	res := a.soak.do("score", "--agent", a.id, to)
	a.soak.count(fmt.Sprint("score ", to, " ", res.exit))
	switch {
	case to == "0.7": // also if it failed: then it isn't known
		a.low = a.low && res.exit != 0
		if a.base == 2 && !a.held {
			a.open(began, forEver)
		}
	case res.exit == 0:
		a.low = true
		a.shut(began)
	}
	a.unsure = a.unsure && to == "0.3" || res.exit != 0
}

func (a *soaked) releaseIt() {
	s := a.soak
	// An attestation is a file of the operator's own; two at once would be one.
	s.countsMu.Lock()
	began := time.Now()
	res := s.do(append([]string{"release", "--agent", a.id}, s.release(a.id)...)...)
	s.countsMu.Unlock()
	s.count(fmt.Sprint("release ", res.exit, " ", code(res.stderr)))
	a.held = a.held && res.exit != 0
	if a.base == 2 && !a.low {
		a.open(began, forEver)
	}
}

// check compares what the agent was given with when it might have been.
func (a *soaked) check() {
	slack := 3 * soon()
	a.gotMu.Lock()
	defer a.gotMu.Unlock()
	a.checkAsked()
	wrong := 0
	for _, g := range a.got {
		a.soak.count("given")
		if !slices.ContainsFunc(a.windows, func(w window) bool { return w.meets(g.from.Add(-slack), g.to) }) {
			if wrong++; wrong == 1 {
				a.soak.t.Errorf("%s (ring %d) got a %s between %v and %v, above its ring; windows: %v", a.id, a.base, g.what, g.from, g.to, strings.ReplaceAll(fmt.Sprint(a.windows), " +0000 UTC", ""))
			}
		}
	}
	if wrong > 1 {
		a.soak.t.Errorf("%s: %d times in all", a.id, wrong)
	}
}

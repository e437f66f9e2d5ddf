// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"encoding/json"
	"errors"
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

// window is a time in which an agent may have more than ring 3.
type window struct{ from, to time.Time }

// soaked is an agent whose runs are started again whenever they have died.
type soaked struct {
	soak  *soak
	id    string
	base  int
	alone bool // its runs have a supervisor of their own; else the daemon's

	mu      sync.Mutex // one verb at a time, so that it is known what holds
	name    string
	call    *call
	done    chan struct{}
	low     bool
	held    bool
	fresh   bool // begin with an elevation
	windows []window

	gotMu sync.Mutex
	got   []string // what it was given, and when
}

type soak struct {
	place
	daemon   *daemonNode
	ws       string
	release  func(agent string) []string
	pause    string
	countsMu sync.Mutex
	counts   map[string]int
}

func (s *soak) count(what string) {
	s.countsMu.Lock()
	defer s.countsMu.Unlock()
	s.counts[what]++
}

var forEver = time.Unix(1<<40, 0)

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

// M-22, M-23: everything that operators do, in any order, to many at once, while supervisors die and the disk fills: no agent ever
// has more than its ring, nothing is left, and the record is whole.
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
	if err := unix.Mount("soak", n.state, "tmpfs", 0, "size=64m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(n.state, 0); err != nil {
			t.Errorf("the state folder is still held: %v", err)
		}
	})
	n.start(t)
	s := &soak{place: place{t, n.run, n.state}, daemon: n, ws: workspace(t), counts: map[string]int{}, pause: fmt.Sprint(0.01 * float64(many) / 4)}
	write(t, filepath.Join(s.ws, "watch.py"), watcher, 0o644)
	s.release = s.operator()
	agents := make([]*soaked, many)
	for i := range agents {
		agents[i] = &soaked{soak: s, id: fmt.Sprint("agent-", i), base: 2 + i%2, alone: i%4 < 2}
		s.must("agent", "score", agents[i].id, "0.7")
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
	wg.Wait()

	s.must("kill", "--all", "--yes")
	for _, a := range agents {
		a.over()
		a.check()
	}
	noAgents(t)
	s.must("gc")
	names, _ := filepath.Glob(filepath.Join(s.run, "control", "*.sock"))
	if !slices.Equal(names, []string{filepath.Join(s.run, "control", "daemon.sock")}) {
		t.Errorf("control sockets left: %v", names)
	}
	log := s.wholeAudit()
	granted, ended := causes(log)
	t.Logf("%v; %d records, %d elevations granted, %d ended on record", s.counts, len(log), granted, len(ended))
	if granted == 0 || s.counts["started"] < many/2 || s.counts["given"] == 0 {
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
			var e entry
			if json.Unmarshal([]byte(line), &e) == nil {
				all = append(all, e)
			}
		}
	}
	return all
}

// start begins a run and waits until it is ready, or over.
func (a *soaked) start() {
	s := a.soak
	a.name = fmt.Sprint(a.id, "-", counter.Add(1))
	flags := []string{"--no-gateway", "--agent", a.id, "--name", a.name, "--workspace", s.ws, "--timeout", "300s", "--cpu-time", "240s", "--env", "PAUSE=" + s.pause, "--env", "NAME=" + a.name}
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
			a.gotMu.Lock()
			a.got = append(a.got, lines.Text())
			a.gotMu.Unlock()
		}
		_ = c.Wait()
		c.cancel()
	}(a.done)
	select {
	case <-ready:
		s.count("started")
		a.fresh = true
		if a.base == 2 {
			a.open(began, forEver)
		}
	case <-a.done:
		why := "not started"
		if _, code, ok := strings.Cut(c.errOut.String(), "quarantined"); ok && code != "" {
			why, a.held = "not started: quarantined", true // a breach's
		}
		s.count(why)
	}
}

func (a *soaked) open(from, to time.Time) { a.windows = append(a.windows, window{from, to}) }

// shut ends what is open: from now on the agent has ring 3 and no more.
func (a *soaked) shut() {
	now := time.Now()
	for i := range a.windows {
		if a.windows[i].to.After(now) {
			a.windows[i].to = now
		}
	}
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
		a.shut()
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
		if do("revoke", a.name).exit == 0 && a.base == 3 {
			a.shut()
		}
	case verb < 15 && !a.low:
		a.score("0.3")
	case verb < 16 && !a.held:
		if do("quarantine", a.name, "--reason", "soak").exit == 0 {
			a.held = true
			a.shut()
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
	a.shut()
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
		a.shut()
	}
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

// faults come one after the other: a full disk, a daemon that dies.
func (s *soak) faults(end time.Time) {
	for i := 0; time.Until(end) > 2*time.Second; i++ {
		time.Sleep(time.Until(end) / 4)
		if i%2 == 0 {
			s.count("disk full")
			s.fillDisk(500 * time.Millisecond)
			continue
		}
		s.count("daemon killed")
		_ = s.daemon.Process.Kill()
		_ = s.daemon.Wait()
		s.daemon.start(s.t)
	}
}

func (s *soak) fillDisk(length time.Duration) {
	name := filepath.Join(s.state, "filler")
	f, err := os.Create(name)
	if err != nil {
		return
	}
	defer os.Remove(name)
	defer f.Close()
	for size := 1 << 20; size >= 512; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, unix.ENOSPC) {
			s.t.Errorf("fill the disk: %v", err)
		}
	}
	time.Sleep(length)
}

// check compares what the agent was given with when it might have been.
func (a *soaked) check() {
	slack := 3 * soon()
	a.gotMu.Lock()
	defer a.gotMu.Unlock()
	wrong := 0
	for _, line := range a.got {
		var what string
		var asked, had float64
		if _, err := fmt.Sscan(line, &what, &asked, &had); err != nil {
			a.soak.t.Errorf("%s says %q", a.id, line)
			continue
		}
		a.soak.count("given")
		at, until := time.UnixMicro(int64(asked*1e6)), time.UnixMicro(int64(had*1e6))
		if !slices.ContainsFunc(a.windows, func(w window) bool { return !until.Before(w.from) && at.Before(w.to.Add(slack)) }) {
			if wrong++; wrong == 1 {
				a.soak.t.Errorf("%s (ring %d) got a %s between %v and %v, above its ring; windows: %v", a.id, a.base, what, at, until, strings.ReplaceAll(fmt.Sprint(a.windows), " +0000 UTC", ""))
			}
		}
	}
	if wrong > 1 {
		a.soak.t.Errorf("%s: %d times in all", a.id, wrong)
	}
}

// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
)

// As cmd/agentrun: the main thread is nobody's to throw away.
func init() { goruntime.LockOSThread() }

// turned is a RingSource that the test turns.
type turned struct {
	mu      sync.Mutex
	ring    rings.Ring
	changed chan struct{}
}

func newTurned(ring rings.Ring) *turned { return &turned{ring: ring, changed: make(chan struct{})} }

func (s *turned) Ring() (rings.Ring, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ring, s.changed
}

func (s *turned) Unapplied(rings.Ring, error) {} // LiveRingFailed tells the test

func (s *turned) to(ring rings.Ring) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ring = ring
	close(s.changed)
	s.changed = make(chan struct{})
}

// alive is a run in this process whose agent does what it is told.
type alive struct {
	leaves bool
	*runtime.Live
	t         testing.TB
	source    *turned
	workspace string
	events    chan runtime.LiveEvent
	status    chan runtime.Status
	say       io.WriteCloser
	hear      *bufio.Reader
	cancel    context.CancelFunc
	took      []time.Duration // by each change of ring
}

type aliveOpts struct {
	leaves  bool   // its account names what is left
	profile string // a built-in
	change  func(*runtime.Spec)
	plan    func(*runtime.Plan)
	start   rings.Ring // of the source; none: the profile's
}

// startAlive returns when the agent listens.
func startAlive(t testing.TB, o aliveOpts) *alive {
	t.Helper()
	a := launchAlive(t, o)
	if a.Live == nil {
		t.Fatalf("the run did not start: %+v", <-a.status)
	}
	if got := a.line(); got != "ready" {
		t.Fatalf("the agent says %q, want ready", got)
	}
	return a
}

// launchAlive returns when the run lives, or doesn't.
func launchAlive(t testing.TB, o aliveOpts) *alive {
	t.Helper()
	needSandbox(t)
	ran(t, "root", []string{"exec", "--profile", o.profile, "--"})
	p, ok := profiles.Builtin(o.profile)
	if !ok {
		t.Fatalf("no profile %s", o.profile)
	}
	a := &alive{t: t, leaves: o.leaves, workspace: t.TempDir(), events: make(chan runtime.LiveEvent, 256), status: make(chan runtime.Status, 1)}
	os.Chmod(a.workspace, 0o755)
	spec := runtime.Spec{
		Profile: p, Limits: p.Limits, Command: []string{"/probe", "live"}, Environ: os.Environ(), WorkDir: t.TempDir(),
		Workspace: a.workspace, Binds: []runtime.BindMount{{Source: probeBin, Target: "/probe"}}, Ranges: profiles.NodeRanges{TestOnly: true},
	}
	spec.Limits.Timeout = profiles.Duration(hang())
	if o.change != nil {
		o.change(&spec)
	}
	plan, err := runtime.NewPlan(spec)
	if err != nil {
		t.Fatal(err)
	}
	if o.plan != nil {
		o.plan(plan)
	}
	ring, _ := rings.RingOf(plan.Ring)
	if o.start.Valid() {
		ring = o.start
	}
	a.source = newTurned(ring)
	stdin, say, _ := os.Pipe()
	hear, stdout, _ := os.Pipe()
	a.say, a.hear = say, bufio.NewReader(hear)
	live := make(chan *runtime.Live, 1)
	ctx, cancel := context.WithTimeout(context.Background(), hang())
	a.cancel = cancel
	go func() {
		defer stdout.Close()
		defer stdin.Close()
		s := runtime.Run(ctx, plan, runtime.Options{
			RunDir: runDir, Stdin: stdin, Stdout: stdout, Stderr: os.Stderr, Ring: a.source,
			OnLive: func(l *runtime.Live) { live <- l }, OnEvent: func(e runtime.LiveEvent) { a.events <- e },
			ApplyTime: time.Duration(slow * float64(90*time.Millisecond)),
		})
		close(live)
		a.status <- s
	}()
	a.Live = <-live
	t.Cleanup(func() {
		cancel()
		say.Close()
		a.ended()
		hear.Close()
	})
	return a
}

func (a *alive) line() string {
	a.t.Helper()
	s, err := a.hear.ReadString('\n')
	if err != nil {
		a.t.Fatalf("hear the agent: %v (%q); status %+v", err, s, a.Status())
	}
	return strings.TrimSuffix(s, "\n")
}

// soon is the 100 ms of M-22, times what a slow or busy machine takes: who has one processor in five waits five times as long. Busy is
// what it was in the last minute or what it is now, whichever is more.
func soon() time.Duration {
	var load, ignored, now float64
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscanf(string(b), "%g %g %g %g/", &load, &ignored, &ignored, &now)
	}
	return time.Duration(slow * (1 + max(load, now)/float64(goruntime.NumCPU())) * float64(100*time.Millisecond))
}

// try has the agent try something and gives what came of it: ok, errno=X, value=X.
func (a *alive) try(format string, args ...any) string {
	a.t.Helper()
	words := fmt.Sprintf(format, args...)
	fmt.Fprintln(a.say, words)
	for {
		line := a.line()
		if line == "ok: ok" { // a program that it has started
			continue
		}
		got, ok := strings.CutPrefix(line, words+": ")
		if !ok {
			a.t.Fatalf("%s: the agent says %q", words, line)
		}
		return got
	}
}

func (a *alive) expect(want string, tries ...string) {
	a.t.Helper()
	for _, try := range tries {
		if got := a.try("%s", try); got != want {
			a.t.Errorf("%s: got %s, want %s", try, got, want)
		}
	}
}

// turn changes the ring and returns the event that says that it holds, or doesn't.
func (a *alive) turn(ring rings.Ring) runtime.LiveEvent {
	a.t.Helper()
	for len(a.events) > 0 {
		<-a.events
	}
	began := time.Now()
	a.source.to(ring)
	for {
		select {
		case e := <-a.events:
			a.took = append(a.took, e.Took)
			if e.Kind != runtime.LiveRing && e.Kind != runtime.LiveRingFailed {
				continue
			}
			if took, bound := time.Since(began), soon(); took > bound {
				a.t.Errorf("%v after %v holds after %v, want %v (M-22)", e.To, e.From, took, bound)
			}
			return e
		case <-time.After(hang()):
			a.t.Fatalf("nothing was heard of %v", ring)
		}
	}
}

func (a *alive) applied(ring rings.Ring) runtime.LiveEvent {
	a.t.Helper()
	e := a.turn(ring)
	if e.Kind != runtime.LiveRing || e.To != ring || e.Err != nil {
		a.t.Fatalf("%v: got %+v, want it applied", ring, e)
	}
	if s, err := a.Snapshot(); err != nil || s.Ring != ring {
		a.t.Errorf("snapshot: %v, %v, want %v", s.Ring, err, ring)
	}
	return e
}

func (a *alive) ended() runtime.Status {
	a.t.Helper()
	select {
	case s := <-a.status:
		if len(s.Leftovers) > 0 && !a.leaves {
			a.t.Errorf("left behind: %v", s.Leftovers)
		}
		a.status <- s
		return s
	case <-time.After(hang()):
		a.t.Fatal("the run doesn't end")
	}
	return runtime.Status{}
}

// quit lets the agent end by itself.
func (a *alive) quit() runtime.Status {
	a.say.Close()
	return a.ended()
}

func (a *alive) file(name string) string { return filepath.Join(a.workspace, name) }

func (a *alive) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang())
	a.t.Cleanup(cancel)
	return ctx
}

// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// M-23: a run that is frozen can't end by itself; who asks agentrun to end, as Ctrl-C does, doesn't wait for it.
func TestM23AskedToEndWhileFrozen(t *testing.T) {
	p := newPlace(t)
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM} {
		a := p.agent("still", opts{profile: "ring3"})
		p.must("freeze", "still")
		if err := a.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		r := a.finish(t)
		r.want(t, 137, "killed")
		if want := "asked to end by " + unix.SignalName(sig) + " while it was frozen"; r.status.Reason != want {
			t.Errorf("got reason %q, want %q", r.status.Reason, want)
		}
	}
	noAgents(t)
}

// M-23: a detached run from its start to its end by verbs alone.
func TestM23VerbsOnADetachedRun(t *testing.T) {
	p := newPlace(t)
	const life = `trap "echo usr1" USR1; echo begun; while read x; do :; done; while :; do sleep 0.02; [ -e /workspace/end ] && exit 7; done`
	ws := workspace(t)
	c := p.at(prepare(t, opts{profile: "ring2", flags: []string{"-d", "--name", "far", "--workspace", ws, "--timeout", "300s", "--no-gateway"}}, "/usr/bin/sh", "-c", life))
	if out, err := c.output(); err != nil || len(strings.TrimSpace(string(out))) != 16 {
		t.Fatalf("detach: %v: %q %s", err, out, c.errOut.String())
	}
	a := &told{place: p, name: "far"}
	b := a.seen()
	if b.Ring != 2 || b.State != "running" || b.Supervisor == 0 {
		t.Errorf("got %+v", b)
	}
	said := func(what string) {
		t.Helper()
		eventually(t, 5*time.Second, "the output has "+what, func() bool { return strings.Contains(p.must("output", "far").stdout, what) })
	}
	said("begun")
	for verb, state := range map[string]string{"freeze": "frozen", "thaw": "running"} {
		for range 2 {
			if verb == "thaw" {
				p.must("freeze", "far")
			}
			p.must(verb, "far")
			if got := a.seen().State; got != state {
				t.Errorf("%s: the run is %s", verb, got)
			}
		}
	}
	p.must("thaw", "far")
	p.must("signal", "far", "--signal", "USR1")
	said("usr1")
	for _, signal := range []string{"KILL", "STOP", "nonesuch"} {
		if r := p.do("signal", "far", "--signal", signal); r.exit != 2 {
			t.Errorf("signal %s: exit %d, want 2", signal, r.exit)
		}
	}

	// Limits: what is out of range changes nothing, what an operator has set outlives a change of the ring.
	before := hostLimits(t, b.PID)
	for _, bad := range [][]string{{"--cpus", "1.1"}, {"--cpus", "NaN"}, {"--memory", "2G"}, {"--memory", "1M"}, {"--pids", "5"}, {"--pids", "100000"}, {"--pids", "100", "--memory", "2G"}, nil} {
		if r := p.do(append([]string{"update", "far"}, bad...)...); r.exit != 2 || !strings.Contains(r.stderr, "hint: ") {
			t.Errorf("update %v: exit %d, want 2 and a hint\n%s", bad, r.exit, r.stderr)
		}
	}
	p.must("update", "far", "--pids", "100", "--dry-run")
	if diff := cmp.Diff(before, hostLimits(t, b.PID)); diff != "" {
		t.Errorf("limits on the host after refusals (-before +after):\n%s", diff)
	}
	p.must("update", "far", "--pids", "100")
	before.PIDs = 100
	// Ring 1 has a root of its own to write to, which nobody can give to a live process: the request says so at once (H-11).
	p.refused("not_elevatable", "elevate", "far", "--to", "1", "--reason", "a test")
	p.refused("not_elevatable", "elevate", "far", "--to", "1", "--reason", "a test", "--dry-run")
	if diff := cmp.Diff(before, hostLimits(t, b.PID)); diff != "" {
		t.Errorf("limits on the host after the refusal (-want +got):\n%s", diff)
	}

	// Who waits and who is attached end as the run does.
	exits := make(chan result, 2)
	for _, verb := range []string{"wait", "attach"} {
		go func() { exits <- p.do(verb, "far") }()
	}
	time.Sleep(time.Duration(slow * float64(200*time.Millisecond))) // longer is harmless, shorter makes the test weaker
	write(t, ws+"/end", "", 0o644)
	for range 2 {
		if r := <-exits; r.exit != 7 {
			t.Errorf("wait or attach: exit %d, want the run's 7\n%s%s", r.exit, r.stdout, r.stderr)
		}
	}
	eventually(t, 5*time.Second, "the run is gone", func() bool { return len(p.list()) == 0 })
	noAgents(t)
	p.audit()
}

// M-23: whoever has been frozen stays so, also where somebody freezes it once more and that fails.
func TestM23SecondFreezeThatFails(t *testing.T) {
	n := newLaunchNode(t)
	p := n.puppet("live/freeze=EIO@2")
	if word, ok := p.line(); !ok || word != "ready" {
		t.Fatalf("the agent says %q\n%s", word, p.log)
	}
	n.must("freeze", "puppet")
	n.do("freeze", "puppet")
	if p.goesOn("a second freeze") {
		t.Error("it goes on, and nobody has thawed it")
	}
	n.must("thaw", "puppet")
	if !p.goesOn("a thaw") {
		t.Error("thawed, and it stands still")
	}
	n.must("kill", "puppet")
	<-p.dead
}

// M-3: the time of a run that is frozen ends it also where its supervisor has no descriptor for that, as soon as it has one again.
func TestM3FrozenRunOfASupervisorWithoutDescriptors(t *testing.T) {
	p := newPlace(t)
	a := p.agent("still", opts{profile: "ring3", flags: []string{"--timeout", "4s"}})
	p.must("freeze", "still")
	ends := time.Now().Add(5 * time.Second)
	var was unix.Rlimit
	few := unix.Rlimit{Cur: 3, Max: 3}
	if err := unix.Prlimit(a.Process.Pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	few.Max = was.Max
	if err := unix.Prlimit(a.Process.Pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, hang(), "its time is over", func() bool { return time.Now().After(ends) })
	if err := unix.Prlimit(a.Process.Pid, unix.RLIMIT_NOFILE, &was, nil); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = a.Wait()
	}()
	select {
	case <-over:
	case <-time.After(time.Duration(slow * float64(20*time.Second))):
		t.Errorf("it is there long after its time: %+v", p.list())
		p.do("kill", "still")
		<-over
	}
	noAgents(t)
}

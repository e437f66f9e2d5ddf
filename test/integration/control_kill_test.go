// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/control"
)

// killed is what kill --json says of one run.
type killed struct {
	ID     string `json:"id"`
	Result struct {
		Reason    string `json:"reason"`
		Dead      bool   `json:"processes_dead"`
		Processes int    `json:"processes_killed"`
		Agent     string `json:"agent_id"`
	} `json:"result"`
}

// kill ends runs and fails the test unless exactly these died of it, with the reason in their status.
func (p place) kill(args []string, who ...*told) {
	p.t.Helper()
	r := asked[[]killed](p, append(append([]string{"kill"}, args...), "--reason", "seen enough")...)
	// Not a moment later: what kill says when it returns.
	for _, a := range who {
		if left := descendants(a.Process.Pid); slices.ContainsFunc(left, func(p process) bool { return p.uid >= firstSandboxUID && p.state != "Z" }) {
			p.t.Errorf("%s lives on after kill %v: %v", a.name, args, left)
		}
	}
	if len(r) != len(who) {
		p.t.Errorf("kill %v: got %+v, want %d runs", args, r, len(who))
	}
	for _, k := range r {
		if !k.Result.Dead || k.Result.Reason != "manual" || k.Result.Processes == 0 {
			p.t.Errorf("kill %v: %+v", args, k)
		}
	}
	for _, a := range who {
		got := a.finish(p.t)
		got.want(p.t, 137, "killed")
		if !strings.Contains(got.status.Reason, "manual") && !strings.Contains(got.status.Reason, "seen enough") {
			p.t.Errorf("%s: reason %q", a.name, got.status.Reason)
		}
	}
}

// H-21, M-23: one of several, an agent's, a session's, all: dead when the command returns, whatever state they are in.
func TestH21KillByTheCLI(t *testing.T) {
	p := newPlace(t)
	p.must("agent", "score", "rogue", "0.7")
	p.must("agent", "score", "member", "0.7")
	p.must("session", "create", "s-1")
	p.must("session", "join", "s-1", "--agent", "member")
	ring2 := func(flags ...string) opts { return opts{profile: "ring2", flags: flags} }
	one := p.agent("one", ring2())
	bomb := p.agent("bomb", ring2("--agent", "rogue"))
	stubborn := p.begin("stubborn", p.at(prepare(t, ring2("--no-gateway", "--agent", "rogue"), "/probe", "stubborn")))
	frozen := p.agent("frozen", ring2("--agent", "member", "--session", "s-1"))
	last := p.agent("last", opts{})
	elevated := p.agent("elevated", opts{})
	bomb.expect("ok", "storm 4", "children 50")
	frozen.expect("ok", "children 5")
	p.must("freeze", "frozen")
	elevated.elevate(time.Hour)

	p.kill([]string{"one"}, one)
	p.refused("not_found", "kill", "one", "--reason", "again")
	p.kill([]string{"--agent", "rogue"}, bomb, stubborn)
	p.kill([]string{"--session", "s-1"}, frozen)
	if list := p.list(); len(list) != 2 {
		t.Errorf("live: %+v, want the two that nobody killed", list)
	}
	last.expect("errno=EPERM", "fork")
	p.kill([]string{"--all", "--yes"}, last, elevated)
	noAgents(t)
	if r := p.do("kill", "--all", "--yes"); r.exit != 0 || !strings.Contains(r.stdout, "no such run is live") {
		t.Errorf("kill of none: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	orders, kills := 0, 0
	log := append(p.audit(), node{t, p.state}.audit("session-s-1")...)
	for _, e := range log {
		switch e.Kind {
		case "kill_order":
			orders++
			if e.Data["by"] == nil || e.Data["by"] == "" {
				t.Errorf("an order of nobody: %v", e.Data)
			}
		case "kill":
			kills++
		}
	}
	if _, ended := causes(log); orders != 6 || kills != 6 || strings.Join(ended, " ") != "killed" {
		t.Errorf("on record: %d orders, %d kills, elevations ended %v, want 6, 6 and killed", orders, kills, ended)
	}
}

// H-22: twenty at once are twenty records, and one death. A run that is just being started dies too.
func TestH22ManyKillsAtOnce(t *testing.T) {
	p := newPlace(t)
	a := p.agent("one", opts{profile: "ring2"})
	a.expect("ok", "storm 2")
	id := a.seen().ID
	ctx, cancel := context.WithTimeout(context.Background(), hang())
	defer cancel()
	c, err := control.Open(p.run, id)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	answered := 0
	for range 20 {
		wg.Go(func() {
			r, err := c.Kill(ctx, control.Selector{ID: id}, "manual", "")
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				answered += len(r)
			}
		})
	}
	wg.Wait()
	a.finish(t).want(t, 137, "killed")
	noAgents(t)
	records := 0
	for _, e := range p.audit() {
		if e.Kind == "kill" {
			records++
		}
	}
	if answered == 0 || records != answered {
		t.Errorf("%d kills were answered, %d are on record", answered, records)
	}
	t.Logf("%d of 20 reached it", answered)

	for i := range 4 {
		a := p.beginOnly(fmt.Sprint("young", i), p.at(prepare(t, opts{flags: []string{"--no-gateway"}}, "/probe", "live")))
		eventually(t, 10*time.Second, "the run is known", func() bool { return len(p.list()) == 1 })
		time.Sleep(time.Duration(i) * 15 * time.Millisecond)
		p.do("kill", "--all", "--yes") // may be too early to prove anything
		r := a.finish(t)
		if r.exit != 137 && r.exit != 125 {
			t.Errorf("killed while it began: exit %d, %s (%s)\n%s", r.exit, r.status.State, r.status.Reason, r.stderr)
		}
		t.Logf("exit %d, %s (%s), step %s", r.exit, r.status.State, r.status.Reason, r.status.FailedStep)
	}
	noAgents(t)
}

// H-21: a kill whose order is long in coming to the disk (here: somebody holds the log) lets the agent do nothing meanwhile.
func TestH21SlowOrderFreezes(t *testing.T) {
	p := newPlace(t)
	ws := filepath.Join(filepath.Dir(p.run), "ws")
	if err := os.Mkdir(ws, 0o777); err != nil {
		t.Fatal(err)
	}
	a := p.beginOnly("a", p.at(prepare(t, opts{profile: "ring2", flags: []string{"--workspace", ws, "--no-gateway", "--cpu-time", "300s"}},
		"sh", "-c", "echo ready; while :; do printf . >beat; printf .. >beat; done")))
	if got := a.line(); got != "ready" {
		t.Fatalf("a says %q", got)
	}
	beat := func() time.Time {
		info, err := os.Stat(filepath.Join(ws, "beat"))
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	stands := func() bool {
		was := beat()
		time.Sleep(100 * time.Millisecond)
		return !was.IsZero() && beat().Equal(was)
	}
	eventually(t, 10*time.Second, "it works", func() bool { return !beat().IsZero() && !stands() })
	lock, err := os.OpenFile(filepath.Join(p.state, "audit", "node", "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	killed := make(chan result, 1)
	go func() { killed <- p.do("kill", "a") }()
	eventually(t, 5*time.Second, "it stands still", stands)
	select {
	case r := <-killed:
		t.Errorf("killed before the order was on record: %+v", r)
	default:
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if r := <-killed; r.exit != 0 {
		t.Errorf("kill: %d %s", r.exit, r.stderr)
	}
	a.finish(t).want(t, 137, "killed")
}

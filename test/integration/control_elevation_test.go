// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/test/exit"
)

// obeying is an agent with a way out that does what it is told.
func (x *exit) obeying(name, profile string, flags ...string) *told {
	x.t.Helper()
	needProgram(x.t, "python3")
	x.file("obey.py", obeyer)
	o := x.opts(profile, append([]string{"--timeout", "300s"}, flags...)...)
	// The harness asks for memory, which would be the operator's word and stay.
	i := slices.Index(o.flags, "--memory")
	o.flags = slices.Delete(o.flags, i, i+2)
	return place{x.t, runDir, x.n.dir}.begin(name, x.prepare(o, "python3", "obey.py"))
}

// slowly answers each call after a time in which others come.
func slowly(w http.ResponseWriter, r *http.Request) {
	select {
	case <-time.After(time.Duration(slow * float64(250*time.Millisecond))):
	case <-r.Context().Done():
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte("{}"))
}

// M-22, H-13, H-14, H-15: one live process, denied, elevated, allowed, revoked, denied, elevated, over by itself, denied: by
// system calls, mounts, connections, tunnels, tools and limits, through the real command line.
func TestM22LifeOfAnElevationByTheCLI(t *testing.T) {
	x := newExit(t)
	site := http.NewServeMux()
	site.Handle("/", exittest.Site())
	site.HandleFunc("/slow", slowly)
	x.host("api.test", site)
	tool := x.httpTool("https://api.test/slow", "A")
	x.settings.tool("slow", tool)
	x.n.must("agent", "score", "planner-1", "0.7")
	a := x.obeying("life", "ring3", "--agent", "planner-1", "--allow", "api.test")
	five := func(want string) {
		t.Helper()
		if got := a.try("tools slow 5"); got != want {
			t.Errorf("five tool calls at once: got %s, want %s", got, want)
		}
	}
	denied := func() {
		t.Helper()
		a.expect("errno=EPERM", "fork")
		a.expect("errno=EROFS", "create /workspace/new")
		for _, words := range []string{"get api.test", "tunnel api.test"} {
			if got := a.try(words); got == "value=200" {
				t.Errorf("%s: got %s in ring 3", words, got)
			}
		}
		b := a.seen()
		if b.Ring != 3 || b.BaseRing != 3 || b.Elevation != nil {
			t.Errorf("got %+v, want ring 3 and no elevation", b)
		}
		if diff := cmp.Diff(limits3, hostLimits(t, b.PID)); diff != "" {
			t.Errorf("limits on the host (-want +got):\n%s", diff)
		}
	}
	denied()
	five("value=concurrency_limit,ok,ok,ok,ok")

	l := a.elevate(time.Hour)
	a.expect("ok", "fork", "create /workspace/new", "child")
	a.expect("value=200", "get api.test", "tunnel api.test")
	five("value=ok,ok,ok,ok,ok")
	if b := a.seen(); b.Ring != 2 || b.BaseRing != 3 || b.Elevation == nil || b.Elevation.ID != l.ID {
		t.Errorf("got %+v, want ring 2 by elevation %s", b, l.ID)
	} else if diff := cmp.Diff(limits2, hostLimits(t, b.PID)); diff != "" {
		t.Errorf("limits on the host (-want +got):\n%s", diff)
	}
	a.refused("not_found", "revoke", "life", "--id", "nonesuch")
	a.must("revoke", "life", "--id", l.ID)
	revoked := time.Now()
	denied()
	a.wasCut(revoked)
	a.refused("not_found", "revoke", "life")

	l = a.elevate(briefly())
	a.expect("value=200", "tunnel api.test")
	a.expect("ok", "watch /workspace/seen")
	a.holds(3)
	over := time.Now()
	denied()
	a.wasCut(over)
	for what, at := range a.saw() {
		if late := at.Sub(l.Expires); (what == "fork" || what == "create") && late > soon() {
			t.Errorf("%s was done %v after the end of the elevation (M-22)", what, late)
		} else if what != "cut" && late < -2*time.Second {
			t.Errorf("%s was last done %v before the end: nothing was watched", what, -late)
		}
	}
	a.ringChanges("3>2", "2>3", "3>2", "2>3")
	a.quit().want(t, 0, "exited")
	granted, ended := causes(x.n.audit("node"))
	if granted != 2 || strings.Join(ended, " ") != "revoked expired" {
		t.Errorf("on record: %d granted, ended %v, want 2, revoked and expired", granted, ended)
	}
}

// briefly is long enough for a few tries, however busy the machine is.
func briefly() time.Duration {
	return min(max(3*time.Second, 10*soon()), time.Duration(slow*float64(4*time.Second))).Round(time.Millisecond)
}

// saw is when the agent last did what a ring allows, by its own account.
func (a *told) saw() map[string]time.Time {
	a.t.Helper()
	var seconds map[string]float64
	text := strings.TrimPrefix(a.try("seen"), "value=")
	if err := json.Unmarshal([]byte(text), &seconds); err != nil {
		a.t.Fatalf("%v: %s", err, text)
	}
	times := map[string]time.Time{}
	for what, s := range seconds {
		times[what] = time.UnixMicro(int64(s * 1e6))
	}
	return times
}

// wasCut fails the test unless the agent's tunnel brought nothing after a time.
func (a *told) wasCut(by time.Time) {
	a.t.Helper()
	eventually(a.t, 5*time.Second, "the tunnel is cut", func() bool { return !a.saw()["cut"].IsZero() })
	if late := a.saw()["tunnel"].Sub(by); late > soon() {
		a.t.Errorf("the tunnel brought something %v after the end of the elevation (M-22)", late)
	}
}

// M-22: what a process has in its hands at the moment of expiry: files, children, a storm of them.
func TestM22WhatExpiryTakes(t *testing.T) {
	p := newPlace(t)
	config := t.TempDir()
	write(t, filepath.Join(config, "agentrun", "profiles", "keep.yaml"), "name: keep\nextends: ring3\ndescription: A test.\nring: 3\nsubprocess:\n  on_demotion: keep\n  why: a test\n", 0o644)
	agents := map[string]*told{}
	for name, profile := range map[string]string{"holder": "ring3", "parent": "ring3", "keeper": "keep", "storm": "ring3"} {
		agents[name] = p.agent(name, opts{profile: profile, env: []string{"XDG_CONFIG_HOME=" + config}, flags: []string{"--workspace", workspace(t)}})
	}
	for _, a := range agents {
		a.expect("errno=EPERM", "fork")
	}
	for _, name := range []string{"holder", "parent", "keeper", "storm"} { // the storm last: nobody prepares in it
		a := agents[name]
		a.elevate(briefly())
		switch name {
		case "holder":
			a.expect("ok", "hold /workspace/held", "write-held")
		case "storm":
			a.expect("ok", "storm 4")
		default:
			a.expect("ok", "child", "children 5")
		}
	}
	for name, want := range map[string]int{"parent": 1, "keeper": 7, "storm": 1} {
		a := agents[name]
		a.holds(3)
		if b := a.seen(); len(b.Processes) != want {
			t.Errorf("%s: %d processes after the end of the elevation, want %d", name, len(b.Processes), want)
		}
		a.expect("errno=EPERM", "fork")
		a.expect("errno=EROFS", "create /workspace/new")
	}
	r := agents["holder"].finish(t)
	r.want(t, 137, "policy")
	if !strings.Contains(r.status.Reason, "/workspace") || !strings.Contains(r.status.Reason, "open for writing") {
		t.Errorf("reason %q, want the mount and why it was held", r.status.Reason)
	}
	for name, a := range agents {
		if name != "holder" {
			a.ringChanges("3>2", "2>3")
			a.quit()
		}
	}
	noAgents(t)
	_, ended := causes(p.audit())
	if strings.Join(ended, " ") != "expired expired expired expired" {
		t.Errorf("on record: ended %v, want 4 expired", ended)
	}
}

// H-11, M-22: a run that is in ring 1 has ring 1's private writable root, by elevation too. One that was started without can't get it
// while it lives, so it doesn't get half of the ring: the request says so at once, for operators and dry runs alike.
func TestH11ElevationToRing1IsWhole(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.must("agent", "score", "a", "0.97", "--consensus")
	for _, ring := range []string{"ring3", "ring2"} {
		a := p.agent("from-"+ring, opts{profile: ring, flags: []string{"--agent", "a"}})
		p.refused("not_elevatable", "elevate", a.name, "--to", "1", "--reason", "a test")
		p.refused("not_elevatable", "elevate", a.name, "--to", "1", "--reason", "a test", "--dry-run")
		a.expect("errno=EROFS", "create /usr/new")
		a.quit()
	}
	a := p.agent("from-ring1", opts{profile: "ring1", flags: []string{"--agent", "a"}})
	a.expect("ok", "create /usr/first")
	p.must("score", a.name, "0.9", "--consensus")
	a.holds(2)
	a.expect("errno=EROFS", "create /usr/second")
	p.must("elevate", a.name, "--to", "1", "--ttl", "60s", "--reason", "a test")
	a.holds(1)
	a.expect("ok", "create /usr/third", "create /new")
	p.must("revoke", a.name)
	a.holds(2)
	a.expect("errno=EROFS", "create /usr/fourth")
	a.quit()
}

// H-32: in a strong session a run that only reads is lent a ring that writes when it is its turn, and no other run that can write begins
// while it has that.
func TestH32ElevationTakesItsTurn(t *testing.T) {
	p := newPlace(t)
	p.must("session", "create", "s", "--mode", "strong")
	for agent, score := range map[string]string{"writer": "0.7", "reader": "0.55"} {
		p.must("agent", "score", agent, score)
		p.must("session", "join", "s", "--agent", agent)
	}
	of := func(agent string) opts { return opts{flags: []string{"--agent", agent, "--session", "s"}} }
	writer, reader := p.agent("writer", of("writer")), p.agent("reader", of("reader"))
	writer.expect("ok", "create /workspace/mine")
	p.refused("session_busy", "elevate", "reader", "--to", "2", "--reason", "a test", "--dry-run")
	p.refused("session_busy", "elevate", "reader", "--to", "2", "--reason", "a test")
	reader.expect("errno=EROFS", "create /workspace/theirs")
	writer.quit().want(t, 0, "exited")
	p.must("elevate", "reader", "--to", "2", "--reason", "a test", "--dry-run") // and lets go of the turn
	reader.elevate(time.Hour)
	reader.expect("ok", "create /workspace/theirs")
	p.must("revoke", "reader")
	c := p.at(prepare(t, of("writer"), "/probe", "exit", "0"))
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if r := c.finish(t); r.exit != 125 || !strings.Contains(r.stderr, "session_busy") {
		t.Errorf("a second writer: exit %d\n%s", r.exit, r.stderr)
	}
	reader.quit().want(t, 0, "exited")
	p.agent("next", of("writer")).quit().want(t, 0, "exited")
}

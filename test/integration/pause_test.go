// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// A pause is a freeze that gives memory back, and the weakest of those who freeze.

// endedText is how a verb is refused of a run that has just ended.
var endedText = regexp.MustCompile(`\((not_found|run_ended|unreached)\)`)

// resting is what inspect says of a run that may be paused.
type resting struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Ring  int    `json:"ring"`
	Pause *struct {
		Since time.Time `json:"since"`
		By    string    `json:"by"`
		Cause string    `json:"cause"`
		Given int64     `json:"given_back_bytes"`
	} `json:"pause"`
	Usage struct {
		Memory int64 `json:"memory_bytes"`
	} `json:"usage"`
}

func (p place) rest(name string) resting { p.t.Helper(); return asked[resting](p, "inspect", name) }

// is holds a run's state, and whether it is paused, against what they should be.
func (p place) is(name, state string, paused bool) {
	p.t.Helper()
	if r := p.rest(name); r.State != state || (r.Pause != nil) != paused {
		p.t.Errorf("%s: state %s, paused %v, want %s, %v", name, r.State, r.Pause != nil, state, paused)
	}
}

// pauses are a live run's pauses and their ends on record: by whom, and why.
func (p place) pauses(name string) (list []string) {
	p.t.Helper()
	id := p.rest(name).ID
	for _, e := range p.audit() {
		if e.Kind == "sandbox_pause" && e.Data["run_id"] == id {
			what := "resumed"
			if e.Data["paused"] == true {
				what = "paused"
			}
			list = append(list, fmt.Sprintf("%s %v %v", what, e.Data["by"], e.Data["cause"]))
		}
	}
	return list
}

// counts is a run that counts in a file of its workspace, a line for each.
type counts struct {
	place
	file string
}

const counting = `(while :; do echo >> n; sleep 0.05; done) &`

func (c counts) size() int64 {
	c.t.Helper()
	info, err := os.Stat(c.file)
	if errors.Is(err, os.ErrNotExist) {
		return 0 // it hasn't begun
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return info.Size()
}

func (c counts) goesOn(after string) {
	c.t.Helper()
	was := c.size()
	eventually(c.t, 10*time.Second, "it counts after "+after, func() bool { return c.size() > was })
}

func (c counts) stands(after string) {
	c.t.Helper()
	was := c.size()
	time.Sleep(time.Duration(slow * float64(200*time.Millisecond))) // longer is harmless, shorter makes the test weaker
	if now := c.size(); now != was {
		c.t.Errorf("after %s it counts: %d, then %d", after, was, now)
	}
}

// onDisk is a workspace that isn't memory.
func onDisk(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "agentrun-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, owner, owner)); err != nil { //nolint:gosec // as a user's folder is
		t.Fatal(err)
	}
	return dir
}

// M-22, M-23: nothing of a paused run happens, and what it has of files goes back to the host; it goes on by resume, and by what needs it
// running, each on record. What is asked for twice, or of a run that isn't paused, is refused.
func TestM23PauseAndResume(t *testing.T) {
	p := newPlace(t)
	ws := onDisk(t)
	const size = 16 << 20
	f, err := os.Create(filepath.Join(ws, "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// What is in nobody's cache is charged to whoever reads it.
	if _, err := f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Chmod(0o644)); err != nil {
		t.Fatal(err)
	}
	p.detached("dev", ws, opts{profile: "ring2"}, "cat big > /dev/null; "+counting)
	n := counts{p, filepath.Join(ws, "n")}
	n.goesOn("its start")
	before := p.rest("dev").Usage.Memory
	if before < size {
		t.Errorf("uses %d bytes, want at least the %d of the file that it has read", before, size)
	}

	if r := p.must("pause", "dev"); !strings.Contains(r.stdout, "(dev) is paused, ") || !strings.Contains(r.stdout, "given back") {
		t.Errorf("pause says %q", r.stdout)
	}
	n.stands("pause")
	r := p.rest("dev")
	if r.State != "paused" || r.Pause == nil || r.Pause.By != "uid:0" || r.Pause.Cause != "operator" || r.Pause.Since.IsZero() {
		t.Fatalf("got %+v, %+v", r, r.Pause)
	}
	if r.Pause.Given < size/2 || r.Usage.Memory > before-size/2 {
		t.Errorf("given back %d; uses %d, before %d: want at least half of the file back", r.Pause.Given, r.Usage.Memory, before)
	}
	if list := p.must("ps", "-q", "--state", "paused").stdout; strings.Count(list, "\n") != 1 {
		t.Errorf("ps --state paused: %q", list)
	}
	if text := p.must("top", "--once", "--interval", "100ms").stdout; !strings.Contains(text, "0 frozen, 1 paused") {
		t.Errorf("top says %s", text)
	}
	p.refused("conflict", "pause", "dev")
	p.refused("conflict", "thaw", "dev")
	p.must("ls", "dev:")
	p.must("stat", "dev:n")
	p.must("update", "dev", "--pids", "60")
	n.stands("what doesn't need it running")
	p.is("dev", "paused", true)

	p.must("resume", "dev")
	n.goesOn("resume")
	p.is("dev", "running", false)
	p.refused("conflict", "resume", "dev")
	want := []string{"paused uid:0 operator", "resumed uid:0 operator"}

	for _, by := range []struct {
		cause string
		args  []string
	}{
		{"exec", []string{"exec", "--in", "dev", "--", "/bin/true"}},
		{"copy", []string{"cat", "dev:/etc/passwd"}},
		{"copy", []string{"cp", filepath.Join(ws, "big"), "dev:copy"}},
		{"signal", []string{"signal", "dev", "--signal", "WINCH"}},
	} {
		p.must("pause", "dev")
		n.stands("pause")
		p.must(by.args...)
		n.goesOn(by.args[0])
		p.is("dev", "running", false)
		want = append(want, "paused uid:0 operator", "resumed uid:0 "+by.cause)
	}
	if diff := cmp.Diff(want, p.pauses("dev")); diff != "" {
		t.Errorf("on record (-want +got):\n%s", diff)
	}
	told := &told{place: p, name: "dev"}
	if got := told.events("paused"); len(got) != 5 || got[0].Data["by"] != "uid:0" || got[0].Data["given_back_bytes"] == "" {
		t.Errorf("events: %v", got)
	}
	if got := told.events("resumed"); len(got) != 5 || got[1].Data["cause"] != "exec" {
		t.Errorf("events: %v", got)
	}

	p.must("pause", "dev")
	p.must("kill", "dev")
	noAgents(t)
	if r := p.do("pause", "dev"); r.exit != 1 || !endedText.MatchString(r.stderr) {
		t.Errorf("after its end: exit %d\n%s", r.exit, r.stderr)
	}
}

// M-23, S-15: a pause ends no freeze of an operator's, and nothing that would end the pause does.
func TestM23PauseIsTheWeakest(t *testing.T) {
	p := newPlace(t)
	ws := workspace(t)
	p.detached("dev", ws, opts{profile: "ring2"}, counting)
	n := counts{p, filepath.Join(ws, "n")}
	n.goesOn("its start")
	tried := func() {
		t.Helper()
		p.refused("conflict", "exec", "--in", "dev", "--", "/bin/true")
		p.must("cp", "dev:/etc/passwd", "-")
		p.must("signal", "dev", "--signal", "WINCH")
		n.stands("what would end a pause")
		p.is("dev", "frozen", true)
	}
	p.must("pause", "dev")
	p.must("freeze", "dev")
	tried()
	p.refused("conflict", "thaw", "dev") // it is still paused
	n.stands("thaw")
	p.is("dev", "paused", true)
	p.must("resume", "dev")
	n.goesOn("resume")

	p.must("freeze", "dev")
	p.must("pause", "dev")
	tried()
	p.refused("conflict", "resume", "dev") // it is still frozen
	n.stands("resume")
	p.is("dev", "frozen", false)
	p.must("thaw", "dev")
	n.goesOn("thaw")
	p.is("dev", "running", false)
}

// M-22, H-14: what is taken from a run is taken from a paused one too, and its time limit goes on.
func TestM22PausedRunKeepsNothing(t *testing.T) {
	p := newPlace(t)
	p.must("agent", "score", "planner", "0.7")
	a := p.agent("ward", opts{profile: "ring3", flags: []string{"--agent", "planner", "--workspace", workspace(t)}})
	a.elevate(time.Hour)
	a.holds(2)
	if got := a.try("fork"); got != "ok" {
		t.Errorf("fork in ring 2: %s", got)
	}
	p.must("pause", "ward")
	p.must("revoke", "ward")
	a.holds(3)
	p.is("ward", "paused", true)
	p.must("resume", "ward")
	if got := a.try("fork"); got == "ok" {
		t.Error("it forks in ring 3")
	}

	a.elevate(time.Hour)
	a.holds(2)
	p.must("pause", "ward")
	p.must("quarantine", "ward", "--reason", "a test")
	a.holds(3)
	p.is("ward", "paused", true)
	p.must("resume", "ward")
	if got := a.try("fork"); got == "ok" {
		t.Error("it forks in quarantine")
	}
	a.quit().want(t, 0, "exited")

	late := p.agent("late", opts{profile: "ring3", flags: []string{"--timeout", scaled(3 * time.Second)}})
	p.must("pause", "late")
	late.finish(t).want(t, 124, "timeout")
	noAgents(t)
}

// M-5: whatever ends a paused run or its supervisor leaves nothing of it.
func TestM5PausedRunsEnd(t *testing.T) {
	p := newPlace(t)
	a := p.agent("alone", opts{profile: "ring2"})
	p.must("pause", "alone")
	if err := a.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	noAgents(t)
	p.must("gc")

	// One that ends meanwhile: paused, or refused, and gone in any case.
	for i := range 10 {
		name := fmt.Sprintf("brief-%d", i)
		b := p.agent(name, opts{profile: "ring3"})
		b.say.Close()
		r := p.do("pause", name)
		if r.exit == 0 {
			p.do("resume", name) // it ends then, or has
		} else if !endedText.MatchString(r.stderr) { // its supervisor may end in the middle of the answer
			t.Errorf("exit %d: %s", r.exit, r.stderr)
		}
		b.finish(t).want(t, 0, "exited")
	}

	d := startDaemon(t, "--pool-max", "0")
	q := place{t, d.run, d.state}
	q.detached("dev", workspace(t), opts{profile: "ring2"}, "")
	q.must("pause", "dev")
	d.drain(t)
	noAgents(t)
}

// M-3, M-23: a run that does nothing is paused by itself, on record, and goes on for what needs it. One that works isn't, nor one that somebody is in,
// nor one that is frozen.
func TestM3IdleRunsArePaused(t *testing.T) {
	p := newPlace(t)
	idle := func(name, ring string, argv ...string) {
		t.Helper()
		// Shorter than what the machine hides of a run's work, longer than a start.
		o := opts{profile: ring, flags: []string{"-d", "--name", name, "--no-gateway", "--idle-pause", scaled(2 * time.Second), "--cpus", "0.1", "--timeout", "300s", "--cpu-time", "300s"}}
		c := p.at(prepare(t, o, argv...))
		if out, err := c.output(); err != nil {
			t.Fatalf("detach: %v: %q %s", err, out, c.errOut.String())
		}
		t.Cleanup(func() { p.do("kill", name) })
	}
	idle("works", "ring3", "/usr/bin/sh", "-c", "while :; do :; done")
	idle("entered", "ring3", "/usr/bin/sleep", "1000")
	p.must("exec", "--in", "entered", "-d", "--", "/usr/bin/sleep", "1000")
	idle("frozen", "ring3", "/usr/bin/sleep", "1000")
	p.must("freeze", "frozen")
	p.do("resume", "frozen")                         // a slow machine may have been too late
	idle("rests", "ring3", "/usr/bin/sleep", "1000") // the last of them: when it is paused, the others had as long
	pausedByItself := func() {
		t.Helper()
		eventually(t, 30*time.Second, "the idle run is paused", func() bool {
			return strings.Contains(p.do("ps", "--state", "paused").stdout, "rests") // also where a supervisor takes its time
		})
	}
	pausedByItself()
	if r := p.rest("rests"); r.Pause == nil || r.Pause.By != "agentrun" || r.Pause.Cause != "idle" {
		t.Errorf("got %+v", r.Pause)
	}
	if text := p.must("inspect", "rests").stdout; !strings.Contains(text, "by agentrun, as it was idle") {
		t.Errorf("inspect says %s", text)
	}
	p.is("works", "running", false)
	p.is("entered", "running", false)
	p.is("frozen", "frozen", false)
	p.must("exec", "--in", "rests", "--", "/bin/true")
	p.is("rests", "running", false)
	pausedByItself()
	p.must("resume", "rests")
	want := []string{"paused agentrun idle", "resumed uid:0 exec", "paused agentrun idle", "resumed uid:0 operator"}
	if diff := cmp.Diff(want, p.pauses("rests")); diff != "" {
		t.Errorf("on record (-want +got):\n%s", diff)
	}
	for _, flags := range [][]string{{"--idle-pause", "2s"}, {"-d", "--idle-pause", "2"}, {"-d", "--idle-pause", "10ms"}, {"-d", "--idle-pause", ""}} {
		if r := p.do(append(append([]string{"exec"}, flags...), "--", "/bin/true")...); r.exit != 125 || !strings.Contains(r.stderr, "--idle-pause") {
			t.Errorf("exec %v: exit %d\n%s", flags, r.exit, r.stderr)
		}
	}
}

// M-23: an ordinary user pauses with a delegated cgroup; without one it is refused as a freeze is.
func TestM23PauseOfAnOrdinaryUser(t *testing.T) {
	u := someone(t)
	delegated := u.cgroup != ""
	code, id, text := u.run(t, "exec", "-d", "--best-effort", "--no-gateway", "--ring", "3", "--name", "mine", "--", "/usr/bin/sleep", "1000")
	if code != 0 {
		t.Fatalf("detach: exit %d %s%s", code, id, text)
	}
	u.cgroup = "" // the commands come from the user's shell
	defer func() {
		u.run(t, "kill", "mine")
		u.over(t)
	}()
	code, _, text = u.run(t, "pause", "mine", "--json")
	if !delegated {
		if code != 1 || !strings.Contains(text, "(conflict)") || !strings.Contains(text, "hint: ") {
			t.Errorf("without a cgroup: exit %d %s", code, text)
		}
		return
	}
	if code != 0 {
		t.Fatalf("pause: exit %d %s", code, text)
	}
	_, out, _ := u.run(t, "inspect", "mine", "--json")
	var r resting
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.State != "paused" {
		t.Errorf("got %+v, %v", r, err)
	}
	if code, _, text := u.run(t, "resume", "mine"); code != 0 {
		t.Errorf("resume: exit %d %s", code, text)
	}
}

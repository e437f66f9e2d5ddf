// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/control"
)

// toAllow is what a refusal tells an operator to write.
var toAllow = regexp.MustCompile(`in (\S+) (?:write (ranges: \[.*?\])|add to ranges: (- \{.*?\}))\)`)

// with has a call read that configuration.
func (c *call) with(config string) *call {
	c.Args = slices.Insert(c.Args, slices.Index(c.Args, "exec"), "--config", config)
	return c
}

// M-3: no flag gives more than the specification's ranges. The refusal names the file and the line to write; that line, and it alone,
// gives it; a wider range is on record with each start, and lies where it was given: the other rings stay as they are.
func TestM3RangesAreTheOperatorsWord(t *testing.T) {
	p := newPlace(t)
	config := write(t, filepath.Join(t.TempDir(), "config.yaml"), "log_level: warn\n", 0o600)
	more := []string{"--memory", "2G", "--cpus", "2", "--timeout", "none", "--max-steps", "100000"}
	exec := func(ring string) result {
		return p.do(slices.Concat([]string{"--config", config, "exec", "--no-gateway", "--ring", ring}, more, []string{"--", "/bin/true"})...)
	}
	for range 4 { // a line for each of the four
		r := exec("2")
		if r.exit != 125 {
			t.Fatalf("exit %d, want 125\n%s", r.exit, r.stderr)
		}
		said := toAllow.FindStringSubmatch(r.stderr)
		if said == nil || said[1] != config {
			t.Fatalf("the refusal names neither %s nor what to write:\n%s", config, r.stderr)
		}
		text, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		line := said[3]
		if said[2] != "" { // in one line; others are to follow
			line = strings.NewReplacer("ranges: [", "ranges:\n- ", "}]", "}").Replace(said[2])
		}
		write(t, config, string(text)+line+"\n", 0o600)
	}
	if r := exec("2"); r.exit != 0 {
		t.Fatalf("allowed: exit %d\n%s", r.exit, r.stderr)
	}
	if r := exec("3"); r.exit != 125 || !strings.Contains(r.stderr, "- {ring: 3, ") {
		t.Errorf("ring 3, of which nothing is said: exit %d\n%s", r.exit, r.stderr)
	}
	if r := p.do("exec", "--no-gateway", "--ring", "2", "--memory", "2G", "--", "/bin/true"); r.exit != 125 || !strings.Contains(r.stderr, "config.yaml write ranges: [{ring: 2, memory: 2GiB}]") {
		t.Errorf("without that configuration: exit %d\n%s", r.exit, r.stderr)
	}
	var wider []any
	for _, e := range (node{t, p.state}).audit("node") {
		if e.Kind == "sandbox_start" {
			wider, _ = e.Data["wider"].([]any)
		}
	}
	if diff := cmp.Diff([]any{"cpu 2", "memory 2GiB", "scratch_size 2GiB", "timeout none", "cpu_time none", "max_steps 100000"}, wider); diff != "" {
		t.Errorf("on record (-want +got):\n%s", diff)
	}
	if err := os.Chmod(config, 0o666); err != nil {
		t.Fatal(err)
	}
	if r := exec("2"); r.exit != 125 || !strings.Contains(r.stderr, "--config: ") {
		t.Errorf("a configuration that anybody could have written: exit %d\n%s", r.exit, r.stderr)
	}
}

// M-3: what the ranges give holds in the kernel, also for an operator's update, which is on record; a run that loses its ring loses what
// only that ring's range gave.
func TestM3WiderLimitsHoldAndFall(t *testing.T) {
	p := newPlace(t)
	config := write(t, filepath.Join(t.TempDir(), "config.yaml"), "ranges:\n- {ring: 2, memory: 3G, cpu: 4, pids: 6000}\nlive: {apply_time: 5s}\n", 0o600) // a slow machine's
	if r := p.do("agent", "score", "wide", "0.7"); r.exit != 0 {
		t.Fatal(r.stderr)
	}
	o := opts{profile: "ring2", flags: []string{"--no-gateway", "--agent", "wide", "--memory", "2G", "--cpus", "2"}}
	a := p.begin("wide", p.at(prepare(t, o, "/probe", "live")).with(config))
	want := liveLimits{2, 2 << 30, 128}
	if diff := cmp.Diff(want, hostLimits(t, a.seen().PID)); diff != "" {
		t.Errorf("on the host (-want +got):\n%s", diff)
	}
	p.must("update", "wide", "--memory", "3G", "--pids", "5000")
	want.Memory, want.PIDs = 3<<30, 5000
	if diff := cmp.Diff(want, hostLimits(t, a.seen().PID)); diff != "" {
		t.Errorf("updated (-want +got):\n%s", diff)
	}
	if r := p.do("update", "wide", "--memory", "4G"); r.exit != 2 || !strings.Contains(r.stderr, config+" add to ranges: - {ring: 2, memory: 4GiB}") {
		t.Errorf("more than the range: exit %d\n%s", r.exit, r.stderr)
	}
	p.must("agent", "quarantine", "wide", "--reason", "a test")
	eventually(t, hang(), "the limits of ring 3's range", func() bool {
		l := hostLimits(t, a.seen().PID)
		return l.Memory <= 1<<30 && l.CPU <= 1 && l.PIDs <= 4096
	})
	if r := p.do("update", "wide", "--memory", "2G"); r.exit != 2 || !strings.Contains(r.stderr, "{ring: 3, memory: 2GiB}") {
		t.Errorf("in quarantine: exit %d\n%s", r.exit, r.stderr)
	}
	var ordered []any
	for _, e := range (node{t, p.state}).audit("node") {
		if e.Kind == "limit_change" {
			ordered = append(ordered, e.Data["by"], e.Data["limits"])
		}
	}
	if diff := cmp.Diff([]any{"uid:0", []any{"memory 3GiB", "pids 5000"}}, ordered); diff != "" {
		t.Errorf("on record (-want +got):\n%s", diff)
	}
}

// M-3: a minute before its end a run's operators and its agent are told; an operator gives it more time within its range, on record with
// who and why, and the run lives past its first end.
func TestM3TimeIsALease(t *testing.T) {
	t.Parallel()
	for _, daemon := range []bool{false, true} {
		name := map[bool]string{false: "alone", true: "daemon"}[daemon]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			config := write(t, filepath.Join(t.TempDir(), "config.yaml"), "ranges: [{ring: 2, timeout: 30m}]\n", 0o600)
			if daemon {
				n := startDaemon(t)
				p.run, p.state = n.run, n.state
			}
			c := p.at(prepare(t, opts{profile: "ring2", flags: []string{"--timeout", "61s", "--cpu-time", "2s"}}, "/bin/bash", "-c", leaseScript)).with(config)
			a := p.beginOnly("leased", c)
			if got := a.line(); got != "up" {
				t.Fatalf("got %q", got)
			}
			var left struct {
				Seconds int64 `json:"time_left_s"`
			}
			fmt.Fprintln(a.say, "usage")
			if err := json.Unmarshal([]byte(a.line()), &left); err != nil || left.Seconds < 1 || left.Seconds > 61 {
				t.Errorf("the agent is told it has %+v, %v", left, err)
			}
			eventually(t, hang(), "the warning", func() bool { return len(a.events("ends_soon")) == 1 })
			if r := p.do("extend", "leased", "1h", "--reason", "ticket 81"); r.exit != 2 || !strings.Contains(r.stderr, "add to ranges: - {ring: 2, timeout: 3661s}") {
				t.Errorf("beyond the range: exit %d\n%s", r.exit, r.stderr)
			}
			if r := p.do("extend", "leased"); r.exit != 2 {
				t.Errorf("nothing to add: exit %d", r.exit)
			}
			lease := asked[control.Lease](p, "extend", "leased", "20m", "--cpu-time", "1m", "--reason", "ticket 81")
			if lease.Timeout != 20*time.Minute+61*time.Second || lease.CPUTime != 62*time.Second {
				t.Errorf("got %+v", lease)
			}
			fmt.Fprintln(a.say, "usage")
			if err := json.Unmarshal([]byte(a.line()), &left); err != nil || left.Seconds < 61 {
				t.Errorf("the agent is told it has %+v, %v", left, err)
			}
			fmt.Fprintln(a.say, "burn") // more of a processor than it began with
			if got := a.line(); got != "burnt" {
				t.Errorf("got %q", got)
			}
			p.must("kill", "leased")
			a.finish(t)
			var got []any
			for _, e := range (node{t, p.state}).audit("node") {
				if e.Kind == "limit_change" {
					got = append(got, e.Data["by"], e.Data["note"], e.Data["limits"])
				}
			}
			if diff := cmp.Diff([]any{"uid:0", "ticket 81", []any{"timeout 1261s", "cpu_time 62s"}}, got); diff != "" {
				t.Errorf("on record (-want +got):\n%s", diff)
			}
		})
	}
}

// leaseScript does what it is told on its input.
const leaseScript = `echo up
while read -r word; do
  case $word in
  usage) exec 3<>/dev/tcp/127.0.0.1/7600; printf 'GET /internal/usage HTTP/1.0\r\nHost: 127.0.0.1:7600\r\n\r\n' >&3; tail -n 1 <&3 | tr -d '\n'; echo; exec 3>&- ;;
  burn) until read -r _ _ _ _ _ _ _ _ _ _ _ _ _ u s _ < /proc/self/stat && [ $((u + s)) -gt 250 ]; do :; done; echo burnt ;;
  esac
done`

// M-3, M-5: a run without a time limit ends all the same with its supervisor.
func TestM3NoTimeLimitEndsWithItsSupervisor(t *testing.T) {
	p := newPlace(t)
	config := write(t, filepath.Join(t.TempDir(), "config.yaml"), "ranges: [{ring: 2, timeout: none}]\n", 0o600)
	c := p.at(prepare(t, opts{profile: "ring2", flags: []string{"--no-gateway", "--timeout", "none"}}, "/probe", "live")).with(config)
	a := p.begin("endless", c)
	pids := a.seen()
	if r := p.do("inspect", "endless"); !strings.Contains(r.stdout, "by no time limit") || !strings.Contains(r.stdout, "\npressure ") {
		t.Errorf("inspect:\n%s", r.stdout)
	}
	if r := p.do("extend", "endless", "1h"); r.exit != 2 || !strings.Contains(r.stderr, "has none already") {
		t.Errorf("extend: exit %d\n%s", r.exit, r.stderr)
	}
	if err := unix.Kill(pids.Supervisor, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, hang(), "the agent's death", func() bool { return errors.Is(unix.Kill(pids.PID, 0), unix.ESRCH) })
}

// M-3: a run that a limit has ended says which flag gives more, a value that fits, and where more comes from.
func TestM3EndedRunsSayWhatHelps(t *testing.T) {
	needSandbox(t)
	for _, tt := range []struct {
		flags []string
		argv  []string
		code  int
		hint  string
	}{
		{[]string{"--timeout", "500ms"}, []string{"/usr/bin/sleep", "60"}, 124, "hint: --timeout 1s, up to 300s; more by ranges: in "},
		{[]string{"--cpu-time", "100ms"}, []string{"/probe", "spin", "3600"}, 124, "hint: --cpu-time 200ms, up to 300s; more by ranges: in "},
		{[]string{"--memory", "64M"}, []string{"/probe", "alloc", "100"}, 137, "oom: over the memory limit of 64MiB\nhint: --memory 128MiB, up to 1GiB; more by ranges: in "},
	} {
		r := run(t, opts{profile: "ring2", flags: append(tt.flags, "--no-gateway")}, tt.argv...)
		if r.exit != tt.code || !strings.Contains(r.stderr, tt.hint) {
			t.Errorf("%v: exit %d, want %d and %q\n%s", tt.flags, r.exit, tt.code, tt.hint, r.stderr)
		}
	}
}

// M-3: whoever sits at the terminal is warned, alone and by the daemon: by lines, and where the agent may have the whole screen by what
// moves nothing on it. A run whose words go elsewhere has none of ours among them.
func TestM3TerminalIsWarned(t *testing.T) {
	t.Parallel()
	n := startDaemon(t)
	warned := func(flags ...string) opts {
		return opts{profile: "ring2", flags: append(flags, "--timeout", "61s", "--name", "warned", "--workspace", t.TempDir())}
	}
	piped := n.prepare(t, warned(), "/usr/bin/sleep", "60")
	if err := piped.Start(); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		c    *call
		want string
	}{
		"alone":             {newPlace(t).at(prepare(t, warned(), "/usr/bin/sleep", "60")), " agentrun extend warned 10m\r\n"},
		"alone, screen":     {newPlace(t).at(prepare(t, warned("-t"), "/usr/bin/sleep", "60")), "(agentrun extend warned 10m)\a"},
		"by daemon":         {n.prepare(t, warned(), "/usr/bin/sleep", "60"), " agentrun extend warned 10m\r\n"},
		"by daemon, screen": {n.prepare(t, warned("-t"), "/usr/bin/sleep", "60"), "(agentrun extend warned 10m)\a"},
	} {
		term := openTerminal(t, 80, 24)
		c := term.begin(tt.c)
		shown := term.until(tt.want)
		if isScreen := strings.HasSuffix(name, "screen"); isScreen != strings.Contains(shown, "\x1b]9;agentrun: ends in ") || isScreen && strings.Contains(shown, "\n") {
			t.Errorf("%s: the terminal shows %q", name, shown)
		}
		_ = c.Process.Signal(unix.SIGTERM)
		c.finish(t)
	}
	_ = piped.Process.Signal(unix.SIGTERM)
	if r := piped.finish(t); strings.Contains(r.stderr, "extend") {
		t.Errorf("a run without a terminal: %q", r.stderr)
	}
}

// M-3, M-1: an ordinary user's own configuration is the operator's word about that user's own runs, which are given more time as others.
func TestM3RootlessLease(t *testing.T) {
	u := newUser(t)
	config := write(t, filepath.Join(u.home, "config.yaml"), "ranges: [{ring: 2, timeout: none}]\n", 0o600)
	if err := os.Chown(config, ordinary, ordinary); err != nil {
		t.Fatal(err)
	}
	exec := func(more ...string) *exec.Cmd {
		args := []string{"--config", config, "exec", "--best-effort", "--no-gateway", "--ring", "2", "--name", "theirs", "--timeout", "1h"}
		return u.command(t, slices.Concat(args, more, []string{"--", "/usr/bin/sleep", "3600"})...)
	}
	c := exec()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var lease control.Lease
	eventually(t, hang(), "the run is given an hour", func() bool {
		out, err := u.command(t, "extend", "theirs", "1h", "--json").Output()
		return err == nil && json.Unmarshal(out, &lease) == nil
	})
	if lease.Timeout != 2*time.Hour {
		t.Errorf("got %+v", lease)
	}
	_ = u.command(t, "kill", "theirs").Run()
	_ = c.Wait()
	out, err := exec("--memory", "2G").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "in "+config+" add to ranges: - {ring: 2, memory: 2GiB}") {
		t.Errorf("beyond it: %v\n%s", err, out)
	}
}

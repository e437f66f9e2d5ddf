// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// M-3: below, above, malformed → a clear error that names the flag, exit 125,
// and nothing started.
func TestBadFlags(t *testing.T) {
	needSandbox(t)
	long := strings.Repeat("x", 257)
	for _, flag := range []string{
		"--cpus=0.009", "--cpus=1.01", "--cpus=0", "--cpus=-1", "--cpus=abc", "--cpus=", "--cpus=NaN", "--cpus=Inf", "--cpus=1e300", "--cpus=0,5",
		"--memory=3M", "--memory=1025M", "--memory=0", "--memory=-1", "--memory=abc", "--memory=", "--memory=256X", "--memory=99999999999999999999G", "--memory=0x10000000", "--memory=512.5M", "--memory= 512M",
		"--pids=0", "--pids=-1", "--pids=15", "--pids=4097", "--pids=abc", "--pids=", "--pids=1.5", "--pids=99999999999999999999",
		"--timeout=1us", "--timeout=301s", "--timeout=0", "--timeout=-60s", "--timeout=abc", "--timeout=", "--timeout=60", "--timeout=99999999h", "--timeout=NaN",
		"--cpu-time=0s", "--cpu-time=-1s", "--cpu-time=301s", "--cpu-time=abc", "--cpu-time=",
		"--scratch-size=0", "--scratch-size=1k", "--scratch-size=2G", "--scratch-size=abc", "--scratch-size=-1M", "--scratch-size=",
		"--max-steps=0", "--max-steps=15001", "--max-steps=-1", "--max-steps=abc", "--max-steps=",
		"--max-output=0", "--max-output=2G", "--max-output=abc", "--max-output=-1",
		"--ring=0", "--ring=4", "--ring=-1", "--ring=abc", "--ring=", "--ring=3.0", "--ring=03x",
		"--profile=nonexistent", "--profile=../../etc/passwd", "--profile=base", "--profile=",
		"--name=../x", "--name=a b", "--name=.x", "--name=" + long, "--name=a\nb", "--name=",
		"--agent=../x", "--agent=a/b", "--agent=x.", "--agent=" + long, "--agent=é",
		"--session=a.b", "--session=a/b", "--session=" + long, "--session=a b",
		"--env=NOEQUALS", "--env==x", "--env=", "--env-pass=A=B", "--env-pass=",
		"--workspace=/nonexistent", "--workspace=/etc/passwd", "--workspace=/", "--workspace=",
		"--rootfs=/nonexistent", "--rootfs=/etc/passwd", "--rootfs=/", "--rootfs=",
		"--ro-bind=/nonexistent", "--ro-bind=/", "--ro-bind=/usr:relative", "--ro-bind=/usr:/../x", "--ro-bind=/usr:/a/../../x", "--ro-bind=/usr:/", "--ro-bind=/usr:/proc", "--ro-bind=/usr:/proc/1",
		"--ro-bind=/usr:/dev/null", "--ro-bind=/usr:", "--ro-bind=", "--ro-bind=:/x", "--bind=/nonexistent", "--bind=/:/host",
		"--home=../x", "--home=.x", "--home=a b", "--home=" + long, "--home=", "--cwd=relative", "--cwd=", "--keep=/tmp/x",
		"--policy=", "--gateway=", "--metrics-addr=", "--pull=", "--no-such-flag", "--no-such-flag=1",
	} {
		t.Run(flag, func(t *testing.T) {
			profile := "ring2"
			if strings.HasPrefix(flag, "--ring") || strings.HasPrefix(flag, "--profile") {
				profile = ""
			}
			got, r := try(t, opts{profile: profile, flags: []string{flag}}, "ok")
			name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
			if r.exit != 125 {
				t.Errorf("got exit %d, want 125\nstderr: %s", r.exit, r.stderr)
			}
			if len(got) != 0 {
				t.Errorf("the command was started: %v", got)
			}
			if !strings.Contains(r.stderr, name) {
				t.Errorf("the message does not name %s:\n%s", name, r.stderr)
			}
			if strings.Contains(r.stderr, "panic") || strings.Contains(r.stderr, "goroutine") {
				t.Errorf("agentrun panicked:\n%s", r.stderr)
			}
			if n := len(strings.Split(strings.TrimSpace(r.stderr), "\n")); n > 6 {
				t.Errorf("the message has %d lines:\n%s", n, r.stderr)
			}
		})
	}
}

// The bounds themselves are good, and less than M-3's default ranges is too: tightening needs nobody's leave.
func TestLimitsAtTheirBounds(t *testing.T) {
	needSandbox(t)
	for _, flags := range [][]string{
		{"--cpus=0.05", "--memory=64M", "--timeout=30s", "--pids=16", "--cpu-time=900ms", "--scratch-size=4k", "--max-output=4k"},
		{"--cpus=1", "--memory=1024M", "--timeout=300s", "--pids=4096", "--cpu-time=300s", "--max-output=1G", "--max-steps=15000"},
		{"--cpus=0.5", "--memory=268435456", "--timeout=1m30s"},
	} {
		_, r := try(t, opts{flags: flags}, "id")
		r.want(t, 0, "exited")
	}
}

// M-3: a run asked for less than the default ranges gets just that, in the process and the cgroup, without any switch.
func TestM3LessIsAlwaysAllowed(t *testing.T) {
	needSandbox(t)
	less := []string{"--timeout", "1s", "--memory", "64M", "--cpus", "0.05"}
	r := run(t, opts{profile: "ring2", flags: less}, "/usr/bin/sleep", "60")
	r.want(t, 124, "timeout")
	if r.status.WallTime > 30*time.Second {
		t.Errorf("a run of one second took %v", r.status.WallTime)
	}
	r = run(t, opts{profile: "ring2", flags: []string{"--memory", "64M"}}, "/probe", "alloc", "100")
	r.want(t, 137, "oom")
	r = run(t, opts{flags: []string{"--timeout", "301s"}}, "/probe", "ok")
	if r.exit != 125 || !strings.Contains(r.stderr, "--timeout: 301s is outside the range") {
		t.Errorf("more than the range: exit %d, want 125\n%s", r.exit, r.stderr)
	}
}

// More than one mistake: all are told at once.
func TestAllMistakesAreReported(t *testing.T) {
	needSandbox(t)
	r := run(t, opts{flags: []string{"--cpus=9", "--memory=1k", "--timeout=1h"}}, "/probe", "ok")
	for _, name := range []string{"cpu", "memory", "timeout"} {
		if !strings.Contains(r.stderr, name) {
			t.Errorf("%s is not named in: %s", name, r.stderr)
		}
	}
}

// Ring 0 is no sandbox, and the refusal says so.
func TestRingZeroIsRefused(t *testing.T) {
	needSandbox(t)
	for _, flags := range [][]string{{"--ring", "0"}, {"--profile", "ring0"}} {
		r := run(t, opts{flags: flags}, "/probe", "ok")
		if r.exit != 125 || !strings.Contains(strings.ToLower(r.stderr), "ring 0") || len(answers(r.stdout)) != 0 {
			t.Errorf("%v: got exit %d, want 125 and the reason\n%s", flags, r.exit, r.stderr)
		}
	}
}

// --ring and --profile together: they may agree, they must not contradict.
func TestRingAndProfile(t *testing.T) {
	needSandbox(t)
	_, r := try(t, opts{flags: []string{"--ring", "3", "--profile", "strict"}}, "id")
	r.want(t, 0, "exited")
	if r.status.Profile != "strict" || r.status.Ring != 3 {
		t.Errorf("got profile %s ring %d, want strict and 3", r.status.Profile, r.status.Ring)
	}
	_, r = try(t, opts{flags: []string{"--ring", "3", "--profile", "ring1"}}, "ok")
	if r.exit != 125 {
		t.Errorf("--ring 3 with a ring 1 profile: got exit %d, want 125\n%s", r.exit, r.stderr)
	}
	_, r = try(t, opts{}, "id")
	if r.status.Ring != 3 {
		t.Errorf("the default is ring %d, want 3", r.status.Ring)
	}
}

// Test switches must not be flags, and do nothing but what they say.
func TestUnsafeSwitchIsNeeded(t *testing.T) {
	needSandbox(t)
	_, r := try(t, opts{flags: []string{"--timeout", "301s"}, env: []string{"AGENTRUN_TESTONLY_UNSAFE_LIMITS=0"}}, "ok")
	if r.exit != 125 {
		t.Errorf("with the switch off: got exit %d, want 125", r.exit)
	}
}

// A comma and a space are ordinary characters of a path.
func TestOddPaths(t *testing.T) {
	needSandbox(t)
	dir := t.TempDir() + "/a,b c"
	write(t, dir+"/file", "x", 0o644)
	got, r := try(t, opts{flags: []string{"--ro-bind", dir + ":/odd"}}, "read /odd/file")
	if got["read /odd/file"] != "ok" {
		t.Errorf("--ro-bind of %q: got %v\n%s", dir, got, r.stderr)
	}
	got, r = try(t, opts{flags: []string{"--workspace", dir}}, "read /workspace/file")
	if got["read /workspace/file"] != "ok" {
		t.Errorf("--workspace of %q: got %v\n%s", dir, got, r.stderr)
	}
}

// M-9, M-11, H-28: a value that is empty, as of a script's variable that isn't set, is no flag left out: that would ask no policy, grant a tool
// with any arguments, verify another chain, undo whichever call.
func TestEmptyFlagsOfVerbs(t *testing.T) {
	p := newPlace(t)
	p.must("agent", "score", "a", "0.7")
	for _, args := range [][]string{
		{"create", "--name", "k", "--policy", ""}, {"plan", "--policy", "", "--", "true"}, {"safety", "check", "--policy", "", "rm x"},
		{"approvals", "grant", "--agent", "a", "--tool", "math", "--args", ""}, {"undo", "--session", "", "x.1"}, {"undo", "--list", "--session", ""},
		{"audit", "verify", "--session", ""}, {"audit", "verify", "--chain", ""}, {"audit", "verify", "--key", ""}, {"audit", "checkpoint", "--session", ""},
		{"audit", "show", "--agent", ""}, {"audit", "export", "--until", ""}, {"history", "--agent", ""}, {"usage", "--agent", ""},
		{"key", "issue", "--agent", "a", "--may", "tool.math", "--out", ""}, {"operator", "list", "--operators", ""},
		{"--config", "", "ps"}, {"--state-dir", "", "audit", "verify"}, {"exec", "--policy", "", "--", "true"},
	} {
		r := p.do(args...)
		if r.exit != 125 || r.stdout != "" || !strings.Contains(r.stderr, "empty") {
			t.Errorf("%q: exit %d\n%s%s", args, r.exit, r.stdout, r.stderr)
		}
	}
	for _, args := range [][]string{{"ps", "--agent", ""}, {"kill", "--agent", ""}, {"port", "publish", "x", "80", "--to", ""}} {
		if r := p.do(args...); r.exit != 2 || !strings.Contains(r.stderr, "empty") {
			t.Errorf("%q: exit %d, want 2\n%s", args, r.exit, r.stderr)
		}
	}
	t.Setenv("AGENTRUN_RUN_DIR", "")
	t.Setenv("AGENTRUN_OPERATORS", "")
	p.must("ps")
	if r := p.do("operator", "list"); strings.Contains(r.stderr, "empty") {
		t.Errorf("an empty variable is a flag: %s", r.stderr)
	}
	p.must("agent", "set", "a", "--plan", "casual")
	if r := p.must("agent", "set", "a", "--plan", ""); strings.Contains(r.stdout, "casual") {
		t.Errorf("the plan stayed: %s", r.stdout)
	}
	if r := p.must("approvals", "list"); strings.Contains(r.stdout, "math") {
		t.Errorf("a grant was made: %s", r.stdout)
	}
}

// H-21, M-9: of a flag that is given twice the first value isn't dropped: an agent that was named would live on, a policy not be asked.
func TestFlagsGivenTwice(t *testing.T) {
	p := newPlace(t)
	p.must("exec", "-d", "--no-gateway", "--agent", "a", "--", "sleep", "50")
	p.must("exec", "-d", "--no-gateway", "--agent", "b", "--", "sleep", "50")
	for _, tt := range []struct {
		exit int
		args []string
	}{
		{2, []string{"kill", "--agent", "a", "--agent", "b"}},
		{2, []string{"quarantine", "--agent", "a", "--agent", "b", "--reason", "r"}},
		{2, []string{"ps", "--agent", "a", "--agent=b"}},
		{125, []string{"audit", "show", "--agent", "a", "--agent", "b"}},
		{125, []string{"audit", "verify", "--chain", "node", "--chain", "x"}},
		{125, []string{"exec", "--policy", "p", "--policy", "q", "--", "true"}},
		{125, []string{"plan", "--policy", "p", "--policy", "q", "--", "true"}},
		{125, []string{"create", "--name", "k", "--policy", "p", "--policy", "q"}},
	} {
		if r := p.do(tt.args...); r.exit != tt.exit || !strings.Contains(r.stderr, "give it once") {
			t.Errorf("%q: exit %d, want %d\n%s%s", tt.args, r.exit, tt.exit, r.stdout, r.stderr)
		}
	}
	if n := len(p.list()); n != 2 {
		t.Errorf("%d runs live, want both", n)
	}
	p.must("ps", "--agent", "a", "--agent", "a")
	p.must("exec", "--no-gateway", "--ring", "2", "--timeout", "9s", "--timeout", "8s", "--", "true")
	p.must("kill", "--all", "--yes")
}

// H-28: a chain that is named without its flag isn't the node's. Whoever accepts the loss of one chain accepts none of another's.
func TestChainAmongTheArguments(t *testing.T) {
	p := newPlace(t)
	p.must("agent", "score", "a", "0.7")
	p.must("session", "create", "s")
	log := filepath.Join(p.state, "audit/node/000001.jsonl")
	text := readFile(t, log)
	write(t, log, text[:strings.LastIndex(strings.TrimSuffix(text, "\n"), "\n")+1], 0o600)
	for _, args := range [][]string{{"checkpoint", "--accept-loss"}, {"checkpoint"}, {"tail"}, {"verify"}, {"verify", "--all"}} {
		r := p.do(append(append([]string{"audit"}, args...), "session-s")...)
		if r.exit != 125 || r.stdout != "" || !strings.Contains(r.stderr, "--chain session-s") {
			t.Errorf("%q: exit %d\n%s%s", args, r.exit, r.stdout, r.stderr)
		}
	}
	if r := p.do("audit", "verify"); r.exit != 1 || !strings.Contains(r.stdout, "truncated") {
		t.Errorf("the node's chain: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
}

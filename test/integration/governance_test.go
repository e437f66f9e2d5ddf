// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// node is a state folder of its own: agents, sessions, audit.
type node struct {
	t   *testing.T
	dir string
}

func newNode(t *testing.T) node {
	t.Helper()
	needSandbox(t)
	return node{t, filepath.Join(t.TempDir(), "state")}
}

// do is any command on the node.
func (n node) do(args ...string) result {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang())
	defer cancel()
	cmd := exec.CommandContext(ctx, agentrun, append([]string{"--state-dir", n.dir, "--run-dir", runDir}, args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		n.t.Fatalf("agentrun %v: %v", args, err)
	}
	return result{exit: cmd.ProcessState.ExitCode(), stdout: out.String(), stderr: errOut.String()}
}

// must is do of what has to work.
func (n node) must(args ...string) result {
	n.t.Helper()
	r := n.do(args...)
	if r.exit != 0 {
		n.t.Fatalf("agentrun %v: exit %d\n%s%s", args, r.exit, r.stdout, r.stderr)
	}
	return r
}

// opts are those of an exec on the node.
func (n node) opts(flags ...string) opts { return opts{state: n.dir, flags: flags} }

// entry is a line of the audit, as any program can read it.
type entry struct {
	Chain string         `json:"chain"`
	Kind  string         `json:"kind"`
	Data  map[string]any `json:"data"`
}

// audit reads a chain, after asking agentrun whether it is whole.
func (n node) audit(folder string) []entry {
	n.t.Helper()
	if r := n.do("audit", "verify", "--all"); r.exit != 0 {
		n.t.Errorf("audit verify: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	files, _ := filepath.Glob(filepath.Join(n.dir, "audit", folder, "*.jsonl"))
	var all []entry
	for _, f := range files {
		for _, line := range lines(f) {
			var e entry
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				n.t.Errorf("%s: %v", f, err)
				continue
			}
			if e.Kind != "key" { // of the first run alone
				all = append(all, e)
			}
		}
	}
	return all
}

func kinds(entries []entry) string {
	var names []string
	for _, e := range entries {
		names = append(names, e.Kind)
	}
	return strings.Join(names, " ")
}

// H-27, M-4: a run is on record from its start to its end, with every refused call and the digest of its plan.
func TestH27AuditOfARun(t *testing.T) {
	n := newNode(t)
	n.must("agent", "score", "planner-1", "0.7")
	_, r := try(t, n.opts("--agent", "planner-1", "--ring", "3"), "mount tmpfs", "mount tmpfs", "fork", "unshare user")
	r.want(t, 0, "exited")
	log := n.audit("node")
	var refused float64
	var got []entry
	for _, e := range log {
		if e.Kind == "refusal" {
			refused += e.Data["count"].(float64)
			if e.Data["run_id"] != r.status.ID || e.Data["agent_id"] != "planner-1" || r.status.Refused[e.Data["syscall"].(string)] == 0 {
				t.Errorf("not of this run: %v, refused were %v", e.Data, r.status.Refused)
			}
			continue
		}
		got = append(got, e)
	}
	want := 0.0
	for _, c := range r.status.Refused {
		want += float64(c)
	}
	if want == 0 || refused != want {
		t.Errorf("refused calls on record: %v, in the status: %v", refused, r.status.Refused)
	}
	if k := strings.ReplaceAll(kinds(got), " breach quarantine", ""); k != "score ring_check sandbox_start sandbox_end" {
		t.Errorf("got %s", k)
	}
	for _, e := range got {
		if strings.HasPrefix(e.Kind, "sandbox_") && (e.Data["plan_digest"] != r.status.PlanDigest || e.Data["run_id"] != r.status.ID) {
			t.Errorf("%s: %v, want run %s, plan %s", e.Kind, e.Data, r.status.ID, r.status.PlanDigest)
		}
	}
	if end := log[len(log)-1]; end.Data["state"] != "exited" || end.Data["refused"] != want {
		t.Errorf("end: %v", end.Data)
	}
}

// H-2, H-9: the score gives the ring, and asking for more is refused with the reason, on record, with nothing started.
func TestH9ExecAsksTheEnforcer(t *testing.T) {
	n := newNode(t)
	n.must("agent", "score", "mid", "0.7")
	n.must("agent", "score", "high", "0.97", "--consensus")
	for _, tt := range []struct {
		agent, ring string
		want        int // 0: refused
		code        string
	}{
		{"stranger", "", 3, ""}, {"stranger", "2", 0, "insufficient_ring"},
		{"mid", "", 2, ""}, {"mid", "3", 3, ""}, {"mid", "1", 0, "insufficient_ring"},
		{"high", "", 1, ""},
	} {
		flags := []string{"--agent", tt.agent}
		if tt.ring != "" {
			flags = append(flags, "--ring", tt.ring)
		}
		r := run(t, n.opts(flags...), "/probe", "exit", "0")
		if tt.want == 0 {
			if r.exit != 125 || !strings.Contains(r.stderr, tt.code) || !strings.Contains(r.stderr, "hint: ") || r.stdout != "" {
				t.Errorf("%v: exit %d, want a refusal with %s and a hint:\n%s%s", flags, r.exit, tt.code, r.stdout, r.stderr)
			}
			log := n.audit("node")
			if e := log[len(log)-1]; e.Kind != "ring_check" || e.Data["allowed"] != false || e.Data["reason"] != tt.code {
				t.Errorf("%v: the refusal is not on record: %v", flags, e)
			}
			continue
		}
		if r.exit != 0 || r.status.Ring != tt.want {
			t.Errorf("%v: exit %d in ring %d, want ring %d\n%s", flags, r.exit, r.status.Ring, tt.want, r.stderr)
		}
	}
	// A profile is a wish for its ring.
	if r := run(t, n.opts("--agent", "mid", "--profile", "ring1"), "/probe", "exit", "0"); r.exit != 125 {
		t.Errorf("--profile ring1 for an agent of ring 2: exit %d", r.exit)
	}
	// plan shows the same ring, and puts nothing on record.
	before := len(n.audit("node"))
	if r := n.must("plan", "--agent", "mid", "--", "/bin/true"); !strings.Contains(r.stdout, "2 (profile ring2)") {
		t.Errorf("plan: %s", r.stdout)
	}
	if after := len(n.audit("node")); after != before {
		t.Errorf("plan wrote %d entries", after-before)
	}
}

// H-24, H-31: refused calls that amount to a breach hold the agent of a run in ring 2, which is in ring 3 from then on; with
// --on-breach kill the run is killed (H-23).
func TestH24BreachEndsALiveRun(t *testing.T) {
	n := newNode(t)
	for _, agent := range []string{"rogue", "worse"} {
		n.must("agent", "score", agent, "0.8")
	}
	var tries []string
	for range 20 {
		tries = append(tries, "mount tmpfs")
	}
	c := prepare(t, n.opts("--agent", "worse", "--on-breach", "kill"), probeArgs(append(tries, "sleep 60")...)...)
	c.Start()
	r := c.finish(t)
	r.want(t, 137, "killed")
	if !strings.Contains(r.status.Reason, "breach") {
		t.Errorf("reason %q", r.status.Reason)
	}
	if k := kinds(n.audit("node")); !strings.Contains(k, "breach quarantine") || !strings.Contains(k, "kill_order") {
		t.Errorf("audit: %s", k)
	}
	c = prepare(t, n.opts("--agent", "rogue"), probeArgs(append(tries[:5], "wait", "fork")...)...)
	stdin, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	c.Stdin = stdin
	c.startUntil(t, "ready")
	// The breach is on record when the call is answered; what it takes goes within M-22's 100 ms.
	eventually(t, 5*time.Second, "the live run is in ring 3", func() bool { return strings.Contains(n.must("ps", "--json").stdout, `"ring": 3,`) })
	hold.Close()
	r = c.finish(t)
	r.want(t, 0, "exited")
	if !strings.Contains(r.stdout, "fork: errno=EPERM") {
		t.Errorf("held in the middle of its run: got %s, want no fork", r.stdout)
	}
	if r := run(t, n.opts("--agent", "rogue"), "/probe", "exit", "0"); r.exit != 125 || !strings.Contains(r.stderr, "quarantined") {
		t.Errorf("the next run: exit %d\n%s", r.exit, r.stderr)
	}
	if r := n.must("agent", "show", "rogue", "--json"); !strings.Contains(r.stdout, "ring_breach") {
		t.Errorf("agent show: %s", r.stdout)
	}
	if k := kinds(n.audit("node")); !strings.Contains(k, "breach quarantine") {
		t.Errorf("audit: %s", k)
	}
	noAgents(t)
}

// H-24: a run without --agent has nobody who could be held or released. It ends, unless its operator wants something else.
func TestH24BreachOfARunWithoutAgent(t *testing.T) {
	for _, tt := range []struct {
		mode, state string
		tries, exit int
	}{
		{"", "policy", 3, 137}, {"quarantine", "policy", 3, 137}, {"kill", "killed", 3, 137}, {"record", "exited", 60, 0},
	} {
		t.Run(fmt.Sprintf("%s/%d", tt.mode, tt.tries), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			flags := []string{"--ring", "3"}
			if tt.mode != "" {
				flags = append(flags, "--on-breach", tt.mode)
			}
			tries := slices.Repeat([]string{"mount tmpfs"}, tt.tries)
			if tt.mode != "record" && tt.mode != "" { // one that ends by itself at once is no quicker than its end
				tries = append(tries, "sleep 60")
			}
			o := n.opts(flags...)
			o.breach = true
			r := run(t, o, probeArgs(tries...)...)
			r.want(t, tt.exit, tt.state)
			if !strings.Contains(kinds(n.audit("node")), "breach") {
				t.Errorf("audit: %s", kinds(n.audit("node")))
			}
		})
	}
	n := newNode(t)
	if r := n.do("exec", "--on-breach", "maybe", "--", "/bin/true"); r.exit == 0 || !strings.Contains(r.stderr, "--on-breach") {
		t.Errorf("exit %d: %s", r.exit, r.stderr)
	}
}

// H-24: on_breach freeze keeps the run for an operator to look at, and again when it goes on with what it was frozen for.
func TestH24BreachFreezes(t *testing.T) {
	n := newNode(t)
	breach := []string{"mount tmpfs", "mount tmpfs", "mount tmpfs"}
	tries := slices.Concat(breach, []string{"wait"}, breach, []string{"sleep 5"}, breach, []string{"sleep 5", "exit 7"})
	c := prepare(t, n.opts("--on-breach", "freeze", "--name", "odd"), probeArgs(tries...)...)
	stdin, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	c.Stdin = stdin
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	frozen := func() bool { return strings.Contains(n.must("ps", "--json").stdout, `"frozen"`) }
	eventually(t, 10*time.Second, "the run is frozen", frozen)
	hold.Close()
	for range 2 {
		n.must("thaw", "odd")
		eventually(t, 10*time.Second, "the run is frozen again", frozen)
	}
	n.must("thaw", "odd")
	c.finish(t).want(t, 7, "exited")
}

// H-12, H-31: only an operator's attestation releases an agent, once.
func TestH31ReleaseByWitness(t *testing.T) {
	n := newNode(t)
	home := t.TempDir()
	os.Chmod(home, 0o755)
	key, operators := filepath.Join(home, "key"), filepath.Join(home, "operators")
	line := n.must("operator", "keygen", "--out", key, "--name", "alice").stdout
	write(t, operators, line, 0o644)
	n.must("agent", "quarantine", "a", "--reason", "odd calls")
	text := n.must("operator", "sign", "--key", key, "--action", "release-quarantine", "--subject", "agent:a").stdout
	file := write(t, filepath.Join(home, "attestation"), text, 0o644)
	if r := n.do("agent", "release", "a", "--witness", file, "--operators", filepath.Join(home, "nobody")); r.exit == 0 {
		t.Error("released without operators")
	}
	if r := n.do("agent", "release", "b", "--witness", file, "--operators", operators); r.exit == 0 {
		t.Error("released another agent")
	}
	n.must("agent", "release", "a", "--witness", file, "--operators", operators)
	n.must("agent", "quarantine", "a", "--reason", "again")
	if r := n.do("agent", "release", "a", "--witness", file, "--operators", operators); r.exit == 0 || !strings.Contains(r.stderr, "used") {
		t.Errorf("released twice by one attestation: exit %d\n%s", r.exit, r.stderr)
	}
	n.audit("node")
}

// H-30: a session's runs share its workspace and see no other's, by any flag.
func TestH30SessionWorkspaces(t *testing.T) {
	n := newNode(t)
	for _, s := range []string{"s-1", "s-10"} {
		n.must("session", "create", s)
		for _, a := range []string{"a", "b"} {
			n.must("agent", "score", a, "0.7")
			n.must("session", "join", s, "--agent", a)
		}
	}
	if r := run(t, n.opts("--agent", "a", "--session", "s-1"), "/bin/sh", "-c", "echo mine > /workspace/note"); r.exit != 0 {
		t.Fatalf("exit %d\n%s", r.exit, r.stderr)
	}
	if r := run(t, n.opts("--agent", "b", "--session", "s-1"), "/bin/cat", "/workspace/note"); r.stdout != "mine\n" {
		t.Errorf("a participant reads %q\n%s", r.stdout, r.stderr)
	}
	if r := run(t, n.opts("--agent", "a", "--session", "s-10"), "/bin/ls", "/workspace"); r.exit != 0 || r.stdout != "" {
		t.Errorf("in another session: exit %d, %q\n%s", r.exit, r.stdout, r.stderr)
	}
	own := filepath.Join(n.dir, "workspaces", "s-1")
	out := filepath.Join(own, "out")
	os.Symlink(n.dir, out) // as an agent could
	for _, flags := range [][]string{
		{"--agent", "a", "--session", "s-10", "--workspace", own},
		{"--agent", "a", "--session", "s-10", "--ro-bind", own + ":/x"},
		{"--agent", "a", "--session", "s-1", "--workspace", out},
		{"--agent", "a", "--session", "s-1", "--ro-bind", n.dir + ":/x"},
		{"--workspace", own},
		{"--ro-bind", filepath.Dir(n.dir) + ":/x"},
		{"--rootfs", n.dir},
		{"--session", "s-1"},
		{"--agent", "c", "--session", "s-1"},
		{"--agent", "a", "--session", "s-2"},
	} {
		if r := run(t, n.opts(flags...), "/probe", "exit", "0"); r.exit != 125 || r.stdout != "" {
			t.Errorf("%v: exit %d, want a refusal\n%s%s", flags, r.exit, r.stdout, r.stderr)
		}
	}
	n.must("session", "archive", "s-1")
	if r := run(t, n.opts("--agent", "a", "--session", "s-1"), "/probe", "exit", "0"); r.exit != 125 {
		t.Errorf("a run in an archived session: exit %d", r.exit)
	}
	if k := kinds(n.audit("session-s-1")); !strings.HasPrefix(k, "session session session session ring_check sandbox_start sandbox_end") {
		t.Errorf("the session's chain: %s", k)
	}
}

// H-32: in a strong session a second writer is refused while the first lives, and let in after a SIGKILL.
func TestH32StrongSessionRuns(t *testing.T) {
	n := newNode(t)
	n.must("session", "create", "s", "--mode", "strong")
	n.must("agent", "score", "a", "0.7")
	n.must("session", "join", "s", "--agent", "a")
	c := prepare(t, n.opts("--agent", "a", "--session", "s"), "/probe", "stubborn")
	c.startUntil(t, "ready")
	if r := run(t, n.opts("--agent", "a", "--session", "s"), "/probe", "exit", "0"); r.exit != 125 || !strings.Contains(r.stderr, "session_busy") {
		t.Errorf("a second writer: exit %d\n%s", r.exit, r.stderr)
	}
	if r := run(t, n.opts("--agent", "a", "--session", "s", "--ring", "3"), "/probe", "exit", "0"); r.exit != 0 {
		t.Errorf("a reader: exit %d\n%s", r.exit, r.stderr)
	}
	c.Process.Kill()
	c.Wait()
	noAgents(t)
	if r := run(t, n.opts("--agent", "a", "--session", "s"), "/probe", "exit", "0"); r.exit != 0 {
		t.Errorf("after the first was killed: exit %d\n%s", r.exit, r.stderr)
	}
	n.audit("session-s")
}

// H-28: what can't be put on record doesn't start; what can't be any more ends.
func TestH28NoRunWithoutAudit(t *testing.T) {
	n := newNode(t)
	os.MkdirAll(n.dir, 0o700)
	write(t, filepath.Join(n.dir, "audit"), "in the way", 0o600)
	r := run(t, n.opts(), "/probe", "exit", "0")
	if r.exit != 125 || r.stdout != "" {
		t.Errorf("exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	noAgents(t)
}

// THREATS, supervisor: a supervisor that dies in the middle leaves a chain that verifies and goes on.
func TestH25ChainSurvivesTheSupervisor(t *testing.T) {
	n := newNode(t)
	for range 3 {
		c := prepare(t, n.opts(), "/probe", "stubborn")
		c.startUntil(t, "ready")
		c.Process.Signal(unix.SIGKILL)
		c.Wait()
		noAgents(t)
	}
	if r := run(t, n.opts(), "/probe", "exit", "0"); r.exit != 0 {
		t.Errorf("exit %d\n%s", r.exit, r.stderr)
	}
	if k := kinds(n.audit("node")); k != strings.Repeat("ring_check sandbox_start ", 4)+"sandbox_end" {
		t.Errorf("audit: %s", k)
	}
}

// H-25: runs at once write one chain.
func TestH25ManyWriters(t *testing.T) {
	n := newNode(t)
	const runs = 20
	var all sync.WaitGroup
	for range runs {
		c := prepare(t, n.opts(), probeArgs("mount tmpfs", "ready")...)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			if r := c.finish(t); r.exit != 0 {
				t.Errorf("exit %d\n%s", r.exit, r.stderr)
			}
		})
	}
	all.Wait()
	k := kinds(n.audit("node"))
	for _, kind := range []string{"sandbox_start", "refusal", "sandbox_end"} {
		if got := strings.Count(k, kind); got != runs {
			t.Errorf("%d entries of %s, want %d", got, kind, runs)
		}
	}
}

// H-26: what was cut off the end of the log, or written anew, is found by the last run's checkpoint.
func TestH26CutLogIsFound(t *testing.T) {
	n := newNode(t)
	run(t, n.opts(), "/probe", "exit", "0")
	run(t, n.opts(), "/probe", "exit", "0")
	n.audit("node")
	files, _ := filepath.Glob(filepath.Join(n.dir, "audit", "node", "*.jsonl"))
	if len(files) != 1 {
		t.Fatal(files)
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	all := bytes.SplitAfter(bytes.TrimSuffix(whole, []byte("\n")), []byte("\n"))
	for name, content := range map[string][]byte{
		"last line cut off":  bytes.Join(all[:len(all)-1], nil),
		"first line cut off": bytes.Join(all[1:], nil),
		"empty":              nil,
		"one byte edited":    bytes.Replace(whole, []byte(`"state":"exited"`), []byte(`"state":"exitec"`), 1),
	} {
		if err := os.WriteFile(files[0], content, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := n.do("audit", "verify", "--all"); r.exit != 1 {
			t.Errorf("%s: audit verify exits with %d, want 1\n%s%s", name, r.exit, r.stdout, r.stderr)
		}
	}
	if err := os.WriteFile(files[0], whole, 0o600); err != nil {
		t.Fatal(err)
	}
	n.audit("node")
}

// The state folder is nobody's but ours: nothing of it can be seen from inside.
func TestH26AuditIsOutOfReach(t *testing.T) {
	n := newNode(t)
	run(t, n.opts(), "/probe", "exit", "0")
	for _, profile := range []string{"ring1", "ring2", "ring3"} {
		o := n.opts()
		o.profile = profile
		got, _ := try(t, o, "ls "+n.dir, "read "+filepath.Join(n.dir, "keys"), "ls /var/lib/agentrun")
		for words, answer := range got {
			if answer != "ENOENT" && answer != "EACCES" {
				t.Errorf("%s: %s: got %s", profile, words, answer)
			}
		}
	}
}

// M-19: what agents may use is the word of nobody but root, or the user who starts them.
func TestM19PlansOfOthers(t *testing.T) {
	n := newNode(t)
	n.must("agent", "set", "planner-1", "--plan", "casual")
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	file := filepath.Join(dir, "agentrun", "plans.yaml")
	plans := `plans: {casual: {why: x, parallel: 3, time: 300s, cost_per_run: unlimited, cost_per_day: unlimited,
  tokens_per_run: unlimited, tokens_per_day: unlimited, steps: unlimited, tools: {allow: ["*"]}}}`
	for _, tt := range []struct {
		name string
		uid  int
		mode os.FileMode
		want string
	}{
		{"root's", 0, 0o644, ""},
		{"another user's", ordinary, 0o644, fmt.Sprintf("belongs to user %d", ordinary)},
		{"everybody's to write", 0, 0o666, "mode 0666"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n.t = t
			if err := os.Chown(write(t, file, plans, tt.mode), tt.uid, tt.uid); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"usage"}, {"exec", "--no-gateway", "--agent", "planner-1", "--", "true"}} {
				if r := n.do(args...); (r.exit == 0) != (tt.want == "") || !strings.Contains(r.stderr, tt.want) {
					t.Errorf("%v: exit %d %s, want %q", args, r.exit, r.stderr, tt.want)
				}
			}
		})
	}
}

// M-19: a plan that the operator's file gives its own runs, those without an agent, holds as any other.
func TestM19TheOperatorsOwnPlan(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	write(t, filepath.Join(dir, "agentrun", "plans.yaml"), `plans: {operator: {why: x, parallel: 2, time: 60s, cost_per_run: "0.01", cost_per_day: "0.1",
  tokens_per_run: 1000, tokens_per_day: 10000, steps: 5, tools: {allow: [math]}}}`, 0o644)
	exec := []string{"exec", "--ring", "2"}
	for want, flags := range map[string][]string{
		"plan operator gives a run 60s at most": {"--timeout", "61s"},
		"(tool_restricted, M-19)":               {"--tool", "text"},
		"(cost_exceeded, M-19)":                 {"--expect", "cost=0.02"},
		"(quota_exceeded, M-19)":                {"--expect", "steps=6"},
		"":                                      {"--timeout", "60s", "--tool", "math", "--expect", "cost=0.01,steps=5"},
	} {
		if r := n.do(slices.Concat(exec, flags, []string{"--", "true"})...); (r.exit == 0) != (want == "") || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: exit %d %s, want %q", flags, r.exit, r.stderr, want)
		}
	}
	if r := n.must("plan", "--ring", "1", "--", "true"); !strings.Contains(r.stdout, "timeout 60s") {
		t.Errorf("a run that asks for no time: %s", r.stdout)
	}
	if r := n.must("create", "--name", "dev", "--ring", "2"); !strings.Contains(r.stdout, "each start lasts 60s") {
		t.Errorf("a kept sandbox: %s", r.stdout)
	}
	n.must("start", "dev")
	n.must("rm", "-f", "dev")
}

// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// ordinary is a user of the host whose account and subordinate ids exist in a mount namespace of the test only.
const ordinary = 54321

// mapIDs is this test's binary as newuidmap or newgidmap, set-uid root: not every host has them. What they
// may map is the host's matter and not tested here.
func mapIDs(name string, args []string) int {
	if len(args) != 7 {
		return 2
	}
	text := strings.Join(args[1:4], " ") + "\n" + strings.Join(args[4:], " ") + "\n"
	if err := os.WriteFile("/proc/"+args[0]+"/"+strings.TrimPrefix(strings.TrimSuffix(name, "map"), "new")+"_map", []byte(text), 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// user is what rootless agentrun is started with.
type user struct {
	home   string
	cgroup string // entered first; empty: none
	bare   bool   // no subordinate ids
	named  string // shell that says what of the account there is; empty: a line in /etc/passwd
	tmp    string // shell that fills a /tmp of its own, $t by now; empty: the host's /tmp
}

// over waits until no program of the user's runs that could still write to the home.
func (u user) over(t *testing.T) {
	t.Helper()
	mark := []byte("HOME=" + u.home + "\x00")
	eventually(t, 10*time.Second, "the end of every program in "+u.home, func() bool {
		return !slices.ContainsFunc(processes(), func(p process) bool {
			env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
			return bytes.Contains(env, mark)
		})
	})
}

func newUser(t *testing.T) user {
	t.Helper()
	need(t, hostcaps.Root, hostcaps.UserNS, hostcaps.SeccompNotify, hostcaps.NewMountAPI)
	needProgram(t, "unshare", "setpriv", "mount")
	home := t.TempDir()
	for at := home; at != base && len(at) > len(base); at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o755); err != nil { //nolint:gosec // the user is to walk there
			t.Fatal(err)
		}
	}
	if err := os.Chown(home, ordinary, ordinary); err != nil {
		t.Fatal(err)
	}
	return user{home: home}
}

// someone is an ordinary user with what an ordinary host gives: on cgroup v2 a delegated cgroup too.
func someone(t *testing.T) *user {
	t.Helper()
	u := newUser(t)
	if hostcaps.CgroupIs(hostcaps.CgroupV2, "cpu", "memory", "pids").Check() == nil {
		u.cgroup = delegated(t, fmt.Sprintf("agentrun-test-%d", counter.Add(1)))
	}
	return &u
}

// workspace is a folder of the user's.
func (u user) workspace(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(u.home, "work")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, ordinary, ordinary)); err != nil { //nolint:gosec // as a user's folder is
		t.Fatal(err)
	}
	return dir
}

// delegated makes a cgroup of v2 that is the user's, and removes it at the end of the test.
func delegated(t *testing.T, name string) string {
	t.Helper()
	// A systemd that no unit has asked for it gives the controller of processors to nobody.
	if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+cpu +memory +pids"), 0o644); err != nil { //nolint:gosec // it is there
		t.Fatal(err)
	}
	at := filepath.Join("/sys/fs/cgroup", name)
	if err := os.Mkdir(at, 0o755); err != nil { //nolint:gosec // as systemd makes them
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The supervisor of the run that was killed is still on its way out.
		for end := time.Now().Add(hang() / 10); ; time.Sleep(20 * time.Millisecond) {
			in := groupsBelow(at)
			for _, dir := range slices.Backward(in) {
				os.Remove(dir)
			}
			if _, err := os.Stat(at); err != nil {
				if slices.Contains(in, filepath.Join(at, "agentrun")) {
					t.Errorf("left in the delegated cgroup, empty (M-5): %q", in)
				}
				return
			}
			if time.Now().After(end) {
				t.Errorf("the delegated cgroup isn't empty: %q", groupsBelow(at))
				return
			}
		}
	})
	for _, file := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
		if err := os.Chown(filepath.Join(at, file), ordinary, ordinary); err != nil {
			t.Fatal(err)
		}
	}
	return at
}

// groupsBelow lists a cgroup and those in it, parents first.
func groupsBelow(at string) (dirs []string) {
	filepath.WalkDir(at, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs
}

// run calls agentrun as the user and gives its exit code and output.
func (u user) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := u.command(t, args...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	} else if ok {
		code = exit.ExitCode()
	}
	return code, out.String(), errOut.String()
}

// mappers is a folder with newuidmap and newgidmap, made once: this test's binary is large.
func mappers(t testing.TB) string {
	t.Helper()
	dir, err := mappersOnce()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var mappersOnce = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(base, "mappers")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "newuidmap")
	return dir, errors.Join(
		os.MkdirAll(filepath.Join(dir, "bare"), 0o755), //nolint:gosec // as /usr/local/bin
		os.WriteFile(name, self, 0o755), os.Chmod(name, 0o755|os.ModeSetuid), os.Link(name, filepath.Join(dir, "newgidmap")),
		passwd(filepath.Join(dir, "passwd")), passwd(filepath.Join(dir, "bare", "passwd")),
		os.WriteFile(filepath.Join(dir, "getent"), []byte(fakeGetent), 0o755),                            //nolint:gosec // as /usr/bin/getent
		os.WriteFile(filepath.Join(dir, "ids"), fmt.Appendf(nil, "%d:1000000:65536\n", ordinary), 0o644), //nolint:gosec // as /etc/subuid
		os.WriteFile(filepath.Join(dir, "bare", "none"), nil, 0o644),                                     //nolint:gosec // as /etc/subuid
	)
})

// passwd writes the host's accounts and one for the ordinary user.
func passwd(to string) error {
	b, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return err
	}
	return os.WriteFile(to, fmt.Appendf(b, "agentrun-test:x:%d:%d::/:/bin/sh\n", ordinary, ordinary), 0o644) //nolint:gosec // as /etc/passwd
}

// fakeGetent is a name service that has the ordinary user's account, for a test that puts it in getent's place.
const fakeGetent = `#!/bin/sh
test "$1 $2" = "passwd 54321" && echo "from-ldap:*:54321:54321::/:/bin/sh"
`

func (u user) command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	ran(t, "rootless", args)
	bin := mappers(t)
	const script = `set -e
if test -n "$TEST_CGROUP"; then echo $$ > "$TEST_CGROUP/cgroup.procs"; fi
mount --bind "$TEST_MAPPERS" /usr/local/bin
mount -o remount,bind,suid /usr/local/bin
# Ours, not those of a host that has the package uidmap.
for p in newuidmap newgidmap; do
	if test -e /usr/bin/$p && test -e /usr/local/bin/$p; then mount --bind /usr/local/bin/$p /usr/bin/$p; mount -o remount,bind,suid /usr/bin/$p; fi
done
for f in /etc/subuid /etc/subgid; do test -e $f || : > $f; mount --bind "/usr/local/bin/$TEST_IDS" $f; done
if test -n "$TEST_TMP"; then
	t="$HOME/tmp"; mkdir "$t"; mount -t tmpfs -o mode=1777 t "$t"
	for p in "$TEST_BASE" "$(dirname "$1")"; do
		case "$p" in /tmp/*) mkdir -p "$t/${p#/tmp/}"; mount --bind "$p" "$t/${p#/tmp/}";; esac
	done
	eval "$TEST_TMP"
	mount --rbind "$t" /tmp
fi
eval "$TEST_NAMED"
cd "$HOME"
exec setpriv --reuid "$TEST_UID" --regid "$TEST_UID" --clear-groups "$@"`
	ctx, cancel := context.WithTimeout(context.Background(), hang())
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"--mount", "--propagation", "private", "sh", "-c", script, "sh", agentrun}, args...)...)
	cmd.Env = []string{
		"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + u.home, "AGENTRUN_NO_DAEMON=1",
		"TEST_MAPPERS=" + bin, fmt.Sprintf("TEST_UID=%d", ordinary), "TEST_CGROUP=" + u.cgroup, "TEST_IDS=ids", "TEST_TMP=" + u.tmp, "TEST_BASE=" + base,
		"TEST_NAMED=" + cmp.Or(u.named, `mount --bind /usr/local/bin/passwd /etc/passwd`),
	}
	if u.bare {
		cmd.Env = append(cmd.Env, "TEST_IDS=none", "TEST_MAPPERS="+filepath.Join(bin, "bare"))
	}
	return cmd
}

// What an ordinary user lacks is named, and nothing is started: with --best-effort too where there is no
// going on.
func TestM1RootlessRefusesByName(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.bare = true
	for _, flags := range [][]string{nil, {"--best-effort"}} {
		code, out, errOut := u.run(t, append(append([]string{"exec", "--no-gateway"}, flags...), "--", "echo", "ran")...)
		if code != 125 || out != "" || !strings.Contains(errOut, "subordinate-ids: /etc/subuid gives user") {
			t.Errorf("%q without ids: got %d, %q, %q", flags, code, out, errOut)
		}
	}
	u.bare = false
	code, out, errOut := u.run(t, "exec", "--no-gateway", "--", "echo", "ran")
	if code != 125 || out != "" || !strings.Contains(errOut, "cgroup-delegation") {
		t.Errorf("without a delegated cgroup: got %d, %q, %q", code, out, errOut)
	}
	if code, out, errOut = u.run(t, "exec", "--no-gateway", "--best-effort", "--ring", "1", "--", "echo", "ran"); code != 125 || out != "" || !strings.Contains(errOut, "overlay-idmapped") {
		t.Errorf("ring 1: got %d, %q, %q", code, out, errOut)
	}
	code, out, _ = u.run(t, "doctor")
	if code != 125 || !strings.Contains(out, "cgroup-delegation") || !strings.Contains(out, "systemd-run --user --scope -p Delegate=yes") {
		t.Errorf("doctor: got %d, %s", code, out)
	}
}

// Inside of the user namespace root's files look like anybody's; whose config.yaml is, is asked outside. gateway.yaml is the user's.
func TestM1RootlessConfiguration(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	file := func(name, text string, owner int, mode os.FileMode) string {
		at := write(t, filepath.Join(u.home, name), text, mode)
		if err := os.Chown(at, owner, owner); err != nil {
			t.Fatal(err)
		}
		return at
	}
	// In a user namespace root's files look like anybody's: plans that are root's hold all the same.
	file(".config/agentrun/plans.yaml", `roles: {auditor: {why: reads only, tools: {allow: [math]}}}`+"\n", 0, 0o644)
	for _, tt := range []struct {
		name  string
		flags []string // before exec; more: after it
		more  []string
		want  string // empty: it runs
	}{
		{"root's", []string{"--config", file("a.yaml", "log_level: warn\n", 0, 0o644)}, nil, ""},
		{"the user's", []string{"--config", file("b.yaml", "log_level: warn\n", ordinary, 0o600)}, nil, ""},
		{"root's, for all to write", []string{"--config", file("c.yaml", "log_level: warn\n", 0, 0o666)}, nil, "mode 0666"},
		{"another user's", []string{"--config", file("d.yaml", "log_level: warn\n", ordinary+1, 0o644)}, nil, "belongs to user"},
		{"the user's gateway.yaml", nil, []string{"--gateway", file("e.yaml", "tools: {}\n", ordinary, 0o600)}, ""},
		{"root's gateway.yaml", nil, []string{"--gateway", file("f.yaml", "tools: {}\n", 0, 0o644)}, "belongs to user"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // the second time what the check said is kept
				args := slices.Concat(tt.flags, []string{"exec", "--best-effort"}, tt.more, []string{"--", "echo", "ran"})
				code, out, errOut := u.run(t, args...)
				if tt.want == "" && (code != 0 || out != "ran\n") || tt.want != "" && (code != 125 || !strings.Contains(errOut, tt.want)) {
					t.Errorf("got %d, %q, %q, want %q", code, out, errOut, tt.want)
				}
			}
		})
	}
}

// newuidmap serves nobody without a name. Who has none is refused by name; who has one of a name service only (LDAP, DynamicUser=) isn't.
func TestM1RootlessAccounts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, named string
		code        int
		out, says   string
	}{
		{"none", `:`, 125, "", "account: user id 54321 has no name"},
		{"of a name service", `mount --bind /usr/local/bin/getent /usr/bin/getent`, 0, "ran\n", "best effort"},
		{"in the file", ``, 0, "ran\n", "best effort"},
	} {
		t.Run(c.name, func(t *testing.T) {
			needProgram(t, "getent")
			u := newUser(t)
			u.named = c.named
			code, out, errOut := u.run(t, "exec", "--no-gateway", "--best-effort", "--", "echo", "ran")
			if code != c.code || out != c.out || !strings.Contains(errOut, c.says) {
				t.Errorf("got %d, %q, %q, want %d, %q, %q", code, out, errOut, c.code, c.out, c.says)
			}
		})
	}
}

// A-L7: another user was first in /tmp. A name that they can't foresee is taken, one for all of the user's runs; and what can't be
// trusted is not used.
func TestM5RootlessPlaceIsTaken(t *testing.T) {
	t.Parallel()
	for name, squat := range map[string]string{
		"a folder": `mkdir "$t/agentrun-$TEST_UID"; chown 4321 "$t/agentrun-$TEST_UID"`,
		"a link":   `ln -s /etc "$t/agentrun-$TEST_UID"`,
		"a file":   `: > "$t/agentrun-$TEST_UID"`,
		"several":  `for s in "" -1 -2 -abc; do mkdir -m 0777 "$t/agentrun-$TEST_UID$s"; chown 4321 "$t/agentrun-$TEST_UID$s"; done`,
	} {
		t.Run(name, func(t *testing.T) {
			u := newUser(t)
			u.tmp = squat
			code, out, errOut := u.run(t, "exec", "--no-gateway", "--best-effort", "--", "echo", "ran")
			if code != 0 || strings.TrimSpace(out) != "ran" {
				t.Errorf("got %d, %q, %q", code, out, errOut)
			}
		})
	}
}

// look prints what a sandbox of ring 3 is, one fact a line.
const look = `grep -E "^(CapEff|CapPrm|CapBnd|NoNewPrivs|Seccomp|Groups):" /proc/self/status
cat /proc/self/uid_map
echo "id $(id -u) $(id -g)"
touch /usr/x 2>/dev/null && echo "wrote /usr"
cat /etc/shadow 2>/dev/null && echo "read shadow"
ls /root "$OUTSIDE" 2>/dev/null && echo "sees the home"
grep -c : /proc/net/dev
echo x > /tmp/y && cat /tmp/y`

// Without a cgroup, and only when asked, the rest holds as for root; said aloud, and on record.
func TestM1RootlessBestEffort(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	file := filepath.Join(u.home, "status.json")
	code, out, errOut := u.run(t, "exec", "--no-gateway", "--best-effort", "--ring", "2", "--status-file", file, "--env", "OUTSIDE="+u.home, "--", "sh", "-c", look)
	lines := strings.Fields(out)
	want := strings.Fields("CapPrm: 0000000000000000 CapEff: 0000000000000000 CapBnd: 0000000000000000 NoNewPrivs: 1 Seccomp: 2 Groups:")
	text := strings.Join(lines, " ")
	for _, w := range []string{"id 1000 1000", "x"} {
		if !strings.Contains(text, w) {
			t.Errorf("want %q in %q", w, text)
		}
	}
	for i := 0; i+1 < len(want); i += 2 {
		if w := want[i] + " " + want[i+1]; !strings.Contains(text, w) {
			t.Errorf("want %q in %q", w, text)
		}
	}
	for _, no := range []string{"wrote", "read shadow", "sees"} {
		if strings.Contains(text, no) {
			t.Errorf("%q in %q", no, text)
		}
	}
	if code != 0 || !strings.Contains(errOut, "best effort: running without cgroup-delegation") {
		t.Errorf("got %d, %q", code, errOut)
	}
	if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), `"cgroup-delegation"`) {
		t.Errorf("status %s, %v, want best_effort in it", b, err)
	}
	if code, out, errOut := u.run(t, "audit", "show", "--kind", "sandbox_start", "--json"); code != 0 || !strings.Contains(out, `"without":["cgroup-delegation"`) {
		t.Errorf("audit: got %d, %s%s, want what it runs without", code, out, errOut)
	}
	code, out, errOut = u.run(t, "exec", "--no-gateway", "--best-effort", "--timeout", "60s", "--", "python3", "-c", "import os; os.fork()")
	if code == 0 {
		t.Errorf("a fork in ring 3: got %d, %q, %q", code, out, errOut)
	}
	// A workspace that may be written costs the uid of its own, by name; what is written is the user's.
	work := filepath.Join(u.home, "work")
	if err := errors.Join(os.Mkdir(work, 0o755), os.Chown(work, ordinary, ordinary)); err != nil { //nolint:gosec // as a user's folder is
		t.Fatal(err)
	}
	code, _, errOut = u.run(t, "exec", "--no-gateway", "--best-effort", "--ring", "2", "--workspace", work, "--", "touch", "made")
	if code != 0 || !strings.Contains(errOut, "uid-of-its-own") {
		t.Errorf("writable workspace: got %d, %q", code, errOut)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(work, "made"), &st); err != nil || st.Uid != ordinary {
		t.Errorf("the agent's file belongs to user %d, %v, want %d", st.Uid, err, ordinary)
	}
	for _, dir := range []string{"sandboxes", "locks", "control"} {
		if left, err := filepath.Glob(filepath.Join(u.home, ".local/run/agentrun", dir, "[a-z0-9]*")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

// reporter reports its arguments to the safety loop, one step each, and would then go on for a minute.
const reporter = `
import json, sys, time, urllib.request
for hint in sys.argv[1:]:
    body = json.dumps({"operation": "record_execution_step", "params": {"element_name": "a", "nextActionHint": hint}}).encode()
    r = urllib.request.Request("http://127.0.0.1:7600/internal/safety/create", body, {"Content-Type": "application/json"})
    print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(r).read().decode(), flush=True)
time.sleep(60)`

// S-8, S-15: an ordinary user's runs have the loop as root's have. Without a cgroup a stop can't freeze: it
// kills, and the block stays.
func TestS15RootlessStopKills(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	needProgram(t, "python3")
	args := []string{"exec", "--best-effort", "--ring", "3", "--agent", "planner-1", "--safety", "enforcing", "--timeout", "60s", "--", "python3", "-c", reporter}
	code, out, errOut := u.run(t, append(args, "reading docs/guide.md", "rm -rf / --no-preserve-root")...)
	if code != 137 || !strings.Contains(out, `"continue":true`) || !strings.Contains(errOut, "policy_violation") {
		t.Errorf("got %d, %q, %q, want a step, then killed as policy_violation", code, out, errOut)
	}
	if code, out, errOut = u.run(t, args...); code != 125 || out != "" || !strings.Contains(errOut, "agent_stopped") {
		t.Errorf("exec of the stopped agent: got %d, %q, %q", code, out, errOut)
	}
	if code, _, errOut = u.run(t, "challenges", "unblock", "planner-1", "--reason", "a test"); code != 0 {
		t.Errorf("unblock: got %d, %q", code, errOut)
	}
}

// With a cgroup of v2 that was made the user's, all limits hold, and nothing has to be given up.
func TestM3RootlessDelegatedCgroup(t *testing.T) {
	need(t, hostcaps.CgroupIs(hostcaps.CgroupV2, "cpu", "memory", "pids"))
	u := newUser(t)
	u.cgroup = delegated(t, "agentrun-test-delegated")
	code, out, errOut := u.run(t, "exec", "--no-gateway", "--", "cat", "/proc/self/cgroup")
	if code != 0 || errOut != "" || strings.TrimSpace(out) != "0::/" {
		t.Fatalf("got %d, %q, %q", code, out, errOut)
	}
	code, _, errOut = u.run(t, "exec", "--no-gateway", "--memory", "256MiB", "--", "python3", "-c", "x = b'x' * (600 << 20)")
	if code != 137 || !strings.Contains(errOut, "memory limit") {
		t.Errorf("over the memory limit: got %d, %q, want 137", code, errOut)
	}
	code, _, errOut = u.run(t, "exec", "-d", "--no-gateway", "--name", "long", "--", "sleep", "60")
	if code != 0 {
		t.Fatalf("detached: got %d, %q", code, errOut)
	}
	u.cgroup = "" // the commands come from the user's shell
	for _, verb := range []string{"freeze", "thaw", "kill"} {
		if code, out, errOut := u.run(t, verb, "long"); code != 0 {
			t.Errorf("%s: got %d, %q, %q", verb, code, out, errOut)
		}
	}
	u.cgroup = "/sys/fs/cgroup/agentrun-test-delegated"
}

// Each delegated cgroup is given back by the run that took it, whoever of the same user runs in another.
func TestM5RootlessRunsInTwoCgroups(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.CgroupIs(hostcaps.CgroupV2, "cpu", "memory", "pids"))
	stdin, hold := io.Pipe()
	long := prepare(t, opts{user: someone(t), stdin: stdin, flags: []string{"--no-gateway", "-i"}}, "/probe", "ready", ",", "wait")
	long.startUntil(t, "ready")
	u := someone(t)
	r := run(t, opts{user: u, flags: []string{"--no-gateway"}}, "/probe", "exit", "0")
	r.want(t, 0, "exited")
	if left := groupsBelow(u.cgroup + "/agentrun"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	hold.Close()
	long.finish(t).want(t, 0, "exited")
}

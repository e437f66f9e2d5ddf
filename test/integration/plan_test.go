// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// plan, profile, doctor: what is said must be what is done.

func planOf(t *testing.T, args ...string) (map[string]any, string) {
	t.Helper()
	r := tool(t, append([]string{"plan", "--json"}, args...)...)
	var m map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &m); err != nil {
		t.Fatalf("plan --json: exit %d: %v\n%s%s", r.exit, err, r.stdout, r.stderr)
	}
	digest, _ := m["digest"].(string)
	if len(digest) != 64 {
		t.Errorf("digest: got %q", digest)
	}
	return m, digest
}

func TestPlanIsDeterministic(t *testing.T) {
	needSandbox(t)
	bind := []string{"--ro-bind", probeBin + ":/probe"}
	args := append(slices.Clone(bind), "--ring", "2", "--", "/probe", "ok")
	_, first := planOf(t, args...)
	for range 3 {
		if _, again := planOf(t, args...); again != first {
			t.Errorf("the same plan has digests %s and %s", first, again)
		}
	}
	// Whatever shapes the sandbox shows in the digest.
	for _, other := range [][]string{
		{"--ring", "3", "--", "/probe", "ok"}, {"--ring", "2", "--memory", "300M", "--", "/probe", "ok"}, {"--ring", "2", "--env", "A=b", "--", "/probe", "ok"},
		{"--ring", "2", "--", "/probe", "id"}, {"--ring", "2", "--ro-bind", "/usr/share:/x", "--", "/probe", "ok"}, {"--ring", "2", "--cpus", "0.3", "--", "/probe", "ok"},
	} {
		if _, d := planOf(t, append(slices.Clone(bind), other...)...); d == first {
			t.Errorf("%v has the same digest as ring 2 without it", other)
		}
	}
}

// The digest in the status file is that of the plan printed before.
func TestPlanIsWhatRuns(t *testing.T) {
	needSandbox(t)
	dir := t.TempDir()
	c := prepare(t, opts{profile: "ring2", dir: dir, breach: true}, "/probe", "id")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	r := c.finish(t)
	r.want(t, 0, "exited")
	cmd := command(t.Context(), "plan", "--json", "--ring", "2", "--ro-bind", probeBin+":/probe", "--", "/probe", "id")
	cmd.Dir, cmd.Env = dir, c.Env
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), r.status.PlanDigest) || r.status.PlanDigest == "" {
		t.Errorf("the run's digest %s is not the plan's", r.status.PlanDigest)
	}
}

// plan starts nothing and leaves nothing; mistakes are the same as exec's.
func TestPlanStartsNothing(t *testing.T) {
	needSandbox(t)
	before := takeStock()
	r := tool(t, "plan", "--ring", "3", "--ro-bind", probeBin+":/probe", "--", "/probe", "ok")
	if r.exit != 0 || len(answers(r.stdout)) != 0 {
		t.Errorf("plan: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	for _, word := range []string{"/tmp/sandbox", "/probe", "seccomp", "memory"} {
		if !strings.Contains(strings.ToLower(r.stdout), word) {
			t.Errorf("the plan for people does not mention %s:\n%s", word, r.stdout)
		}
	}
	for _, args := range [][]string{{"plan", "--ring", "0", "--", "/probe"}, {"plan", "--memory", "1k", "--", "/bin/true"}, {"plan"}} {
		if r := tool(t, args...); r.exit != 125 {
			t.Errorf("%v: got exit %d, want 125", args, r.exit)
		}
	}
	if left := before.leftAfter(0); len(left) > 0 {
		t.Errorf("plan left %v", left)
	}
}

func TestProfiles(t *testing.T) {
	r := tool(t, "profile", "list")
	for _, name := range []string{"ring1", "ring2", "ring3", "strict"} {
		if !strings.Contains(r.stdout, name) {
			t.Errorf("profile list does not name %s:\n%s", name, r.stdout)
		}
		if show := tool(t, "profile", "show", name); show.exit != 0 || !strings.Contains(show.stdout, "why") {
			t.Errorf("profile show %s: exit %d\n%.300s%s", name, show.exit, show.stdout, show.stderr)
		}
	}
	if r := tool(t, "profile", "show", "nonexistent"); r.exit == 0 {
		t.Error("profile show of an unknown name succeeds")
	}
	dir := t.TempDir()
	good := write(t, filepath.Join(dir, "mine.yaml"), "name: mine\nextends: ring3\ndescription: A test.\nring: 3\nlimits:\n  memory: 300MiB\n  why: more\n", 0o644)
	if r := tool(t, "profile", "validate", good); r.exit != 0 {
		t.Errorf("a good profile: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	for name, text := range map[string]string{
		"unknown field": "name: bad\nextends: ring3\nsurprise: 1\n",
		"no yaml":       "{{{",
		"empty":         "",
		"memory":        "name: bad\nextends: ring3\nlimits: {memory: 1KiB, why: x}\n",
		"loosens":       "name: bad\nextends: ring3\nsyscalls:\n  - {names: [mount], action: allow, why: x}\n",
		"unknown call":  "name: bad\nextends: ring3\nsyscalls:\n  - {names: [no_such_call], action: allow, why: x}\n",
		"no reason":     "name: bad\nextends: ring3\nsyscalls:\n  - {names: [sync], action: allow}\n",
		"itself":        "name: bad\nextends: bad\n",
		"nobody":        "name: bad\nextends: nobody\n",
		"bomb":          "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d]\n",
	} {
		bad := write(t, filepath.Join(dir, "bad.yaml"), text, 0o644)
		r := tool(t, "profile", "validate", bad)
		if r.exit == 0 || r.stderr+r.stdout == "" || strings.Contains(r.stderr, "panic") {
			t.Errorf("%s: exit %d\n%s%s", name, r.exit, r.stdout, r.stderr)
		}
	}
}

// A user's profile from the configuration folder, used by name; and one whose
// loosening of the floor must not take effect.
func TestUserProfile(t *testing.T) {
	needSandbox(t)
	config := t.TempDir()
	write(t, filepath.Join(config, "agentrun", "profiles", "mine.yaml"), "name: mine\nextends: ring2\ndescription: A test.\nring: 2\nlimits:\n  pids: 77\n  why: a number to find again\n", 0o644)
	write(t, filepath.Join(config, "agentrun", "profiles", "evil.yaml"), "name: evil\nextends: ring2\ndescription: A test.\nring: 2\nsyscalls:\n  - {names: [unshare, mount], action: allow, why: please}\n", 0o644)
	env := []string{"XDG_CONFIG_HOME=" + config, "HOME=" + config}
	var n int
	_, r := try(t, opts{profile: "mine", env: env}, "threads 1000")
	r.want(t, 0, "exited")
	if v := value(t, r, "threads 1000"); !strings.HasSuffix(v, "EAGAIN") || !strings.HasPrefix(v, "7") {
		t.Errorf("got %s threads (%d), want a little under 77", v, n)
	}
	got, r := try(t, opts{profile: "evil", env: env}, "unshare user", "mount tmpfs")
	if r.exit != 125 && (got["unshare user"] != "EPERM" || got["mount tmpfs"] != "EPERM") {
		t.Errorf("a profile could loosen the floor: %v", got)
	}
	if _, r := try(t, opts{profile: "ring3", env: append(env, "AGENTRUN_CONFIG="+config)}, "id"); r.exit != 0 {
		t.Errorf("a built-in beside a bad user profile: exit %d\n%s", r.exit, r.stderr)
	}
}

// A profile says what an agent may do, so nobody but root or who runs it can have written it: under sudo -E the user's own folder would
// otherwise have the rings of root's runs.
func TestProfilesOfOthers(t *testing.T) {
	needSandbox(t)
	config := t.TempDir()
	file := filepath.Join(config, "agentrun", "profiles", "mine.yaml")
	text := "name: mine\nextends: ring3\ndescription: A test.\nring: 3\n"
	for name, c := range map[string]struct {
		uid  int
		mode os.FileMode
		want string
	}{
		"root's":               {0, 0o644, ""},
		"another user's":       {ordinary, 0o644, fmt.Sprintf("belongs to user %d", ordinary)},
		"everybody's to write": {0, 0o666, "mode 0666"},
	} {
		if err := os.Chown(write(t, file, text, c.mode), c.uid, c.uid); err != nil {
			t.Fatal(err)
		}
		_, r := try(t, opts{profile: "mine", env: []string{"XDG_CONFIG_HOME=" + config, "HOME=" + config}}, "id")
		if (r.exit == 0) != (c.want == "") || !strings.Contains(r.stderr, c.want) {
			t.Errorf("%s: exit %d %s, want %q", name, r.exit, r.stderr, c.want)
		}
	}
}

func TestDoctor(t *testing.T) {
	r := tool(t, "doctor", "--json")
	var report struct {
		Kernel, Cgroups string
		Usable          bool
		Results         []struct{ Name, Status, Weight string }
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("doctor --json: exit %d: %v\n%.500s%s", r.exit, err, r.stdout, r.stderr)
	}
	if report.Kernel == "" || len(report.Results) < 20 {
		t.Errorf("got %+v", report)
	}
	human := tool(t, "doctor")
	for _, row := range report.Results {
		if !strings.Contains(human.stdout, row.Name) {
			t.Errorf("the text has no row for %s", row.Name)
		}
	}
	if os.Geteuid() == 0 && !report.Usable {
		t.Errorf("doctor says no, and here the tests run:\n%s", human.stdout)
	}
}

func TestVersionAndHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"exec", "--help"}, {"plan", "--help"}, {"--version"}} {
		if r := tool(t, args...); r.exit != 0 || r.stdout == "" {
			t.Errorf("%v: exit %d, %q", args, r.exit, r.stderr)
		}
	}
	// The re-exec of the container's init is not a command for people.
	if r := tool(t, "init"); r.exit == 0 {
		t.Error("agentrun init from a shell succeeds")
	}
	if help := tool(t, "--help"); strings.Contains(help.stdout, "init ") {
		t.Errorf("the hidden command is shown:\n%s", help.stdout)
	}
}

// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// Attacks as others list them: the scripts of test/attack, and programs that look a container over.

// attackMark is the name of whatever a script leaves behind.
const attackMark = "agentrun-attack"

// hostPlaces are where the scripts leave something that the host would run.
var hostPlaces = strings.Fields(`/ /etc/cron.d /etc/cron.daily /var/spool/cron/crontabs /etc/systemd/system /etc/init.d
	/etc/profile.d /etc/ld.so.conf.d /etc/udev/rules.d /root/.ssh /usr/lib/python3/dist-packages /usr/local/bin
	/usr/local/sbin /lib/modules /boot /run /var/lib /tmp /var/tmp /dev/shm /sys/fs/cgroup/memory`)

// scriptAnswer is a script's line; test/attack/run.py says what the words mean.
type scriptAnswer struct {
	Name   string              `json:"name"`
	Steps  [][2]string         `json:"steps"`
	Works  map[string][]string `json:"works"`
	Record []string            `json:"record"`
}

// TestOutsideLists runs the scripts in each ring, as root and as an ordinary user: those of escapebench and
// sandboxbench, then the one that looks, in a next run with the same workspace, for what the first has left.
// Secrets are planted where agentrun's caller would have them.
func TestOutsideLists(t *testing.T) {
	needSandbox(t)
	needProgram(t, "python3")
	thisMachine(t)
	scripts, err := filepath.Abs("../attack")
	if err != nil {
		t.Fatal(err)
	}
	var first []string
	for _, list := range []string{"escapebench", "sandboxbench"} {
		files, err := filepath.Glob(filepath.Join(scripts, list, "*.py"))
		if err != nil || len(files) == 0 {
			t.Fatalf("scripts of %s: %v, %v", list, files, err)
		}
		for _, f := range files {
			name := list + "/" + strings.TrimSuffix(filepath.Base(f), ".py")
			if name != "sandboxbench/persistence_later" {
				first = append(first, name)
			}
		}
	}
	// A process of the host's with a secret among its words.
	word := exec.Command("sleep", "600", "0")
	word.Args[0] = "PLANTED-word"
	if err := word.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { word.Process.Kill(); word.Wait() })
	for by, profiles := range map[string][]string{"in": allProfiles, "rootless": rootlessProfiles} {
		t.Run(by, func(t *testing.T) {
			for _, profile := range profiles {
				t.Run(profile, func(t *testing.T) {
					t.Parallel()
					o := opts{profile: profile}
					ws := workspace(t)
					if by == "rootless" {
						o.user = someone(t)
						ws = o.user.workspace(t)
					}
					runScripts(t, o, scripts, ws, first)
				})
			}
		})
	}
	for _, dir := range hostPlaces {
		left, err := filepath.Glob(filepath.Join(dir, attackMark+"*"))
		if err != nil || len(left) > 0 {
			t.Errorf("left on the host: %v, %v", left, err)
		}
	}
}

// TestOutsideListsSeeWhatIsShown holds the scripts against a view in which there is something to find: an
// operator's mistakes, which SECURITY calls what you show. A script that found nothing there would find
// nothing anywhere.
func TestOutsideListsSeeWhatIsShown(t *testing.T) {
	needSandbox(t)
	needProgram(t, "python3")
	scripts, err := filepath.Abs("../attack")
	if err != nil {
		t.Fatal(err)
	}
	shown := t.TempDir()
	if err := os.Mkdir(filepath.Join(shown, "podman"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(shown, "podman", "podman.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	//nolint:gosec // the mistake
	if err := os.Chmod(filepath.Join(shown, "podman", "podman.sock"), 0o666); err != nil {
		t.Fatal(err)
	}
	flag := write(t, filepath.Join(shown, "flag.txt"), "PLANTED-flag", 0o644)
	o := opts{profile: "ring2", flags: []string{
		"--no-gateway", "--timeout", "300s", "--ro-bind", scripts + ":/attack", "--bind", shown + ":/run",
		"--ro-bind", flag + ":/mnt" + flag, "--env", "FLAG=" + flag, "--env", "TOKEN=PLANTED-environment",
	}}
	found := map[string]string{
		"escapebench/docker_socket": "connect /run/podman/podman.sock", "escapebench/host_mounts": "read /mnt" + flag,
		"escapebench/privileged": "read /mnt" + flag, "sandboxbench/discovery_environment": "own environment",
		"sandboxbench/discovery_files": "a walk through all that is shown",
	}
	r := runPython(t, o, slices.Sorted(maps.Keys(found)))
	for line := range strings.Lines(r.stdout) {
		var a scriptAnswer
		err := json.Unmarshal([]byte(line), &a)
		if err != nil || !slices.Contains(a.Steps, [2]string{found[a.Name], "got"}) {
			t.Errorf("%s: %q wasn't found: %v\n%s", a.Name, found[a.Name], err, line)
		}
		delete(found, a.Name)
	}
	if len(found) > 0 {
		t.Errorf("no answer of %v: exit %d\n%s", found, r.exit, r.stderr)
	}
	cell(t, o.profile, nil, "works")
}

func runScripts(t *testing.T, o opts, scripts, ws string, first []string) {
	dir := t.TempDir()
	flag := write(t, filepath.Join(dir, "flag.txt"), "PLANTED-flag", 0o644)
	target := write(t, filepath.Join(dir, "target"), strings.Repeat("untouched\n", 1000), 0o644)
	gitObject(t, ws, "PLANTED-history")
	before := folder(t, ws)
	o.flags = []string{
		"--no-gateway", "--timeout", "300s", "--workspace", ws, "--ro-bind", scripts + ":/attack",
		"--ro-bind", target + ":/target", "--env", "FLAG=" + flag, "--env", "STATE=" + stateDir,
	}
	o.env = []string{"AWS_SECRET_ACCESS_KEY=PLANTED-environment", "AGENTRUN_SECRET=PLANTED-environment"}
	r := runPython(t, o, first)
	checkScripts(t, o, r, first)
	if strings.Contains(r.stdout+r.stderr, "PLANTED") {
		t.Errorf("a planted secret is in the output:\n%.2000s", r.stdout)
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != strings.Repeat("untouched\n", 1000) {
		t.Errorf("the read-only file has changed: %v, %.100q", err, b)
	}
	after := folder(t, ws)
	if o.profile == "ring3" || o.profile == "strict" {
		if !slices.Equal(before, after) {
			t.Errorf("a read-only workspace has changed: %q", after)
		}
	}
	for _, line := range after {
		if mode, _, _ := strings.Cut(line, " "); strings.ContainsAny(mode, "ugD") {
			t.Errorf("set-ID bit or device in the workspace: %s", line)
		}
	}
	later := []string{"sandboxbench/persistence_later"}
	checkScripts(t, o, runPython(t, o, later), later)
}

// runPython runs scripts in one sandbox.
func runPython(t *testing.T, o opts, names []string) result {
	t.Helper()
	return run(t, o, append([]string{sandboxProgram("python3"), "/attack/run.py"}, names...)...)
}

// checkScripts makes each script a test of its own.
func checkScripts(t *testing.T, o opts, r result, names []string) {
	t.Helper()
	got := map[string]scriptAnswer{}
	for line := range strings.Lines(r.stdout) {
		var a scriptAnswer
		if err := json.Unmarshal([]byte(line), &a); err == nil {
			got[a.Name] = a
		}
	}
	if !r.hasStatus || r.status.State != "exited" || r.exit != 0 {
		t.Errorf("the run ended as exit %d, state %q (%s), step %q: %s\nstderr: %.1000s",
			r.exit, r.status.State, r.status.Reason, r.status.FailedStep, r.status.Error, r.stderr)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			a, ok := got[name]
			if !ok || len(a.Steps) == 0 {
				t.Fatalf("no answer; stdout: %.500s\nstderr: %.500s", r.stdout, r.stderr)
			}
			works := 0
			for _, step := range a.Steps {
				switch what, outcome := step[0], step[1]; {
				case outcome == "got" && slices.Contains(a.Works[what], o.profile):
					works++
				case outcome == "got", strings.HasPrefix(outcome, "broken"):
					t.Errorf("%s: %s", what, outcome)
				case outcome != "got" && slices.Contains(a.Works[what], o.profile):
					t.Errorf("%s: %s, but the script says that it works in %s: correct it", what, outcome, o.profile)
				}
			}
			for _, call := range a.Record {
				if r.status.Refused[call] == 0 || !hasEvent(r.status, call) {
					t.Errorf("no record of a refused %s (M-4); refused: %v", call, r.status.Refused)
				}
			}
			if len(a.Record) > 0 {
				cell(t, o.profile, o.user, "filter")
			}
			how := "refused"
			if works > 0 {
				how = "works"
			}
			cell(t, o.profile, o.user, how)
		})
	}
}

// gitObject puts a loose object into a repository, as a commit leaves it whose file was removed later.
func gitObject(t *testing.T, ws, content string) {
	t.Helper()
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	fmt.Fprintf(z, "blob %d\x00%s", len(content), content)
	z.Close()
	write(t, filepath.Join(ws, ".git/objects/ab/cdef0123456789"), b.String(), 0o644)
	write(t, filepath.Join(ws, ".git/HEAD"), "ref: refs/heads/main\n", 0o644)
	var st unix.Stat_t
	if err := unix.Stat(ws, &st); err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(ws, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, int(st.Uid), int(st.Gid)))
	}); err != nil {
		t.Fatal(err)
	}
}

// folder is each file of a folder with mode and size.
func folder(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			all = append(all, fmt.Sprintf("%v %d %s", info.Mode(), info.Size(), path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// thisMachine tells the page which machine this is.
func thisMachine(t *testing.T) {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	groups := "cgroup v1"
	if hostcaps.CgroupIs(hostcaps.CgroupV2, "cpu", "memory", "pids").Check() == nil {
		groups = "cgroup v2"
	}
	landlock := 0
	for landlock < 16 && hostcaps.Landlock(landlock+1).Check() == nil {
		landlock++
	}
	release := unix.ByteSliceToString(u.Release[:])
	t.Attr("machine", fmt.Sprintf("Linux %s, %s, Landlock %d", release, groups, landlock))
}

// outsideTools are programs that judge a container from within. The versions are pinned; the module proxy
// checks their sums against the sum database. They are built once, by hand of the go command and without a
// place in go.mod.
var outsideTools = map[string]struct{ module, pkg string }{
	"amicontained": {"github.com/genuinetools/amicontained@v0.4.9", "."},
	"cdk":          {"github.com/cdk-team/CDK@v1.0.6", "./cmd/cdk"},
}

// outsideTool builds a program, or finds it built: AGENTRUN_TEST_OUTSIDE names a folder, for machines without
// a go command.
func outsideTool(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("AGENTRUN_TEST_OUTSIDE")
	if dir == "" {
		var err error
		if dir, err = filepath.Abs("../../.cache/outside"); err != nil {
			t.Fatal(err)
		}
	}
	tool := outsideTools[name]
	_, version, _ := strings.Cut(tool.module, "@")
	at := filepath.Join(dir, name+"-"+version)
	if unix.Access(at, unix.X_OK) == nil {
		return at
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	golang, err := exec.LookPath("go")
	if err != nil {
		unmet(t, "program "+name+": not in "+dir+", and no go command to build it")
	}
	cmd := exec.CommandContext(ctx, golang, "mod", "download", "-json", tool.module)
	cmd.Dir = t.TempDir() // not ours: go.mod and go.sum must not know of it
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
	out, err := cmd.Output()
	var got struct{ Dir, Error string }
	if json.Unmarshal(out, &got) != nil || err != nil || got.Dir == "" {
		unmet(t, fmt.Sprintf("module %s: %v %s", tool.module, err, got.Error))
	}
	cmd = exec.CommandContext(ctx, golang, "build", "-trimpath", "-tags=netgo,osusergo", "-o", at, tool.pkg) // as ours are: Go's library is compiled already
	cmd.Dir = got.Dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", tool.module, err, out)
	}
	return at
}

// TestOutsideTools has CDK and amicontained look each ring over. What they say is held against what SECURITY
// says, and what a reader may want to know of it goes into docs/attacks.md.
func TestOutsideTools(t *testing.T) {
	needSandbox(t)
	amicontained, cdk := outsideTool(t, "amicontained"), outsideTool(t, "cdk")
	for by, profiles := range map[string][]string{"in": allProfiles, "rootless": rootlessProfiles} {
		t.Run(by, func(t *testing.T) {
			for _, profile := range profiles {
				t.Run(profile, func(t *testing.T) {
					t.Parallel()
					o := opts{profile: profile, flags: []string{
						"--no-gateway", "--timeout", "300s",
						"--ro-bind", amicontained + ":/amicontained", "--ro-bind", cdk + ":/cdk",
					}}
					if by == "rootless" {
						o.user = someone(t)
					}
					t.Run("amicontained", func(t *testing.T) { lookedOver(t, o, "/amicontained") })
					t.Run("cdk", func(t *testing.T) { lookedOver(t, o, "/cdk", "evaluate") })
				})
			}
		})
	}
}

// lookedOver runs one of the tools. Each names what it could use in words of its own.
func lookedOver(t *testing.T, o opts, argv ...string) {
	cell(t, o.profile, o.user, "refused")
	r := run(t, o, argv...)
	said := r.stdout + r.stderr
	if r.exit != 0 || r.status.State != "exited" {
		t.Errorf("got exit %d, %s (%s): %.500s", r.exit, r.status.State, r.status.Reason, said)
	}
	var want, never []string
	who := o.profile + " " + runBy(o.user)
	switch argv[0] {
	case "/amicontained":
		want = []string{
			"pid: true", "user: true", "Seccomp: filtering", "Blocked Syscalls (", "Looking for Docker.sock",
		}
		never = []string{"\tBOUNDING", "\tEFFECTIVE", "Socket: /", "Seccomp: disabled"}
		for line := range strings.Lines(said) {
			if n, ok := strings.CutPrefix(line, "Blocked Syscalls ("); ok {
				n = strings.TrimSuffix(strings.TrimSpace(n), "):")
				t.Attr("tool", fmt.Sprintf("%s amicontained: %s system calls blocked", who, n))
			}
		}
	case "/cdk":
		want = []string{
			"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "Information Gathering - Mounts",
			"cannot find kubernetes api host",
		}
		never = []string{
			"Critical", "CAP_", "docker.sock", "PLANTED", "net=host", "is privileged", "has been exposed",
		}
		mounts := 0
		for line := range strings.Lines(said) {
			if strings.HasPrefix(line, "Device:") {
				mounts++
				if !strings.Contains(line, "Flags:ro,nosuid,nodev") {
					t.Errorf("a mount of the host's without its flags: %s", line)
				}
			}
		}
		t.Attr("tool", fmt.Sprintf("%s cdk: %d mounts of the host, all ro,nosuid,nodev", who, mounts))
	}
	for _, w := range want {
		if !strings.Contains(said, w) {
			t.Errorf("no %q in %.3000s", w, said)
		}
	}
	for _, n := range never {
		if strings.Contains(said, n) {
			t.Errorf("%q in %.3000s", n, said)
		}
	}
	if r.status.Refused["mount"] == 0 && argv[0] == "/amicontained" {
		t.Errorf("its mount isn't on record: %v", r.status.Refused)
	}
}

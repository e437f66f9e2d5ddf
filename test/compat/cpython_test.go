// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// sample is what runs, longest first so that two at a time end together.
// Nothing is left out of a module: regrtest runs all of it.
var sample = []string{
	"test_asyncio", "test_signal", "test_socket", "test_subprocess", "test_threading",
	"test_select", "test_os", "test_posix", "test_tempfile", "test_shutil", "test_resource", "test_fcntl", "test_mmap", "test_pty",
}

// moduleTime bounds one module on one side; the longest takes 80 s on the reference machine.
const moduleTime = 6 * time.Minute

// outcome of one test case.
type outcome struct {
	what string // pass, skip, fail; start when it never ended
	why  string
}

func (o outcome) String() string {
	if o.why == "" {
		return o.what
	}
	return o.what + ": " + o.why
}

// difference is one entry of differences.yaml: tests that pass on the host and not in ring 2.
type difference struct {
	Tests []string `yaml:"tests"` // ids, with * for any part of one
	Group string   `yaml:"group"` // heading in docs/compatibility.md
	Why   string   `yaml:"why"`
	Flaky bool     `yaml:"flaky"` // sometimes passes; Why says on what it depends
}

func (d difference) matches(id string) bool {
	return slices.ContainsFunc(d.Tests, func(p string) bool { return match(p, id) })
}

// match compares in the manner of a shell; parts of an id are no folders, and * crosses them.
func match(pattern, id string) bool {
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", "-"), strings.ReplaceAll(id, "/", "-"))
	return ok && err == nil
}

func differences(t testing.TB) []difference {
	t.Helper()
	b, err := os.ReadFile("testdata/differences.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	var list []difference
	if err := dec.Decode(&list); err != nil {
		t.Fatalf("testdata/differences.yaml: %v", err)
	}
	for i, d := range list {
		if len(d.Tests) == 0 || d.Group == "" || d.Why == "" {
			t.Errorf("testdata/differences.yaml: entry %d (%v): tests, group and why are all needed", i+1, d.Tests)
		}
		for _, p := range d.Tests {
			if _, err := path.Match(p, ""); err != nil {
				t.Errorf("testdata/differences.yaml: %s: %v", p, err)
			}
		}
	}
	return list
}

// CPython's own tests end in ring 2 as they do for an unprivileged user of the host, but for
// the listed differences (issue 2, M-2, M-4).
func TestCPython(t *testing.T) {
	if testing.Short() {
		t.Skip("need: about four minutes (-short is set)")
	}
	needSandbox(t)
	needFile(t, python, "Debian's python3")
	needFile(t, "/usr/lib/python3.11/test/test_socket.py", "Debian's libpython3.11-testsuite")
	listed := differences(t)
	for _, module := range sample {
		t.Run(module, func(t *testing.T) {
			t.Parallel()
			c := comparison{listed: listed}
			// Both sides mostly wait, so they do it together.
			t.Run("run", func(t *testing.T) {
				t.Run("host", func(t *testing.T) { t.Parallel(); c.host = onHost(t, module) })
				t.Run("ring 2", func(t *testing.T) { t.Parallel(); c.ring2 = inRing2(t, module) })
			})
			if !t.Failed() {
				c.decide(t, module)
			}
		})
	}
}

type comparison struct {
	listed      []difference
	host, ring2 map[string]outcome
}

// decide holds what differs against the list. Tests that measure time fail now and then on a
// busy machine, on either side, so whatever is not as listed is run again by itself: a real
// difference is there every time.
func (c comparison) decide(t *testing.T, module string) {
	t.Helper()
	t.Logf("host: %s; ring 2: %s", tally(c.host), tally(c.ring2))
	if tally(c.host)["pass"] == 0 {
		t.Fatalf("nothing of %s passed on the host; there is nothing to compare", module)
	}
	unlisted, _ := c.judge(module)
	for range 2 {
		if len(unlisted) == 0 {
			break
		}
		for id, o := range inRing2(t, module, unlisted...) {
			if o.what == "pass" && c.ring2[id].what != "pass" {
				t.Logf("flaky: %s: %v, passed when run again", id, c.ring2[id])
				c.ring2[id] = o
			}
		}
		unlisted, _ = c.judge(module)
	}
	unlisted, stale := c.judge(module)
	for _, id := range unlisted {
		t.Errorf("%s passes on the host, and in ring 2: %v\nAllow what it needs, or list and explain it in testdata/differences.yaml", id, c.ring2[id])
	}
	for _, s := range stale {
		t.Errorf("%s: listed in testdata/differences.yaml, but %s", s.id, s.why)
	}
}

type staleEntry struct{ id, why string }

// judge returns the tests that differ without being listed, and the listed ones that don't differ.
// A test that fails or is skipped on the host says nothing about the sandbox.
func (c comparison) judge(module string) (unlisted []string, stale []staleEntry) {
	for _, id := range slices.Sorted(maps.Keys(c.host)) {
		if c.host[id].what != "pass" {
			continue
		}
		i := slices.IndexFunc(c.listed, func(d difference) bool { return d.matches(id) })
		switch passes := c.ring2[id].what == "pass"; {
		case !passes && i < 0:
			unlisted = append(unlisted, id)
		case passes && i >= 0 && !c.listed[i].Flaky:
			stale = append(stale, staleEntry{id, "it passes in ring 2"})
		}
	}
	for _, d := range c.listed {
		for _, p := range d.Tests {
			if strings.HasPrefix(p, "test."+module+".") && !slices.ContainsFunc(slices.Collect(maps.Keys(c.host)), func(id string) bool { return match(p, id) }) {
				stale = append(stale, staleEntry{p, "no such test ran on the host"})
			}
		}
	}
	return unlisted, stale
}

type counts map[string]int

func tally(m map[string]outcome) counts {
	n := counts{}
	for _, o := range m {
		n[o.what]++
	}
	return n
}

func (c counts) String() string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(c)) {
		parts = append(parts, fmt.Sprintf("%d %s", c[what], what))
	}
	return strings.Join(parts, ", ")
}

// arguments of record.py: `python3 -m test -v MODULE`, or only some tests of it. Not --timeout: its
// watchdog thread is lost in a fork, and the child that test_posix leaves in the suite when fexecve
// is refused would wait for it for ever.
func arguments(record, results, module string, ids []string) []string {
	args := []string{python, record, results, "-v", module}
	for _, id := range ids {
		args = append(args, "-m", id)
	}
	return args
}

// environment of both sides: the one a sandbox gives, so that only the sandbox differs.
func environment(dir string) []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1",
		"HOME=" + filepath.Join(dir, "home"), "TMPDIR=" + filepath.Join(dir, "tmp")}
}

// onHost runs a module as nobody: as root it would pass tests that no unprivileged program can.
func onHost(t testing.TB, module string, ids ...string) map[string]outcome {
	t.Helper()
	dir := folder(t)
	for _, d := range []string{"home", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(dir, d), owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	record, results := filepath.Join(dir, "record.py"), filepath.Join(dir, "results")
	copyFile(t, "testdata/cpython/record.py", record)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(float64(moduleTime)*slow))
	defer cancel()
	args := arguments(record, results, module, ids)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = filepath.Join(dir, "home"), environment(dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner, Gid: owner}, Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s on the host: %v\n%s", module, err, tail(string(out)))
	}
	return outcomes(t, results, module+" on the host", string(out))
}

func inRing2(t testing.TB, module string, ids ...string) map[string]outcome {
	t.Helper()
	ws := folder(t)
	copyFile(t, "testdata/cpython/record.py", filepath.Join(ws, "record.py"))
	r := sandbox(t, moduleTime+time.Minute, []string{"--ring", "2", "--on-breach", "record", // much of what it tries is refused, by design
		"--workspace", ws, "--cwd", "/tmp/sandbox/home",
		"--cpus", "1", "--memory", "2G", "--pids", "512", "--scratch-size", "512M", "--max-output", "64M", "--timeout", "1h", "--cpu-time", "1h"},
		arguments("/workspace/record.py", "/workspace/results", module, ids))
	// regrtest says 2 when a test failed; anything above is the sandbox's or a crash.
	if r.status.State != "exited" {
		t.Fatalf("%s in ring 2: %s %s %s\n%s%s", module, r.status.State, r.status.Reason, r.status.Error, tail(r.stdout), tail(r.stderr))
	}
	if refused := r.status.refusals(); refused != "" && ids == nil {
		t.Logf("refused and counted:\n%s", refused)
	}
	return outcomes(t, filepath.Join(ws, "results"), module+" in ring 2", r.stdout+r.stderr)
}

// outcomes reads what record.py wrote. A test has several lines when a subtest failed or its
// cleanup did; the worst of them counts.
func outcomes(t testing.TB, file, where, output string) map[string]outcome {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatalf("%s: nothing was recorded: %v\n%s", where, err, tail(output))
	}
	defer f.Close()
	order := []string{"start", "pass", "skip", "fail"}
	result := map[string]outcome{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l struct{ Test, What, Why string }
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Fatalf("%s: %s: %v", where, file, err)
		}
		if slices.Index(order, l.What) >= slices.Index(order, result[l.Test].what) {
			result[l.Test] = outcome{l.What, l.Why}
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatalf("%s: %s: %v", where, file, err)
	}
	return result
}

// docs/compatibility.md explains what the list holds: every group has its heading, every test its place.
func TestDocument(t *testing.T) {
	b, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	for _, d := range differences(t) {
		if !strings.Contains(doc, "\n### "+d.Group+"\n") {
			t.Errorf("docs/compatibility.md: no heading %q, the group of %v", d.Group, d.Tests)
		}
		for _, p := range d.Tests {
			if !strings.Contains(doc, "`"+strings.TrimPrefix(p, "test.")+"`") {
				t.Errorf("docs/compatibility.md: %s is not named", p)
			}
		}
	}
	for _, module := range sample {
		if !strings.Contains(doc, "| `"+module+"` |") {
			t.Errorf("docs/compatibility.md: no row for %s", module)
		}
	}
}

// The judging itself: what is missed, what is stale, what does not count.
func TestJudge(t *testing.T) {
	pass, fail, skip := outcome{what: "pass"}, outcome{what: "fail"}, outcome{what: "skip"}
	c := comparison{
		listed: []difference{
			{Tests: []string{"test.test_x.A.listed", "test.test_x.B.*"}},
			{Tests: []string{"test.test_x.A.sometimes"}, Flaky: true},
			{Tests: []string{"test.test_x.A.gone", "test.test_y.A.elsewhere"}},
		},
		host: map[string]outcome{
			"test.test_x.A.same": pass, "test.test_x.A.new": pass, "test.test_x.A.absent": pass, "test.test_x.A.skipped": pass,
			"test.test_x.A.broken": fail, "test.test_x.A.listed": pass, "test.test_x.A.sometimes": pass,
			"test.test_x.B.differs": pass, "test.test_x.B.agrees": pass,
		},
		ring2: map[string]outcome{
			"test.test_x.A.same": pass, "test.test_x.A.new": fail, "test.test_x.A.skipped": skip,
			"test.test_x.A.broken": fail, "test.test_x.A.listed": fail, "test.test_x.A.sometimes": pass,
			"test.test_x.B.differs": fail, "test.test_x.B.agrees": pass,
		},
	}
	unlisted, stale := c.judge("test_x")
	if want := []string{"test.test_x.A.absent", "test.test_x.A.new", "test.test_x.A.skipped"}; !slices.Equal(unlisted, want) {
		t.Errorf("unlisted: got %v, want %v", unlisted, want)
	}
	if want := []staleEntry{{"test.test_x.B.agrees", "it passes in ring 2"}, {"test.test_x.A.gone", "no such test ran on the host"}}; !slices.Equal(stale, want) {
		t.Errorf("stale: got %v, want %v", stale, want)
	}
}

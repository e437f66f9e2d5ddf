// SPDX-License-Identifier: Apache-2.0

package hostcaps

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// A "no" and a "don't know" must stay apart: only the first may be cached, and
// the launch refuses on both.
func TestErrorKinds(t *testing.T) {
	for _, tt := range []struct {
		name     string
		got      error
		expected []unix.Errno
		want     error
	}{
		{"success", nil, nil, nil},
		{"the errno that proves it", unix.EFAULT, []unix.Errno{unix.EFAULT}, nil},
		{"no such call", unix.ENOSYS, nil, ErrUnsupported},
		{"unknown flag", unix.EINVAL, nil, ErrUnsupported},
		{"no such file system", unix.ENODEV, nil, ErrUnsupported},
		{"a filter around us", unix.EPERM, nil, ErrInconclusive},
		{"out of memory", unix.ENOMEM, nil, ErrInconclusive},
		{"no errno at all", io.ErrUnexpectedEOF, nil, ErrInconclusive},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &Probe{Name: "p", try: func() error { return classify("call(2)", tt.got, tt.expected...) }}
			err := p.Check()
			if tt.want == nil {
				if err != nil {
					t.Fatalf("got %v, want nil", err)
				}
				return
			}
			if !errors.Is(err, tt.want) || !errors.Is(err, tt.got) {
				t.Errorf("got %v, want one that is %v and %v", err, tt.want, tt.got)
			}
			if errors.Is(err, ErrUnsupported) == errors.Is(err, ErrInconclusive) {
				t.Errorf("%v is both or neither of unsupported and inconclusive", err)
			}
			if !strings.HasPrefix(err.Error(), "p: ") {
				t.Errorf("%q does not name its probe", err)
			}
		})
	}
}

func TestOnlyConclusiveAnswersAreKept(t *testing.T) {
	for _, tt := range []struct {
		name  string
		err   error
		calls int // after three checks
	}{
		{"found", nil, 1},
		{"missing", unsupported("no"), 1},
		{"unknown", inconclusive(unix.ENOMEM, "x"), 3},
		{"bare error", unix.EIO, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			calls := 0
			p := &Probe{Name: "p", try: func() error { calls++; return tt.err }}
			for range 3 {
				p.Check()
			}
			if calls != tt.calls {
				t.Errorf("probed %d times, want %d", calls, tt.calls)
			}
		})
	}
}

// Zero values refuse.
func TestZeroProbe(t *testing.T) {
	var p Probe
	if err := p.Check(); !errors.Is(err, ErrInconclusive) {
		t.Errorf("zero probe: got %v, want inconclusive", err)
	}
	if p.Weight != Required {
		t.Errorf("zero weight is %v, want required", p.Weight)
	}
}

func TestConcurrentCheck(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, p := range []*Probe{UserNS, SeccompSyncWakeUp, NewMountAPI, ProcSubset} {
				p.Check()
			}
		})
	}
	wg.Wait()
}

func TestParseRelease(t *testing.T) {
	for _, tt := range []struct {
		in           string
		major, minor int
		ok           bool
	}{
		{"6.1.0-18-amd64", 6, 1, true},
		{"6.18.44-fc-v657", 6, 18, true},
		{"5.4", 5, 4, true},
		{"6.12-rc1", 6, 12, true},
		{"", 0, 0, false},
		{"six.one", 0, 0, false},
		{"6", 0, 0, false},
	} {
		major, minor, ok := parseRelease(tt.in)
		if ok != tt.ok || ok && (major != tt.major || minor != tt.minor) {
			t.Errorf("parseRelease(%q): got %d.%d %v, want %d.%d %v", tt.in, major, minor, ok, tt.major, tt.minor, tt.ok)
		}
	}
}

// Every row must tell an operator something: what is lost and what to do.
func TestProbesAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Probes("/") {
		if p.Name == "" || p.Loses == "" || p.Get == "" || p.try == nil {
			t.Errorf("probe %+v has an empty field", p.Name)
		}
		if seen[p.Name] {
			t.Errorf("probe %s is listed twice", p.Name)
		}
		seen[p.Name] = true
	}
}

// The facts about any Linux that can run these tests, checked by another way
// than the probe's own.
func TestAgainstHost(t *testing.T) {
	if got, want := Release(), readFile(t, "/proc/sys/kernel/osrelease"); got != want {
		t.Errorf("Release: got %q, want %q", got, want)
	}
	_, statErr := os.Stat("/proc/self/ns/user")
	if err := UserNS.Check(); (err == nil) != (statErr == nil) && os.Geteuid() == 0 {
		t.Errorf("UserNS: got %v, stat says %v", err, statErr)
	}
	actions := readFile(t, "/proc/sys/kernel/seccomp/actions_avail")
	if err := Seccomp.Check(); (err == nil) != strings.Contains(actions, "kill_process") {
		t.Errorf("Seccomp: got %v, actions are %q", err, actions)
	}
	if mode := Cgroups(); mode == CgroupV2 {
		for _, c := range []string{"cpu", "memory", "pids"} {
			listed := strings.Contains(" "+readFile(t, "/sys/fs/cgroup/cgroup.controllers")+" ", " "+c+" ")
			if err := Cgroup(c).Check(); (err == nil) != listed {
				t.Errorf("Cgroup(%s): got %v, listed %v", c, err, listed)
			}
		}
	}
	if err := Cgroup("no-such-controller").Check(); !errors.Is(err, ErrUnsupported) {
		t.Errorf("an invented controller: got %v, want unsupported", err)
	}
	if err := Landlock(1000).Check(); !errors.Is(err, ErrUnsupported) {
		t.Errorf("landlock ABI 1000: got %v, want unsupported", err)
	}
	if err := tryMountOption("no-such-fs", "", ""); os.Geteuid() == 0 && !errors.Is(err, ErrUnsupported) {
		t.Errorf("an invented file system: got %v, want unsupported", err)
	}
	if err := tryMountOption("proc", "subset", "nonsense"); os.Geteuid() == 0 && !errors.Is(err, ErrUnsupported) {
		t.Errorf("an invented proc option: got %v, want unsupported", err)
	}
}

// A probe that leaves the calling process changed would be felt by everything
// that comes after: a filter on the main thread, a group, a mount, a child.
func TestProbesLeaveNothing(t *testing.T) {
	before := traces(t)
	for _, p := range Probes(t.TempDir()) {
		p.Check()
		p.answer.Store(nil)
		p.Check()
	}
	if diff := cmp.Diff(before, traces(t)); diff != "" {
		t.Errorf("the probes left traces (-before +after):\n%s", diff)
	}
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != unix.ECHILD {
		t.Errorf("a child is left: wait4 gives %d, %v", pid, err)
	}
}

// traces is what a careless probe would change.
func traces(t *testing.T) map[string]string {
	t.Helper()
	m := map[string]string{"mountinfo": readFile(t, "/proc/self/mountinfo")}
	for _, line := range strings.Split(readFile(t, "/proc/self/status"), "\n") {
		for _, key := range []string{"Seccomp", "NoNewPrivs", "Cap"} {
			if strings.HasPrefix(line, key) {
				name, value, _ := strings.Cut(line, ":")
				m[name] = strings.TrimSpace(value)
			}
		}
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	m["fds"] = strings.Repeat("|", len(fds))
	for _, dir := range []string{cgroupRoot, cgroupRoot + "/unified"} {
		groups, _ := os.ReadDir(dir)
		for _, g := range groups {
			if strings.HasPrefix(g.Name(), "agentrun-probe-") {
				m[dir] = g.Name()
			}
		}
	}
	return m
}

// The launch asks these on every start (DESIGN, start-up budget).
func BenchmarkLaunchProbes(b *testing.B) {
	for _, p := range []*Probe{
		Root, UserNS, TimeNS, CgroupNS, Seccomp, SeccompNotify, SeccompWaitKillable, Landlock(1),
		NewMountAPI, ProcSubset, Pidfd, Openat2, Cgroup("cpu", "memory", "pids", "freezer"),
	} {
		b.Run(p.Name, func(b *testing.B) {
			for b.Loop() {
				p.answer.Store(nil)
				_ = p.Check()
			}
		})
	}
}

func TestReport(t *testing.T) {
	r := NewReport(t.TempDir())
	var text, js bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteJSON(&js); err != nil {
		t.Fatal(err)
	}
	var back Report
	dec := json.NewDecoder(&js)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Errorf("JSON does not round-trip (-want +got):\n%s", diff)
	}
	for _, row := range r.Results {
		if !strings.Contains(text.String(), row.Name) {
			t.Errorf("the text has no row for %s", row.Name)
		}
	}
	t.Logf("\n%s", text.String())
}

func TestReportUnusable(t *testing.T) {
	missing := &Probe{Name: "x", Loses: "all", Get: "pray", try: func() error { return unsupported("seen nothing") }}
	want := Result{Name: "x", Status: "missing", Weight: "required", Why: "seen nothing", Loses: "all", Get: "pray"}
	if diff := cmp.Diff(want, missing.Result()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	unknown := &Probe{Name: "x", try: func() error { return inconclusive(unix.EPERM, "call(2)") }}
	if got := unknown.Result(); got.Status != "unknown" || got.Why != "call(2): operation not permitted" {
		t.Errorf("got %+v", got)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, unix.ENOSPC }

func TestReportSaysWhenItCannotBeWritten(t *testing.T) {
	for name, write := range map[string]func(Report, io.Writer) error{"text": Report.WriteText, "json": Report.WriteJSON} {
		if err := write(Report{}, fullDisk{}); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: got %v, want ENOSPC", name, err)
		}
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func median(d []time.Duration) time.Duration {
	s := append([]time.Duration(nil), d...)
	for i := range s {
		for j := i; j > 0 && s[j] < s[j-1]; j-- {
			s[j], s[j-1] = s[j-1], s[j]
		}
	}
	return s[len(s)/2]
}

// All controllers are looked for in the list as it is now, in one reading.
func TestUnifiedControllers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cgroup.controllers")
	want := func(list string, kind error, names ...string) {
		t.Helper()
		if list != "" {
			if err := os.WriteFile(file, []byte(list), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := haveUnified(file, names); !errors.Is(err, kind) || (err == nil) != (kind == nil) {
			t.Errorf("%q: got %v, want %v", list, err, kind)
		}
	}
	want("", ErrInconclusive, "cpu")
	want("cpuset cpu io memory hugetlb pids rdma\n", nil, "cpu", "memory", "pids", "freezer")
	want("cpuset io memory pids\n", ErrUnsupported, "cpu", "memory")
	want("cpu memory pids\n", ErrUnsupported, "cpu", "memory", "pid")
	want(strings.Repeat("x ", 2000)+"cpu\n", nil, "cpu")
	want("\n", nil)
}

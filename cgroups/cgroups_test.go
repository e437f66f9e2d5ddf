// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const roleEnv = "AGENTRUN_CGROUPS_TEST_ROLE"

// parent holds all groups of this run.
var parent = fmt.Sprintf("agentrun-test-%d", os.Getpid())

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		child(strings.Fields(role))
		os.Exit(0)
	}
	os.Exit(run(m))
}

// run fails rather than skips where it cannot work, and checks that nothing is left (M-5).
func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "cgroups tests need root")
		return 1
	}
	found, err := host()
	mode := found.Mode
	if err != nil {
		fmt.Fprintln(os.Stderr, "cgroups tests:", mode, err)
		return 1
	}
	fmt.Println("cgroup mode:", mode)
	// Orphans of fork bombs come to us, so that nothing depends on a reaping init.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "subreaper:", err)
		return 1
	}
	fds := openFDs()
	code := m.Run()
	reap()
	h, _ := Inspect()
	for _, hi := range newGroup(h, "", parent).hiers {
		if _, err := os.Lstat(hi.dir); !errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintln(os.Stderr, "LEFT BEHIND:", hi.dir, err)
			code = 1
		}
	}
	var ws unix.WaitStatus
	if pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil); err != unix.ECHILD {
		fmt.Fprintln(os.Stderr, "LEFT BEHIND: a child", pid, err)
		code = 1
	}
	if n := openFDs(); n > fds+2 { // the poller's own two
		fmt.Fprintf(os.Stderr, "LEFT BEHIND: %d file descriptors, %d before\n", n, fds)
		names, _ := filepath.Glob("/proc/self/fd/*")
		for _, f := range names {
			to, _ := os.Readlink(f)
			fmt.Fprintln(os.Stderr, f, to)
		}
		code = 1
	}
	return code
}

func openFDs() int {
	e, _ := os.ReadDir("/proc/self/fd")
	return len(e)
}

func reap() {
	for {
		var ws unix.WaitStatus
		if pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil); pid <= 0 && err != unix.EINTR {
			return
		}
	}
}

// child is the re-executed test binary inside a group. It waits for a byte on stdin, so that it does nothing before it was added.
func child(role []string) {
	os.Stdin.Read(make([]byte, 1))
	say := func(a ...any) { fmt.Println(a...) }
	num := func() int { n, _ := strconv.Atoi(role[1]); return n }
	switch role[0] {
	case "sleep":
		say("ready")
		pause()
	case "cache": // of a file
		f, err := os.Open(role[1])
		if err == nil {
			_, err = io.Copy(io.Discard, f)
		}
		say("read", err)
		pause()
	case "spin":
		say("ready")
		for n := uint64(0); ; n++ { // until it is killed
			_ = n
		}
	case "count": // in a page shared with the test
		n := counter(func(err error) { say(err); os.Exit(1) }, role[1])
		say("ready")
		for {
			atomic.AddUint64(n, 1)
		}
	case "alloc":
		b, err := unix.Mmap(-1, 0, num()<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			say(err)
			return
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		say("allocated")
		os.Stdin.Read(make([]byte, 1))
	case "fork":
		n, errno := 0, syscall.Errno(0)
		for range num() {
			if errno = rawFork(); errno != 0 {
				break
			}
			n++
		}
		say(n, int(errno))
		pause()
	case "bomb":
		say("ready")
		for {
			syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		}
	case "open":
		for _, path := range role[1:] {
			fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			unix.Close(fd)
			say(filepath.Base(path), err)
		}
		pause()
	case "uffd":
		if err := stick(func() { say("stuck") }); err != nil {
			say(err)
		}
	}
}

// pause is for good: a signal of Go's own, by which it interrupts loops, ends pause(2).
func pause() {
	for {
		_ = unix.Pause()
	}
}

// counter maps a number in a file.
func counter(fail func(error), file string) *uint64 {
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		fail(err)
	}
	defer unix.Close(fd)
	b, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		fail(err)
	}
	return (*uint64)(unsafe.Pointer(&b[0]))
}

// startCounter runs a process that counts. The count, not the CPU time, tells whether it runs: a task is charged some time inside the
// kernel after it counts as frozen.
func startCounter(t *testing.T, g *Group) (*proc, *uint64) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "count")
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	n := counter(func(err error) { t.Fatal(err) }, file)
	return start(t, g, "count "+file).expect("ready"), n
}

// standsStill looks for a while: a wrong freeze shows here, a right one is right at once.
func standsStill(t *testing.T, n *uint64) {
	t.Helper()
	a := atomic.LoadUint64(n)
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
		if b := atomic.LoadUint64(n); b != a {
			t.Fatalf("a frozen process counted from %d to %d", a, b)
		}
	}
}

// runsOn waits until a counter counts.
func runsOn(t *testing.T, n *uint64) {
	t.Helper()
	a := atomic.LoadUint64(n)
	for end := time.Now().Add(ages(10 * time.Second)); atomic.LoadUint64(n) == a; {
		if time.Now().After(end) {
			t.Fatal("it stands still")
		}
	}
}

// rawFork makes a child that only pauses, without the Go runtime.
//
//go:norace
func rawFork() syscall.Errno {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		for {
			syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
	return errno
}

// stick faults inside the kernel on a page that userfaultfd never serves: the thread then cannot be frozen, only killed.
func stick(stuck func()) error {
	ufd, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if e != 0 {
		return fmt.Errorf("userfaultfd: %w", e)
	}
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	api := [3]uint64{0xAA}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, ufd, 0xc018aa3f, uintptr(unsafe.Pointer(&api))); e != 0 {
		return fmt.Errorf("UFFDIO_API: %w", e)
	}
	reg := [4]uint64{uint64(uintptr(unsafe.Pointer(&page[0]))), uint64(len(page)), 1}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, ufd, 0xc020aa00, uintptr(unsafe.Pointer(&reg))); e != 0 {
		return fmt.Errorf("UFFDIO_REGISTER: %w", e)
	}
	zero, err := unix.Open("/dev/zero", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	go func() {
		goruntime.LockOSThread()
		syscall.Syscall(syscall.SYS_READ, uintptr(zero), uintptr(unsafe.Pointer(&page[0])), uintptr(len(page)))
	}()
	msg := make([]byte, 32)
	if _, err := unix.Read(int(ufd), msg); err != nil {
		return err
	}
	stuck()
	pause()
	return nil
}

// eachMode runs f against the machine as it is and, on a hybrid one, again as if the cgroup2 tree were not there: the same test then covers
// the pure v1 code. withoutKill adds the path of kernels that have no cgroup.kill.
func eachMode(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	h, err := host()
	if err != nil {
		t.Fatal(err)
	}
	t.Run(h.Mode.String(), f)
	if h.Mode == Hybrid {
		t.Run("hybrid-as-v1", func(t *testing.T) {
			v1 := h
			v1.Mode, v1.Unified = V1, ""
			setHost(t, v1)
			f(t)
		})
	}
}

func setHost(t *testing.T, h Host) {
	hostCache.mu.Lock()
	defer hostCache.mu.Unlock()
	old := hostCache.h
	hostCache.h = &h
	t.Cleanup(func() {
		hostCache.mu.Lock()
		defer hostCache.mu.Unlock()
		hostCache.h = old
	})
}

func eachKill(t *testing.T, f func(t *testing.T, noKillFile bool)) {
	t.Helper()
	eachMode(t, func(t *testing.T) {
		t.Run("as it is", func(t *testing.T) { f(t, false) })
		t.Run("without cgroup.kill", func(t *testing.T) { f(t, true) })
	})
}

var limits = Limits{CPU: 1, Memory: 256 << 20, PIDs: 100}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// ages is a bound that only a hang comes to: an emulated machine, where a task that spins in the kernel has half of all, takes that much longer.
func ages(d time.Duration) time.Duration {
	slow, _ := strconv.Atoi(os.Getenv("AGENTRUN_TEST_SLOW")) // none: 1
	return d * time.Duration(max(1, slow))
}

var serial int

func newName() string {
	serial++
	return fmt.Sprintf("%s/g%d", parent, serial)
}

func create(t *testing.T, l Limits) *Group {
	t.Helper()
	g, err := Create(newName(), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { clean(t, g) })
	return g
}

func clean(t testing.TB, g *Group) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := g.Kill(ctx); err != nil {
		t.Error(err)
	}
	reap()
	if err := g.Remove(ctx); err != nil {
		t.Error(err)
	}
	if _, err := RemoveParentIfEmpty(path.Dir(g.Name())); err != nil {
		t.Error(err)
	}
	mustBeGone(t, g)
}

func mustBeGone(t testing.TB, g *Group) {
	t.Helper()
	for _, h := range g.hiers {
		if _, err := os.Lstat(h.dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", h.dir, err)
		}
	}
}

type proc struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start runs a role and puts it into the group before it does anything.
func start(t testing.TB, g *Group, role string) *proc {
	t.Helper()
	p := idle(t, role)
	if g != nil {
		if err := g.Add(p.pid()); err != nil {
			t.Fatal(err)
		}
	}
	p.release()
	return p
}

func idle(t testing.TB, role string) *proc {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{roleEnv + "=" + role, "GOMAXPROCS=2"}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &proc{t, cmd, in, bufio.NewReader(out)}
	t.Cleanup(func() {
		cmd.Process.Kill()
		if cmd.Wait() != nil {
			cmd.Process.Release() // somebody else reaped it, and Wait keeps the pidfd of what it could not wait for
		}
	})
	return p
}

func (p *proc) pid() int { return p.cmd.Process.Pid }
func (p *proc) release() { p.in.Write([]byte{1}) }
func (p *proc) line() string {
	p.t.Helper()
	s, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("child: %q, %v", s, err)
	}
	return strings.TrimSpace(s)
}

func (p *proc) expect(want string) *proc {
	p.t.Helper()
	if got := p.line(); got != want {
		p.t.Fatalf("child says %q, want %q", got, want)
	}
	return p
}

// M-3: malformed limits never reach the kernel.
func TestLimitsRefuse(t *testing.T) {
	if err := limits.Validate(); err != nil {
		t.Fatal(err)
	}
	for what, l := range map[string]Limits{
		"zero":         {},
		"cpu zero":     {0, 1 << 28, 10},
		"cpu negative": {-1, 1 << 28, 10},
		"cpu NaN":      {math.NaN(), 1 << 28, 10},
		"cpu inf":      {math.Inf(1), 1 << 28, 10},
		"cpu tiny":     {0.009, 1 << 28, 10},
		"memory zero":  {1, 0, 10},
		"memory less":  {1, -1, 10},
		"memory tiny":  {1, 4096, 10},
		"memory max":   {1, math.MaxInt64, 10},
		"pids zero":    {1, 1 << 28, 0},
		"pids less":    {1, 1 << 28, -1},
		"pids max":     {1, 1 << 28, 4194305},
	} {
		name := newName()
		if _, err := Create(name, l); err == nil || !strings.Contains(err.Error(), "limit") {
			t.Errorf("%s: Create = %v, want a limit error", what, err)
		}
		if g, _ := Open(name); g != nil {
			mustBeGone(t, g)
		}
	}
}

// A name is a path that root makes, kills and removes.
func TestNameRefuse(t *testing.T) {
	for _, n := range []string{"", "/", ".", "..", "agentrun", "agentrun/", "/agentrun/a", "agentrun/..", "agentrun/../x", "agentrun/.", "agentrun//a",
		"agentrun/a/../../x", "system.slice/a", "agentrunx/a", "agentrun-/a", "agentrun/a\nb", "agentrun/a b", "agentrun/cgroup.procs", "agentrun/-a",
		"agentrun/a\x00b", "agentrun/ä", "agentrun/" + strings.Repeat("a", 129), "agentrun" + strings.Repeat("/a", 8),
		"../agentrun/a", "a/../agentrun/b", "a//agentrun/b", "./agentrun/b", "/a/agentrun/b", "a\x00/agentrun/b", "a/agentrun", "a/agentrun/..", "a/agentrunx/b",
		strings.Repeat("a/", 17) + "agentrun/b", strings.Repeat("a", 256) + "/agentrun/b"} {
		if _, err := Create(n, limits); !errors.Is(err, errBadName) {
			t.Errorf("Create(%q) = %v", n, err)
		}
		if _, err := Open(n); !errors.Is(err, errBadName) {
			t.Errorf("Open(%q) = %v", n, err)
		}
	}
	for _, n := range []string{"agentrun/../..", "system.slice", "", ".."} {
		if _, err := RemoveParentIfEmpty(n); !errors.Is(err, errBadName) {
			t.Errorf("RemoveParentIfEmpty(%q) = %v", n, err)
		}
		if _, err := Sweep(t.Context(), n, func(string) bool { return true }); !errors.Is(err, errBadName) {
			t.Errorf("Sweep(%q) = %v", n, err)
		}
	}
	if _, err := Sweep(t.Context(), parent, nil); err == nil {
		t.Error("Sweep without an alive function did not refuse")
	}
}

func TestClassify(t *testing.T) {
	const pre, post = "30 24 0:26 / ", " rw,relatime shared:4 - "
	v1line := func(at, opts string) string { return pre + at + post + "cgroup cgroup rw," + opts + "\n" }
	v2line := func(at string) string { return pre + at + post + "cgroup2 cgroup2 rw\n" }
	all := v1line("/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct") + v1line("/sys/fs/cgroup/memory", "memory") + v1line("/sys/fs/cgroup/pids", "pids") +
		v1line("/sys/fs/cgroup/freezer", "freezer") + v1line("/sys/fs/cgroup/devices", "devices") + v1line("/sys/fs/cgroup/systemd", "xattr,release_agent=/x,name=systemd")
	for _, c := range []struct {
		what, mounts, v2 string
		mode             Mode
		missing          []string
	}{
		{"v1", all, "", V1, nil},
		{"v1 without pids", strings.Replace(all, "rw,pids", "rw,rdma", 1), "", V1, []string{"pids"}},
		{"hybrid", all + v2line("/sys/fs/cgroup/unified"), "", Hybrid, nil},
		{"v2", v2line("/sys/fs/cgroup"), "cpuset cpu io memory hugetlb pids", V2, nil},
		{"v2 without memory", v2line("/sys/fs/cgroup"), "cpuset cpu io pids", V2, []string{"memory"}},
		{"v2 beside stray v1", v2line("/sys/fs/cgroup") + v1line("/sys/fs/cgroup/net_cls", "net_cls"), "cpu memory pids", V2, nil},
		{"v1 with memory in v2", strings.Replace(all, "rw,memory", "rw,rdma", 1) + v2line("/sys/fs/cgroup/unified"), "memory", Hybrid, []string{"memory"}},
		{"none", pre + "/" + post + "ext4 /dev/vda rw\n", "", Invalid, nil},
	} {
		v1, uni, _ := parseMounts(c.mounts)
		h, err := classify(v1, uni, strings.Fields(c.v2))
		if h.Mode != c.mode || !cmp.Equal(h.Missing, c.missing) || (c.mode == Invalid) != errors.Is(err, errNoCgroups) {
			t.Errorf("%s: got %v missing %v err %v, want %v missing %v", c.what, h.Mode, h.Missing, err, c.mode, c.missing)
		}
	}
	v1, _, _ := parseMounts(v1line("/var/other", "cpu") + all)
	if v1["cpu"] != "/sys/fs/cgroup/cpu,cpuacct" || v1["name=systemd"] != "/sys/fs/cgroup/systemd" {
		t.Errorf("mounts: %v", v1)
	}
	below := strings.Replace(all, "/ /sys/fs/cgroup/memory", `/a\040b /sys/fs/cgroup/memory`, 1)
	_, _, roots := parseMounts(below)
	if want := map[string]string{"/sys/fs/cgroup/memory": "/a b"}; !cmp.Equal(roots, want) {
		t.Errorf("roots: %v", roots)
	}
	if _, _, roots := parseMounts(below + v1line("/sys/fs/cgroup/memory", "memory")); len(roots) != 0 { // the later is on top
		t.Errorf("roots: %v", roots)
	}
	const v2 = "30 24 0:26 /../.. /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw"
	if shutIn(v2+"\n", "/sys/fs/cgroup", "/../..") || !shutIn(v2+",nsdelegate\n", "/sys/fs/cgroup", "/../..") || shutIn(v2+",nsdelegate\n", "/sys/fs/cgroup", "/a") {
		t.Error("whether a namespace lets nobody out")
	}
	if v1, uni, _ := parseMounts("\n - \nx - cgroup2\n1 2 3 - cgroup cgroup rw,cpu"); len(v1) != 0 || uni != "" {
		t.Errorf("malformed mountinfo gave %v %q", v1, uni)
	}
	if err := (Host{Mode: V1, Missing: []string{"pids", "memory"}}).lacks(); !strings.Contains(err.Error(), "pids, memory") {
		t.Error(err)
	}
}

// A v1 mount that vanished leaves a tmpfs directory, where mkdir and writes "work".
func TestCreateRefusesPhantomHierarchy(t *testing.T) {
	h, err := host()
	if err != nil {
		t.Fatal(err)
	}
	fake := t.TempDir()
	h.V1 = map[string]string{}
	for _, c := range neededV1 {
		h.V1[c] = filepath.Join(fake, c)
		os.Mkdir(h.V1[c], 0o755)
	}
	h.Mode, h.Unified = V1, ""
	setHost(t, h)
	if _, err := Create(newName(), limits); err == nil || !strings.Contains(err.Error(), "not in a cgroup file system") {
		t.Errorf("Create = %v", err)
	}
	if m, _ := filepath.Glob(fake + "/*/*"); len(m) != 0 {
		t.Errorf("left: %v", m)
	}
}

// M-3, M-5: limits are in the kernel's files; a taken name is refused and the holder not disturbed.
func TestCreate(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, Limits{CPU: 0.25, Memory: 300<<20 + 5, PIDs: 77})
		if err := g.Verify(); err != nil {
			t.Error(err)
		}
		if g.swap == "" {
			t.Error("nothing says how swap is kept away")
		}
		if _, err := Create(g.Name(), limits); !errors.Is(err, fs.ErrExist) {
			t.Errorf("second Create = %v, want ErrExist", err)
		}
		if err := g.Verify(); err != nil {
			t.Errorf("after the second Create: %v", err)
		}
		want := []string{"", "cpu", "devices", "memory", "pids"}
		switch g.mode {
		case V1:
			want = []string{"cpu", "cpuacct", "devices", "freezer", "memory", "pids"}
		case V2:
			want = want[:1]
		}
		var got []string
		for c, p := range g.Paths() {
			got = append(got, c)
			if !strings.HasSuffix(p, g.Place(c)) {
				t.Errorf("path of %q is %s", c, p)
			}
		}
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("hierarchies (-want +got):\n%s", d)
		}
	})
}

// M-5: an error at any hierarchy undoes the others and names the place.
func TestCreateUndo(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		probe, err := Open(parent + "/probe")
		if err != nil {
			t.Fatal(err)
		}
		for i, h := range probe.hiers {
			if !h.used {
				continue
			}
			name := newName()
			g, _ := Open(name)
			if err := os.MkdirAll(g.hiers[i].dir, 0o755); err != nil {
				t.Fatal(err)
			}
			_, err := Create(name, limits)
			if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "controller "+h.label()) {
				t.Errorf("obstacle in %s: Create = %v", h.label(), err)
			}
			if err := os.Remove(g.hiers[i].dir); err != nil {
				t.Error(err)
			}
			if _, err := RemoveParentIfEmpty(parent); err != nil {
				t.Error(err)
			}
			mustBeGone(t, g)
		}
	})
}

// M-3: what is in a group counts for it. A group within it has no more of the processor than it, also when that is lowered later (v1
// refuses both else), dies with it, and outlives the end of the others' processes.
func TestWithin(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		p := create(t, Limits{CPU: 0.5, Memory: 256 << 20, PIDs: 50})
		start(t, p, "sleep").expect("ready")
		g, err := Create(p.Name()+"/inner", limits)
		if err != nil {
			t.Fatal(err)
		}
		child := start(t, g, "sleep").expect("ready")
		quota := func(want float64) {
			t.Helper()
			if p.mode == V2 {
				return // it holds to the smaller by itself
			}
			got, err := readInt(g.file("cpu", g.files().quota))
			if most := (Limits{CPU: want}).quota(); err != nil || got <= 0 || got > most {
				t.Errorf("the quota within is %d, %v, want %d at most", got, err, most)
			}
		}
		quota(0.5)
		if err := errors.Join(p.Unthrottle(), g.Update(limits), p.Throttle()); err != nil {
			t.Error(err)
		}
		quota(0.5)
		if err := errors.Join(p.Update(Limits{CPU: 0.2, Memory: 256 << 20, PIDs: 50}), g.Update(limits)); err != nil {
			t.Error(err)
		}
		quota(0.2)
		if pids, err := p.Pids(); err != nil || !slices.Contains(pids, child.pid()) {
			t.Errorf("got %v, %v, want the process within among them", pids, err)
		}
		if n, settled, err := p.KillOthers(within(t, ages(10*time.Second))); n != 1 || !settled || err != nil {
			t.Errorf("KillOthers = %d, %v, %v, want the group's own process alone", n, settled, err)
		}
		if alive, err := g.Populated(); !alive || err != nil {
			t.Errorf("the process within: alive %v, %v", alive, err)
		}
		if n, err := p.Kill(within(t, ages(10*time.Second))); n != 1 || err != nil {
			t.Errorf("Kill = %d, %v", n, err)
		}
		if err := p.Remove(within(t, ages(10*time.Second))); err != nil {
			t.Error(err)
		}
		mustBeGone(t, g)
		if _, err := Create(g.Name(), limits); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("within a group that is gone: got %v", err)
		}
		mustBeGone(t, p)
	})
}

// M-3: a group within that is gone holds up nobody who lowers the one above, at once.
func TestLoweredWhenOneWithinIsGone(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		high, low := Limits{CPU: 0.5, Memory: 256 << 20, PIDs: 50}, Limits{CPU: 0.2, Memory: 256 << 20, PIDs: 50}
		p := create(t, high)
		for range 10 {
			g, err := Create(p.Name()+"/inner", high)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(g.Remove(t.Context()), p.Update(low), p.Update(high)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// M-2: whatever nodes a process of the group comes to see, it opens but a few devices, and a group within it no more.
func TestM2Devices(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		dir := t.TempDir()
		white, rtc := filepath.Join(dir, "zero"), filepath.Join(dir, "rtc")
		if err := errors.Join(unix.Mknod(white, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))), unix.Mknod(rtc, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 135)))); err != nil {
			t.Fatal(err)
		}
		holds := func() {
			g := create(t, limits)
			for _, name := range []string{g.Name(), g.Name() + "/child"} {
				if name != g.Name() {
					var err error
					if g, err = Create(name, limits); err != nil {
						t.Fatal(err)
					}
					defer clean(t, g)
				}
				if _, list := g.Paths()["devices"]; list != (g.mode == V1 || g.mode == Hybrid && !prepared.Load()) {
					t.Errorf("prepared %v: the group is in %v", prepared.Load(), g.Paths())
				}
				p := start(t, g, "open "+white+" /dev/null /dev/kmsg "+rtc)
				for _, want := range []string{"zero <nil>", "null <nil>", "kmsg operation not permitted", "rtc operation not permitted"} {
					p.expect(want)
				}
				p.cmd.Process.Kill()
				p.cmd.Wait()
			}
		}
		holds()
		// As the daemon has it: on hybrid the filter is in the cgroup2 tree, and the group isn't in the controller's hierarchy.
		Prepare()
		defer prepared.Store(false)
		holds()
	})
}

// H-11: one Add covers every hierarchy, and what the process forks is inside too.
func TestAdd(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, limits)
		for _, pid := range []int{0, -1} {
			if err := g.Add(pid); err == nil {
				t.Errorf("Add(%d) did not refuse", pid)
			}
		}
		p := start(t, g, "fork 3")
		p.expect("3 0")
		pids, err := g.Pids()
		if err != nil || len(pids) != 4 {
			t.Errorf("Pids = %v, %v, want 4", pids, err)
		}
		for _, pid := range pids {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
			if n := strings.Count(string(b), ":"+g.Place(map[bool]string{true: "", false: "cpu"}[g.mode == V2])+"\n"); n != len(g.Paths()) {
				t.Errorf("pid %d is in %d of %d hierarchies:\n%s", pid, n, len(g.Paths()), b)
			}
		}
		for _, h := range g.hiers {
			if in, _, err := procs(h.dir); h.used && (err != nil || !cmp.Equal(slices.Sorted(slices.Values(in)), pids)) {
				t.Errorf("%s holds %v, %v, want %v", h.label(), in, err, pids)
			}
		}
		if err := g.Add(1 << 22); !errors.Is(err, unix.ESRCH) {
			t.Errorf("Add of no process = %v", err)
		}
	})
}

// M-3: by what Birth gives, a process with one thread is in every hierarchy without being moved by anybody.
func TestBirth(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, limits)
		b, err := g.Birth()
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		cmd := exec.Command("/bin/sh", "-c", `while [ $# -gt 0 ]; do eval "echo 0 >&$1" || exit 1; shift; done; cat /proc/self/cgroup`, "sh")
		for i := range b.Tasks {
			cmd.Args = append(cmd.Args, strconv.Itoa(3+i))
		}
		cmd.ExtraFiles = b.Tasks
		if _, unified := g.Paths()[""]; unified != (b.Folder != nil) {
			t.Fatalf("Folder is %v, and the group is in %v", b.Folder, g.Paths())
		} else if unified {
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(b.Folder.Fd())}
		}
		out, err := cmd.CombinedOutput()
		if n := strings.Count(string(out), ":"+g.Place(map[bool]string{true: "", false: "cpu"}[g.mode == V2])+"\n"); err != nil || n != len(g.Paths()) {
			t.Errorf("in %d of %d hierarchies, %v:\n%s", n, len(g.Paths()), err, out)
		}
	})
	g := create(t, limits)
	if err := g.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b, err := g.Birth(); err == nil {
		b.Close()
		t.Error("a group that is gone can be entered")
	}
}

// H-11, THREATS processes: a fork bomb at its pids limit dies whole.
func TestKillForkBomb(t *testing.T) {
	eachKill(t, func(t *testing.T, noKill bool) {
		g := create(t, Limits{CPU: 2, Memory: 512 << 20, PIDs: 300})
		g.noKillFile = noKill
		bomb := start(t, g, "bomb").expect("ready")
		deadline := within(t, ages(30*time.Second))
		for count(t, g, "pids", "pids.events", "max") == 0 { // the bomb has hit the wall
			if deadline.Err() != nil {
				t.Fatal(deadline.Err())
			}
		}
		// Not s.PIDs: the kernel counts a fork before it refuses it.
		if p, err := g.Pids(); err != nil || len(p) > 300 {
			t.Errorf("%d processes, limit 300 (%v)", len(p), err)
		}
		t0 := time.Now()
		n, err := g.Kill(within(t, ages(20*time.Second)))
		if err != nil {
			t.Fatal(err)
		}
		if n < 100 {
			t.Errorf("killed %d, want most of 300", n)
		}
		t.Logf("killed %d in %v", n, time.Since(t0))
		if p, err := g.Pids(); err != nil || len(p) != 0 {
			t.Errorf("left: %v %v", p, err)
		}
		bomb.cmd.Wait()
		reap()
		if again, err := g.Kill(t.Context()); again != n || err != nil { // another's answer must not depend on who came first
			t.Errorf("Kill again = %d, %v, want %d", again, err, n)
		}
		// The group stays closed until Update.
		before := count(t, g, "pids", "pids.events", "max")
		start(t, g, "fork 1").out.ReadString('\n') // an error line, or the end: the child's Go runtime may already fail to make a thread
		if after := count(t, g, "pids", "pids.events", "max"); after <= before {
			t.Errorf("a killed group let a fork through: %d refused, then %d", before, after)
		}
		if err := g.Update(limits); err != nil {
			t.Error(err)
		}
	})
}

// M-22: a frozen group dies without being thawed to run first.
func TestKillFrozen(t *testing.T) {
	eachKill(t, func(t *testing.T, noKill bool) {
		g := create(t, limits)
		g.noKillFile = noKill
		start(t, g, "spin").expect("ready")
		if err := g.Freeze(within(t, ages(10*time.Second))); err != nil {
			t.Fatal(err)
		}
		if n, err := g.Kill(within(t, ages(10*time.Second))); n != 1 || err != nil {
			t.Errorf("Kill = %d, %v", n, err)
		}
		if f, err := frozenNow(g); err != nil || f && g.mode != V1 {
			t.Errorf("after Kill: frozen %v, %v", f, err)
		}
	})
}

// M-5: a group is let go only when nobody lives in it, in whichever hierarchy.
func TestM5RemoveEmpty(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, limits)
		for i := range g.hiers {
			h := g.hiers[i]
			if !h.used {
				continue
			}
			p := start(t, nil, "sleep").expect("ready")
			if err := writeFile(filepath.Join(g.home(h), "cgroup.procs"), strconv.Itoa(p.pid())); err != nil {
				t.Fatal(err)
			}
			if g.RemoveEmpty() {
				t.Errorf("%s: let go with a process in it", h.label())
			}
			if n, err := g.Kill(within(t, ages(10*time.Second))); n == 0 || err != nil {
				t.Errorf("%s: Kill = %d, %v", h.label(), n, err)
			}
			_ = p.cmd.Wait()
			if removed := g.RemoveEmpty(); removed != (g.mode != V2) {
				t.Errorf("%s: removed, with nobody in it: %v", h.label(), removed)
			}
			if g.mode == V2 { // Kill and Remove do it
				continue
			}
			mustBeGone(t, g)
			if !g.RemoveEmpty() {
				t.Error("what isn't there holds nobody")
			}
			g = create(t, limits)
		}
		inner, err := Create(g.Name()+"/inner", limits)
		if err != nil {
			t.Fatal(err)
		}
		if inner.RemoveEmpty() || g.RemoveEmpty() {
			t.Error("a group within another's, or around one, is Remove's")
		}
		if err := errors.Join(inner.Remove(t.Context()), g.Remove(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

// H-22: what a kill remembers of the freeze before it neither counts who has died since, nor spares who has come.
func TestKillAfterChanges(t *testing.T) {
	eachKill(t, func(t *testing.T, noKill bool) {
		for name, c := range map[string]struct {
			change func(*Group, []*proc) error
			killed int
		}{
			"one was killed": {func(g *Group, ps []*proc) error {
				_, _, err := g.KillOthers(within(t, ages(10*time.Second)), ps[0].pid(), ps[1].pid())
				return err
			}, 2},
			"thawed, one has ended": {func(g *Group, ps []*proc) error {
				err := g.Thaw(within(t, ages(10*time.Second)))
				_ = ps[0].cmd.Process.Kill()
				_ = ps[0].cmd.Wait()
				return err
			}, 2},
		} {
			g := create(t, limits)
			g.noKillFile = noKill
			var ps []*proc
			for range 3 {
				ps = append(ps, start(t, g, "sleep").expect("ready"))
			}
			if err := g.Freeze(within(t, ages(10*time.Second))); err != nil {
				t.Fatal(err)
			}
			if err := c.change(g, ps); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			// Those in the v1 freezer that have their SIGKILL are there until it is thawed.
			if n, err := g.Kill(within(t, ages(10*time.Second))); n != c.killed && !(g.mode == V1 && n == 3) || err != nil {
				t.Errorf("%s: Kill = %d, %v, want %d", name, n, err, c.killed)
			}
			if left, err := g.Pids(); len(left) > 0 || err != nil {
				t.Errorf("%s: left %v, %v", name, left, err)
			}
		}
		// As many that the lists are read at once; one more comes while they stand still, into one hierarchy alone.
		g := create(t, Limits{CPU: limits.CPU, Memory: limits.Memory, PIDs: 4096})
		g.noKillFile = noKill
		for range manyProcs + 1 {
			if err := g.Add(sleeping(t)); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.Freeze(within(t, ages(10*time.Second))); err != nil {
			t.Fatal(err)
		}
		last := g.hiers[len(g.hiers)-1]
		for _, h := range g.hiers {
			if h.used {
				last = h
			}
		}
		late := sleeping(t)
		if err := writeFile(filepath.Join(g.home(last), "cgroup.procs"), strconv.Itoa(late)); err != nil {
			t.Fatal(err)
		}
		if n, err := g.Kill(within(t, ages(10*time.Second))); n < manyProcs+1 || err != nil {
			t.Errorf("Kill = %d, %v", n, err)
		}
		if left, err := g.Pids(); len(left) > 0 || err != nil {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}

// sleeping is a small process.
func sleeping(t *testing.T) int {
	t.Helper()
	c := exec.Command("/bin/sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c.Process.Pid
}

// M-22: everybody but those named dies, also while the group is frozen; in the v1 freezer as soon as it is thawed.
func TestM22KillOthers(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		for _, frozen := range []bool{false, true} {
			g := create(t, limits)
			keep, n := startCounter(t, g)
			for range 3 {
				start(t, g, "spin").expect("ready")
			}
			if frozen {
				if err := g.Freeze(within(t, ages(10*time.Second))); err != nil {
					t.Fatal(err)
				}
			}
			killed, settled, err := g.KillOthers(within(t, ages(10*time.Second)), keep.pid())
			if killed != 3 || err != nil || settled != !(frozen && g.mode == V1) {
				t.Errorf("frozen %v: KillOthers = %d, %v, %v", frozen, killed, settled, err)
			}
			if frozen {
				// Those that die leave the frozen state on their way, and on v2 the group is told frozen again only when they are gone.
				if err := g.Freeze(within(t, ages(10*time.Second))); err != nil {
					t.Errorf("frozen still: %v", err)
				}
				standsStill(t, n)
				if err := g.Thaw(within(t, ages(10*time.Second))); err != nil {
					t.Error(err)
				}
			}
			if _, settled, err := g.KillOthers(within(t, ages(10*time.Second)), keep.pid()); !settled || err != nil {
				t.Errorf("frozen %v: the second KillOthers = %v, %v", frozen, settled, err)
			}
			if pids, err := g.Pids(); len(pids) != 1 || pids[0] != keep.pid() || err != nil {
				t.Errorf("left: %v, %v, want %d", pids, err, keep.pid())
			}
		}
	})
}

// The quota is lifted and comes back as it was.
func TestUnthrottle(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, Limits{CPU: 0.2, Memory: 256 << 20, PIDs: 100})
		if err := g.Unthrottle(); err != nil {
			t.Fatal(err)
		}
		if err := g.Verify(); err == nil {
			t.Error("the quota is still there")
		}
		if err := g.Throttle(); err != nil {
			t.Fatal(err)
		}
		if err := g.Verify(); err != nil {
			t.Error(err)
		}
	})
}

// A process that is in one hierarchy only (a launch cut short) is found and dies. On hybrid also when a v1 freezer holds it.
func TestKillStray(t *testing.T) {
	eachKill(t, func(t *testing.T, noKill bool) {
		g := create(t, limits)
		g.noKillFile = noKill
		var ps []*proc
		for _, h := range g.hiers {
			if !h.used {
				continue
			}
			p := start(t, nil, "sleep").expect("ready")
			if err := writeFile(filepath.Join(g.home(h), "cgroup.procs"), strconv.Itoa(p.pid())); err != nil {
				t.Fatal(err)
			}
			ps = append(ps, p)
		}
		if f := g.v1Freezer(); f != "" {
			if err := writeFile(f, "FROZEN"); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := g.Kill(within(t, ages(10*time.Second))); n != len(ps) || err != nil {
			t.Errorf("Kill = %d, %v, want %d", n, err, len(ps))
		}
		for _, p := range ps {
			p.cmd.Wait()
			if ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
				t.Errorf("pid %d ended by %v", p.pid(), ws)
			}
		}
	})
}

func TestKillRefusesSelf(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		// Checked without moving the test: a child group of the real root would hold us on exit.
		g := create(t, limits)
		self := &Group{name: g.name, mode: g.mode, killing: make(chan struct{}, 1), hiers: []hier{{controllers: []string{"x"}, dir: t.TempDir()}}}
		if err := os.WriteFile(filepath.Join(self.hiers[0].dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())+"\n0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := self.Kill(t.Context()); !errors.Is(err, errNoInside) {
			t.Errorf("Kill = %v", err)
		}
		// "0" is a process that has no number here; it must never become kill(0).
		if p, hidden, err := procs(self.hiers[0].dir); len(p) != 1 || hidden != 1 || err != nil {
			t.Errorf("procs = %v, %d, %v", p, hidden, err)
		}
	})
}

// M-22, M-23: frozen means that no instruction of the group runs, thawed that they do again.
func TestFreezeThaw(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, limits)
		_, n := startCounter(t, g)
		for range 3 {
			if err := g.Freeze(within(t, ages(10*time.Second))); err != nil {
				t.Fatal(err)
			}
			if f, err := frozenNow(g); !f || err != nil {
				t.Errorf("Frozen = %v, %v", f, err)
			}
			standsStill(t, n)
			at := atomic.LoadUint64(n)
			if err := g.Thaw(within(t, ages(10*time.Second))); err != nil {
				t.Fatal(err)
			}
			if f, err := frozenNow(g); f || err != nil {
				t.Errorf("after Thaw: Frozen = %v, %v", f, err)
			}
			for ctx := within(t, ages(10*time.Second)); atomic.LoadUint64(n) == at; {
				if ctx.Err() != nil {
					t.Fatal("does not run again")
				}
			}
		}
	})
}

// M-22: a group that stands still gives back what it has of files, and nothing in it dies or changes. An end of the time ends it.
func TestReclaim(t *testing.T) {
	const size = 16 << 20
	dir, err := os.MkdirTemp("/var/tmp", "agentrun-test-") // /tmp may be memory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "file")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	eachMode(t, func(t *testing.T) {
		// What is in nobody's cache is charged to whoever reads it.
		if err := errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
			t.Fatal(err)
		}
		g := create(t, limits)
		p := start(t, g, "cache "+file)
		p.expect("read <nil>")
		if err := g.Freeze(within(t, ages(10*time.Second))); err != nil {
			t.Fatal(err)
		}
		before, err := g.Stats()
		if err != nil || before.MemoryCurrent < size {
			t.Fatalf("uses %d, %v, want at least the file's %d", before.MemoryCurrent, err, size)
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Reclaim(over); err != nil {
			t.Errorf("without time: %v", err)
		}
		err = g.Reclaim(within(t, ages(10*time.Second)))
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skip("need: memory.reclaim, Linux 5.19: ", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		after, err := g.Stats()
		if err != nil || after.MemoryCurrent > before.MemoryCurrent-size/2 {
			t.Errorf("uses %d after %d, %v; want at least half of the file given back", after.MemoryCurrent, before.MemoryCurrent, err)
		}
		if f, err := frozenNow(g); !f || err != nil {
			t.Errorf("Frozen = %v, %v", f, err)
		}
		if n, err := g.OOMKills(); n != 0 || err != nil {
			t.Errorf("OOMKills = %d, %v", n, err)
		}
		if got := g.Limits(); got != limits {
			t.Errorf("limits %v, want %v", got, limits)
		}
		if err := g.Verify(); err != nil {
			t.Error(err)
		}
		if err := g.Thaw(within(t, ages(10*time.Second))); err != nil {
			t.Error(err)
		}
	})
}

// A write that lasts ends with its time.
func TestReclaimIsInterrupted(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	// More than a pipe holds. It gives up with what it has written, or with EINTR.
	if err := interruptibly(ctx, pipe, strings.Repeat("x", 4<<20)); err != nil && !errors.Is(err, unix.EINTR) {
		t.Errorf("got %v", err)
	}
	if ctx.Err() == nil {
		t.Error("it ended before its time")
	}
}

// On hybrid one that somebody has moved out of the cgroup2 tree can't be frozen: an error names it, nobody stays frozen, and a kill ends it.
func TestFreezeOutsideUnified(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, limits)
		p, n := startCounter(t, g)
		if u, ok := g.unified(); ok && g.mode == Hybrid {
			_, inside := startCounter(t, g)
			if err := writeFile(filepath.Join(u.mount, "cgroup.procs"), strconv.Itoa(p.pid())); err != nil {
				t.Fatal(err)
			}
			if err := g.Freeze(within(t, ages(10*time.Second))); err == nil || !strings.Contains(err.Error(), strconv.Itoa(p.pid())) {
				t.Errorf("Freeze = %v, want an error with %d", err, p.pid())
			}
			runsOn(t, inside)
			if n, err := g.Kill(within(t, ages(10*time.Second))); n != 2 || err != nil {
				t.Errorf("Kill = %d, %v", n, err)
			}
			return
		}
		if err := g.Freeze(within(t, ages(10*time.Second))); err != nil {
			t.Fatal(err)
		}
		if f, err := frozenNow(g); !f || err != nil {
			t.Errorf("Frozen = %v, %v", f, err)
		}
		standsStill(t, n)
		if err := g.Thaw(within(t, ages(10*time.Second))); err != nil {
			t.Error(err)
		}
	})
}

// M-23: on hybrid a process that is in the other hierarchies to have a child born in the cgroup2 tree, and then ends, doesn't keep a group from
// being frozen.
func TestFreezeMeetsABirth(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, limits)
		_, n := startCounter(t, g)
		p, _ := startCounter(t, g)
		u, ok := g.unified()
		if !ok || g.mode != Hybrid {
			return
		}
		if err := writeFile(filepath.Join(u.mount, "cgroup.procs"), strconv.Itoa(p.pid())); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			ended <- await(t.Context(), "frozen", true, func() (bool, error) { return g.Frozen(), nil }) // the freeze is under way
			_ = p.cmd.Process.Kill()
		}()
		if err := errors.Join(g.Freeze(within(t, ages(10*time.Second))), <-ended); err != nil {
			t.Fatal(err)
		}
		standsStill(t, n)
		if err := g.Thaw(within(t, ages(10*time.Second))); err != nil {
			t.Error(err)
		}
	})
}

// On hybrid a process that is only in the v1 groups isn't in the list that a kill begins with. It is killed and counted as the others.
func TestKillOutsideUnified(t *testing.T) {
	eachKill(t, func(t *testing.T, noKill bool) {
		for _, both := range []bool{true, false} {
			g := create(t, limits)
			g.noKillFile = noKill
			want := 1
			if both {
				want = 2
				startCounter(t, g)
			}
			p, _ := startCounter(t, g)
			if u, ok := g.unified(); ok && g.mode == Hybrid {
				if err := writeFile(filepath.Join(u.mount, "cgroup.procs"), strconv.Itoa(p.pid())); err != nil {
					t.Fatal(err)
				}
			}
			if n, err := g.Kill(within(t, ages(10*time.Second))); n != want || err != nil {
				t.Errorf("Kill = %d, %v, want %d", n, err, want)
			}
		}
	})
}

// M-22: a freeze that cannot be had ends at the deadline with the group running, and the group can still be killed.
func TestFreezeDeadline(t *testing.T) {
	eachKill(t, func(t *testing.T, noKill bool) {
		g := create(t, limits)
		g.noKillFile = noKill
		done, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Freeze(done); !errors.Is(err, context.Canceled) {
			t.Errorf("Freeze with an ended context = %v", err)
		}
		start(t, g, "uffd").expect("stuck")
		t0 := time.Now()
		err := g.Freeze(within(t, 150*time.Millisecond))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Freeze = %v, want DeadlineExceeded", err)
		}
		if d := time.Since(t0); d > ages(5*time.Second) {
			t.Errorf("Freeze took %v", d)
		}
		if err := g.Thaw(within(t, ages(10*time.Second))); err != nil {
			t.Errorf("Thaw after it: %v", err)
		}
		if n, err := g.Kill(within(t, ages(10*time.Second))); n != 1 || err != nil {
			t.Errorf("Kill = %d, %v", n, err)
		}
	})
}

// M-3, M-6: beyond the limit is an OOM kill that is counted.
func TestOOM(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, Limits{CPU: 1, Memory: 64 << 20, PIDs: 100})
		if n, err := g.OOMKills(); n != 0 || err != nil {
			t.Fatalf("OOMKills before = %d, %v", n, err)
		}
		p := start(t, g, "alloc 200")
		p.cmd.Wait()
		if ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
			t.Errorf("child ended by %v, want SIGKILL", p.cmd.ProcessState)
		}
		if n, err := g.OOMKills(); n < 1 || err != nil {
			t.Errorf("OOMKills = %d, %v", n, err)
		}
		s, err := g.Stats()
		if err != nil || s.OOMKills < 1 || s.MemoryPeak != -1 && (s.MemoryPeak < 60<<20 || s.MemoryPeak > 65<<20) { // a dying task may be charged a page over
			t.Errorf("Stats = %+v, %v", s, err)
		}
	})
}

// M-3: before the limit ends a group the kernel takes back and slows down; what a group waits for is told where the kernel knows it, and
// that it doesn't where not.
func TestM3SoftLimitAndPressure(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, Limits{CPU: 1, Memory: 64 << 20, PIDs: 100})
		for _, memory := range []int64{64 << 20, 1 << 30, 32 << 20} {
			if err := g.Update(Limits{CPU: 1, Memory: memory, PIDs: 100}); err != nil {
				t.Fatal(err)
			}
			got, err := readOptional(g.file("memory", g.files().soft))
			if want := memory - memory/32; err != nil || got != want && (g.mode == V2 || got != -1) {
				t.Errorf("soft limit below %d: got %d, %v, want %d", memory, got, err, want)
			}
		}
		p, err := g.Pressure()
		switch {
		case g.mode != V2 && !errors.Is(err, errors.ErrUnsupported):
			t.Errorf("version 1: got %+v, %v", p, err)
		case g.mode == V2 && err != nil && !errors.Is(err, errors.ErrUnsupported):
			t.Error(err)
		case p.CPU < 0 || p.CPU > 100 || p.Memory != 0 || p.IO != 0:
			t.Errorf("an empty group waits: %+v", p)
		}
	})
}

// H-11, M-3: the pids limit stops forks with EAGAIN.
func TestPidsLimit(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, Limits{CPU: 1, Memory: 256 << 20, PIDs: 40})
		p := start(t, g, "fork 100")
		var n, errno int
		fmt.Sscan(p.line(), &n, &errno)
		if n < 10 || n >= 40 || errno != int(unix.EAGAIN) {
			t.Errorf("forked %d, then errno %d", n, errno)
		}
		s, err := g.Stats()
		if err != nil || s.PIDs != 40 || count(t, g, "pids", "pids.events", "max") < 1 {
			t.Errorf("Stats = %+v, %v", s, err)
		}
	})
}

// M-22: limits of a live group go both ways; refused ones leave the old.
func TestUpdate(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, Limits{CPU: 0.5, Memory: 128 << 20, PIDs: 100})
		p := start(t, g, "alloc 80").expect("allocated")
		for _, l := range []Limits{{1, 512 << 20, 200}, {0.2, 256 << 20, 20}, {0.2, 256 << 20, 20}, {2, 1 << 30, 1000}, {0.5, 128 << 20, 30}} {
			if err := g.Update(l); err != nil {
				t.Fatalf("%+v: %v", l, err)
			}
			if err := g.Verify(); err != nil {
				t.Errorf("%+v: %v", l, err)
			}
		}
		before := g.Limits()
		if err := g.Update(Limits{}); err == nil || g.Limits() != before {
			t.Errorf("Update to nothing = %v", err)
		}
		// Below what is in use and cannot be reclaimed.
		err := g.Update(Limits{CPU: 1, Memory: 16 << 20, PIDs: 30})
		if g.mode == V2 {
			if err != nil {
				t.Errorf("Update below use = %v", err)
			}
			p.cmd.Wait()
			if n, err := g.OOMKills(); n < 1 || err != nil {
				t.Errorf("OOMKills = %d, %v", n, err)
			}
			return
		}
		if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "memory.limit_in_bytes") {
			t.Errorf("Update below use = %v, want EBUSY naming the file", err)
		}
		if g.Limits() != before {
			t.Errorf("Limits = %+v, want %+v", g.Limits(), before)
		}
		if err := g.Verify(); err != nil {
			t.Errorf("after the refused Update: %v", err)
		}
	})
}

// M-3: the CPU quota holds.
func TestCPUQuota(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, Limits{CPU: 0.2, Memory: 256 << 20, PIDs: 100})
		start(t, g, "spin").expect("ready")
		first, err := g.Stats()
		if err != nil {
			t.Fatal(err)
		}
		ctx := within(t, ages(20*time.Second))
		throttled := func() int64 { return count(t, g, "cpu", "cpu.stat", "nr_throttled") }
		t0, five := time.Now(), throttled()+5
		for throttled() < five {
			if ctx.Err() != nil {
				t.Fatal(ctx.Err())
			}
			time.Sleep(5 * time.Millisecond) // leaves the processor to the child
		}
		s, err := g.Stats()
		if used, wall := s.CPU-first.CPU, time.Since(t0); err != nil || used > wall/2 {
			t.Errorf("used %v in %v at 0.2 cores; %+v, %v", used, wall, s, err)
		}
	})
}

// M-5: everything of the name goes, in hierarchies we do not use and with children; twice is fine; the living are an error.
func TestRemove(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, limits)
		for _, h := range g.hiers {
			if err := os.MkdirAll(filepath.Join(h.dir, "a/b"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		p := start(t, g, "sleep").expect("ready")
		ctx := within(t, 50*time.Millisecond)
		if err := g.Remove(ctx); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), fmt.Sprint(p.pid())) {
			t.Errorf("Remove with a process inside = %v", err)
		}
		if r, err := RemoveParentIfEmpty(parent); r || err != nil {
			t.Errorf("RemoveParentIfEmpty = %v, %v with a child", r, err)
		}
		if n, err := g.Kill(within(t, ages(10*time.Second))); n != 1 || err != nil {
			t.Errorf("Kill = %d, %v", n, err)
		}
		// The child is still a zombie here: not reaped before Remove.
		for range 2 {
			if err := g.Remove(within(t, ages(10*time.Second))); err != nil {
				t.Error(err)
			}
			mustBeGone(t, g)
		}
		if r, err := RemoveParentIfEmpty(parent); !r || err != nil {
			t.Errorf("RemoveParentIfEmpty = %v, %v", r, err)
		}
	})
}

// M-5: what a killed supervisor left is removed by name, the living are not touched.
func TestSweep(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		keep, dead, empty := create(t, limits), create(t, limits), create(t, limits)
		kp := start(t, keep, "sleep").expect("ready")
		start(t, dead, "fork 5").expect("5 0")
		last := dead.hiers[len(dead.hiers)-1] // a name in one hierarchy only, as a half-done removal leaves it
		half := filepath.Join(filepath.Dir(last.dir), "half")
		odd := filepath.Join(filepath.Dir(last.dir), "not.ours")
		for _, d := range []string{half, odd} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		defer os.Remove(odd)
		asked := map[string]int{}
		removed, err := Sweep(within(t, ages(20*time.Second)), parent, func(n string) bool {
			asked[n]++
			return n == path.Base(keep.Name())
		})
		if !errors.Is(err, errBadName) || !strings.Contains(err.Error(), "not.ours") {
			t.Errorf("Sweep = %v, want the odd name reported", err)
		}
		want := []string{path.Base(dead.Name()), path.Base(empty.Name()), "half"}
		slices.Sort(want)
		if d := cmp.Diff(want, removed); d != "" {
			t.Errorf("removed (-want +got):\n%s", d)
		}
		if len(asked) != 4 || asked[path.Base(dead.Name())] != 1 {
			t.Errorf("alive was asked %v", asked)
		}
		mustBeGone(t, dead)
		mustBeGone(t, empty)
		if p, err := keep.Pids(); !slices.Equal(p, []int{kp.pid()}) || err != nil {
			t.Errorf("the living: %v %v", p, err)
		}
		if err := os.Remove(odd); err != nil {
			t.Errorf("the odd one was touched: %v", err)
		}
		if r, err := Sweep(t.Context(), "agentrun-test-none", func(string) bool { return false }); len(r) != 0 || err != nil {
			t.Errorf("Sweep of nothing = %v, %v", r, err)
		}
	})
}

// The first runs after a boot may come at once: each finds the parent there or not, its controllers enabled, not, or just about to be.
func TestCreateFirstAtOnce(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		for round := range 4 {
			errs := make(chan error)
			const runs = 8
			begin := make(chan struct{})
			for i := range runs {
				go func() {
					<-begin
					g, err := Create(fmt.Sprintf("%s/f%d-%d", parent, round, i), limits)
					if err == nil {
						err = g.Remove(context.Background())
					}
					errs <- err
				}()
			}
			close(begin)
			for range runs {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			if _, err := RemoveParentIfEmpty(parent); err != nil {
				t.Error(err)
			}
		}
	})
}

// M-5: many groups made and removed at once share and drop one parent.
func TestConcurrent(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		errs := make(chan error)
		const workers = 8
		for w := range workers {
			go func() {
				var err error
				for i := 0; i < 10 && err == nil; i++ {
					var g *Group
					if g, err = Create(fmt.Sprintf("%s/w%d-%d", parent, w, i), limits); err == nil {
						err = g.Remove(context.Background())
						_, e := RemoveParentIfEmpty(parent)
						err = errors.Join(err, e)
					}
				}
				errs <- err
			}()
		}
		for range workers {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

// count reads one of the kernel's counters.
func count(t *testing.T, g *Group, controller, file, key string) int64 {
	t.Helper()
	if g.mode == V2 && file == "pids.events" {
		file = homeName + "/" + file // counted where the process is, before Linux 6.11
	}
	k, err := readKeys(g.file(controller, file), key)
	if err != nil {
		t.Fatal(err)
	}
	return k[0]
}

// frozenNow says whether all processes are stopped, by the kernel's word.
func frozenNow(g *Group) (bool, error) {
	if g.unifiedFile("cgroup.freeze") != "" {
		u, _ := g.unified()
		k, err := readKeys(filepath.Join(u.dir, "cgroup.events"), "frozen")
		if err != nil || k[0] != 1 {
			return false, err
		}
		if g.mode == V2 {
			return true, nil
		}
		now, err := g.census()
		return err == nil && len(now.outside) == 0, err
	}
	s, err := readFile(g.v1Freezer())
	return s == "FROZEN", err
}

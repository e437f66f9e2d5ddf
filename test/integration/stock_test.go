// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// stock is everything a run could leave on the host (M-5), each item in words.
type stock map[string]bool

// firstSandboxUID is where the uid ranges of runs begin. No other process on
// the host has such a uid, so they find every agent, also one that fled its
// cgroup or lost its supervisor.
const firstSandboxUID = 0x70000000

func takeStock() stock {
	s := stock{}
	for _, line := range lines("/proc/self/mountinfo") {
		if at := ourMount(line); at != "" {
			s["mount "+at] = true
		}
	}
	all := processes()
	foreign, foreignRuns := neighbours(all)
	for _, dir := range cgroupDirs() {
		if !foreignRuns[filepath.Base(dir)] {
			s["cgroup "+dir] = true
		}
	}
	below := map[int]bool{}
	for _, p := range descendants(os.Getpid()) {
		below[p.pid] = true
	}
	for _, p := range all {
		if foreign[p.pid] {
			continue
		}
		agents := p.uid >= firstSandboxUID
		if agents {
			s[fmt.Sprintf("process %d uid %d %s (state %s)", p.pid, p.uid, p.comm, p.state)] = true
		}
		// A supervisor, or a zombie that nobody waited for.
		started := base != "" && strings.Contains(p.cmdline(), base) && p.pid != os.Getpid()
		if started {
			s[fmt.Sprintf("supervisor %d", p.pid)] = true
		}
		if (agents || started || below[p.pid]) && p.netns != "" {
			s["netns "+p.netns] = true
		}
	}
	if runDir != "" {
		filepath.WalkDir(runDir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && slices.Contains([]string{"seccomp", "checked"}, d.Name()) {
				return filepath.SkipDir // compiled filters and checks of gateway.yaml, kept on purpose and bounded
			}
			if err == nil && !d.IsDir() {
				s["run folder file "+path] = true
			}
			return nil
		})
		ids, _ := os.ReadDir(filepath.Join(runDir, "sandboxes"))
		for _, id := range ids {
			s["run folder of "+id.Name()] = true
		}
	}
	for _, dir := range []string{os.TempDir(), "/tmp", "/dev/shm"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if ourTemporary(dir, e.Name()) {
				s["temporary file "+filepath.Join(dir, e.Name())] = true
			}
		}
	}
	return s
}

// ourMount returns where a line of mountinfo mounts something, if it is agentrun's and no other tests'. What agentrun mounts, it mounts
// below a folder of its own name or from one; what else appears on the host is another program's.
func ourMount(line string) string {
	f := strings.Fields(line)
	if len(f) < 5 || !strings.Contains(line, "agentrun") {
		return ""
	}
	for _, part := range f {
		if strings.Contains(part, "/agentrun-test-") && (base == "" || !strings.Contains(part, base)) {
			return ""
		}
	}
	return f[4]
}

var ofUser = regexp.MustCompile(`^agentrun-(\d+)(-|$)`)

// ourTemporary tells whether a name in a folder for temporary files can be of these tests' runs. The tests' own folder is theirs whole;
// in the others runc and the runs of other users, other tests and benches have names too.
func ourTemporary(dir, name string) bool {
	if base != "" && strings.HasPrefix(dir, base) {
		return strings.Contains(name, "agentrun") || strings.HasPrefix(name, "runc")
	}
	for _, other := range []string{"agentrun-test-", "agentrun-bench-", "agentrun-vm."} {
		if strings.HasPrefix(name, other) {
			return false
		}
	}
	user := ofUser.FindStringSubmatch(name)
	return strings.Contains(name, "agentrun") && (user == nil || user[1] == fmt.Sprint(ordinary))
}

// supervisor matches the programs that start sandboxes: the binary, its sealed
// copy in memory, and the tests of other packages.
var supervisor = regexp.MustCompile(`agentrun|runc|\.test( \(deleted\))?$`)

// neighbours are the sandboxes whose supervisor lives and is not below this
// process: somebody else on the machine uses agentrun. Whatever has no living
// supervisor is counted as ours, unless it is claimed.
func neighbours(all []process) (pids map[int]bool, runs map[string]bool) {
	byPID := map[int]process{}
	for _, p := range all {
		byPID[p.pid] = p
	}
	pids, runs = map[int]bool{}, map[string]bool{}
	for _, p := range all {
		up, top := p, p
		ours := false
		for up.pid > 1 {
			if up.uid >= firstSandboxUID {
				top = byPID[up.ppid] // in the end: the first that is no sandbox's
			}
			ours = ours || up.pid == os.Getpid()
			up = byPID[up.ppid]
		}
		orphan := top.pid <= 1 || filepath.Base(top.exe) == "testtable" // test/run.sh has it adopt them
		if p.uid < firstSandboxUID || ours || orphan || !supervisor.MatchString(top.exe) {
			continue
		}
		pids[p.pid] = true
		for _, line := range lines(fmt.Sprintf("/proc/%d/cgroup", p.pid)) {
			runs[filepath.Base(groupOf(line))] = true
		}
	}
	return pids, runs
}

// leftAfter tells what is new since the stock was taken and stays. The kernel
// is given time: it drops namespaces and groups after the last process is gone,
// not at once. What comes and goes meanwhile is somebody else's.
func (before stock) leftAfter(limit time.Duration) []string {
	deadline := time.Now().Add(time.Duration(slow * float64(limit)))
	var left stock
	others := map[string]bool{}
	var asked time.Time
	for {
		now := takeStock()
		if left == nil {
			left = now
		}
		for item := range left {
			if before[item] || !now[item] {
				delete(left, item)
			}
		}
		over := time.Now().After(deadline)
		if len(left) > 0 && (over || time.Since(asked) > 250*time.Millisecond) { // it looks at all that is open on the host
			asked = time.Now()
			claimed(others)
		}
		maps.DeleteFunc(left, func(item string, _ bool) bool {
			return strings.HasPrefix(item, "cgroup ") && others[filepath.Base(item)]
		})
		if len(left) == 0 || over {
			return slices.Sorted(maps.Keys(left))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// claimed adds the ids of somebody else's runs, which need not have a process yet, or any more: a lock that a supervisor holds, or a
// folder in a run folder, that is not below base.
func claimed(ids map[string]bool) {
	for _, runs := range []string{"/run/agentrun", "/tmp/agentrun-test-*/run", "/tmp/agentrun-test-*/node-*/run"} {
		found, _ := filepath.Glob(filepath.Join(runs, "sandboxes", "*"))
		for _, at := range found {
			if !strings.HasPrefix(at, base+"/") {
				ids[filepath.Base(at)] = true
			}
		}
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		at, _ := os.Readlink(fd)
		if filepath.Base(filepath.Dir(at)) == "locks" && !strings.HasPrefix(at, base+"/") {
			ids[filepath.Base(at)] = true
		}
	}
}

type process struct {
	pid   int
	uid   uint32
	comm  string
	state string
	exe   string
	netns string
	ppid  int
	start string // start time, tells apart a pid that was used again

	exiting bool // dead: it never runs a program's code again, and may have to wait for others before it is a zombie
}

// pfExiting is PF_EXITING of Linux' include/linux/sched.h, a flag of /proc/PID/stat.
const pfExiting = 0x4

func processes() []process {
	entries, _ := os.ReadDir("/proc")
	var all []process
	for _, e := range entries {
		var p process
		if _, err := fmt.Sscan(e.Name(), &p.pid); err != nil {
			continue
		}
		if p.read() {
			all = append(all, p)
		}
	}
	return all
}

func (p *process) read() bool {
	dir := fmt.Sprintf("/proc/%d", p.pid)
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return false
	}
	open, end := strings.IndexByte(string(b), '('), strings.LastIndexByte(string(b), ')')
	f := strings.Fields(string(b[end+1:]))
	p.comm, p.state, p.start = string(b[open+1:end]), f[0], f[19]
	flags, _ := strconv.ParseUint(f[6], 10, 64)
	p.exiting = flags&pfExiting != 0
	fmt.Sscan(f[1], &p.ppid)
	var st unix.Stat_t
	// The folder of a process that is not dumpable belongs to root; the uid
	// line is always true.
	if unix.Stat(dir, &st) == nil {
		p.uid = st.Uid
	}
	for _, line := range lines(dir + "/status") {
		if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
			fmt.Sscan(rest, &p.uid)
		}
	}
	p.exe, _ = os.Readlink(dir + "/exe")
	p.netns, _ = os.Readlink(dir + "/ns/net")
	return true
}

// descendants are the processes below pid, as the host sees them.
func descendants(pid int) []process {
	children := map[int][]process{}
	for _, p := range processes() {
		children[p.ppid] = append(children[p.ppid], p)
	}
	var all []process
	todo := []int{pid}
	for len(todo) > 0 {
		c := children[todo[0]]
		todo = todo[1:]
		for _, p := range c {
			all = append(all, p)
			todo = append(todo, p.pid)
		}
	}
	return all
}

func (p process) cmdline() string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
	return string(b)
}

// alive tells whether it still runs; a zombie is dead.
func (p process) alive() bool {
	now := process{pid: p.pid}
	return now.read() && now.start == p.start && now.state != "Z" && now.state != "X"
}

// cgroupDirs are agentrun's groups in every hierarchy. Those of other tests
// on the machine have names of their own.
func cgroupDirs() []string {
	var dirs []string
	filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		if strings.HasPrefix(d.Name(), "agentrun-test-") || strings.HasPrefix(d.Name(), "agentrun-probe-") {
			return filepath.SkipDir
		}
		if strings.HasPrefix(d.Name(), "agentrun") {
			groups, _ := os.ReadDir(path)
			for _, g := range groups {
				if g.IsDir() {
					dirs = append(dirs, filepath.Join(path, g.Name()))
				}
			}
			return filepath.SkipDir
		}
		return nil
	})
	return dirs
}

func lines(path string) []string {
	b, _ := os.ReadFile(path)
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// The leak check judges what is agentrun's and this run's, and nothing that others do on the machine meanwhile.
func TestStockIsOurs(t *testing.T) {
	tests := filepath.Join("/tmp", "agentrun-test-0")
	t.Run("mounts", func(t *testing.T) {
		const line = "30 25 0:26 %s %s rw - tmpfs %s rw"
		for _, c := range []struct {
			root, at, source string
			want             bool
		}{
			{"/", "/mnt/usb", "/dev/sdb1", false},
			{"/", "/run/agentrun/sandboxes/x/root", "tmpfs", true},
			{"/", filepath.Join(base, "run/sandboxes/x"), "tmpfs", true},
			{filepath.Join(base, "work"), "/usr/share/misc", "/dev/sda1", true},
			{"/", filepath.Join(tests, "run"), "tmpfs", false},
			{filepath.Join(tests, "work"), "/usr/share/misc", "/dev/sda1", false},
		} {
			if got := ourMount(fmt.Sprintf(line, c.root, c.at, c.source)); (got != "") != c.want || c.want && got != c.at {
				t.Errorf("%s at %s: got %q, want it counted %t", c.root, c.at, got, c.want)
			}
		}
	})
	t.Run("temporary files", func(t *testing.T) {
		for name, want := range map[string]bool{
			"agentrun-test-1": false, "agentrun-vm.x": false, "agentrun-1000": false, "agentrun-1000-x": false, "runc-process1": false, "vim": false,
			fmt.Sprintf("agentrun-%d", ordinary): true, fmt.Sprintf("agentrun-%d-x", ordinary): true, "agentrun-x": true,
		} {
			if got := ourTemporary("/tmp", name); got != want {
				t.Errorf("/tmp/%s: got %t, want %t", name, got, want)
			}
		}
		if !ourTemporary(os.TempDir(), "runc-process1") {
			t.Error("a file of runc's in the tests' own folder isn't counted")
		}
	})
	t.Run("namespaces", func(t *testing.T) {
		need(t, hostcaps.Root)
		needProgram(t, "unshare", "setsid")
		before := takeStock()
		// Its parent ends at once, so it is nobody's.
		out, err := exec.Command("sh", "-c", "setsid unshare --net sh -c 'echo $$; exec sleep 60 <&- >&- 2>&-' & read x").Output()
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			t.Fatal(err)
		}
		var pid int
		if _, err := fmt.Sscan(string(out), &pid); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		defer unix.Kill(pid, unix.SIGKILL)
		if left := before.leftAfter(0); len(left) > 0 {
			t.Errorf("got %q, want nothing of another program's", left)
		}
	})
	t.Run("cgroups", func(t *testing.T) {
		other := t.TempDir() // stands for another tests' folder: claimed asks whether it is below base
		defer func(was string) { base = was }(base)
		base = "/nowhere"
		lock := write(t, filepath.Join(other, "locks", "ofanother"), "", 0o600)
		f, err := os.Open(lock)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		ids := map[string]bool{}
		claimed(ids)
		if !ids["ofanother"] || ids["ofnobody"] {
			t.Errorf("got %v, want the one run whose lock is held", ids)
		}
		base = other
		clear(ids)
		if claimed(ids); ids["ofanother"] {
			t.Errorf("got %v, want no run of our own", ids)
		}
	})
}

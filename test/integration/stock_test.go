// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
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
		f := strings.Fields(line)
		if len(f) > 4 && (base == "" || !strings.HasPrefix(f[4], base)) {
			s["mount "+f[4]] = true
		}
		if len(f) > 4 && base != "" && strings.HasPrefix(f[4], base) {
			s["mount "+f[4]+" (in the tests' folder)"] = true
		}
	}
	all := processes()
	foreign, foreignRuns := neighbours(all)
	for _, dir := range cgroupDirs() {
		if !foreignRuns[filepath.Base(dir)] {
			s["cgroup "+dir] = true
		}
	}
	for _, p := range all {
		if foreign[p.pid] {
			continue
		}
		if p.uid >= firstSandboxUID {
			s[fmt.Sprintf("process %d uid %d %s (state %s)", p.pid, p.uid, p.comm, p.state)] = true
		}
		// A supervisor, or a zombie that nobody waited for.
		if base != "" && strings.Contains(p.cmdline(), base) && p.pid != os.Getpid() {
			s[fmt.Sprintf("supervisor %d", p.pid)] = true
		}
		s["netns "+p.netns] = true
	}
	delete(s, "netns ")
	if runDir != "" {
		filepath.WalkDir(runDir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && d.Name() == "seccomp" {
				return filepath.SkipDir // compiled filters, kept on purpose: one per profile
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
			name := e.Name()
			if strings.HasPrefix(name, "agentrun-test-") || strings.HasPrefix(name, "agentrun-bench-") {
				continue // of tests and benches
			}
			if strings.Contains(name, "agentrun") || strings.HasPrefix(name, "runc") {
				s["temporary file "+filepath.Join(dir, name)] = true
			}
		}
	}
	return s
}

// supervisor matches the programs that start sandboxes: the binary, its sealed
// copy in memory, and the tests of other packages.
var supervisor = regexp.MustCompile(`agentrun|runc|\.test( \(deleted\))?$`)

// neighbours are the sandboxes whose supervisor lives and is not below this
// process: somebody else on the machine uses agentrun. Whatever has no living
// supervisor is counted as ours.
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
		if p.uid < firstSandboxUID || ours || top.pid <= 1 || !supervisor.MatchString(top.exe) {
			continue
		}
		pids[p.pid] = true
		for _, line := range lines(fmt.Sprintf("/proc/%d/cgroup", p.pid)) {
			runs[filepath.Base(line)] = true
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
		if len(left) == 0 || time.Now().After(deadline) {
			return slices.Sorted(maps.Keys(left))
		}
		time.Sleep(10 * time.Millisecond)
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
}

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

// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"agentrun/internal/read"
)

// Mode is how the host offers cgroups. The zero value is Invalid and nothing works with it.
type Mode int

// The modes. Hybrid is v1 with a cgroup2 tree beside it that has no controllers of ours: it is used for kill, freeze, what was used of
// the processors, and devices.
const (
	Invalid Mode = iota
	V1
	V2
	Hybrid
)

func (m Mode) String() string { return [...]string{"invalid", "v1", "v2", "hybrid"}[m] }

var (
	neededV1 = []string{"cpu", "cpuacct", "memory", "pids", "freezer", "devices"}
	// memory first: it is refused where the parent holds processes, before cpu and pids, which are not, turn that parent into a threaded domain.
	neededV2 = []string{"memory", "cpu", "pids"}
	// Names in a v1 mount's super options that are controllers; everything else there ("rw", "xattr", "release_agent=…") is not.
	knownV1 = []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids",
		"net_cls", "net_prio", "perf_event", "hugetlb", "rdma", "misc", "dmem", "debug"}
)

// Host says what cgroup hierarchies this machine has.
type Host struct {
	Mode Mode
	// V1 maps every mounted v1 controller, and named hierarchies as "name=systemd", to its mount point.
	V1 map[string]string
	// Unified is the mount point of the cgroup2 tree, "" without one.
	Unified string
	// Roots is by mount point what a mount shows of its hierarchy where that isn't all, as this process' cgroup namespace has it: "/docker/x"
	// in a container, "/../.." where the namespace began below.
	Roots map[string]string
	// Missing are the controllers agentrun needs and did not find.
	Missing []string
}

// lacks is the error about Missing.
func (h Host) lacks() error {
	hint := "mount it below /sys/fs/cgroup"
	if h.Mode == V2 {
		hint = "see cgroup_disable= on the kernel command line, and v1 mounts that hold it"
	}
	return fmt.Errorf("cgroup %s: controller %s is missing (%s)", h.Mode, strings.Join(h.Missing, ", "), hint)
}

// ofTheTree: on hybrid no group is made in this hierarchy, as the cgroup2 tree does without a controller what it is for.
func ofTheTree(controller string) bool {
	return controller == "cpuacct" || controller == "freezer" || controller == "devices" && prepared.Load()
}

var errNoCgroups = errors.New("no cgroup file system is mounted")

// Inspect reads /proc/self/mountinfo afresh. It succeeds also when needed controllers are missing: Host.Missing names them.
func Inspect() (Host, error) {
	text, err := read.Kernel("/proc/self/mountinfo")
	if err != nil {
		return Host{}, err
	}
	v1, unified, roots := parseMounts(text)
	if shutIn(text, unified, roots[unified]) {
		return Host{}, errShutIn
	}
	var v2ctrl []string
	if unified != "" {
		c, err := os.ReadFile(filepath.Join(unified, "cgroup.controllers"))
		if err != nil {
			return Host{}, err
		}
		v2ctrl = strings.Fields(string(c))
	}
	h, err := classify(v1, unified, v2ctrl)
	h.Roots = roots
	return h, err
}

// errShutIn: whoever is in such a namespace may move into no group above it (cgroup-v2.rst, "nsdelegate"), and ENOENT is all that is said.
var errShutIn = errors.New("the cgroup namespace of this process begins below the cgroup2 tree that is mounted, which lets nobody out of it (nsdelegate): " +
	"call agentrun from outside of that namespace, or mount cgroup2 in it")

func shutIn(mountinfo, unified, root string) bool {
	if !strings.HasPrefix(root, "/..") {
		return false
	}
	for line := range strings.Lines(mountinfo) {
		if strings.Contains(line, " "+root+" "+unified+" ") && strings.Contains(line, "nsdelegate") {
			return true
		}
	}
	return false
}

// classify is the pure part of Inspect. v2 is chosen when its tree has everything, also beside stray v1 mounts (net_cls, name=systemd);
// a tree without our controllers beside v1 is hybrid.
func classify(v1 map[string]string, unified string, v2ctrl []string) (Host, error) {
	h := Host{V1: v1, Unified: unified}
	lacks := func(have, want []string) (out []string) {
		for _, c := range want {
			if !slices.Contains(have, c) {
				out = append(out, c)
			}
		}
		return out
	}
	var v1have []string
	for c := range v1 {
		if !strings.HasPrefix(c, "name=") {
			v1have = append(v1have, c)
		}
	}
	missV1, missV2 := lacks(v1have, neededV1), lacks(v2ctrl, neededV2)
	switch {
	case unified != "" && (len(missV2) == 0 || len(missV1) == len(neededV1)):
		h.Mode, h.Missing = V2, missV2
	case len(v1have) > 0:
		h.Mode, h.Missing = V1, missV1
		if unified != "" {
			h.Mode = Hybrid
		}
	default:
		return Host{}, errNoCgroups
	}
	return h, nil
}

// parseMounts finds the v1 mount point per controller and the cgroup2 mount point, and the roots of those that have one. Of several mounts
// of one hierarchy the one below /sys/fs/cgroup wins, else the first.
func parseMounts(mountinfo string) (v1 map[string]string, unified string, roots map[string]string) {
	v1, roots = map[string]string{}, map[string]string{}
	better := func(old, new string) bool {
		return old == "" || !strings.HasPrefix(old, "/sys/fs/cgroup") && strings.HasPrefix(new, "/sys/fs/cgroup")
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(line, " - ")
		lf, rf := strings.Fields(left), strings.Fields(right)
		if !ok || len(lf) < 6 || len(rf) < 3 {
			continue
		}
		at := unescape.Replace(lf[4])
		if delete(roots, at); lf[3] != "/" { // the later is on top
			roots[at] = unescape.Replace(lf[3])
		}
		switch rf[0] {
		case "cgroup2":
			if better(unified, at) {
				unified = at
			}
		case "cgroup":
			for _, o := range strings.Split(rf[2], ",") {
				if (slices.Contains(knownV1, o) || strings.HasPrefix(o, "name=")) && better(v1[o], at) {
					v1[o] = at
				}
			}
		}
	}
	return v1, unified, roots
}

var hostCache struct {
	mu sync.Mutex
	h  *Host
}

// host is Inspect with its conclusive answer kept: a host does not change its cgroup layout under running groups, and mountinfo grows
// with every sandbox. If a hierarchy were unmounted all the same, checkFS below turns the stale answer into an error.
func host() (Host, error) {
	hostCache.mu.Lock()
	defer hostCache.mu.Unlock()
	if hostCache.h != nil {
		return *hostCache.h, nil
	}
	h, err := Inspect()
	if err != nil {
		return Host{}, err
	}
	if len(h.Missing) > 0 {
		return h, h.lacks()
	}
	hostCache.h = &h
	return h, nil
}

// checkFS refuses a directory that is not in a cgroup file system. Without it a missing mount is a silent no-op: mkdir and file writes on
// the tmpfs at /sys/fs/cgroup succeed (the files are opened with O_CREAT) and limit nothing.
func checkFS(dir string, v2 bool) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	want := int64(unix.CGROUP_SUPER_MAGIC)
	if v2 {
		want = unix.CGROUP2_SUPER_MAGIC
	}
	if int64(st.Type) != want {
		return fmt.Errorf("%s is not in a cgroup file system (type %#x)", dir, st.Type)
	}
	return nil
}

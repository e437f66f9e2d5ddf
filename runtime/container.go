// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"

	libcgroups "github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // libcontainer's device rules need it registered
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"agentrun/internal/read"
)

// containerConfig is what libcontainer is told: namespaces, ids, no capability, no_new_privs, and the
// one mount that must be made inside (proc belongs to the pid namespace). Everything else of the root
// view is already mounted beneath the root it is given.
func (l *launch) containerConfig() (*configs.Config, error) {
	network, err := l.network()
	if err != nil {
		return nil, err
	}
	var ids []configs.IDMap
	for _, m := range l.ids.inside {
		ids = append(ids, configs.IDMap{ContainerID: int64(m.inside), HostID: int64(m.outside), Size: int64(m.count)})
	}
	oom := oomScore(l.plan.Ring)
	c := &configs.Config{
		OomScoreAdj:       &oom,
		Rootfs:            l.root.Path,
		UIDMappings:       ids,
		GIDMappings:       ids,
		Hostname:          l.plan.Hostname,
		ParentDeathSignal: int(unix.SIGKILL),
		Capabilities:      &configs.Capabilities{}, // empty: none in any set, the bounding set included
		NoNewPrivileges:   true,
		RootPropagation:   unix.MS_PRIVATE | unix.MS_REC,
		Cgroups: &libcgroups.Cgroup{
			Path:      "/" + l.group.Home(),
			Resources: &libcgroups.Resources{Devices: deviceRules()},
		},
		Mounts: []*configs.Mount{
			// Whole for the moment, in which nothing runs in it but our own init: ProcOptions come with
			// showFacts, and the probe looks whether they are there. subset=pid: no /proc/sys, kcore, kallsyms,
			// sysrq-trigger, … to mask one by one (CVE-2025-31133 and CVE-2025-52881 were races on such
			// masks). Linux 5.8. Read-only: loginuid and projid_map
			// take one write from anybody and keep it, the first of them into every record that the host's
			// audit makes of the process (proc(5)); an AppArmor profile is changed by attr/. What ordinary
			// programs write there are hints (oom_score_adj, comm of another thread), and they go on without.
			// /proc/self/fd/N leads out of this mount, so it opens what it did.
			{Device: "proc", Source: "proc", Destination: "/proc",
				Flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY},
			// A bind on /dev is libcontainer's sign to leave /dev as it finds it; ours is complete.
			{Device: "bind", Source: l.root.Path + "/dev", Destination: "/dev", Flags: unix.MS_BIND | unix.MS_REC},
		},
	}
	if l.plan.bare {
		c.RootlessCgroups, c.Cgroups.Rootless, c.Cgroups.Path, c.Cgroups.Name = true, true, "", l.plan.ID
	}
	for _, ns := range l.plan.Namespaces {
		n := configs.Namespace{Type: namespaceTypes[ns]}
		if ns == "net" {
			n.Path = network.Path()
		}
		c.Namespaces = append(c.Namespaces, n)
		if ns == "time" {
			if c.TimeOffsets, err = startAtZero(); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

// oomScore is what the processes of a sandbox have as oom_score_adj (proc_pid_oom_score_adj(5)): where the host runs out of memory, the
// less privileged end first, and agents before anything of the host's. Without it they would have the supervisor's, which a service
// manager may have set to be spared. A process may raise its own, never lower it without a capability; ours, if higher, is kept.
func oomScore(ring int) int {
	score := 300 * max(min(ring, 3), 1)
	if own, err := read.Kernel("/proc/self/oom_score_adj"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(own)); err == nil {
			score = max(score, n)
		}
	}
	return score
}

// openCgroups lets libcontainer's library open the cgroup tree, which it does once per process and keeps. Had
// it done so on the thread of a run, whose mount namespace ends with it, every later run of this process
// would be refused.
func openCgroups() {
	if f, err := libcgroups.OpenFile("/sys/fs/cgroup", "cgroup.procs", unix.O_RDONLY); err == nil { // absent on v1: it is about the folder
		f.Close()
	}
}

// startAtZero lets the sandbox's clocks begin with it: the host's uptime tells which kernel fixes it runs
// without, and ties two runs on one host together (time_namespaces(7)).
func startAtZero() (map[string]specs.LinuxTimeOffset, error) {
	own, err := read.Kernel("/proc/self/timens_offsets")
	if err != nil {
		return nil, err
	}
	offsets := map[string]specs.LinuxTimeOffset{}
	for name, clock := range map[string]int32{"monotonic": unix.CLOCK_MONOTONIC, "boottime": unix.CLOCK_BOOTTIME} {
		var now unix.Timespec
		if err := unix.ClockGettime(clock, &now); err != nil {
			return nil, os.NewSyscallError("clock_gettime", err)
		}
		// An offset counts from the machine's clock, and what we read from ours, which differs if we are in a
		// time namespace ourselves (time_namespaces(7)). Whole seconds of what has passed: the result must
		// not be negative.
		o, err := ownOffset(own, name)
		if err != nil {
			return nil, err
		}
		o.Secs -= now.Sec
		offsets[name] = o
	}
	return offsets, nil
}

// ownOffset finds a clock's line in /proc/self/timens_offsets: its name, seconds, nanoseconds.
func ownOffset(table, clock string) (o specs.LinuxTimeOffset, err error) {
	for line := range strings.Lines(table) {
		var name string
		if n, err := fmt.Sscan(line, &name, &o.Secs, &o.Nanosecs); n == 3 && err == nil && name == clock {
			return o, nil
		}
	}
	return specs.LinuxTimeOffset{}, fmt.Errorf("read /proc/self/timens_offsets: no line for %s in %q", clock, table)
}

var namespaceTypes = map[string]configs.NamespaceType{
	"user": configs.NEWUSER, "pid": configs.NEWPID, "mnt": configs.NEWNS, "net": configs.NEWNET,
	"ipc": configs.NEWIPC, "uts": configs.NEWUTS, "cgroup": configs.NEWCGROUP, "time": configs.NEWTIME,
}

// deviceRules are the devices a sandbox may open, whatever nodes it may come to see. The agent can make
// no node (no CAP_MKNOD, nodev mounts); this is the wall behind that one.
func deviceRules() []*devices.Rule {
	char := func(major, minor int64) *devices.Rule {
		return &devices.Rule{Type: devices.CharDevice, Major: major, Minor: minor, Permissions: "rw", Allow: true}
	}
	return []*devices.Rule{
		{Type: devices.WildcardDevice, Major: devices.Wildcard, Minor: devices.Wildcard, Permissions: "rwm"},
		char(1, 3), char(1, 5), char(1, 7), char(1, 8), char(1, 9), // null, zero, full, random, urandom
		char(5, 0), char(5, 2), char(136, devices.Wildcard), // tty, ptmx, pts/*
	}
}

func (p *Plan) cgroupOf() string { return cmp.Or(p.within, cgroupParent) + "/" + p.ID }

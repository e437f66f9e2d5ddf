// SPDX-License-Identifier: Apache-2.0

package hostcaps

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"agentrun/internal/read"
	"agentrun/internal/rootless"
)

// NewMountAPI (cheap): open_tree, move_mount, fsopen (5.2) and mount_setattr
// (5.12). Each is called with arguments that are refused before privilege or
// paths are looked at.
var NewMountAPI = &Probe{
	Name: "new-mount-api", Since: "5.12",
	Loses: "the root view can't be built from file descriptors, where no link can be swapped in: no sandbox is started",
	Get:   "a kernel from 5.12",
	try: func() error {
		// An unknown flag: EINVAL (open_tree(2)). ENOSYS if there is no such call.
		if _, err := unix.OpenTree(unix.AT_FDCWD, "/", 1<<30); !errors.Is(err, unix.EINVAL) {
			return classify("open_tree(2)", err, unix.EINVAL)
		}
		// Size 0 is below MOUNT_ATTR_SIZE_VER0: EINVAL (mount_setattr(2)).
		_, _, errno := unix.Syscall6(unix.SYS_MOUNT_SETATTR, ^uintptr(0), 0, 0, 0, 0, 0)
		return classify("mount_setattr(2)", errno, unix.EINVAL, unix.EFAULT)
	},
}

// ProcSubset (cheap as root): mount option subset=pid, a /proc without
// /proc/sys, /proc/kcore and the rest of the kernel's own files.
var ProcSubset = &Probe{
	Name: "proc-subset", Since: "5.8", Weight: Degrades,
	Loses: "/proc can only be masked file by file",
	Get:   "a kernel from 5.8",
	try:   func() error { return tryMountOption("proc", "subset", "pid") },
}

// Overlay (cheap as root): an overlay may be mounted, also from inside a user
// namespace.
var Overlay = &Probe{
	Name: "overlay", Since: "5.11", Weight: Degrades,
	Loses: "ring 1 has no private writable root",
	Get:   "modprobe overlay, on a kernel from 5.11 (CONFIG_OVERLAY_FS)",
	try: func() error {
		if err := tryMountOption("overlay", "", ""); err != nil {
			return err
		}
		return atLeast(5, 11)
	},
}

// OverlayIDMapped: idmapped mounts as lower layers of an overlay. Trying it
// means really mounting; the release decides (commit bc70682a497c "ovl:
// support idmapped layers").
var OverlayIDMapped = &Probe{
	Name: "overlay-idmapped", Since: "5.19", Weight: Degrades,
	Loses: "an overlay root shows host files as owned by a stranger",
	Get:   "a kernel from 5.19",
	try: func() error {
		if err := Overlay.Check(); err != nil {
			return err
		}
		if rootless.Is() {
			return unsupported("a user namespace can't have the host's files idmapped")
		}
		return atLeast(5, 19)
	},
}

// tryMountOption opens a file system context and sets one option, which is
// checked there and then (fsconfig(2)). Nothing is mounted. fsopen loads the
// module where there is one.
func tryMountOption(fstype, key, value string) error {
	fd, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return classify("fsopen(2) "+fstype, err)
	}
	defer unix.Close(fd)
	if key == "" {
		return nil
	}
	err = unix.FsconfigSetString(fd, key, value)
	return classify(fmt.Sprintf("fsconfig(2) %s %s=%s", fstype, key, value), err)
}

// IDMappedMounts (not cheap: starts a process that never runs): can a mount of
// dir's file system be idmapped? Each file system has to support it: ext4,
// xfs, btrfs since 5.12, tmpfs since 6.3, overlay never.
func IDMappedMounts(dir string) *Probe {
	return &Probe{
		Name: "idmapped-mounts " + dir, Since: "5.12", Weight: Degrades,
		Loses: "files the agent writes in its workspace would belong to a stranger: a writable workspace here is refused",
		Get:   "a kernel from 5.12 and a file system with support (ext4, xfs, btrfs; tmpfs from 6.3)",
		try: func() error {
			if rootless.Is() {
				return unsupported("idmapped mounts take root over the file system")
			}
			return tryIDMap(dir)
		},
	}
}

func tryIDMap(dir string) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		// A missing dir is the caller's mistake and may be there next time.
		return inconclusive(err, "open_tree(2) %s", dir)
	}
	defer unix.Close(tree)
	userns, err := userNamespace()
	if err != nil {
		return err
	}
	defer userns.Close()
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd())}
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr)
	return classify("mount_setattr(MOUNT_ATTR_IDMAP) "+dir, err)
}

// userNamespace gives a descriptor for a user namespace with a mapping. One
// can only be had from a process inside it. The child is our own binary, but
// it asks to be traced, so that it stops at its exec before its first
// instruction: it is killed there and none of our code runs twice.
func userNamespace() (*os.File, error) {
	// The tracer is a thread; it must outlive the child.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	id := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	gid := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	child, err := os.StartProcess("/proc/self/exe", []string{"agentrun-userns"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER, UidMappings: id, GidMappings: gid,
			Ptrace: true, Pdeathsig: unix.SIGKILL,
		},
	})
	if err != nil {
		return nil, inconclusive(err, "start a process in a user namespace")
	}
	defer func() {
		_ = child.Kill()
		_, _ = child.Wait()
	}()
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", child.Pid))
	if err != nil {
		return nil, inconclusive(err, "open the user namespace")
	}
	return f, nil
}

// CgroupMode is how the cgroup file systems are mounted.
type CgroupMode uint8

const (
	CgroupNone   CgroupMode = iota // nothing usable at /sys/fs/cgroup
	CgroupV1                       // legacy: one hierarchy per controller
	CgroupHybrid                   // legacy controllers, plus a v2 tree without any
	CgroupV2                       // unified
)

func (m CgroupMode) String() string {
	return [...]string{"none", "v1", "hybrid", "v2"}[m]
}

const cgroupRoot = "/sys/fs/cgroup"

// Cgroups (cheap) tells the mode. It asks each time: a test or an operator may
// mount more.
func Cgroups() CgroupMode {
	switch {
	case fsMagic(cgroupRoot) == unix.CGROUP2_SUPER_MAGIC:
		return CgroupV2
	case fsMagic(cgroupRoot+"/memory") != unix.CGROUP_SUPER_MAGIC && fsMagic(cgroupRoot+"/pids") != unix.CGROUP_SUPER_MAGIC:
		return CgroupNone
	case fsMagic(cgroupRoot+"/unified") == unix.CGROUP2_SUPER_MAGIC:
		return CgroupHybrid
	default:
		return CgroupV1
	}
}

func fsMagic(path string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return 0
	}
	return int64(st.Type)
}

// Cgroup (cheap): the named controllers (cpu, memory, pids, freezer …) can be
// used in whatever mode the host has. On v2 freezer and devices (by BPF) are part of the core.
func Cgroup(controllers ...string) *Probe {
	return &Probe{
		Name:  "cgroup " + strings.Join(controllers, ","),
		Loses: "limits on " + strings.Join(controllers, ", ") + ": no sandbox is started",
		Get:   "mount the cgroup2 file system at /sys/fs/cgroup, or the named v1 controllers below it; on v2 enable them in cgroup.subtree_control",
		try: func() error {
			return haveControllers(Cgroups(), controllers)
		},
	}
}

// CgroupIn (cheap) is Cgroup for who has asked for the mode already.
func CgroupIn(mode CgroupMode, controllers ...string) *Probe {
	p := Cgroup(controllers...)
	p.try = func() error { return haveControllers(mode, controllers) }
	return p
}

// CgroupIs (cheap): the host is in exactly this mode and has the controllers.
func CgroupIs(mode CgroupMode, controllers ...string) *Probe {
	p := CgroupIn(mode, controllers...)
	all := p.try
	p.Name = fmt.Sprintf("cgroup-%s %s", mode, strings.Join(controllers, ","))
	p.try = func() error {
		if got := Cgroups(); got != mode {
			return unsupported("cgroups are mounted as %s", got)
		}
		return all()
	}
	return p
}

func haveControllers(mode CgroupMode, names []string) error {
	switch mode {
	case CgroupV1, CgroupHybrid:
		for _, name := range names {
			if fsMagic(cgroupRoot+"/"+name) != unix.CGROUP_SUPER_MAGIC {
				return unsupported("no v1 controller at %s/%s", cgroupRoot, name)
			}
		}
		return nil
	case CgroupV2:
		return haveUnified(cgroupRoot+"/cgroup.controllers", names)
	}
	return unsupported("no cgroup file system at %s", cgroupRoot)
}

// haveUnified looks for all names in the one list.
func haveUnified(file string, names []string) error {
	text, err := read.Kernel(file)
	if err != nil {
		return inconclusive(err, "read the controllers")
	}
	have := strings.Fields(text)
	for _, name := range names {
		if name == "freezer" || name == "devices" {
			if err := atLeast(5, 2); err != nil {
				return err
			}
		} else if !slices.Contains(have, name) {
			return unsupported("%s is not in %s", name, file)
		}
	}
	return nil
}

// SocketMemory (cheap): what sockets hold counts as the run's memory: v1 by a limit of its own, v2 by memory.max unless switched off.
var SocketMemory = &Probe{
	Name:  "socket-memory",
	Loses: "socket buffers are in no limit: one agent can use up the memory that all TCP of the host shares",
	Get:   "a kernel with CONFIG_MEMCG and without cgroup.memory=nosocket on its command line; on cgroup v1 also with CONFIG_MEMCG_V1 (before 6.11 CONFIG_MEMCG_KMEM)",
	try: func() error {
		if text, err := read.Kernel("/proc/cmdline"); err == nil {
			for _, word := range strings.Fields(text) {
				if v, ok := strings.CutPrefix(word, "cgroup.memory="); ok && slices.Contains(strings.Split(v, ","), "nosocket") {
					return unsupported("the kernel was started with %s", word)
				}
			}
		}
		if m := Cgroups(); m == CgroupV1 || m == CgroupHybrid {
			return exists(cgroupRoot + "/memory/memory.kmem.tcp.limit_in_bytes")
		}
		return nil
	},
}

// SocketBuffers (cheap): the bounds of a new network namespace can be set.
var SocketBuffers = &Probe{
	Name:  "socket-buffers",
	Loses: "connections that an agent makes to itself and doesn't accept hold megabytes of the host's memory each",
	Get:   "mount /proc/sys writable where agentrun runs",
	try: func() error {
		var fs unix.Statfs_t
		if err := unix.Statfs("/proc/sys/net/ipv4", &fs); err != nil {
			return err
		}
		if fs.Flags&unix.ST_RDONLY != 0 {
			return unsupported("/proc/sys/net is read-only")
		}
		return nil
	},
}

// SocketLookup (loads a program of two instructions, once): the kernel can be told which socket a connection in a namespace is for.
var SocketLookup = &Probe{
	Name: "socket-lookup", Since: "5.9", Weight: Degrades,
	Loses: "ring 1 reaches ports other than 80, 443 and the listed ones by the proxy variables only",
	Get:   "a kernel from 5.9 with CONFIG_BPF_SYSCALL, and CAP_BPF and CAP_NET_ADMIN where agentrun runs",
	try: func() error {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
		})
		if err != nil {
			return unsupported("load a program of type sk_lookup: %v", err)
		}
		return p.Close()
	},
}

// CgroupKill makes and removes an empty group in the v2 tree: the root group
// has no cgroup.kill file, so there is no other place to look.
var CgroupKill = &Probe{
	Name: "cgroup-kill", Since: "5.14", Weight: Degrades,
	Loses: "a fork bomb is killed by freezing and signalling in rounds instead of one write",
	Get:   "a kernel from 5.14 with a cgroup2 tree (unified or hybrid)",
	try: func() error {
		tree := cgroupRoot
		switch Cgroups() {
		case CgroupV2:
		case CgroupHybrid:
			tree += "/unified"
		default:
			return unsupported("no cgroup2 tree is mounted")
		}
		dir, err := os.MkdirTemp(tree, "agentrun-probe-")
		if err != nil {
			return inconclusive(err, "make a group")
		}
		defer os.Remove(dir)
		return exists(dir + "/cgroup.kill")
	},
}

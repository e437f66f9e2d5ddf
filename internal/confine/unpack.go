// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// UnpackOptions say what is left after Unpack.
type UnpackOptions struct {
	Tree    string   // folder whose tree is written, with owners of any kind
	Read    []string // files and folders that may be read, beside what Options.Read has too where there is a Network
	Network bool     // sockets can be made
}

// kept are the capabilities that files of others take: to give them away, to write below folders that are theirs, to set their modes.
const kept = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER

// Unpack is Drop for a process that writes a tree for strangers (agentrun-image), as root or an ordinary user. Beside what Drop says of
// programs, processes, memory and calls: of the file system only Tree can be written, changed or given away, and only Tree, Read and
// what a network takes be opened. Root keeps its user, with three capabilities. There, the process must have a mount namespace of its own,
// in which everything but Tree becomes read-only: Landlock knows no rights for modes and owners.
//
// The error Is ErrNoLandlock where the kernel has none that lets files be linked between folders (ABI 2, Linux 5.19). An ordinary user's
// modes and owners are up to that user's permissions.
func Unpack(o UnpackOptions) error {
	root := os.Geteuid() == 0
	if root {
		if err := closeMounts(o.Tree); err != nil {
			return fmt.Errorf("confine: mounts: %w", err)
		}
	}
	as := Options{Read: o.Read, tree: o.Tree, offline: !o.Network}
	domain, err := openDomain(as)
	if err != nil {
		return fmt.Errorf("confine: landlock: %w", err)
	}
	defer domain.close()
	steps := []step{
		{"no core dumps", func() error {
			return wrap("prlimit(2)", unix.Prlimit(0, unix.RLIMIT_CORE, &unix.Rlimit{}, nil))
		}},
		{"no_new_privs", func() error {
			return everyThread("prctl(PR_SET_NO_NEW_PRIVS)", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1)
		}},
		{"dumpable", func() error { return wrap("prctl(PR_SET_DUMPABLE)", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)) }},
		{"landlock", domain.enter},
		{"seccomp", func() error { return installFilter(as) }},
	}
	if root {
		steps = append([]step{{"bounding set", emptyBoundingSet}, {"capabilities", func() error { return capabilities(kept) }}}, steps...)
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("confine: %s: %w", s.name, err)
		}
	}
	return nil
}

// closeMounts makes everything but a folder read-only, in this process's own mount namespace. In anybody else's, that would be the host.
func closeMounts(tree string) error {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	parents, err := os.Readlink("/proc/" + strconv.Itoa(os.Getppid()) + "/ns/mnt")
	if err != nil || own == parents {
		return errors.Join(err, errors.New("want a mount namespace of this process's own"))
	}
	if tree, err = filepath.EvalSymlinks(tree); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount / private", err)
	}
	if err := unix.Mount(tree, tree, "", unix.MS_BIND, ""); err != nil {
		return os.NewSyscallError("mount "+tree, err)
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return os.NewSyscallError("mount_setattr /", err)
	}
	err = unix.MountSetattr(unix.AT_FDCWD, tree, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY, Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC})
	return os.NewSyscallError("mount_setattr "+tree, err)
}

// capabilities leaves these and no others, which no program that is executed would get.
func capabilities(set uint32) error {
	if err := everyThread("prctl(PR_CAP_AMBIENT_CLEAR_ALL)", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	left := [2]unix.CapUserData{{Effective: set, Permitted: set}}
	return everyThread("capset(2)", unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&left[0])))
}

// offlineNever are calls of allowed that make or reach a connection.
var offlineNever = []string{"socket", "connect", "accept4"}

// ofTrees are what a tree takes beside the calls of a server. No device can be made, and no set-ID bit be set by fchmod(2).
func ofTrees() []rule {
	rules := []rule{{"fchmod", syscall.SYS_FCHMOD, "modes, without set-ID bits", [][]condition{{bits(1, unix.S_ISUID|unix.S_ISGID, 0)}}}}
	for name, number := range map[string]uint32{
		"openat2": unix.SYS_OPENAT2, "mkdirat": unix.SYS_MKDIRAT, "symlinkat": unix.SYS_SYMLINKAT, "linkat": unix.SYS_LINKAT, "fchownat": unix.SYS_FCHOWNAT,
		"utimensat": unix.SYS_UTIMENSAT, "fsetxattr": unix.SYS_FSETXATTR,
	} {
		rules = append(rules, rule{name: name, number: number, why: "a tree of files, which mounts and Landlock hold to its place"})
	}
	return rules
}

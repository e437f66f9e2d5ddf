// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentrun/internal/agentuid"
	"agentrun/internal/rootless"
)

// peer is who connected, as the kernel wrote it down at connect(2) (unix(7), SO_PEERCRED). A process that changes its user
// later, or hands the connection on, stays who it was.
type peer struct {
	uid    int
	groups []int // the effective and the supplementary ones
}

func (p peer) by() string { return fmt.Sprintf("uid:%d", p.uid) }

// errSilence: no answer, not even a refusal.
var errSilence = errors.New("a peer that is never answered")

// peerOf reads the credentials of whoever connected. It gives errSilence for an agent, whatever it is a member of, and for
// who can't be told from one.
func peerOf(c net.Conn) (p peer, err error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return p, errSilence
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return p, err
	}
	if cerr := raw.Control(func(fd uintptr) { p, err = peerOfFD(int(fd)) }); cerr != nil { //nolint:gosec // a descriptor
		return p, cerr
	}
	return p, err
}

func peerOfFD(fd int) (peer, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return peer{}, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	// Compared unsigned: the id of nobody is the largest one. Rootless, every id but the user's own is an agent's, or one that isn't
	// mapped, root's among them.
	if cred.Uid >= agentuid.First || rootless.Is() && cred.Uid != 0 {
		return peer{}, errSilence
	}
	// An agent of a rootless supervisor has that one's own user id. What it doesn't have is its user namespace.
	if err := sameUsers(fd, int(cred.Pid)); err != nil {
		return peer{}, fmt.Errorf("%w: %w", errSilence, err)
	}
	p := peer{uid: int(cred.Uid)}
	groups, err := peerGroups(fd)
	if err != nil {
		return peer{}, err
	}
	p.groups = append(groups, int(cred.Gid))
	return p, nil
}

// sameUsers tells that the peer is in the supervisor's own user namespace. SO_PEERPIDFD (Linux 6.5) makes that sound: a
// process that is alive after its namespace was looked at is the one that connected. Before 6.5 the process id could have
// been given to somebody else since; the user id, which can't, still has to be right. A process that is gone, or not to be
// seen, isn't answered.
func sameUsers(fd, pid int) error {
	if pid <= 0 {
		return errors.New("the peer's process isn't visible from here")
	}
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	switch {
	case errors.Is(err, unix.ENOPROTOOPT):
		pidfd = -1
	case err != nil:
		return os.NewSyscallError("getsockopt SO_PEERPIDFD", err)
	default:
		defer unix.Close(pidfd)
	}
	theirs, err := os.Stat(fmt.Sprintf("/proc/%d/ns/user", pid))
	if errors.Is(err, fs.ErrPermission) && rootless.Is() {
		// Over each namespace below ours, as the sandboxes', we have every right: who may not be looked at is outside, as the user's shell is.
		theirs, err = os.Stat("/proc/self/ns/user")
	}
	if err != nil {
		return err
	}
	ours, err := os.Stat("/proc/self/ns/user")
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("/proc doesn't tell user namespaces")
	}
	if err != nil {
		return err
	}
	if !os.SameFile(theirs, ours) {
		return errors.New("the peer is in another user namespace")
	}
	if pidfd < 0 {
		return nil
	}
	exit := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	if n, err := unix.Poll(exit, 0); err != nil || n != 0 {
		return errors.New("the peer's process has ended")
	}
	return nil
}

// peerGroups are the supplementary groups (SO_PEERGROUPS, Linux 4.13).
func peerGroups(fd int) ([]int, error) {
	for size := 64; size <= 1<<16+1; size *= 4 { // NGROUPS_MAX is 65536
		gids := make([]uint32, size)
		length := uint32(size * 4)                                                                          //nolint:gosec // at most 256 KiB
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS, //nolint:gosec // a descriptor
			uintptr(unsafe.Pointer(&gids[0])), uintptr(unsafe.Pointer(&length)), 0) //nolint:gosec // the kernel's way of filling an array
		if errno == unix.ERANGE {
			continue
		}
		if errno != 0 {
			return nil, os.NewSyscallError("getsockopt SO_PEERGROUPS", errno)
		}
		groups := make([]int, 0, length/4+1)
		for _, g := range gids[:length/4] {
			groups = append(groups, int(g))
		}
		return groups, nil
	}
	return nil, errors.New("the peer is in more groups than there can be")
}

// Access says who beside root and the supervisor's own user is answered. The zero value: nobody.
type Access struct {
	ReadGroup    int // members may read (GET); 0 or less: none
	OperateGroup int // members may do everything; 0 or less: none
}

// right is what a peer may do. The zero value is nothing.
type right int

const (
	nothing right = iota
	look
	operate
	own // root, or the supervisor's own user: operate, and a place of its own
)

func (a Access) of(p peer) right {
	switch {
	case p.uid == 0, p.uid == os.Geteuid():
		return own
	case a.OperateGroup > 0 && slices.Contains(p.groups, a.OperateGroup):
		return operate
	case a.ReadGroup > 0 && slices.Contains(p.groups, a.ReadGroup):
		return look
	}
	return nothing
}

// group is the socket's: the one that both modes and the access allow, if it is only one.
func (a Access) group() (gid int, several bool) {
	switch {
	case a.ReadGroup > 0 && a.OperateGroup > 0 && a.ReadGroup != a.OperateGroup:
		return 0, true
	case a.OperateGroup > 0:
		return a.OperateGroup, false
	}
	return max(a.ReadGroup, 0), false
}

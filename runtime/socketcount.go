// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/seccomp"
)

// What sockets hold is the host's: a connection that nobody has accepted is charged to no cgroup
// (inet_csk_accept charges it), netlink's queues and slab never are, and TCP's are part of tcp_mem, which all
// of the host shares. One ring 3 run held 1.1 GiB in 300 connections to itself. A cgroup can't count sockets,
// and a descriptor limit doesn't either: a closed end's data waits on in the other. So socket(2) asks the
// supervisor, which looks how many the run's network namespace has. What each may hold is set there too
// (package netns).
//
// mostSockets are those of all kinds in the run's namespace, the gateway's ends of connections included. A
// connection to one's own listener makes one more than was asked for, so there may be twice as many. Ring 3:
// 320 × 192 KiB = 60 MiB, and 20 such runs stay below the pressure mark of tcp_mem of a host of 24 GiB. Rings
// 2 and 1 run servers and browsers.
func mostSockets(ring rings.Ring) int {
	switch ring {
	case rings.Privileged:
		return 2048
	case rings.Standard:
		return 1024
	}
	return 160
}

// mostNetlink is what libraries that list interfaces come nowhere near. Each is 40 KiB and more of slab.
const mostNetlink = 64

// counted says whether an allowed rule makes sockets that must be counted: all but those of AF_UNIX alone,
// whose memory the run's cgroup is charged for.
func counted(r profiles.SyscallRule) bool {
	return r.Action == profiles.ActionAllow && slices.Contains(r.Names, "socket") &&
		!slices.ContainsFunc(r.Args, func(a profiles.ArgCond) bool {
			return a.Index == 0 && a.Op == profiles.OpMaskedEq && a.Mask.N == 0xffffffff && a.Value.N == unix.AF_UNIX
		})
}

// socketCount looks at the network namespace of a run. Both files stay open: one read each is some
// microseconds. They are opened with the agent's process, so that a prepared sandbox has them.
type socketCount struct{ all, netlink *os.File }

// countSockets also gives what it has opened when there is an error.
func countSockets(pid int) (*socketCount, error) {
	open := func(name string) (*os.File, error) {
		name = fmt.Sprintf("/proc/%d/net/%s", pid, name)
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0) // the netpoller has nothing to wait for
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: name, Err: err}
		}
		return os.NewFile(uintptr(fd), name), nil
	}
	s := &socketCount{}
	var err1, err2 error
	s.all, err1 = open("sockstat")
	s.netlink, err2 = open("netlink")
	return s, errors.Join(err1, err2)
}

// close is for when nobody is answered any more. Who still is, is refused.
func (s *socketCount) close() {
	if s != nil {
		s.all.Close()
		s.netlink.Close()
	}
}

// socket answers for one more. What can't be counted is refused.
func (s *socketCount) socket(ring rings.Ring, family uint64) seccomp.Answer {
	if s == nil {
		return seccomp.Deny(unix.ENOBUFS)
	}
	b := make([]byte, 4<<10)
	n, err := unix.Pread(int(fdOf(s.all)), b, 0)
	if used, ok := socketsUsed(b[:max(n, 0)]); err != nil || !ok || used >= mostSockets(ring) {
		return seccomp.Deny(unix.ENOBUFS)
	}
	if uint32(family) == unix.AF_NETLINK { //nolint:gosec // the kernel looks at no more
		lines := 0
		for at := int64(0); lines <= mostNetlink; at += int64(n) { // one is the head; a read gives a page at most
			if n, err = unix.Pread(int(fdOf(s.netlink)), b, at); err != nil {
				return seccomp.Deny(unix.ENOBUFS)
			} else if n == 0 {
				return seccomp.Continue()
			}
			lines += bytes.Count(b[:n], []byte("\n"))
		}
		return seccomp.Deny(unix.ENOBUFS)
	}
	return seccomp.Continue()
}

// socketsUsed reads "sockets: used N", the first line of sockstat (proc_pid_net(5)).
func socketsUsed(b []byte) (int, bool) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	text, ok := bytes.CutPrefix(line, []byte("sockets: used "))
	n, err := strconv.Atoi(string(text))
	return n, ok && err == nil && n >= 0
}

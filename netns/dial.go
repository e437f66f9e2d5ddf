// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Dial connects to a TCP port that is served on an address of the namespace's own: loopback, or one that Capture gave it. Nothing is sent
// elsewhere. The error is that of the first address, and unwraps to the errno: ECONNREFUSED when nobody listens. It ends with ctx.
//
// Only the socket is made inside, on a thread of its own; a socket stays in the namespace that it was made in, whoever uses it.
func (ns *NS) Dial(ctx context.Context, port uint16) (*net.TCPConn, error) {
	var first error
	for _, a := range []netip.Addr{
		netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback(), dummy4, dummy6,
	} {
		conn, err := ns.dial(ctx, netip.AddrPortFrom(a, port))
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("connect to port %d of the namespace: %w", port, first)
}

func (ns *NS) dial(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err := ns.socket(family)
	if err != nil {
		return nil, err
	}
	err = unix.Connect(fd, sa)
	f := os.NewFile(uintptr(fd), "connection to a sandbox") //nolint:gosec // a descriptor
	defer f.Close()
	if errors.Is(err, unix.EINPROGRESS) {
		err = connected(ctx, f)
	}
	if err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil //nolint:forcetypeassert // it was made as one
}

// socket makes one inside. The namespace's descriptor is held meanwhile: Close on another thread would leave its number to somebody else's.
func (ns *NS) socket(family int) (fd int, err error) {
	held, err := ns.file.SyscallConn()
	if err != nil {
		return -1, err
	}
	err = onThread(func() (err error) {
		if cerr := held.Control(func(at uintptr) {
			err = os.NewSyscallError("setns", unix.Setns(int(at), unix.CLONE_NEWNET))
		}); cerr != nil || err != nil {
			return errors.Join(cerr, err)
		}
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return os.NewSyscallError("socket", err)
	})
	return fd, err
}

// connected waits for the end of a connect: it doesn't come by itself where a listener's queue is full.
func connected(ctx context.Context, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetDeadline(time.Unix(1, 0)) })()
	werr := raw.Write(func(fd uintptr) bool {
		var peer int
		if peer, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err == nil && peer != 0 {
			err = unix.Errno(peer) //nolint:gosec // the kernel's
		}
		if err != nil {
			return true
		}
		_, perr := unix.Getpeername(int(fd))
		return perr == nil
	})
	if err == nil {
		err = werr
	}
	return err
}

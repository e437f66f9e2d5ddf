// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Socket is one to make with Sockets.
type Socket struct {
	Port     uint16
	Datagram bool // UDP, else a listening TCP socket
}

// backlog is how many connections may wait to be accepted: a gateway that is only being started takes none meanwhile.
const backlog = 1024

// Sockets makes all of them on one thread, for a process that is to inherit them: listeners accept with net.FileListener,
// datagrams come with PacketConn. Each takes IPv4 and IPv6; on a kernel without IPv6, IPv4. After Capture, LocalAddr of an
// accepted connection is the original destination. They are the caller's to close, also after Close of ns. On an error none is left.
func (ns *NS) Sockets(wants []Socket) (files []*os.File, err error) {
	err = ns.Do(func() error {
		for _, w := range wants {
			f, err := w.open()
			if err != nil {
				return fmt.Errorf("port %d: %w", w.Port, err)
			}
			files = append(files, f)
		}
		return nil
	})
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, fmt.Errorf("sockets in the network namespace: %w", err)
	}
	return files, nil
}

func (s Socket) open() (*os.File, error) {
	kind := unix.SOCK_STREAM
	if s.Datagram {
		kind = unix.SOCK_DGRAM
	}
	only4 := false
	fd, err := unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		only4 = true
		fd, err = unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	}
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), fmt.Sprintf("port-%d", s.Port))
	if err := s.prepare(fd, only4); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// prepare binds to the wildcard address of both families: an address of ::ffff:0:0/96 stands for IPv4.
func (s Socket) prepare(fd int, only4 bool) error {
	type option struct {
		level, name, value int
		what               string
	}
	options := []option{{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1, "SO_REUSEADDR"}}
	if !only4 {
		options = append(options, option{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0, "IPV6_V6ONLY"})
	}
	switch {
	case s.Datagram && !only4:
		options = append(options, option{unix.IPPROTO_IPV6, unix.IPV6_RECVORIGDSTADDR, 1, "IPV6_RECVORIGDSTADDR"})
		fallthrough // what comes by IPv4 is told by the option of IPv4
	case s.Datagram:
		options = append(options, option{unix.IPPROTO_IP, unix.IP_RECVORIGDSTADDR, 1, "IP_RECVORIGDSTADDR"})
	}
	// An answer may come from an address that only Capture's routes make ours. It takes no capability, unlike IP_TRANSPARENT, whose
	// other powers (foreign sources without any route) are unused.
	options = append(options, option{unix.IPPROTO_IP, unix.IP_FREEBIND, 1, "IP_FREEBIND"})
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("setsockopt %s: %w", o.what, err)
		}
	}
	var at unix.Sockaddr = &unix.SockaddrInet6{Port: int(s.Port)}
	if only4 {
		at = &unix.SockaddrInet4{Port: int(s.Port)}
	}
	if err := unix.Bind(fd, at); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if s.Datagram {
		return nil
	}
	return os.NewSyscallError("listen", unix.Listen(fd, backlog))
}

// PacketConn takes over f, a datagram socket of Sockets that was inherited. Addresses that ReadFrom returns are of type PacketAddr;
// given to WriteTo they make the answer come from where the question was sent to (IP_PKTINFO, IPV6_PKTINFO).
func PacketConn(f *os.File) (net.PacketConn, error) {
	c, err := adopt(f)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func adopt(f *os.File) (*packetConn, error) {
	defer f.Close()
	made, err := net.FilePacketConn(f)
	if err != nil {
		return nil, fmt.Errorf("inherited datagram socket: %w", err)
	}
	u, ok := made.(*net.UDPConn)
	if !ok {
		_ = made.Close()
		return nil, fmt.Errorf("inherited datagram socket: is a %s", made.LocalAddr().Network())
	}
	local, err := netip.ParseAddrPort(u.LocalAddr().String())
	if err != nil {
		_ = u.Close()
		return nil, fmt.Errorf("inherited datagram socket: %w", err)
	}
	return &packetConn{u, local.Addr().Is4()}, nil
}

// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// RelaySockets makes what NewRelay takes, for a process that is to inherit them: the socket to which AllPorts sends datagrams, and one for
// answers by each of IPv4 and IPv6 (on a kernel without IPv6 two in all). The latter are raw, since an answer must come from the address and
// port that was asked, of which there are too many to bind; they receive nothing (raw(7), IPPROTO_RAW) and reach the namespace alone. They
// are the caller's to close. On an error none is left.
func (ns *NS) RelaySockets() (files []*os.File, err error) {
	err = ns.Do(func() error {
		f, err := Socket{Datagram: true}.open() // any port: datagrams come by AllPorts
		if err != nil {
			return err
		}
		files = append(files, f)
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
			if family == unix.AF_INET6 && errors.Is(err, unix.EAFNOSUPPORT) {
				return nil
			}
			if err != nil {
				return os.NewSyscallError("socket SOCK_RAW", err)
			}
			files = append(files, os.NewFile(uintptr(fd), "answers"))
		}
		return nil
	})
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, fmt.Errorf("sockets for datagrams in the network namespace: %w", err)
	}
	return files, nil
}

// Relay takes the datagrams that a sandbox sends to anywhere, and brings it the answers (H-11, M-8). Receive is for one goroutine, Reply
// for any number.
type Relay struct {
	in      *packetConn
	answers []*os.File // by IPv4 and, if there is, IPv6
}

// NewRelay takes over the files of RelaySockets that were inherited.
func NewRelay(in *os.File, answers ...*os.File) (*Relay, error) {
	c, err := adopt(in)
	if err != nil {
		for _, f := range answers {
			f.Close()
		}
		return nil, err
	}
	return &Relay{c, answers}, nil
}

// Close ends Receive.
func (r *Relay) Close() error {
	err := r.in.Close()
	for _, f := range r.answers {
		err = errors.Join(err, f.Close())
	}
	return err
}

// Receive waits for a datagram and says from which socket of the sandbox it came and to where it was sent. It leaves out what the sandbox
// sent to itself, and what claims to come from an address other than the sandbox's: the answer to that would be taken for a question.
func (r *Relay) Receive(b []byte) (n int, from, to netip.AddrPort, err error) {
	for {
		n, addr, err := r.in.read(b)
		if errors.Is(err, errNoDestination) {
			continue
		}
		if err != nil {
			return 0, from, to, err
		}
		if sandboxes(addr.Remote.Addr()) && !sandboxes(addr.Local.Addr()) {
			return n, addr.Remote, addr.Local, nil
		}
	}
}

// sandboxes tells an address that the sandbox has for itself.
func sandboxes(a netip.Addr) bool {
	return a.IsLoopback() || a == dummy4 || a == dummy6
}

// Reply brings b to the sandbox's socket at, as if from had sent it. Where the sandbox takes nothing more at the moment it is lost, as
// datagrams are.
func (r *Relay) Reply(b []byte, from, at netip.AddrPort) error {
	i := 0
	packet := packet4(b, from, at)
	var to unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(at.Addr().AsSlice())}
	if at.Addr().Is6() {
		i, packet = 1, packet6(b, from, at)
		to = &unix.SockaddrInet6{Addr: at.Addr().As16()}
	}
	if i >= len(r.answers) || from.Addr().Is6() != at.Addr().Is6() {
		return fmt.Errorf("answer to %s: %w", at, unix.EAFNOSUPPORT)
	}
	raw, err := r.answers[i].SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), packet, unix.MSG_DONTWAIT, to) }); cerr != nil {
		return cerr
	}
	if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ENOBUFS) {
		return fmt.Errorf("answer to %s: %w", at, err)
	}
	return nil
}

const (
	head4, head6, headUDP = 20, 40, 8
	hops                  = 64
)

// packet4 leaves length and checksum of the IP header to the kernel (raw(7)), and says that the datagram has no checksum (RFC 768).
func packet4(b []byte, from, to netip.AddrPort) []byte {
	p := make([]byte, head4, head4+headUDP+len(b))
	p[0], p[8], p[9] = 4<<4|head4/4, hops, unix.IPPROTO_UDP
	copy(p[12:], from.Addr().AsSlice())
	copy(p[16:], to.Addr().AsSlice())
	return appendUDP(p, b, from, to)
}

// packet6 has the checksum that IPv6 insists on (RFC 8200, 8.1).
func packet6(b []byte, from, to netip.AddrPort) []byte {
	p := make([]byte, head6, head6+headUDP+len(b))
	p[0], p[6], p[7] = 6<<4, unix.IPPROTO_UDP, hops
	binary.BigEndian.PutUint16(p[4:], uint16(headUDP+len(b))) //nolint:gosec // at most 65507
	copy(p[8:], from.Addr().AsSlice())
	copy(p[24:], to.Addr().AsSlice())
	p = appendUDP(p, b, from, to)
	sum := uint32(unix.IPPROTO_UDP) + uint32(headUDP+len(b)) //nolint:gosec // as above
	rest := p[8:]                                            // addresses and datagram
	for ; len(rest) >= 2; rest = rest[2:] {
		sum += uint32(binary.BigEndian.Uint16(rest))
	}
	if len(rest) == 1 {
		sum += uint32(rest[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	if sum == 0xffff {
		sum = 0 // written as its other zero: 0 means none
	}
	binary.BigEndian.PutUint16(p[head6+6:], ^uint16(sum)) //nolint:gosec // folded
	return p
}

func appendUDP(p, b []byte, from, to netip.AddrPort) []byte {
	p = binary.BigEndian.AppendUint16(p, from.Port())
	p = binary.BigEndian.AppendUint16(p, to.Port())
	p = binary.BigEndian.AppendUint16(p, uint16(headUDP+len(b))) //nolint:gosec // at most 65507
	return append(append(p, 0, 0), b...)
}

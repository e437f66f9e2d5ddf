// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PacketAddr says from where and to where a datagram went. As a net.Addr it is Remote.
type PacketAddr struct {
	Remote netip.AddrPort // who sent it
	Local  netip.AddrPort // to whom it was sent: the original destination
}

// Network is "udp".
func (PacketAddr) Network() string { return "udp" }

// String is Remote, as that of a net.UDPAddr would be.
func (a PacketAddr) String() string { return a.Remote.String() }

type packetConn struct {
	*net.UDPConn
	only4 bool // an AF_INET socket
}

var errNoDestination = errors.New("datagram without its destination (IP_PKTINFO)")

func (c *packetConn) ReadFrom(b []byte) (int, net.Addr, error) {
	control := make([]byte, unix.CmsgSpace(unix.SizeofInet6Pktinfo))
	n, controls, _, remote, err := c.ReadMsgUDPAddrPort(b, control)
	if err != nil {
		return n, nil, err
	}
	local, err := destination(control[:controls])
	if err != nil {
		return n, nil, err
	}
	return n, PacketAddr{
		Remote: netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port()),
		Local:  netip.AddrPortFrom(local, uint16(c.LocalAddr().(*net.UDPAddr).Port)), //nolint:gosec // a port
	}, nil
}

// destination reads what the kernel wrote; a socket of one family gets one kind of message.
func destination(control []byte) (netip.Addr, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			at := unsafe.Offsetof(unix.Inet4Pktinfo{}.Addr)
			return netip.AddrFrom4([4]byte(m.Data[at:])), nil
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			at := unsafe.Offsetof(unix.Inet6Pktinfo{}.Addr)
			return netip.AddrFrom16([16]byte(m.Data[at:])).Unmap(), nil
		}
	}
	return netip.Addr{}, errNoDestination
}

func (c *packetConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	a, ok := addr.(PacketAddr)
	if !ok {
		return c.UDPConn.WriteTo(b, addr)
	}
	source, err := c.source(a.Local.Addr())
	if err != nil {
		return 0, err
	}
	n, _, err := c.WriteMsgUDPAddrPort(b, source, a.Remote)
	if err != nil {
		return n, fmt.Errorf("answer as %s: %w", a.Local, err)
	}
	return n, nil
}

// source is the control message that has the datagram come from local; none if local is unset.
func (c *packetConn) source(local netip.Addr) ([]byte, error) {
	switch {
	case !local.IsValid():
		return nil, nil
	case !c.only4:
		return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: local.As16()}), nil
	case !local.Is4():
		return nil, fmt.Errorf("answer as %s: %w", local, unix.EAFNOSUPPORT)
	}
	return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: local.As4()}), nil
}

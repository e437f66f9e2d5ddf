// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

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

var errNoDestination = errors.New("datagram without its destination (IP_RECVORIGDSTADDR)")

func (c *packetConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, addr, err := c.read(b)
	if err != nil {
		return n, nil, err
	}
	return n, addr, nil
}

func (c *packetConn) read(b []byte) (int, PacketAddr, error) {
	control := make([]byte, unix.CmsgSpace(unix.SizeofSockaddrInet6))
	n, controls, _, remote, err := c.ReadMsgUDPAddrPort(b, control)
	if err != nil {
		return n, PacketAddr{}, err
	}
	local, err := destination(control[:controls])
	return n, PacketAddr{Remote: netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port()), Local: local}, err
}

// destination reads what the kernel wrote: a struct sockaddr_in or sockaddr_in6, by the family of the packet and not of the socket.
func destination(control []byte) (netip.AddrPort, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_ORIGDSTADDR && len(m.Data) >= unix.SizeofSockaddrInet4:
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(m.Data[4:])), binary.BigEndian.Uint16(m.Data[2:])), nil
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_ORIGDSTADDR && len(m.Data) >= unix.SizeofSockaddrInet6:
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte(m.Data[8:])).Unmap(), binary.BigEndian.Uint16(m.Data[2:])), nil
		}
	}
	return netip.AddrPort{}, errNoDestination
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

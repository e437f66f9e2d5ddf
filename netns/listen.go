// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen makes a listening socket in the namespace, for use from any goroutine. network is tcp, tcp4 or
// tcp6; the host in address is numeric or empty, which with tcp means all of IPv4 and IPv6. After
// Capture, LocalAddr of an accepted connection is the original destination. An address that the
// namespace doesn't have is taken too (IP_FREEBIND), so the order of Listen and Capture is free.
//
// The listener is closed by Close of ns at the latest. ctx is looked at before the start: nothing waits.
func (ns *NS) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	if err := mayListen(ctx, "tcp", network, address); err != nil {
		return nil, err
	}
	// Multipath TCP, Go's default for listeners, is of no use on loopback, and costs.
	config := net.ListenConfig{Control: freebind}
	config.SetMultipathTCP(false)
	var made net.Listener
	err := ns.Do(func() (err error) { made, err = config.Listen(ctx, network, address); return err })
	if err != nil {
		return nil, fmt.Errorf("in the network namespace: %w", err)
	}
	l := &listener{TCPListener: made.(*net.TCPListener), ns: ns}
	if err := ns.own(l, l.TCPListener); err != nil {
		return nil, err
	}
	return l, nil
}

// ListenPacket is Listen for datagrams: network is udp, udp4 or udp6. Addresses that ReadFrom returns
// are of type PacketAddr; given to WriteTo they make the answer come from where the question was
// sent to (IP_PKTINFO, IPV6_PKTINFO).
func (ns *NS) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	if err := mayListen(ctx, "udp", network, address); err != nil {
		return nil, err
	}
	c := &packetConn{ns: ns}
	config := net.ListenConfig{Control: func(network, address string, raw syscall.RawConn) error {
		c.only4 = strings.HasSuffix(network, "4") // here it tells the family of the socket
		return freebindWithInfo(network, address, raw)
	}}
	var made net.PacketConn
	err := ns.Do(func() (err error) { made, err = config.ListenPacket(ctx, network, address); return err })
	if err != nil {
		return nil, fmt.Errorf("in the network namespace: %w", err)
	}
	c.conn = made.(*net.UDPConn)
	if err := ns.own(c, c.conn); err != nil {
		return nil, err
	}
	return c, nil
}

// mayListen refuses what would need a lookup: that would ask the host's resolver, from the host's network.
func mayListen(ctx context.Context, want, network, address string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	if network != want && network != want+"4" && network != want+"6" {
		return fmt.Errorf("listen on %s: %w", address, net.UnknownNetworkError(network))
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if _, err := netip.ParseAddr(host); host != "" && err != nil {
		return fmt.Errorf("listen on %s: the host must be a numeric address: %w", address, err)
	}
	return nil
}

// own has ns close s, unless ns is closed already: then s is.
func (ns *NS) own(s, socket io.Closer) error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.closed {
		_ = socket.Close()
		return fmt.Errorf("network namespace: %w", net.ErrClosed)
	}
	if ns.sockets == nil {
		ns.sockets = map[io.Closer]struct{}{}
	}
	ns.sockets[s] = struct{}{}
	return nil
}

func (ns *NS) disown(s io.Closer) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	delete(ns.sockets, s)
}

type listener struct {
	*net.TCPListener
	ns *NS
}

func (l *listener) Close() error {
	l.ns.disown(l)
	return l.TCPListener.Close()
}

// freebind lets a socket bind to and answer from addresses that only Capture's routes make local: for
// IPv4 those suffice, for IPv6 the kernel asks for an address on an interface. No capability is
// needed, unlike for IP_TRANSPARENT, whose other powers (foreign sources without any route) are unused.
func freebind(network, _ string, c syscall.RawConn) error {
	if strings.HasSuffix(network, "6") {
		return setOption(c, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, "IPV6_FREEBIND")
	}
	return setOption(c, unix.IPPROTO_IP, unix.IP_FREEBIND, "IP_FREEBIND")
}

func freebindWithInfo(network, address string, c syscall.RawConn) error {
	if err := freebind(network, address, c); err != nil {
		return err
	}
	// Does for IPv4 datagrams too, on a socket that gets both: addresses come and go as ::ffff:a.b.c.d.
	if strings.HasSuffix(network, "6") {
		return setOption(c, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, "IPV6_RECVPKTINFO")
	}
	return setOption(c, unix.IPPROTO_IP, unix.IP_PKTINFO, "IP_PKTINFO")
}

func setOption(c syscall.RawConn, level, option int, name string) error {
	var set error
	if err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, 1) }); err != nil {
		return err
	}
	if set != nil {
		return fmt.Errorf("setsockopt %s: %w", name, set)
	}
	return nil
}

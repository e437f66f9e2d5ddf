// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"agentrun/internal/read"
)

// Addresses that lo gets beside 127.0.0.1 and ::1, reserved to stand for "none" (RFC 7600, RFC 9780).
// Programs that ask getaddrinfo(3) for AI_ADDRCONFIG get no address of a family in which the machine
// has only loopback ones; and IPv6 takes its source from here rather than ::1.
const (
	dummy4 = "192.0.0.8/32"
	dummy6 = "100:0:0:1::1/128"
)

// Capture makes every address one of the namespace itself: a listener on a wildcard address then gets
// what is sent to its port, and LocalAddr of an accepted connection is the address that was asked for
// (M-8, transparent capture). It can be called again.
//
// It relies on the kernel taking a packet for its own if the table "local" says so, which holds for
// routes as well as for addresses; as `ip route add local default dev lo` and the same with -6. No
// rule, mark, or packet filter is involved. On a kernel without IPv6 only IPv4 is captured: then the
// agent has no IPv6 sockets either.
func (ns *NS) Capture() error {
	if err := ns.Do(capture); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

func capture() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink in the namespace: %w", err)
	}
	defer h.Close()
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: loIndex}}
	if err := allLocal(h, lo, "IPv4", dummy4, net.IPv4zero.To4()); err != nil {
		return err
	}
	has6, err := haveIPv6()
	if err != nil || !has6 {
		return err
	}
	if err := enableIPv6("/proc/sys/net/ipv6/conf/lo/disable_ipv6"); err != nil {
		return err
	}
	return allLocal(h, lo, "IPv6", dummy6, net.IPv6zero)
}

// loIndex is the kernel's for the first device of a namespace (LOOPBACK_IFINDEX in net/flow.h).
const loIndex = 1

func allLocal(h *netlink.Handle, lo netlink.Link, family, dummy string, zero net.IP) error {
	addr, err := netlink.ParseAddr(dummy)
	if err != nil {
		return err
	}
	addr.Flags = unix.IFA_F_NODAD // lo has no neighbours; a tentative address could not be used yet
	if err := h.AddrAdd(lo, addr); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s to lo: %w", dummy, err)
	}
	err = h.RouteAdd(&netlink.Route{
		LinkIndex: lo.Attrs().Index,
		Dst:       &net.IPNet{IP: zero, Mask: net.CIDRMask(0, 8*len(zero))},
		Type:      unix.RTN_LOCAL,
		// Else the source would be the very address that is asked for (IPv4), and nothing would tell an answer from a question.
		Src: addr.IP,
		// The source of a packet must be local too, and that is only looked up in this table.
		Table: unix.RT_TABLE_LOCAL,
		Scope: netlink.SCOPE_HOST,
	})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add %s route local default: %w", family, err)
	}
	return nil
}

// haveIPv6 is false if the kernel was built or booted without it.
func haveIPv6() (bool, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return false, nil
	}
	if err != nil {
		return false, os.NewSyscallError("socket AF_INET6", err)
	}
	return true, os.NewSyscallError("close", unix.Close(fd))
}

// enableIPv6 undoes what a host's sysctl.conf may have passed on to new namespaces. /proc/sys/net shows
// the namespace of the thread that opens, so the host's own setting is out of reach from here. It
// is written only where it has to be: in containers /proc/sys is often read-only.
func enableIPv6(sysctl string) error {
	disabled, err := read.Kernel(sysctl)
	if err != nil {
		return fmt.Errorf("is IPv6 on at lo: %w", err)
	}
	if strings.TrimSpace(disabled) == "0" {
		return nil
	}
	f, err := os.OpenFile(sysctl, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("switch IPv6 on at lo: %w", err)
	}
	_, err = f.WriteString("0")
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("switch IPv6 on at lo: %w", err)
	}
	return nil
}

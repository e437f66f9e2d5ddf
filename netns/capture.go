// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/internal/read"
)

// Addresses that lo gets beside 127.0.0.1 and ::1, reserved to stand for "none" (RFC 7600, RFC 9780).
// Programs that ask getaddrinfo(3) for AI_ADDRCONFIG get no address of a family in which the machine
// has only loopback ones; and IPv6 takes its source from here rather than ::1.
var (
	dummy4 = netip.AddrFrom4([4]byte{192, 0, 0, 8})
	dummy6 = netip.AddrFrom16([16]byte{0: 1, 7: 1, 15: 1}) // 100:0:0:1::1
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
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return os.NewSyscallError("socket AF_NETLINK", err)
	}
	defer unix.Close(fd)
	if err := allLocal(fd, unix.AF_INET, dummy4); err != nil {
		return err
	}
	has6, err := haveIPv6()
	if err != nil || !has6 {
		return err
	}
	if err := enableIPv6("/proc/sys/net/ipv6/conf/lo/disable_ipv6"); err != nil {
		return err
	}
	return allLocal(fd, unix.AF_INET6, dummy6)
}

// loIndex is the kernel's for the first device of a namespace (LOOPBACK_IFINDEX in net/flow.h).
const loIndex = 1

// allLocal gives lo the address, and makes every other one of the family local.
func allLocal(fd int, family byte, dummy netip.Addr) error {
	addr := dummy.AsSlice()
	// Without IFA_F_NODAD it could not be used yet: lo has no neighbours.
	lo := binary.NativeEndian.AppendUint32(nil, loIndex)
	of := append([]byte{family, byte(dummy.BitLen()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE}, lo...) // struct ifaddrmsg
	if err := change(fd, unix.RTM_NEWADDR, of, attribute{unix.IFA_LOCAL, addr}, attribute{unix.IFA_ADDRESS, addr}); err != nil {
		return fmt.Errorf("add address %s to lo: %w", netip.PrefixFrom(dummy, dummy.BitLen()), err)
	}
	// The source of a packet must be local too, and that is only looked up in the table "local". Without a source of its own it would be the
	// very address that is asked for (IPv4), and nothing would tell an answer from a question.
	of = []byte{family, 0, 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_BOOT, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0} // struct rtmsg
	if err := change(fd, unix.RTM_NEWROUTE, of, attribute{unix.RTA_OIF, lo}, attribute{unix.RTA_PREFSRC, addr}); err != nil {
		return fmt.Errorf("add route local default for %s: %w", dummy, err)
	}
	return nil
}

// attribute is a struct rtattr. Its value is a multiple of four bytes long, so that nothing has to be padded.
type attribute struct {
	kind  uint16
	value []byte
}

// change adds an address or a route, unless it is there (rtnetlink(7)). It returns when the kernel has answered.
func change(fd int, kind uint16, of []byte, attrs ...attribute) error {
	const head = unix.SizeofNlMsghdr
	order := binary.NativeEndian
	ask := append(make([]byte, head), of...)
	for _, a := range attrs {
		ask = order.AppendUint16(ask, uint16(unix.SizeofRtAttr+len(a.value))) //nolint:gosec // at most 20
		ask = append(order.AppendUint16(ask, a.kind), a.value...)
	}
	order.PutUint32(ask, uint32(len(ask))) //nolint:gosec // some 60
	order.PutUint16(ask[4:], kind)
	order.PutUint16(ask[6:], unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	if err := unix.Sendto(fd, ask, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	// The answer was queued by sendto(2): a struct nlmsgerr, which has a negative errno or 0 and what was asked.
	answer := make([]byte, 512)
	n, from, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT)
	if err != nil {
		return os.NewSyscallError("recvfrom", err)
	}
	if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid != 0 || n < head+4 || order.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("netlink: an answer that isn't the kernel's")
	}
	if errno := unix.Errno(-int32(order.Uint32(answer[head:]))); errno != 0 && errno != unix.EEXIST { //nolint:gosec // as the kernel has it
		return errno
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

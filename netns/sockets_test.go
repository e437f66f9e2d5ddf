// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// M-8: sockets made for another process take what is sent to any address, on both families.
func TestM8SocketsForAnotherProcess(t *testing.T) {
	ns := captured(t)
	files, err := ns.Sockets([]Socket{{Port: 443}, {Port: 53, Datagram: true}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(files[0])
	if err != nil {
		t.Fatal(err)
	}
	files[0].Close()
	defer l.Close()
	packets, err := PacketConn(files[1])
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	for _, host := range []string{"93.184.216.34", "127.0.0.1", "2606:2800:220:1::1", "::1"} {
		to := net.JoinHostPort(host, "443")
		c, err := dial(ns, "tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		at, _ := netip.ParseAddrPort(s.LocalAddr().String())
		if got := netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String(); got != to {
			t.Errorf("original destination: got %s, want %s", got, to)
		}
		s.Close()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("after the close: got %v, want EOF", err)
		}
		c.Close()
		u, err := dial(ns, "udp", net.JoinHostPort(host, "53"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := u.Write([]byte("question")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 64)
		n, from, err := packets.ReadFrom(b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := packets.WriteTo(b[:n], from); err != nil {
			t.Fatal(err)
		}
		if n, err = u.Read(b); err != nil || string(b[:n]) != "question" {
			t.Errorf("%s: got %q %v, want the question back", host, b[:n], err)
		}
		u.Close()
	}
}

// One that can't be made leaves none: the port of another would stay taken.
func TestSocketsAllOrNone(t *testing.T) {
	ns := captured(t)
	before := openFDs(t)
	if _, err := ns.Sockets([]Socket{{Port: 80}, {Port: 81}, {Port: 80}}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a port twice: got %v, want %v", err, unix.EADDRINUSE)
	}
	if after := openFDs(t); after != before {
		t.Errorf("open descriptors: got %d, want %d", after, before)
	}
	files, err := ns.Sockets([]Socket{{Port: 80}})
	if err != nil {
		t.Fatal(err)
	}
	files[0].Close()
}

func openFDs(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

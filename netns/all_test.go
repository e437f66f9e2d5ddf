// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// H-11, M-8: one listener gets the connections to every port of every address, and knows where they were to go. What the sandbox serves to
// itself on loopback, and the ports that are left out, go their usual way.
func TestM8AllPorts(t *testing.T) {
	ns := captured(t)
	f := open(t, ns, Socket{Port: 80})
	if err := hostcaps.SocketLookup.Check(); err != nil {
		t.Skip("need: ", err)
	}
	_, datagrams := relay(t, ns)
	held, err := ns.AllPorts(f, datagrams, 53)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, want := range []string{"1.1.1.1:22", "8.8.8.8:5432", "93.184.216.34:65535", "93.184.216.34:1", "[2606:2800:220:1::1]:8443", "10.0.0.1:80", "127.0.0.1:80"} {
		client, err := dial(ns, "tcp", want)
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got := server.LocalAddr().String(); got != want {
			t.Errorf("original destination: got %s, want %s", got, want)
		}
		server.Close()
		client.Close()
	}
	for _, to := range []string{"127.0.0.1:81", "127.9.9.9:8080", "[::1]:8080", "192.0.0.8:81", "[100:0:0:1::1]:81", "1.1.1.1:53"} {
		if c, err := dial(ns, "tcp", to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: got %v %v, want %v", to, c, err, unix.ECONNREFUSED)
		}
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if c, err := dial(ns, "tcp", "1.1.1.1:22"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("afterwards: got %v %v, want %v", c, err, unix.ECONNREFUSED)
	}
}

// relay makes one of ns, and a second descriptor of its socket for AllPorts.
func relay(t testing.TB, ns *NS) (*Relay, *os.File) {
	t.Helper()
	files, err := ns.RelaySockets()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(files[0].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(fd), "datagrams")
	t.Cleanup(func() { socket.Close() })
	r, err := NewRelay(files[0], files[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r, socket
}

// H-11, M-8: datagrams to every port of every address come to one socket, which knows where they were to go, and the answer comes from
// there: to sockets that are connected and to those that aren't. What the sandbox says to itself stays with it.
func TestH11Datagrams(t *testing.T) {
	ns := captured(t)
	if err := hostcaps.SocketLookup.Check(); err != nil {
		t.Skip("need: ", err)
	}
	r, socket := relay(t, ns)
	held, err := ns.AllPorts(open(t, ns, Socket{Port: 80}), socket, 53)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	var free net.PacketConn
	if err := ns.Do(func() (err error) { free, err = net.ListenPacket("udp", ":0"); return err }); err != nil { //nolint:gosec // the namespace's
		t.Fatal(err)
	}
	defer free.Close()
	b := make([]byte, 1<<16)
	for i, to := range []string{"93.184.216.34:123", "[2606:2800:220:1::1]:443", "10.0.0.1:5353", "1.1.1.1:65535"} {
		want := netip.MustParseAddrPort(to)
		text := strings.Repeat("x", 1+i*997) // odd and even: the checksum of IPv6
		connected, err := dial(ns, "udp", to)
		if err != nil {
			t.Fatal(err)
		}
		for name, say := range map[string]func() error{
			"connected": func() error { _, err := connected.Write([]byte(text)); return err },
			"free":      func() error { _, err := free.WriteTo([]byte(text), net.UDPAddrFromAddrPort(want)); return err },
		} {
			if err := say(); err != nil {
				t.Fatal(err)
			}
			n, from, at, err := r.Receive(b)
			if err != nil || string(b[:n]) != text || at != want {
				t.Fatalf("%s to %s: got %d bytes for %s, %v", name, to, n, at, err)
			}
			if err := r.Reply(b[:n], at, from); err != nil {
				t.Fatal(err)
			}
		}
		_ = connected.SetReadDeadline(time.Now().Add(patience))
		if n, err := connected.Read(b); err != nil || string(b[:n]) != text {
			t.Errorf("connected to %s: %d bytes back, %v", to, n, err)
		}
		_ = free.SetReadDeadline(time.Now().Add(patience))
		n, from, err := free.ReadFrom(b)
		if err != nil || string(b[:n]) != text {
			t.Errorf("to %s: %d bytes back, %v", to, n, err)
		} else if got := from.(*net.UDPAddr).AddrPort(); netip.AddrPortFrom(got.Addr().Unmap(), got.Port()) != want {
			t.Errorf("to %s: the answer comes from %s", to, got)
		}
		connected.Close()
	}
	for _, to := range []string{"127.0.0.1:9", "[::1]:9", "192.0.0.8:9", "1.1.1.1:53"} {
		c, err := dial(ns, "udp", to)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte("x"))
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.Read(b); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: got %v, want %v: nobody is there", to, err, unix.ECONNREFUSED)
		}
		c.Close()
	}
}

func BenchmarkAllPorts(b *testing.B) {
	ns := captured(b)
	f := open(b, ns, Socket{Port: 80})
	_, datagrams := relay(b, ns)
	for b.Loop() {
		held, err := ns.AllPorts(f, datagrams, 53)
		if err != nil {
			b.Fatal(err)
		}
		held.Close()
	}
}

// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"net"
	"testing"

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
	held, err := ns.AllPorts(f, 53)
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
	for _, to := range []string{"127.0.0.1:81", "127.9.9.9:8080", "[::1]:8080", "1.1.1.1:53"} {
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

func BenchmarkAllPorts(b *testing.B) {
	ns := captured(b)
	f := open(b, ns, Socket{Port: 80})
	for b.Loop() {
		held, err := ns.AllPorts(f, 53)
		if err != nil {
			b.Fatal(err)
		}
		held.Close()
	}
}

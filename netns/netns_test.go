// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// M-7: the namespace has loopback, up, and nothing else.
func TestOnlyLoopback(t *testing.T) {
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	err = ns.Do(func() error {
		links, err := net.Interfaces()
		if err != nil {
			return err
		}
		for _, l := range links {
			up := l.Flags&net.FlagUp != 0
			if loop := l.Flags&net.FlagLoopback != 0; up != loop {
				t.Errorf("interface %s: up %v, want only loopback up", l.Name, up)
			}
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		return l.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// M-7: an address outside is unreachable at once, not after a time-out.
func TestNoRoute(t *testing.T) {
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	err = ns.Do(func() error {
		_, err := net.DialTimeout("tcp", "192.0.2.1:80", 5*time.Second)
		return err
	})
	if !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("dial outside: got %v, want %v", err, unix.ENETUNREACH)
	}
}

// A socket made in the namespace is unreachable from the host's loopback.
func TestSeparateFromHost(t *testing.T) {
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var l net.Listener
	if err := ns.Do(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		c.Close()
		t.Errorf("the host reaches %s inside", l.Addr())
	}
}

// M-5: the threads that lived in a namespace are gone, and this process is where it was.
func TestNothingStays(t *testing.T) {
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		ns, err := New()
		if err != nil {
			t.Fatal(err)
		}
		if err := ns.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if after, _ := os.Readlink("/proc/self/ns/net"); after != before {
		t.Errorf("namespace of the process changed: %s, was %s", after, before)
	}
}

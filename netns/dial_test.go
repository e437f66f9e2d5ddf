// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// M-7, M-23: a connection is to what is served inside, on each address of the namespace's own, and to nothing of the host's.
func TestDialReachesOwnAddresses(t *testing.T) {
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	port := host.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // TCP
	ns, err := New((*NS).Capture)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := ns.Dial(t.Context(), uint16(port)); !errors.Is(err, unix.ECONNREFUSED) { //nolint:gosec // a port
		t.Errorf("the host's port: %v, %v, want ECONNREFUSED", c, err)
	}
	for _, at := range []string{"127.0.0.1", "::1", "192.0.0.8", "100:0:0:1::1", "0.0.0.0"} {
		var l net.Listener
		if err := ns.Do(func() (err error) {
			l, err = net.Listen("tcp", net.JoinHostPort(at, strconv.Itoa(port)))
			return err
		}); err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = io.WriteString(c, at)
				c.Close()
			}
		}()
		c, err := ns.Dial(t.Context(), uint16(port)) //nolint:gosec // a port
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		if got, err := io.ReadAll(c); string(got) != at || err != nil {
			t.Errorf("%s: got %q, %v", at, got, err)
		}
		c.Close()
		l.Close()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ns.Dial(ended, uint16(port)); err == nil { //nolint:gosec // a port
		t.Error("nobody was there, and nothing was said")
	}
	if err := ns.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := ns.Dial(t.Context(), uint16(port)); err == nil { //nolint:gosec // a port
		t.Error("a closed namespace was entered")
	}
}

// A listener whose queue is full keeps nobody waiting longer than they want.
func TestDialEndsWithItsContext(t *testing.T) {
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	err = ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		return errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: 4444, Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0))
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 { // the first ones fit into the queue
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		c, err := ns.Dial(ctx, 4444)
		cancel()
		if err != nil {
			return
		}
		defer c.Close()
	}
	t.Error("ten connections fit into a queue of none")
}

// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func socket(t *testing.T) (one, other int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
	return fds[0], fds[1]
}

// What is there is told at once, what isn't at the time given, and a number that is no descriptor isn't waited for.
func TestAwait(t *testing.T) {
	one, other := socket(t)
	long := time.Now().Add(time.Minute)
	if err := Await(one, unix.POLLIN, time.Now().Add(soon+time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nothing there: %v", err)
	}
	if err := Await(one, unix.POLLIN, time.Time{}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("without a time: %v", err)
	}
	if err := Await(one, unix.POLLOUT, long); err != nil {
		t.Errorf("room: %v", err)
	}
	late := time.AfterFunc(2*soon, func() { _, _ = unix.Write(other, []byte("x")) })
	defer late.Stop()
	if err := Await(one, unix.POLLIN, long); err != nil {
		t.Errorf("a byte: %v", err)
	}
}

// All of it arrives, however often the socket is full meanwhile; a reader that doesn't read ends it, and so does one that is gone.
func TestSend(t *testing.T) {
	one, other := socket(t)
	want := bytes.Repeat([]byte("agentrun"), 1<<17)
	read := make(chan []byte)
	go func() {
		b := make([]byte, len(want))
		at := 0
		for at < len(b) {
			n, err := unix.Read(other, b[at:])
			if err != nil || n == 0 {
				break
			}
			at += n
		}
		read <- b[:at]
	}()
	if err := Send(one, want, nil, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if got := <-read; !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d, or others", len(got), len(want))
	}
	if err := Send(one, want, nil, time.Now().Add(soon)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nobody reads: %v", err)
	}
	if err := unix.Shutdown(other, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	if err := Send(one, []byte("x"), nil, time.Now().Add(time.Minute)); !errors.Is(err, unix.EPIPE) {
		t.Errorf("nobody is there: %v", err)
	}
}

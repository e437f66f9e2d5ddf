// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"errors"
	goruntime "runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func pipe(t *testing.T) (from, to int) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	return p[0], p[1]
}

// What is there is told, what isn't after the time given, and a mistake by its error.
func TestPoll(t *testing.T) {
	from, to := pipe(t)
	fds := []unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}}
	if n, err := Poll(fds, &unix.Timespec{Nsec: 1}); n != 0 || err != nil || fds[0].Revents != 0 {
		t.Errorf("an empty pipe: %d, %v, %#x", n, err, fds[0].Revents)
	}
	if _, err := unix.Write(to, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := Poll(fds, nil); n != 1 || err != nil || fds[0].Revents != unix.POLLIN {
		t.Errorf("a byte: %d, %v, %#x", n, err, fds[0].Revents)
	}
	if n, err := Poll(nil, &unix.Timespec{Nsec: -1}); n != -1 || !errors.Is(err, unix.EINVAL) {
		t.Errorf("a time before now: %d, %v", n, err)
	}
}

// While one waits, the others run, collect garbage and move their stacks, with a single place for all of them.
func TestPollLetsOthersRun(t *testing.T) {
	defer goruntime.GOMAXPROCS(goruntime.GOMAXPROCS(1))
	for range 50 {
		from, to := pipe(t)
		told := make(chan error, 1)
		go func() {
			fds := []unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}}
			n := 0
			var err error
			for err = unix.EINTR; errors.Is(err, unix.EINTR); {
				n, err = Poll(fds, nil)
			}
			if err == nil && (n != 1 || fds[0].Revents != unix.POLLIN) {
				err = errors.New("it says that nothing came")
			}
			told <- err
		}()
		goruntime.Gosched() // it waits now
		grow()
		goruntime.GC()
		if _, err := unix.Write(to, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := <-told; err != nil {
			t.Fatal(err)
		}
	}
}

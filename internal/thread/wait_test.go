// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

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

// What comes within the time is told as by Poll, and so is what comes only then.
func TestPollSoon(t *testing.T) {
	from, to := pipe(t)
	fds := []unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}}
	for _, within := range []time.Duration{0, time.Nanosecond, time.Hour} {
		go func() { _, _ = unix.Write(to, []byte("x")) }()
		if n, err := PollSoon(fds, within, nil); n != 1 || err != nil || fds[0].Revents != unix.POLLIN {
			t.Errorf("within %v: %d, %v, %#x", within, n, err, fds[0].Revents)
		}
		if _, err := unix.Read(from, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := PollSoon(fds, time.Nanosecond, &unix.Timespec{Nsec: 1}); n != 0 || err != nil {
		t.Errorf("an empty pipe: %d, %v", n, err)
	}
}

// A hang-up is heard, and heard by an ordinary thread: who has hung up, and still has to end, isn't held up by one above it.
func TestPollHangUp(t *testing.T) {
	goruntime.LockOSThread() // and so the thread ends with the test
	first := int32(1)
	if _, _, errno := unix.RawSyscall(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_FIFO, uintptr(unsafe.Pointer(&first))); errno != 0 && errno != unix.EPERM {
		t.Fatal(errno)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	hungUp := make(chan error, 1)
	waits := fmt.Sprintf("/proc/self/task/%d/syscall", unix.Gettid())
	go func() {
		var err error
		for at := ""; err == nil && !strings.HasPrefix(at, fmt.Sprint(unix.SYS_PPOLL)+" "); {
			var text []byte
			text, err = os.ReadFile(waits) // proc(5): what it is blocked in
			at = string(text)
		}
		hungUp <- errors.Join(err, unix.Close(p[1]))
	}()
	fds := []unix.PollFd{{Fd: int32(p[0]), Events: unix.POLLIN}}
	if n, err := Poll(fds, nil); n != 1 || err != nil || fds[0].Revents&unix.POLLHUP == 0 {
		t.Errorf("%d, %v, %#x", n, err, fds[0].Revents)
	}
	if policy, _, errno := unix.RawSyscall(unix.SYS_SCHED_GETSCHEDULER, 0, 0, 0); errno != 0 || policy != unix.SCHED_NORMAL {
		t.Errorf("policy %d, %v", policy, errno)
	}
	if err := <-hungUp; err != nil {
		t.Error(err)
	}
}

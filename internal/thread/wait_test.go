// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strings"
	"testing"
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
		Room32()
		goruntime.GC()
		if _, err := unix.Write(to, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := <-told; err != nil {
			t.Fatal(err)
		}
	}
}

// What is to be done when something is there is done once, for the descriptor that it is there at, and its answer told.
func TestPollThen(t *testing.T) {
	from, to := pipe(t)
	other, _ := pipe(t)
	var waiting int32
	fds := []unix.PollFd{{Fd: int32(other), Events: unix.POLLIN}, {Fd: int32(from), Events: unix.POLLIN}}
	then := Ioctl{FD: int32(from), Request: unix.TIOCINQ, Arg: unsafe.Pointer(&waiting)}
	if _, err := (&Waits{Timeout: &unix.Timespec{Nsec: 1}, Then: &then}).Poll(fds); err != nil || then.Done {
		t.Errorf("an empty pipe: %v, %+v", err, then)
	}
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	written := make(chan error, 1)
	tid := unix.Gettid()
	go func() { written <- errors.Join(untilPoll(tid), writeAll(to, "abc")) }()
	if n, err := (&Waits{Then: &then}).Poll(fds); n != 1 || err != nil || !then.Done || then.Errno != 0 || waiting != 3 {
		t.Errorf("%d, %v, %+v, %d bytes", n, err, then, waiting)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// What is to be done first is done before the wait, also where something is there already, and a signal, such as those by which the runtime asks
// a thread to let others run, doesn't end the wait.
func TestPollFirst(t *testing.T) {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	from, to := pipe(t)
	if err := writeAll(to, "ab"); err != nil {
		t.Fatal(err)
	}
	var there, then int32
	fds := []unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}}
	one := Ioctl{FD: int32(from), Request: unix.TIOCINQ, Arg: unsafe.Pointer(&there)}
	two := Ioctl{FD: int32(from), Request: unix.TIOCINQ, Arg: unsafe.Pointer(&then)}
	if n, err := (&Waits{First: &one, Then: &two}).Poll(fds); n != 1 || err != nil || !one.Done || there != 2 || !two.Done || then != 2 {
		t.Errorf("two bytes: %d, %v, %+v, %d, %+v, %d", n, err, one, there, two, then)
	}
	if _, err := unix.Read(from, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	one.FD = -1
	two.Done = false
	written := make(chan error, 1)
	tid := unix.Gettid()
	go func() {
		for range 100 {
			if err := errors.Join(untilPoll(tid), unix.Tgkill(unix.Getpid(), tid, unix.SIGURG)); err != nil {
				written <- err
				return
			}
		}
		written <- writeAll(to, "c")
	}()
	if n, err := (&Waits{First: &one, Then: &two}).Poll(fds); n != 1 || err != nil || one.Errno != unix.EBADF || !two.Done || then != 1 {
		t.Errorf("signals, and then a byte: %d, %v, %+v, %+v, %d", n, err, one, two, then)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}

func writeAll(fd int, text string) error {
	_, err := unix.Write(fd, []byte(text))
	return err
}

// untilPoll returns when the thread is blocked in ppoll (proc(5)).
func untilPoll(tid int) error {
	for {
		at, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/syscall", tid))
		if err != nil || strings.HasPrefix(string(at), fmt.Sprint(unix.SYS_PPOLL)+" ") {
			return err
		}
	}
}

// A hang-up is told, of a descriptor at which there is nothing more to read only, and leaves a hasty thread an ordinary one.
func TestPollHung(t *testing.T) {
	for _, tt := range []struct {
		left string // unread at the hang-up
		keep bool
		hung uint32
	}{{"", false, 1}, {"", true, 1}, {"x", false, 0}} {
		from, to := pipe(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			goruntime.LockOSThread() // and ends with it
			if err := errors.Join(writeAll(to, tt.left), unix.Close(to)); err != nil {
				t.Error(err)
			}
			_, _, e := unix.RawSyscall(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_FIFO, uintptr(unsafe.Pointer(&[]int32{1}[0])))
			var hung uint32
			w := Waits{Keep: tt.keep, Hasty: e == 0, Hung: &hung}
			fds := []unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}}
			if _, err := waiting(&fds[0], 1, &w); err != 0 || hung != tt.hung {
				t.Errorf("%+v: hung %d, errno %v", tt, hung, err)
			}
			if policy, _, e := unix.RawSyscall(unix.SYS_SCHED_GETSCHEDULER, 0, 0, 0); e != 0 || policy != unix.SCHED_NORMAL {
				t.Errorf("%+v: policy %d, errno %v", tt, policy, e)
			}
		}()
		<-done
	}
}

// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Looked at by processor time; a watch counts for each number of the same file, an epoll once, whoever has it.
func TestWatchesAreLookedAtByProcessorTime(t *testing.T) {
	var l tooManyWatches
	us := func() ([]int, error) { return []int{os.Getpid(), os.Getpid()}, nil }
	if why, err := l.look(watchLook-1, us); why != "" || err != nil || l.seen != 0 {
		t.Errorf("looked too early: %q, %v, %+v", why, err, l)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	fds := pipe[:]
	open := func(fd int, err error) int {
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
		return fd
	}
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	numbers := make([]int, 100)
	for i := range numbers {
		numbers[i] = open(unix.FcntlInt(uintptr(pipe[0]), unix.F_DUPFD_CLOEXEC, 0))
	}
	watch := func(numbers []int) int {
		e := open(unix.EpollCreate1(unix.EPOLL_CLOEXEC))
		for _, fd := range numbers {
			if err := unix.EpollCtl(e, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
				t.Fatal(err)
			}
		}
		return e
	}
	few := watch(numbers)
	for range 2 * mostWatches / len(numbers) {
		open(unix.FcntlInt(uintptr(few), unix.F_DUPFD_CLOEXEC, 0))
	}
	if why, err := l.look(watchLook, us); why != "" || err != nil || l.seen != watchLook {
		t.Errorf("100 watches, under many numbers: %q, %v, %+v", why, err, l)
	}
	timer := open(unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC))
	timers := []int{timer}
	for range mostTimers {
		timers = append(timers, open(unix.FcntlInt(uintptr(timer), unix.F_DUPFD_CLOEXEC, 0)))
	}
	many := watch(timers)
	l.rest = time.Time{}
	if why, err := l.look(2*watchLook, us); !strings.HasPrefix(why, "epoll watches of timers") || err != nil {
		t.Errorf("a timer that is watched too often: %q, %v", why, err)
	}
	fds = slices.DeleteFunc(fds, func(fd int) bool { return fd == many })
	_ = unix.Close(many)
	for range mostWatches / len(numbers) {
		watch(numbers)
	}
	l.rest = time.Time{}
	if why, err := l.look(3*watchLook, us); !strings.HasPrefix(why, "epoll watches: ") || err != nil {
		t.Errorf("too many watches: %q, %v", why, err)
	}
}

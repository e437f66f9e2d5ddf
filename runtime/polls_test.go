// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pollsOfAChild has the test's program be one that polls a descriptor so often, whatever it has.
const pollsOfAChild = "AGENTRUN_TEST_POLLS"

// Each thread's call counts with what it was given, whatever call it is, also after a stop; a sleep by select(2) doesn't. A look finds too many.
func TestPollsAreLookedAt(t *testing.T) {
	const some = 5000
	if os.Getenv(pollsOfAChild) != "" {
		many := make([]unix.PollFd, some)
		for i := range many {
			many[i] = unix.PollFd{Fd: 0, Events: unix.POLLPRI}
		}
		_, _ = unix.Poll(many, -1)
		return
	}
	self := []int{os.Getpid()}
	before := polled(self)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	calls := 0
	end := func() { // of the other end, which all of them hear
		_ = unix.Close(pipe[1])
		for ; calls > 0; calls-- {
			<-over
		}
	}
	defer func() { end(); _ = unix.Close(pipe[0]) }()
	poll := func(with func(many []unix.PollFd)) {
		many := make([]unix.PollFd, some)
		for i := range many {
			many[i] = unix.PollFd{Fd: int32(pipe[0]), Events: unix.POLLPRI} //nolint:gosec // a descriptor
		}
		calls++
		go func() { with(many); over <- struct{}{} }()
	}
	has := func(what string, pids []int, want func(n int) bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !want(polled(pids)); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d are polled", what, polled(pids))
			}
		}
	}
	poll(func(many []unix.PollFd) { _, _ = unix.Poll(many, -1) })
	has("poll", self, func(n int) bool { return n == before+some })
	poll(func(many []unix.PollFd) { _, _ = unix.Ppoll(many, nil, nil) })
	has("and ppoll", self, func(n int) bool { return n == before+2*some })
	var set unix.FdSet
	set.Set(pipe[0])
	poll(func([]unix.PollFd) { _, _ = unix.Select(1000, &set, nil, nil, nil) })
	has("and select", self, func(n int) bool { return n > before+2*some && n <= before+2*some+1000 })
	var l tooManyWatches
	us := func() ([]int, error) { return self, nil }
	if why, err := l.look(watchLook, us); why != "" || err != nil {
		t.Errorf("in bounds: %q, %v", why, err)
	}
	for range 2 {
		poll(func(many []unix.PollFd) { _, _ = unix.Poll(many, -1) })
	}
	has("too many", self, func(n int) bool { return n > mostPolled })
	l.rest = time.Time{}
	if why, err := l.look(2*watchLook, us); !strings.HasPrefix(why, "descriptors that are polled: ") || err != nil {
		t.Errorf("too many: %q, %v", why, err)
	}
	end()
	calls++ // a sleep ends by itself, so nobody waits for it
	go func() {
		_, _ = unix.Select(1000, nil, nil, nil, &unix.Timeval{Sec: 1})
		over <- struct{}{}
	}()
	has("a sleep", self, func(n int) bool { return n == before })

	cmd := exec.Command(os.Args[0], "-test.run=^TestPollsAreLookedAt$") //nolint:gosec // ourselves
	cmd.Env = append(os.Environ(), pollsOfAChild+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = cmd.Wait() }()
	child := []int{cmd.Process.Pid}
	has("a child", child, func(n int) bool { return n == some })
	if err := unix.Kill(child[0], unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(child[0], nil, unix.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(child[0], unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	has("a child that goes on", child, func(n int) bool { return n == some })
}

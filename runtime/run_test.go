// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"errors"
	"io"
	"os"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
)

// M-1: no two live runs have a range in common, and a range that was given back can be had again.
func TestIDRanges(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	live := map[int]*idRange{}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			r, err := claimIDs(dir, rootPool(), false, -1)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if live[r.base] != nil {
				t.Errorf("range %#x was given out twice", r.base)
			}
			live[r.base] = r
			if r.base < rangeBase || r.base+rangeSize-1 > 1<<31-1 {
				t.Errorf("range %#x is outside of what ids may be", r.base)
			}
		})
	}
	wg.Wait()
	for _, r := range live {
		if err := r.release(); err != nil {
			t.Error(err)
		}
	}
	a, err := claimIDs(dir, rootPool(), false, -1)
	if err != nil {
		t.Fatal(err)
	}
	b, err := claimIDs(dir, rootPool(), false, -1)
	if err != nil {
		t.Fatal(err)
	}
	if b.base == a.base {
		t.Error("the range of a live run was given out")
	}
	a.release()
	c, err := claimIDs(dir, rootPool(), false, -1)
	if err != nil {
		t.Fatal(err)
	}
	if c.base == a.base {
		t.Error("a range came back at once; ranges rotate")
	}
	b.release()
	c.release()
}

// When every range is taken, the next start is refused.
func TestIDRangesEnd(t *testing.T) {
	dir := t.TempDir()
	r, err := claimIDs(dir, rootPool(), false, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.release()
	all, err := os.OpenFile(r.file.Name(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	n := int64(r.base-rangeBase) / rangeSize
	for _, span := range [][2]int64{{0, n}, {n + 1, rangeCount - n - 1}} {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 2 + span[0], Len: span[1]}
		if span[1] == 0 {
			continue
		}
		if err := unix.FcntlFlock(all.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := claimIDs(dir, rootPool(), false, -1); !errors.Is(err, ErrNoIDs) {
		t.Errorf("got %v, want %v", err, ErrNoIDs)
	}
}

// M-6: the true cause, in the order outside decision, memory, own end.
func TestJudge(t *testing.T) {
	exited := unix.WaitStatus(3 << 8)
	killed := unix.WaitStatus(unix.SIGKILL)
	segv := unix.WaitStatus(unix.SIGSEGV)
	cases := []struct {
		name  string
		agent *unix.WaitStatus
		why   verdict
		ooms  uint64
		state State
		code  int
	}{
		{"own end", &exited, verdict{}, 0, Exited, 3},
		{"own end, a child was OOM-killed", &exited, verdict{}, 1, Exited, 3},
		{"signal", &segv, verdict{}, 0, Signaled, 139},
		{"killed from inside", &killed, verdict{}, 0, Signaled, 137},
		{"out of memory", &killed, verdict{}, 1, OOM, 137},
		{"timeout", &killed, verdict{TimedOut, "x"}, 0, TimedOut, 124},
		{"timeout, no word of pid 1", nil, verdict{TimedOut, "x"}, 0, TimedOut, 124},
		{"operator", nil, verdict{Killed, "x"}, 0, Killed, 137},
		{"output", &killed, verdict{Policy, "x"}, 0, Policy, 137},
		{"pid 1 killed", nil, verdict{}, 0, Killed, 137},
		{"pid 1 killed for memory", nil, verdict{}, 1, OOM, 137},
	}
	for _, c := range cases {
		r := &run{plan: &Plan{}, agent: c.agent}
		r.status.OOMKills = c.ooms
		r.judge(c.why)
		if r.status.State != c.state || r.status.ExitCode != c.code {
			t.Errorf("%s: got %s %d, want %s %d", c.name, r.status.State, r.status.ExitCode, c.state, c.code)
		}
		if c.why.reason != "" && r.status.Reason != c.why.reason {
			t.Errorf("%s: reason %q", c.name, r.status.Reason)
		}
	}
}

// M-3: exactly the limit passes, one byte more ends the run, and no more than the limit comes out.
func TestOutputLimit(t *testing.T) {
	for _, c := range []struct {
		write, limit int
		over         bool
		hold         bool
	}{
		{100, 100, false, false}, {101, 100, true, false}, {200000, 70000, true, false}, {0, 1, false, false},
		{100, 100, false, true}, {101, 100, true, true}, {200000, 70000, true, true}, {0, 1, false, true},
	} {
		var out bytes.Buffer
		s, err := newPipes(os.Getuid(), os.Getgid())
		if err != nil {
			t.Fatal(err)
		}
		s.hold = c.hold
		agent, err := unix.Dup(int(s.out.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		s.handedOver()
		over := make(chan struct{}, 1)
		s.pump(nil, &out, io.Discard, int64(c.limit), func() { over <- struct{}{} })
		f := os.NewFile(uintptr(agent), "agent")
		_, _ = f.WriteString(strings.Repeat("x", c.write)) // EPIPE once the limit was passed
		f.Close()
		s.drain()
		if got := len(over) == 1; got != c.over {
			t.Errorf("%d of %d bytes: over %v, want %v", c.write, c.limit, got, c.over)
		}
		if want := min(c.write, c.limit); out.Len() != want || s.written.Load() != int64(want) {
			t.Errorf("%d of %d bytes: passed on %d, counted %d, want %d", c.write, c.limit, out.Len(), s.written.Load(), want)
		}
		s.closeAll()
		s.wg.Wait()
	}
}

// What was written is passed on when drain returns, however it comes together with that and however slow its reader is; and where the agent's
// end was all there was to hear, nobody is woken by it.
func TestDrainPassesOnWhatWasWritten(t *testing.T) {
	for i := range 300 {
		var out, errs bytes.Buffer
		s, err := newPipes(os.Getuid(), os.Getgid())
		if err != nil {
			t.Fatal(err)
		}
		s.hold = true
		stdout, err := unix.Dup(int(s.out.Fd()))
		stderr, err2 := unix.Dup(int(s.err.Fd()))
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		s.handedOver()
		s.pump(nil, slowly{&out}, slowly{&errs}, 1<<20, func() {})
		for n := range i % 7 {
			for _, fd := range []int{stdout, stderr} {
				if _, err := unix.Write(fd, bytes.Repeat([]byte("x"), 1000*n)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if i%5 != 0 { // else somebody has got them from the agent, and keeps them
			unix.Close(stdout)
			unix.Close(stderr)
		}
		if i%2 == 0 {
			goruntime.Gosched()
		}
		if i%3 == 0 {
			for !s.quiet() {
				goruntime.Gosched()
			}
		}
		s.drain()
		want := 0
		for n := range i % 7 {
			want += 1000 * n
		}
		if out.Len() != want || errs.Len() != want || s.written.Load() != int64(2*want) {
			t.Fatalf("round %d: passed on %d and %d bytes, counted %d, want %d each", i, out.Len(), errs.Len(), s.written.Load(), want)
		}
		s.closeAll()
		s.wg.Wait() // the copies end, for which drain doesn't wait
		if i%5 == 0 {
			unix.Close(stdout)
			unix.Close(stderr)
		}
	}
}

// The same of a terminal, which somebody has got from the agent and keeps.
func TestDrainOfATerminalThatOthersHold(t *testing.T) {
	for i := range 100 {
		fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		master := os.NewFile(uintptr(fd), "master")
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			t.Fatal(err)
		}
		peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno != 0 {
			t.Fatal(errno)
		}
		slave := int(peer)
		s, err := newNull()
		if err != nil {
			t.Fatal(err)
		}
		s.usePTY(master)
		s.handedOver()
		var out bytes.Buffer
		s.pump(nil, slowly{&out}, slowly{&out}, 1<<20, func() {})
		want := bytes.Repeat([]byte("x"), 700*(i%7))
		if _, err := unix.Write(slave, want); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			goruntime.Gosched()
		}
		s.drain()
		if out.Len() != len(want) {
			t.Fatalf("round %d: passed on %d bytes, want %d", i, out.Len(), len(want))
		}
		unix.Close(slave)
		s.closeAll()
	}
}

type slowly struct{ to io.Writer }

func (s slowly) Write(b []byte) (int, error) {
	goruntime.Gosched()
	return s.to.Write(b)
}

// The status file is whole or absent, and an unwritable place is an error that leaves nothing.
func TestStatusFile(t *testing.T) {
	dir := t.TempDir()
	s := &Status{ID: "x", State: Exited}
	to, err := fsjail.OpenOutput(dir+"/s.json", nil)
	if err == nil {
		err = s.WriteFile(to)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	b, err := os.ReadFile(dir + "/s.json")
	if err != nil || !bytes.Contains(b, []byte(`"state": "exited"`)) {
		t.Errorf("%s, %v", b, err)
	}
	if _, err := fsjail.OpenOutput(dir+"/missing/s.json", nil); err == nil {
		t.Error("a folder that is not there was opened")
	}
	names, _ := os.ReadDir(dir)
	if len(names) != 1 {
		t.Errorf("temporary files stay: %v", names)
	}
}

// The kernel's table of offsets, of which one line is a clock's.
func TestOwnOffset(t *testing.T) {
	const table = "monotonic     -100000 999999999\nboottime           7         0\n"
	for _, tc := range []struct {
		table, clock string
		secs, nsecs  int64
		ok           bool
	}{
		{table, "monotonic", -100000, 999999999, true},
		{table, "boottime", 7, 0, true},
		{table, "tai", 0, 0, false},
		{"", "boottime", 0, 0, false},
		{"boottime 7\n", "boottime", 0, 0, false},
		{"boottime x 0\n", "boottime", 0, 0, false},
	} {
		secs, nsecs, err := ownOffset(tc.table, tc.clock)
		if (err == nil) != tc.ok || secs != tc.secs || nsecs != tc.nsecs {
			t.Errorf("%s in %q: got %d, %d, %v", tc.clock, tc.table, secs, nsecs, err)
		}
	}
}

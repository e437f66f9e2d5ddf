// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	goruntime "runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// install puts the program on the calling thread only and gives the listener. The thread must be locked and never unlocked: it
// ends with its goroutine. The Go runtime makes new threads from an unfiltered template thread while one is locked.
func install(p Program, flags uintptr) (int, error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, err
	}
	code := p.Bytes()
	prog := unix.SockFprog{Len: uint16(p.Len()), Filter: (*unix.SockFilter)(unsafe.Pointer(&code[0]))}
	fd, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return -1, e
	}
	return int(fd), nil
}

// permissive allows everything but the named calls, so that a Go thread can live under it.
func permissive(t testing.TB, notify ...string) Program {
	t.Helper()
	info, err := Native.info()
	if err != nil {
		t.Fatal(err)
	}
	skip := map[string]bool{}
	for _, n := range notify {
		skip[n] = true
	}
	var names []string
	for nr, known := range knownNumbers(info) {
		if known && !skip[Name(nr)] {
			names = append(names, Name(nr))
		}
	}
	return compile(t, Filter{Unlisted: Notify, Rules: []Rule{{Syscalls: names, Action: Allow, Why: "test"}}}, Options{})
}

// filtered runs body on a thread of its own under the program. It returns the listener once it is installed, and a channel
// that closes when the thread's work is done; the thread then ends.
func filtered(t testing.TB, p Program, body func()) (int, <-chan struct{}) {
	t.Helper()
	type result struct {
		fd  int
		err error
	}
	ready := make(chan result)
	done := make(chan struct{})
	go func() {
		goruntime.LockOSThread()
		fd, err := install(p, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
		ready <- result{fd, err}
		if err == nil {
			body()
		}
		close(done)
	}()
	r := <-ready
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { unix.Close(r.fd) })
	return r.fd, done
}

// mount tells the Go scheduler that it may block: a raw call would hold up a garbage collection, which holds up the answer.
func mount() error {
	_, _, e := unix.Syscall6(unix.SYS_MOUNT, 0, 0, 0, 0, 0, 0)
	if e == 0 {
		return nil
	}
	return e
}

// init keeps the first thread for the main goroutine: Go parks that thread instead of ending it, so a filter put on it would
// have a user for ever, and Serve would not end.
func init() { goruntime.LockOSThread() }

// TestMain is also the child of the tests that need a process of their own.
func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "":
		// Who forks keeps its place among those that run, until the answer comes from a goroutine that needs one, too: as never in production.
		goruntime.GOMAXPROCS(max(2, goruntime.GOMAXPROCS(0)))
		os.Exit(m.Run())
	case "mount": // under the parent's filter
		if !errors.Is(mount(), unix.EPERM) {
			os.Exit(1)
		}
		os.Exit(0)
	case "foreign": // under the parent's filter
		unix.RawSyscall(x32Bit|unix.SYS_GETPID, 0, 0, 0)
		os.Exit(4)
	case "x32":
		goruntime.LockOSThread()
		info, _ := Native.info()
		known := knownNumbers(info)
		f := Filter{Unlisted: KillProcess}
		for nr := range known {
			if known[nr] {
				f.Rules = append(f.Rules, Rule{Syscalls: []string{Name(nr)}, Action: Allow, Why: "test"})
			}
		}
		p, err := f.Compile(Options{})
		if err == nil {
			_, err = install(p, 0)
		}
		if err != nil {
			fmt.Println("install:", err)
			os.Exit(3)
		}
		unix.RawSyscall(x32Bit|unix.SYS_GETPID, 0, 0, 0)
		os.Exit(4)
	}
	os.Exit(5)
}

const childEnv = "AGENTRUN_SECCOMP_TEST_CHILD"

// forkMount starts a child that makes one call of mount and exits with 0 if it is refused with EPERM.
func forkMount() (int, error) { return forkChild("mount") }

func forkChild(does string) (int, error) {
	return syscall.ForkExec("/proc/self/exe", []string{"test"}, &syscall.ProcAttr{Env: []string{childEnv + "=" + does}})
}

// serve runs Serve and gives its result.
func serve(ctx context.Context, fd int, handle func(Call) Answer, o ServeOptions) <-chan error {
	out := make(chan error, 1)
	go func() { out <- Serve(ctx, fd, handle, o) }()
	return out
}

// M-4: refused calls fail with the answer's errno, allowed ones run, and Serve ends with the last filtered thread.
func TestServe(t *testing.T) {
	var errs [4]error
	var n atomic.Int32
	var pid atomic.Int64
	fd, done := filtered(t, permissive(t, "mount", "umount2", "unshare"), func() {
		pid.Store(int64(unix.Gettid()))
		errs[0] = mount()
		errs[1] = mount()
		_, _, e := unix.Syscall(unix.SYS_UMOUNT2, 0, 0, 0)
		errs[2] = e
		_, _, e = unix.Syscall(unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0, 0)
		errs[3] = e
	})
	var rec Recorder
	var stats Stats
	out := serve(context.Background(), fd, func(c Call) Answer {
		a := Answer{}
		switch {
		case c.Name == "umount2":
			a = Continue()
		case n.Add(1) == 2:
			a = Deny(unix.ENODEV)
		}
		if c.PID != int(pid.Load()) || c.Arch != archs[0].audit && c.Arch != archs[1].audit || !StillWaiting(fd, c.ID) || StillWaiting(fd, c.ID+1) {
			t.Errorf("call %+v: want pid %d and a waiting id", c, pid.Load())
		}
		rec.Record(c, a)
		return a
	}, ServeOptions{Stats: &stats})
	<-done
	if err := <-out; err != nil {
		t.Errorf("serve: %v, want nil when the last thread is gone", err)
	}
	want := [4]error{unix.EPERM, unix.ENODEV, unix.EFAULT, unix.EPERM} // EFAULT: umount2 reached the kernel
	if errs != want {
		t.Errorf("got %v, want %v", errs, want)
	}
	s := rec.Snapshot()
	if s.Refused["mount"] != 2 || s.Refused["unshare"] != 1 || s.Refused["umount2"] != 0 || s.Total != 3 || len(s.Events) != 3 ||
		s.Events[2].Detail != "flags=CLONE_NEWUSER" || s.Events[0].Verdict != "ENODEV" || s.Events[1].Verdict != "allowed" {
		t.Errorf("got %+v", s)
	}
	if !stats.Over() {
		t.Error("the last process is gone, and it isn't said")
	}
	if stats.Received.Load() != 4 || stats.Denied.Load() != 3 || stats.Continued.Load() != 1 {
		t.Errorf("stats: %d received, %d denied, %d continued", stats.Received.Load(), stats.Denied.Load(), stats.Continued.Load())
	}
	t.Logf("SYNC_WAKE_UP: %v", stats.SyncWakeUp.Load())
}

// negative is what a caller gets who passes on a negative errno.
var negative = -int(unix.EPERM)

// No answer, however made, lets a refused call succeed.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		a    Answer
		want unix.Errno
		s    string
	}{
		{Answer{}, unix.EPERM, "EPERM"}, {Deny(0), unix.EPERM, "EPERM"}, {Deny(unix.ENOSYS), unix.ENOSYS, "ENOSYS"}, {Deny(4096), unix.EPERM, "EPERM"},
		{Deny(^unix.Errno(0)), unix.EPERM, "EPERM"}, {Deny(unix.Errno(negative)), unix.EPERM, "EPERM"}, {Continue(), 0, "allowed"},
		{Kill(), unix.EPERM, "killed"}, {Probe(unix.ENOSYS), unix.ENOSYS, "ENOSYS"},
	} {
		if c.a.Err() != c.want || c.a.Allowed() != (c.want == 0) || c.a.String() != c.s {
			t.Errorf("%+v: got %v %v %v, want %v", c.a, c.a.Err(), c.a.Allowed(), c.a, c.want)
		}
	}
}

// A process started from a filtered thread: its clone and exec are asked for.
func TestServeFork(t *testing.T) {
	// Who forks and who answers are in one Go process here, as never in production. A garbage collection in the instant of
	// the fork stops the goroutine that answers until the forking thread has come back, which waits for the answer.
	goruntime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var bad, good error
	fd, done := filtered(t, permissive(t, "clone", "clone3", "vfork", "execve"), func() {
		_, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{})
		bad = err
		var pid int
		pid, good = syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{})
		if good == nil {
			var ws syscall.WaitStatus
			_, good = syscall.Wait4(pid, &ws, 0, nil)
			if good == nil && ws.ExitStatus() != 0 {
				good = fmt.Errorf("exit %d", ws.ExitStatus())
			}
		}
	})
	var seen []string
	out := serve(context.Background(), fd, func(c Call) Answer {
		seen = append(seen, c.Name)
		if len(seen) == 1 {
			return Deny(unix.EAGAIN)
		}
		return Continue()
	}, ServeOptions{})
	<-done
	if err := <-out; err != nil {
		t.Error(err)
	}
	if !errors.Is(bad, unix.EAGAIN) || good != nil {
		t.Errorf("first %v, want EAGAIN; second %v, want nil; seen %v", bad, good, seen)
	}
}

// The end of the context ends Serve; refusals that were held leave at once.
func TestServeContext(t *testing.T) {
	release := make(chan struct{})
	var err1, err2 error
	fd, done := filtered(t, permissive(t, "mount"), func() {
		err1 = mount() // spends the burst
		err2 = mount() // held for a long time
		<-release
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var n int
	var stats Stats
	clock := time.Now()
	out := serve(ctx, fd, func(Call) Answer {
		if n++; n == 2 {
			cancel()
		}
		return Answer{}
	}, ServeOptions{DenyRate: 1, DenyBurst: 1, Stats: &stats, Clock: func() time.Time { return clock }})
	if err := <-out; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if stats.Over() {
		t.Error("it is over, says who has only been told to end")
	}
	close(release)
	<-done
	if !errors.Is(err1, unix.EPERM) || !errors.Is(err2, unix.EPERM) || stats.Delayed.Load() != 1 {
		t.Errorf("got %v and %v, %d delayed, want EPERM twice, 1 delayed", err1, err2, stats.Delayed.Load())
	}
	if err := Serve(ctx, fd, func(Call) Answer { return Answer{} }, ServeOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: got %v", err)
	}
}

// THREATS supervisor: a flood. 100 000 refused calls from one thread: the loop allocates nothing per call, the rate
// holds, and a well-behaved call in between is not held back by it.
func TestFlood(t *testing.T) {
	const calls, rate, burst = 100_000, 1000, 98_500
	var slow, failed int
	start := time.Now()
	fd, done := filtered(t, permissive(t, "mount", "umount2"), func() {
		for i := range calls {
			if !errors.Is(mount(), unix.EPERM) {
				failed++
			}
			if i%1000 == 0 {
				at := time.Now()
				unix.Syscall(unix.SYS_UMOUNT2, 0, 0, 0)
				if time.Since(at) > 500*time.Millisecond {
					slow++
				}
			}
		}
	})
	var rec Recorder
	var stats Stats
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	out := serve(context.Background(), fd, func(c Call) Answer {
		a := Answer{}
		if c.Name == "umount2" {
			a = Continue()
		}
		rec.Record(c, a)
		return a
	}, ServeOptions{DenyRate: rate, DenyBurst: burst, Stats: &stats})
	<-done
	if err := <-out; err != nil {
		t.Error(err)
	}
	took := time.Since(start)
	goruntime.ReadMemStats(&after)
	if least := time.Second * (calls - burst) / rate; took < least {
		t.Errorf("took %v, the rate limit allows no less than %v", took, least)
	}
	if allocs := after.Mallocs - before.Mallocs; allocs > calls/100 {
		t.Errorf("%d allocations for %d calls", allocs, calls)
	}
	if failed != 0 || slow != 0 || stats.Denied.Load() != calls || rec.Snapshot().Refused["mount"] != calls {
		t.Errorf("%d calls not refused, %d slow, %d denied, recorded %+v", failed, slow, stats.Denied.Load(), rec.Snapshot())
	}
	t.Logf("%d refused calls in %v, %d delayed, %d allocations", calls, took, stats.Delayed.Load(), after.Mallocs-before.Mallocs)
}

// The supervisor answers while the attacker's other threads wait.
func TestHeldCallsDoNotHoldOthers(t *testing.T) {
	// The clock stands still: a held refusal is never due. That the allowed calls get through shows that they don't wait for it.
	var mu sync.Mutex
	clock := time.Now()
	now := func() time.Time { mu.Lock(); defer mu.Unlock(); return clock }
	p := permissive(t, "mount", "umount2")
	held := make(chan struct{})
	heldErr := make(chan error, 1)
	polite := make(chan int, 1)
	fd, done := filtered(t, p, func() {
		mount() // the burst
		// The child inherits the filter. Its refusal is held; this thread's calls are not.
		pid, err := forkMount()
		if err != nil {
			heldErr <- err
			polite <- 0
			return
		}
		<-held
		n := 0
		for range 100 {
			if _, _, e := unix.Syscall(unix.SYS_UMOUNT2, 0, 0, 0); e == unix.EFAULT {
				n++
			}
		}
		polite <- n
		mu.Lock()
		clock = clock.Add(time.Hour)
		mu.Unlock()
		unix.Syscall(unix.SYS_UMOUNT2, 0, 0, 0) // wakes the loop, which sees the new time
		var ws syscall.WaitStatus
		_, err = syscall.Wait4(pid, &ws, 0, nil)
		heldErr <- err
	})
	refused := 0
	out := serve(context.Background(), fd, func(c Call) Answer {
		if c.Name == "umount2" {
			return Continue()
		}
		if refused++; refused == 2 {
			close(held)
		}
		return Answer{}
	}, ServeOptions{DenyRate: 1, DenyBurst: 1, Clock: now})
	if n := <-polite; n != 100 {
		t.Errorf("%d of 100 allowed calls got through while a refusal was held", n)
	}
	if err := <-heldErr; err != nil {
		t.Error(err)
	}
	<-done
	if err := <-out; err != nil {
		t.Error(err)
	}
}

// THREATS supervisor: a flood of calls that are let run costs the supervisor more than its caller, so they are paced; a hurry lifts that, and
// what waits is decided by what holds when its time has come.
func TestAllowedCallsArePaced(t *testing.T) {
	const calls, rate, burst = 300, 1000, 100
	var ran int
	fd, done := filtered(t, permissive(t, "umount2"), func() {
		for range calls {
			if _, _, e := unix.Syscall(unix.SYS_UMOUNT2, 0, 0, 0); e == unix.EFAULT {
				ran++
			}
		}
	})
	start := time.Now()
	out := serve(context.Background(), fd, func(Call) Answer { return Continue() }, ServeOptions{AllowRate: rate, AllowBurst: burst})
	<-done
	if err := <-out; err != nil {
		t.Error(err)
	}
	if took, least := time.Since(start), time.Second*(calls-burst-1)/rate; ran != calls || took < least {
		t.Errorf("%d of %d calls ran in %v, want all in %v or more", ran, calls, took, least)
	}

	clock, g := time.Now(), &Gate{}
	var stats Stats
	var after atomic.Bool
	var late atomic.Int32
	fd, done = filtered(t, permissive(t, "umount2"), func() {
		for range 4 { // two without a wait: one is the burst
			unix.Syscall(unix.SYS_UMOUNT2, 0, 0, 0)
		}
	})
	out = serve(context.Background(), fd, func(Call) Answer {
		if after.Load() {
			late.Add(1)
		}
		return Continue()
	}, ServeOptions{AllowRate: 1, AllowBurst: 1, Gate: g, Stats: &stats, Clock: func() time.Time { return clock }})
	for stats.Received.Load() < 3 {
		goruntime.Gosched()
	}
	if err := g.Barrier(context.Background()); err != nil { // the third is not decided, and the clock stands still
		t.Error(err)
	}
	after.Store(true)
	g.Hurry(true)
	<-done
	if err := <-out; err != nil || late.Load() != 2 {
		t.Errorf("%v, %d calls decided after the hurry, want 2", err, late.Load())
	}
}

// A caller killed while it waits is no error.
func TestCallerDies(t *testing.T) {
	p := permissive(t, "mount")
	pidc := make(chan int, 1)
	fd, done := filtered(t, p, func() {
		pid, err := forkMount()
		if err != nil {
			t.Error(err)
		}
		pidc <- pid
		var ws syscall.WaitStatus
		syscall.Wait4(pid, &ws, 0, nil)
	})
	var stats Stats
	killed := false
	out := serve(context.Background(), fd, func(c Call) Answer {
		unix.Kill(<-pidc, unix.SIGKILL)
		for StillWaiting(fd, c.ID) { // ends when the kernel has taken the call back
			goruntime.Gosched()
		}
		killed = true
		return Answer{}
	}, ServeOptions{Stats: &stats})
	<-done
	if err := <-out; err != nil || !killed || stats.Gone.Load() != 1 {
		t.Errorf("got %v, killed %v, gone %d, want nil, true, 1", err, killed, stats.Gone.Load())
	}
}

func TestServeBadFD(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	w.Write([]byte{1})
	if err := Serve(context.Background(), int(r.Fd()), func(Call) Answer { return Answer{} }, ServeOptions{}); err == nil {
		t.Error("serving a pipe gives no error")
	}
	if err := Serve(context.Background(), 1<<20, func(Call) Answer { return Answer{} }, ServeOptions{}); err == nil {
		t.Error("serving a number that is no descriptor gives no error")
	}
}

// THREATS kernel surface: x32 numbers kill on a real kernel. The child's end is the observation.
func TestX32Kills(t *testing.T) {
	if goruntime.GOARCH != "amd64" {
		return // there is no x32 elsewhere; TestDefaults covers foreign architectures
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"=x32")
	out, err := cmd.CombinedOutput()
	var ee *exec.ExitError
	if !errors.As(err, &ee) || ee.Sys().(syscall.WaitStatus).Signal() != unix.SIGSYS {
		t.Errorf("got %v (%s), want death by SIGSYS", err, out)
	}
}

// M-4: with a listener the supervisor kills, and knows the call. A handler that would let it run has no say.
func TestForeignCallsAreSeenAndKilled(t *testing.T) {
	if goruntime.GOARCH != "amd64" {
		return
	}
	var ws syscall.WaitStatus
	p := permissive(t)
	fd, done := filtered(t, p, func() {
		pid, err := forkChild("foreign")
		if err == nil {
			_, err = syscall.Wait4(pid, &ws, 0, nil)
		}
		if err != nil {
			t.Error(err)
		}
	})
	var seen []Call
	out := serve(context.Background(), fd, func(c Call) Answer {
		seen = append(seen, c)
		return Continue()
	}, ServeOptions{})
	<-done
	if err := <-out; err != nil {
		t.Error(err)
	}
	if ws.Signal() != unix.SIGKILL || len(seen) != 1 || seen[0].Name != "getpid" || seen[0].Foreign != "x32" {
		t.Errorf("child ended as %#x, calls %+v; want death by SIGKILL for getpid of x32", ws, seen)
	}
}

func TestCallName(t *testing.T) {
	for _, tt := range []struct {
		arch          uint32
		nr            int32
		name, foreign string
	}{
		{unix.AUDIT_ARCH_X86_64, 165, "mount", ""},
		{unix.AUDIT_ARCH_X86_64, 450, "set_mempolicy_home_node", ""},
		{unix.AUDIT_ARCH_X86_64, 599, Unknown, ""},
		{unix.AUDIT_ARCH_X86_64, 0x3fffffff, Unknown, ""},
		{unix.AUDIT_ARCH_X86_64, -1, Unknown, ""},
		{unix.AUDIT_ARCH_X86_64, x32Bit | 165, "mount", "x32"},
		{unix.AUDIT_ARCH_X86_64, x32Bit | 520, "execve", "x32"},
		{unix.AUDIT_ARCH_X86_64, x32Bit | 9999, Unknown, "x32"},
		{unix.AUDIT_ARCH_X86_64, -101, Unknown, "x32"}, // libseccomp's own number for socket
		{unix.AUDIT_ARCH_I386, 21, "mount", "i386"},
		{unix.AUDIT_ARCH_I386, 102, "socketcall", "i386"},
		{unix.AUDIT_ARCH_I386, -101, Unknown, "i386"},
		{unix.AUDIT_ARCH_I386, 9999, Unknown, "i386"},
		{unix.AUDIT_ARCH_ARM, 21, "mount", "arm"},
		{0, 0, Unknown, "0x0"},
	} {
		if goruntime.GOARCH != "amd64" {
			continue
		}
		if name, foreign := callName(tt.arch, tt.nr); name != tt.name || foreign != tt.foreign {
			t.Errorf("%#x, %d: got %s %q, want %s %q", tt.arch, tt.nr, name, foreign, tt.name, tt.foreign)
		}
	}
}

// What is asked before each thread costs less of the rate than a refusal.
func TestProbesWeighLittle(t *testing.T) {
	l := newLimiter(1000, 10)
	now := time.Unix(1000, 0)
	n := 0
	for !l.hold(now, heldCall{answer: Probe(unix.ENOSYS)}) {
		n++
	}
	if n != 80 {
		t.Errorf("%d probes pass in a burst of 10 refusals, want 80", n)
	}
}

func TestLimiter(t *testing.T) {
	l := newLimiter(1000, 10)
	now := time.Unix(1000, 0)
	for i := range 10 {
		if l.hold(now, heldCall{id: uint64(i)}) {
			t.Fatalf("refusal %d of the burst is held", i)
		}
	}
	for i := range 64 {
		if !l.hold(now, heldCall{id: uint64(100 + i)}) {
			t.Fatalf("refusal %d beyond the burst is not held", i)
		}
	}
	for i := range 64 {
		if want := now.Add(time.Duration(i+1) * time.Millisecond); !l.first().due.Equal(want) || l.first().id != uint64(100+i) {
			t.Fatalf("held %d is due %v, want %v", l.first().id, l.first().due, want)
		}
		l.pop()
	}
	// After a pause the burst is whole again.
	now = now.Add(time.Minute)
	for i := range 11 {
		if got, want := l.hold(now, heldCall{}), i == 10; got != want {
			t.Fatalf("after a pause, refusal %d: held %v", i, got)
		}
	}
	for !l.full() {
		l.hold(now, heldCall{})
	}
	if l.n != maxHeld {
		t.Errorf("full at %d, want %d", l.n, maxHeld)
	}
	free := newLimiter(-1, 0)
	for range 100_000 {
		if free.hold(now, heldCall{}) || free.full() {
			t.Fatal("no limit, but held")
		}
	}
}

// The list of events ends, and junk does not hide what comes after it.
func TestRecorderIsBounded(t *testing.T) {
	var r Recorder
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range uint64(1000) {
				r.Record(Call{NR: 16, Name: "ioctl", Args: [6]uint64{0, uint64(g)<<16 | i}}, Answer{})
			}
			r.Snapshot()
		})
	}
	wg.Wait()
	r.Record(Call{NR: 165, Name: "mount"}, Answer{})
	for nr := range 1000 { // numbers without a name are one call
		r.Record(Call{NR: 600 + nr, Name: Unknown}, Answer{})
	}
	s := r.Snapshot()
	if len(s.Events) != maxEvents+3 || !s.Overflowed || s.Total != 5001 || s.Refused[Unknown] != 1000 || s.Refused["ioctl"] != 4000 || s.Refused["mount"] != 1 {
		t.Errorf("%d events, overflowed %v, total %d, refused %v", len(s.Events), s.Overflowed, s.Total, s.Refused)
	}
	if e := s.Events[maxEvents]; e.Detail != "other" || e.Count != 4000-maxEvents {
		t.Errorf("gathering event: %+v", e)
	}
	c := Call{NR: 165, Name: "mount"}
	if n := testing.AllocsPerRun(100, func() { r.Record(c, Answer{}) }); n != 0 {
		t.Errorf("%v allocations for a known kind", n)
	}
}

// A round trip: one refused call, seen from the caller.
func BenchmarkRoundTrip(b *testing.B) {
	for _, plain := range []bool{true, false} {
		b.Run(fmt.Sprintf("sync=%v", !plain), func(b *testing.B) {
			var took time.Duration
			fd, done := filtered(b, permissive(b, "mount"), func() {
				start := time.Now()
				for range b.N {
					mount()
				}
				took = time.Since(start)
			})
			out := serve(context.Background(), fd, func(Call) Answer { return Answer{} }, ServeOptions{DenyRate: -1, NoSyncWakeUp: plain})
			<-done
			if err := <-out; err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/call")
		})
	}
}

// What the kernel spends on taking a program in: it runs it once per system call number to find the constant answers.
func BenchmarkInstall(b *testing.B) {
	f := realistic(b)
	for name, p := range map[string]Program{"ours": compile(b, f, Options{}), "libseccomp's, without conditions": byLibrary(b, f, Native)} {
		b.Run(name, func(b *testing.B) {
			var took time.Duration
			for range b.N {
				done := make(chan error)
				go func() {
					goruntime.LockOSThread()
					err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
					start := time.Now()
					code := p.Bytes()
					prog := unix.SockFprog{Len: uint16(p.Len()), Filter: (*unix.SockFilter)(unsafe.Pointer(&code[0]))}
					_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
					took += time.Since(start)
					if e != 0 {
						err = e
					}
					done <- err
				}()
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/install")
		})
	}
}

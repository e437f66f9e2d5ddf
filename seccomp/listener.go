// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"bytes"
	"context"
	"fmt"
	"os"
	goruntime "runtime"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentrun/internal/thread"
)

// Call is a system call that waits for an answer. The arguments are the registers as they were; what a pointer among them leads
// to belongs to the caller, who can change it at any time.
type Call struct {
	// ID names the call towards the kernel; it is unique per listener.
	ID uint64
	// PID is the calling thread's id in the pid namespace of whoever serves, 0 if it has none there. It says who called only
	// while [StillWaiting] holds: check after using it.
	PID  int
	NR   int
	Name string // [Unknown] where the number has none
	Arch uint32 // AUDIT_ARCH_…
	// Foreign is "i386", "x32" or another architecture's name when the call came by it, and empty for native calls. Name is then
	// of that architecture's table. Whatever handle says, Serve kills the process of a foreign call.
	Foreign string
	Args    [6]uint64
}

// Answer is what happens to a waiting call. The zero value refuses with EPERM. There is no answer that makes up a
// return value, and none with an errno of the wrong sign, which would make the refused call succeed: the caller would get that number as a result.
type Answer struct {
	allow bool
	kill  bool
	light bool
	errno unix.Errno
}

// Continue lets the kernel run the call as if there were no filter. The kernel reads pointer arguments anew, after
// the decision: use it only where the decision read nothing but registers (flags, families), or where something else in the
// kernel refuses in any case (seccomp_unotify(2), "The risk of SECCOMP_USER_NOTIF_FLAG_CONTINUE").
func Continue() Answer { return Answer{allow: true} }

// Deny fails the call with e; a value that is no error number becomes EPERM.
func Deny(e unix.Errno) Answer {
	if e > maxErrno {
		e = 0
	}
	return Answer{errno: e}
}

// Kill ends the caller's whole process by SIGKILL; the call does not run. As a refusal it counts for the rate.
func Kill() Answer { return Answer{kill: true} }

// Probe fails the call with e as Deny does, and counts as an eighth of a refusal for the rate: for what libraries ask each time anew
// before they do it another way, and nobody records.
func Probe(e unix.Errno) Answer {
	a := Deny(e)
	a.light = true
	return a
}

// Allowed says whether the call may run.
func (a Answer) Allowed() bool { return a.allow }

// Err is the error number of a refusal, 0 when the call may run.
func (a Answer) Err() unix.Errno {
	switch {
	case a.allow:
		return 0
	case a.errno == 0:
		return unix.EPERM
	}
	return a.errno
}

// String is "allowed", "killed" or the error's name, the verdict in reports.
func (a Answer) String() string {
	switch {
	case a.allow:
		return "allowed"
	case a.kill:
		return "killed"
	}
	if name := unix.ErrnoName(a.Err()); name != "" {
		return name
	}
	return "errno"
}

// Defaults of ServeOptions. One refused call costs the supervisor 10 µs for the answer (three system calls and two switches) and up to
// 100 µs with what is decided and recorded of it (docs/seccomp.md), so 250 a second are 3 % of a processor at most. Programs that probe for features make tens to a few hundred refused calls at start: a burst of 2000
// is never delayed for them.
const (
	DefaultDenyRate  = 250
	DefaultDenyBurst = 2000
	// Calls that are let run are decided at no more than so many a second. One costs the supervisor 10 to 15 µs, above every ordinary program
	// (hurry), and its caller 4: without a bound each run had a processor of the host's. A shell script forks some hundred times a second.
	DefaultAllowRate  = 4000
	DefaultAllowBurst = 16000
	// maxHeld is how many refused calls may wait for their answer. One thread can have one call waiting, and the largest pids
	// limit of a ring is 256.
	maxHeld = 1024
)

// ServeOptions for Serve. The zero value is good.
type ServeOptions struct {
	// DenyRate is how many refusals per second are answered in the long run. 0: DefaultDenyRate. Negative: no limit.
	DenyRate int
	// DenyBurst is how many are answered at once before the rate counts. 0: DefaultDenyBurst.
	DenyBurst int
	// AllowRate and AllowBurst are the same of calls that are let run, which wait before they are decided. 0: DefaultAllowRate and
	// DefaultAllowBurst. Negative: no limit.
	AllowRate, AllowBurst int
	// NoSyncWakeUp leaves SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP off (for measurements).
	NoSyncWakeUp bool
	// Stats is filled while serving, if given.
	Stats *Stats
	// Clock replaces time.Now in tests of the rate limit.
	Clock func() time.Time
	// Gate lets others wait for the loop, if given.
	Gate *Gate
}

// Stats counts what the loop did.
type Stats struct {
	// Received calls; each becomes Continued, Denied or Gone.
	Received, Continued, Denied atomic.Uint64
	// Gone counts calls whose thread died or was interrupted before the answer.
	Gone atomic.Uint64
	// Delayed counts refusals that were held back by the rate limit.
	Delayed atomic.Uint64
	// SyncWakeUp says that the kernel took SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP (Linux 6.6).
	SyncWakeUp atomic.Bool

	over uint32
}

// Over says that the last process has ended and nothing will be decided any more: some moments before Serve returns.
func (s *Stats) Over() bool { return atomic.LoadUint32(&s.over) != 0 }

// StillWaiting says whether the call is still waiting, that is, whether its PID still means the caller. A decision that looked at
// /proc/PID must ask after it looked.
func StillWaiting(fd int, id uint64) bool {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_ID_VALID, uintptr(unsafe.Pointer(&id)))
	return e == 0
}

// Layout of the kernel's structures (include/uapi/linux/seccomp.h). They may grow at the end: buffers are sized by SECCOMP_GET_NOTIF_SIZES.
type notif struct {
	id    uint64
	pid   uint32
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

type notifResp struct {
	id    uint64
	val   int64
	error int32
	flags uint32
}

// Serve answers the calls that arrive on a notification listener until ctx ends (its error is returned) or no process is left
// that the filter applies to (nil). The descriptor is borrowed: close it after Serve has returned, and not before; calls that
// are then still waiting fail with ENOSYS.
//
// handle decides; it runs on the loop's thread, so it must not block. Calls it lets run, and refusals within the
// rate, are answered at once. Refusals beyond it are held: the answers leave at DenyRate, so the delay grows with the number of threads that are trying,
// and it is their own time that passes. Other calls of the sandbox go on being answered meanwhile, unless maxHeld
// refusals are waiting; then nothing more is received until one has left. When more is let run than AllowRate, the next call waits, and
// those behind it: it is received, so that no signal interrupts it, and decided when its time has come, by what holds then. The loop
// allocates nothing per call.
func Serve(ctx context.Context, fd int, handle func(Call) Answer, o ServeOptions) error {
	l, err := newLoop(fd, handle, o)
	if err != nil {
		return fmt.Errorf("serve seccomp listener: %w", err)
	}
	defer unix.Close(l.wake)
	o.Gate.attach(l)
	defer o.Gate.detach()
	rung := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(rung)
		l.over.Store(true)
		l.poke()
	})
	defer func() {
		if !stop() {
			<-rung // it must not write to a number that the close above has freed for someone else
		}
	}()
	// SYNC_WAKE_UP hands the processor from the waker to the woken and back: it wants one thread to do both sides.
	goruntime.LockOSThread()
	got, back := hurry()
	l.waits.Hasty = got
	defer func() {
		if back() {
			goruntime.UnlockOSThread() // else the thread ends with this goroutine: nobody else shall have the priority
		}
	}()
	if err := l.run(); err != nil {
		return fmt.Errorf("serve seccomp listener: %w", err)
	}
	return ctx.Err()
}

type loop struct {
	fd, wake int
	over     atomic.Bool // ctx has ended
	gate     *Gate
	handle   func(Call) Answer
	stats    *Stats
	held     limiter
	let      spacer
	next     Call // received and not decided yet, where paced
	paced    bool
	due      time.Time
	now      func() time.Time
	recv     thread.Ioctl // into req
	req      []byte
	resp     []byte        // of a held call
	answer   thread.Ioctl  // of the call decided last, by the next wait
	leaving  *thread.Ioctl // answer, until it has been sent
	allows   bool          // the answer
	first    bool          // no call was decided yet: the next most likely asks for the execution of the program, and is waited for
	executes bool          // it has just been
	waits    thread.Waits
	timeout  unix.Timespec
}

func newLoop(fd int, handle func(Call) Answer, o ServeOptions) (*loop, error) {
	var sizes struct{ notif, resp, data uint16 }
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_NOTIF_SIZES, 0, uintptr(unsafe.Pointer(&sizes)))
	if e != 0 {
		return nil, fmt.Errorf("get notification sizes: %w", e)
	}
	l := &loop{
		fd: fd, first: true, handle: handle, stats: o.Stats, now: o.Clock, gate: o.Gate,
		req:  make([]byte, max(int(sizes.notif), int(unsafe.Sizeof(notif{})))),
		resp: make([]byte, max(int(sizes.resp), int(unsafe.Sizeof(notifResp{})))),
		held: newLimiter(o.DenyRate, o.DenyBurst), let: newSpacer(o.AllowRate, o.AllowBurst, DefaultAllowRate, DefaultAllowBurst),
	}
	l.recv = thread.Ioctl{FD: int32(fd), Request: unix.SECCOMP_IOCTL_NOTIF_RECV, Arg: unsafe.Pointer(&l.req[0])} //nolint:gosec // a descriptor
	l.waits.Then = &l.recv
	last := make([]byte, len(l.resp))
	l.answer = thread.Ioctl{FD: int32(fd), Request: unix.SECCOMP_IOCTL_NOTIF_SEND, Arg: unsafe.Pointer(&last[0])} //nolint:gosec // a descriptor
	if l.stats == nil {
		l.stats = new(Stats)
	}
	l.waits.Hung = &l.stats.over
	if l.now == nil {
		l.now = time.Now
	}
	if !o.NoSyncWakeUp {
		// Older kernels don't know the request; the loop is then slower, not wrong.
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
		l.stats.SyncWakeUp.Store(e == 0)
	}
	var err error
	l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make wake-up descriptor: %w", err)
	}
	return l, nil
}

// run polls before each receive: SECCOMP_IOCTL_NOTIF_RECV waits without a limit and hears neither ctx nor the end of the
// last process. The wait sends the last answer by itself, and receives what it has waited for: until then a signal interrupts the call
// that follows the answer (hurry), and whatever else this thread does may take it long on a machine that has much to do.
func (l *loop) run() error {
	fds := []unix.PollFd{{Fd: int32(l.wake), Events: unix.POLLIN}, {Fd: int32(l.fd), Events: unix.POLLIN}}
	for {
		wait, err := l.release(l.gate.hurried())
		if err != nil {
			return err
		}
		if l.recv.Done {
			if err := l.one(); err != nil {
				return err
			}
			continue
		}
		if l.paced {
			left := l.due.Sub(l.now())
			if left <= 0 || l.gate.hurried() {
				if err := l.decide(); err != nil {
					return err
				}
				continue
			}
			if wait < 0 || left < wait {
				wait = left
			}
		}
		var timeout *unix.Timespec
		if wait >= 0 {
			l.timeout = unix.NsecToTimespec(int64(wait))
			timeout = &l.timeout
		}
		n := fds
		if l.paced || l.held.full() {
			n = fds[:1]
		}
		clear(l.req) // the kernel wants it zero (check_zeroed_user)
		l.waits.Timeout, l.waits.First, l.waits.Keep = timeout, l.leaving, l.first || l.executes
		l.executes = false
		_, err = l.waits.Poll(n)
		if l.leaving != nil {
			l.leaving = nil
			if err := l.sent(l.answer.Errno, l.allows); err != nil {
				return err
			}
		}
		if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		if fds[0].Revents != 0 {
			if l.over.Load() {
				// Nobody will answer after this: let the held ones go, so that their threads see a refusal.
				_, err := l.release(true)
				return err
			}
			l.woken()
			continue // a hurry concerns the held ones first
		}
		if len(n) == 1 {
			continue
		}
		switch re := fds[1].Revents; {
		case re&unix.POLLIN != 0:
			if err := l.one(); err != nil {
				return err
			}
		case re&unix.POLLHUP != 0:
			atomic.StoreUint32(&l.stats.over, 1)
			return nil
		case re&(unix.POLLERR|unix.POLLNVAL) != 0:
			return fmt.Errorf("poll: listener reports %#x", re)
		}
	}
}

// woken hears whoever waits at the gate.
func (l *loop) woken() {
	var count [8]byte
	_, _ = unix.Read(l.wake, count[:]) // before the gate: what comes after it wakes again
	l.gate.pass()
}

// one receives a call, if the wait hasn't, and answers it, unless it has to wait.
func (l *loop) one() error {
	e := l.recv.Errno
	if !l.recv.Done {
		_, _, e = unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&l.req[0])))
	}
	l.recv.Done = false
	switch e {
	case 0:
	case unix.ENOENT, unix.EINTR:
		return nil // the caller died between poll and receive, or a signal came
	default:
		return fmt.Errorf("receive notification: %w", e)
	}
	n := (*notif)(unsafe.Pointer(&l.req[0]))
	l.stats.Received.Add(1)
	l.next = Call{ID: n.id, PID: int(n.pid), NR: int(n.nr), Arch: n.arch, Args: n.args}
	l.next.Name, l.next.Foreign = callName(n.arch, n.nr)
	if wait := l.let.wait(l.now()); wait > 0 && !l.gate.hurried() {
		l.paced, l.due = true, l.now().Add(wait)
		return nil
	}
	return l.decide()
}

// decide answers the call that was received.
func (l *loop) decide() error {
	c := l.next
	l.paced = false
	answer := l.handle(c)
	if c.Foreign != "" {
		answer = Kill() // no rule speaks of these numbers: 1 is exit there and write here (M-4)
	}
	waits := heldCall{id: c.ID, pid: c.PID, answer: answer}
	if answer.Allowed() {
		l.let.spend(l.now(), l.let.interval)
	} else if !l.gate.hurried() && l.held.hold(l.now(), waits) {
		l.stats.Delayed.Add(1)
		return nil
	}
	if l.first { // nobody else is there, and to give the place away may wake a thread
		l.first, l.executes = false, true
		return l.send(waits)
	}
	l.leaving, l.allows = &l.answer, answer.Allowed()
	return l.reply(l.answer.Arg, waits)
}

// release sends the refusals that are due, or all, and says how long until the next; negative: none is held.
func (l *loop) release(all bool) (time.Duration, error) {
	for l.held.n > 0 {
		next := l.held.first()
		if !all {
			if wait := next.due.Sub(l.now()); wait > 0 {
				return max(wait, l.held.interval), nil // so that a flood of probes doesn't wake us for each
			}
		}
		if err := l.send(*next); err != nil {
			return 0, err
		}
		l.held.pop()
	}
	return -1, nil
}

// kill ends the process of a waiting call. While it waits, pid means its thread, and so the process that is looked up by it; a
// call that waits no more was not run, and its thread is dead or asks anew.
func (l *loop) kill(c heldCall) error {
	process, err := ProcessOf(c.pid)
	if err == nil {
		var fd int
		if fd, err = unix.PidfdOpen(process, 0); err == nil {
			defer unix.Close(fd)
		}
		if StillWaiting(l.fd, c.id) && err == nil {
			err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
	}
	if err != nil && StillWaiting(l.fd, c.id) {
		return fmt.Errorf("kill the process of a call: %w", err)
	}
	return nil
}

// ProcessOf gives the process of a thread, by /proc.
func ProcessOf(thread int) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return 0, err
	}
	_, rest, _ := bytes.Cut(status, []byte("\nTgid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return strconv.Atoi(string(bytes.TrimSpace(line)))
}

// reply writes the answer that is to be sent; it is an error if a process that is to die can't be killed.
func (l *loop) reply(to unsafe.Pointer, c heldCall) error {
	a := c.answer
	if a.kill {
		if err := l.kill(c); err != nil {
			return err
		}
	}
	r := (*notifResp)(to)
	*r = notifResp{id: c.id}
	if a.Allowed() {
		r.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
	} else {
		r.error = -int32(a.Err())
	}
	return nil
}

// send answers a held call.
func (l *loop) send(c heldCall) error {
	if err := l.reply(unsafe.Pointer(&l.resp[0]), c); err != nil {
		return err
	}
	e := unix.EINTR
	for e == unix.EINTR {
		_, _, e = unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&l.resp[0])))
	}
	return l.sent(e, c.answer.Allowed())
}

// sent counts an answer by what the kernel said to it.
func (l *loop) sent(e unix.Errno, allowed bool) error {
	switch {
	case e == unix.ENOENT:
		l.stats.Gone.Add(1)
	case e != 0:
		return fmt.Errorf("send answer: %w", e)
	case allowed:
		l.stats.Continued.Add(1)
	default:
		l.stats.Denied.Add(1)
	}
	return nil
}

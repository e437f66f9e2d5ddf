// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"agentrun/cgroups"
	"agentrun/internal/fault"
	"agentrun/internal/read"
	"agentrun/runtime/internal/stub"
)

// startContainer makes the sandbox: a static program of ours, which starts in less time than this one takes to copy its page tables, is
// executed on this very thread, so that it has our mount namespace. It makes the namespaces; what has to be done from outside of them, its
// cgroups and ids, is done here while it waits. In the end it is pid 1, in the root view, without rights (stub).
//
// Its parent-death signal is tied to this thread, which lives as long as the run. It reads from its control socket wherever it waits, so
// our end ends it too (M-5).
func (l *launch) startContainer() error {
	control, peer, err := stub.Pair()
	if err != nil {
		return err
	}
	l.control = control
	control.Bound(stubPatience)
	err = l.executeStub(peer)
	peer.Close() // while we held it, one that died here would have said nothing until the deadline
	if err != nil {
		return err
	}
	if err := l.makeApart(); err != nil {
		return err
	}
	if b, ok := l.group.(*bareGroup); ok {
		if err := b.hold(l.initPID); err != nil {
			return err
		}
	}
	return l.showFacts()
}

// executeStub starts it by vfork(2): it shares our memory until it is the other program, and no other goroutine of ours can count on
// running until then. So it starts where we are, never in the run's cgroup: one that is frozen, throttled by its quota or out of memory
// would hold up this whole process. It gets there before the namespaces are made: the cgroup namespace is rooted where the process is then.
func (l *launch) executeStub(peer *os.File) error {
	network, err := l.network()
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	born, err := l.group.Birth()
	if err != nil {
		return err
	}
	defer born.Close()
	how, files := entering(born, null.Fd(), null.Fd(), null.Fd(), peer.Fd(), network.Fd())
	// In a process group of its own: until pid 1 is known, what the stub forks is in it (begin).
	l.stage0, err = syscall.ForkExec(l.root.Path+stubPath, []string{stubPath, how}, &syscall.ProcAttr{Files: files, Sys: &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		l.stage0 = 0
		return fmt.Errorf("start pid 1: %w", err)
	}
	l.begin = l.stage0
	return l.describe()
}

// entering is what the stub is told to get into a cgroup by itself, with the descriptors for that behind those given.
func entering(b cgroups.Birth, files ...uintptr) (how string, all []uintptr) {
	for _, f := range b.Tasks {
		files = append(files, f.Fd())
	}
	if b.Folder == nil {
		return fmt.Sprintf("m%d", len(b.Tasks)), files
	}
	return fmt.Sprintf("b%d", len(b.Tasks)), append(files, b.Folder.Fd())
}

// describe tells the stub what the sandbox is made of.
func (l *launch) describe() error {
	if err := writeProc(l.stage0, "oom_score_adj", strconv.Itoa(l.plan.oomScore())); err != nil {
		return err
	}
	clocks := ""
	if slices.Contains(l.plan.Namespaces, "time") {
		var err error
		if clocks, err = startAtZero(); err != nil {
			return err
		}
	}
	return l.control.Make(l.sandbox(clocks))
}

// sandbox is what the stub is told of it, but for the network namespace, which netns has made.
func (l *launch) sandbox(clocks string) *stub.Sandbox {
	flags := uint32(0)
	for _, ns := range l.plan.Namespaces {
		if ns != "net" {
			flags |= namespaceFlags[ns]
		}
	}
	return &stub.Sandbox{
		Namespaces: flags, Owner: uint32(l.ids.hostOwner()), Agent: agentID, Again: l.ids.hostAgent() == os.Getuid(), //nolint:gosec // ids
		Hostname: l.plan.Hostname, Root: l.root.Path, Clocks: clocks,
	}
}

// makeApart follows the stub to where it is pid 1, and maps the ids of the new namespace.
func (l *launch) makeApart() error {
	if err := bornTo(l.control, stub.Apart, func(pid int) { l.initPID = pid }); err != nil {
		return err
	}
	if err := fault.At("container/apart"); err != nil {
		return err
	}
	var ids strings.Builder
	for _, m := range l.ids.inside {
		fmt.Fprintf(&ids, "%d %d %d\n", m.inside, m.outside, m.count)
	}
	for _, file := range []string{"uid_map", "gid_map"} {
		if err := writeProc(l.initPID, file, ids.String()); err != nil {
			return err
		}
	}
	if err := l.control.Go(); err != nil {
		return err
	}
	if err := waitFor(l.stage0); err != nil {
		return err
	}
	l.stage0 = 0
	_, err := l.hear(stub.Hello)
	return err
}

// bornTo waits until what the stub has forked is there, and tells its number as soon as it is known. Two processes tell, in any order:
// what forked it its number, it what it is, and the kernel whose word that is.
func bornTo(control *stub.Conn, what stub.Kind, tell func(pid int)) error {
	known := 0
	for wait := []stub.Kind{stub.Forked, what}; len(wait) > 0; {
		r, err := hear(control, wait...)
		if err != nil {
			return err
		}
		pid := r.PID
		if r.Kind == stub.Forked {
			pid = int(r.A)
		}
		if known != 0 && known != pid {
			return fmt.Errorf("pid 1 is %d and %d: %w", known, pid, unix.EPROTO)
		}
		known = pid
		tell(pid)
		wait = slices.DeleteFunc(wait, func(k stub.Kind) bool { return k == r.Kind })
	}
	return nil
}

func (l *launch) hear(kinds ...stub.Kind) (stub.Report, error) { return hear(l.control, kinds...) }

// hear waits for one of these reports.
func hear(control *stub.Conn, kinds ...stub.Kind) (stub.Report, error) {
	r, err := control.Next()
	if err != nil {
		return r, fmt.Errorf("pid 1, before it is %v: %w", kinds, err)
	}
	if !slices.Contains(kinds, r.Kind) {
		return r, fmt.Errorf("pid 1 says it is %v, and was to be %v: %w", r.Kind, kinds, unix.EPROTO)
	}
	return r, nil
}

func writeProc(pid int, file, text string) error {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/%s", pid, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// reap waits for pid 1, which is gone when every process of its namespace is (zap_pid_ns_processes).
func (l *launch) reap() error {
	if l.initPID == 0 || l.reaped {
		return nil
	}
	var end unix.WaitStatus
	err := waitInto(l.initPID, &end)
	if err == nil {
		l.initEnd = &end
	}
	l.reaped = true
	return err
}

func waitFor(pid int) error { return waitInto(pid, nil) }

func waitInto(pid int, status *unix.WaitStatus) error {
	for {
		_, err := unix.Wait4(pid, status, unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("wait4", err)
		}
	}
}

// destroyContainer kills everything first: the cgroup is what the agent can't leave. One that the kernel lets go has nobody in it.
func (l *launch) destroyContainer() error {
	if l.control != nil {
		l.control.Close()
	}
	if l.stage0 == 0 && l.initPID == 0 {
		return nil
	}
	var err error
	empty := l.group.RemoveEmpty()
	if !empty {
		err = l.killAll()
	}
	// Our own children that nobody has waited for: their numbers are nobody else's. A group without a cgroup may not have come to know them.
	if !l.reaped && l.initPID != 0 {
		_ = unix.Kill(l.initPID, unix.SIGKILL)
		_ = l.reap()
	}
	if l.stage0 != 0 {
		// Also what had no time to tell its number. Not any child: this process has others, which may have come to this very thread.
		_ = unix.Kill(-l.begin, unix.SIGKILL)
		for waitFor(-l.begin) == nil {
		}
	}
	if empty {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), teardownTime)
	defer cancel()
	return errors.Join(err, l.group.Remove(ctx))
}

// oomScore is what the processes of a sandbox have as oom_score_adj (proc_pid_oom_score_adj(5)): where the host runs out of memory, the
// less privileged end first, and agents before anything of the host's. Without it they would have the supervisor's, which a service
// manager may have set to be spared. A process may raise its own, never lower it without a capability; ours, if higher, is kept.
func (p *Plan) oomScore() int {
	score := max(300*max(min(p.Ring, 3), 1), p.OOMScore)
	if own, err := read.Kernel("/proc/self/oom_score_adj"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(own)); err == nil {
			score = max(score, n)
		}
	}
	return score
}

// startAtZero lets the sandbox's clocks begin with it: the host's uptime tells which kernel fixes it runs
// without, and ties two runs on one host together (time_namespaces(7)).
func startAtZero() (offsets string, err error) {
	own, err := read.Kernel("/proc/self/timens_offsets")
	if err != nil {
		return "", err
	}
	for name, clock := range map[string]int32{"monotonic": unix.CLOCK_MONOTONIC, "boottime": unix.CLOCK_BOOTTIME} {
		var now unix.Timespec
		if err := unix.ClockGettime(clock, &now); err != nil {
			return "", os.NewSyscallError("clock_gettime", err)
		}
		// An offset counts from the machine's clock, and what we read from ours, which differs if we are in a
		// time namespace ourselves (time_namespaces(7)). Whole seconds of what has passed: the result must
		// not be negative.
		secs, nanosecs, err := ownOffset(own, name)
		if err != nil {
			return "", err
		}
		offsets += fmt.Sprintln(name, secs-now.Sec, nanosecs)
	}
	return offsets, nil
}

// ownOffset finds a clock's line in /proc/self/timens_offsets: its name, seconds, nanoseconds.
func ownOffset(table, clock string) (secs, nanosecs int64, err error) {
	for line := range strings.Lines(table) {
		var name string
		if n, err := fmt.Sscan(line, &name, &secs, &nanosecs); n == 3 && err == nil && name == clock {
			return secs, nanosecs, nil
		}
	}
	return 0, 0, fmt.Errorf("read /proc/self/timens_offsets: no line for %s in %q", clock, table)
}

var namespaceFlags = map[string]uint32{
	"user": unix.CLONE_NEWUSER, "pid": unix.CLONE_NEWPID, "mnt": unix.CLONE_NEWNS, "ipc": unix.CLONE_NEWIPC,
	"uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP, "time": unix.CLONE_NEWTIME,
}

func (p *Plan) cgroupOf() string { return cmp.Or(p.within, cgroupParent) + "/" + p.ID }

// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/cgroups"
)

// group is what holds a run's processes together and limits them: a cgroup, or, for an ordinary user without
// a delegated one who asked for best effort, the pid namespace alone.
//
// Its methods may be called from any goroutine, and in any order until Remove. Kill and Remove may be called
// again: the undo of a launch, the guard and an operator may all do so at once. What is asked of a group that
// is empty or gone is answered so, or an error; nobody may take it for a limit that holds.
type group interface {
	Place(controller string) string // where its processes are, as /proc/PID/cgroup has it; empty: nowhere
	Birth() (cgroups.Birth, error)  // how a process gets in by itself
	Add(pid int) error
	Update(l cgroups.Limits) error
	Limits() cgroups.Limits
	Verify() error
	Paths() map[string]string
	Pids() ([]int, error)
	Stats() (cgroups.Stats, error)
	Account() (cgroups.Stats, error)
	Reclaimable() (int64, error)
	OOMEvents() (*os.File, error)
	OOMKills() (uint64, error)
	Freeze(ctx context.Context) error
	Frozen() bool // stands still, or is about to
	Thaw(ctx context.Context) error
	Throttle() error
	Unthrottle() error
	Kill(ctx context.Context) (int, error)
	KillOthers(ctx context.Context, keep ...int) (killed int, settled bool, err error)
	RemoveEmpty() bool
	Remove(ctx context.Context) error
}

// ErrNoCgroup: what was asked for takes a cgroup, and the run has none.
var ErrNoCgroup = errors.New("the run has no cgroup (rootless, without a delegated one)")

// bareGroup is the pid namespace of the sandbox. It can list and kill: who kills pid 1 kills all, and pid 1
// is a zombie only when nobody else is left (pid_namespaces(7)). It can't limit, freeze or tell memory; each
// of those is an error, so that nothing relies on it.
type bareGroup struct {
	mu     sync.Mutex
	limits cgroups.Limits
	init   int
	pidfd  *os.File
	ns     string
}

func (b *bareGroup) hold(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		unix.Close(fd)
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.init, b.pidfd, b.ns = pid, os.NewFile(uintptr(fd), "pid 1"), ns
	return nil
}

func (b *bareGroup) Place(string) string           { return "" }
func (b *bareGroup) Birth() (cgroups.Birth, error) { return cgroups.Birth{}, nil }
func (b *bareGroup) Add(int) error                 { return nil }
func (b *bareGroup) Verify() error                 { return nil }
func (b *bareGroup) Paths() map[string]string      { return nil }
func (b *bareGroup) OOMEvents() (*os.File, error)  { return nil, nil }
func (b *bareGroup) OOMKills() (uint64, error)     { return 0, nil }
func (b *bareGroup) Freeze(context.Context) error  { return ErrNoCgroup }
func (b *bareGroup) Frozen() bool                  { return false }
func (b *bareGroup) Thaw(context.Context) error    { return ErrNoCgroup }
func (b *bareGroup) Throttle() error               { return nil }
func (b *bareGroup) Unthrottle() error             { return nil }
func (b *bareGroup) Limits() cgroups.Limits        { b.mu.Lock(); defer b.mu.Unlock(); return b.limits }

// Update takes the limits that the run was started with, which are not held, as the caller was told; others
// would be a promise.
func (b *bareGroup) Update(l cgroups.Limits) error {
	if l != b.Limits() {
		return fmt.Errorf("change limits: %w", ErrNoCgroup)
	}
	return nil
}

func (b *bareGroup) alive() bool {
	if b.pidfd == nil {
		return false
	}
	p := []unix.PollFd{{Fd: int32(fdOf(b.pidfd)), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	n, err := unix.Poll(p, 0)
	return err != nil || n == 0
}

// Pids are the processes of the namespace, as the host sees them. A pid can't be told from one that was given
// anew between the look at the folder and the look at its namespace; it is in the namespace then too.
func (b *bareGroup) Pids() ([]int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.alive() {
		return nil, nil
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if ns, err := os.Readlink("/proc/" + n + "/ns/pid"); err == nil && ns == b.ns {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Stats adds up what the processes and their waited-for children used. A process whose parent ignores its end
// is not in it.
func (b *bareGroup) Stats() (s cgroups.Stats, err error) {
	pids, err := b.Pids()
	if err != nil {
		return s, err
	}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // ended; its parent has its time
		}
		s.CPU += time.Duration(cpuTicks(text)) * (time.Second / userHZ)
	}
	return s, nil
}

// Account is Stats.
func (b *bareGroup) Account() (cgroups.Stats, error) { return b.Stats() }

// Reclaimable isn't known.
func (b *bareGroup) Reclaimable() (int64, error) { return 0, ErrNoCgroup }

// userHZ is the unit of /proc/PID/stat, 100 on every architecture that Go runs on.
const userHZ = 100

// RemoveEmpty proves nothing.
func (b *bareGroup) RemoveEmpty() bool { return false }

// Kill returns when pid 1 is gone, and everything of the namespace with it.
func (b *bareGroup) Kill(ctx context.Context) (int, error) {
	pids, err := b.Pids()
	if err != nil || len(pids) == 0 {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := unix.PidfdSendSignal(int(fdOf(b.pidfd)), unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return 0, os.NewSyscallError("pidfd_send_signal", err)
	}
	for b.alive() {
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("kill pid 1 of the sandbox: %w", err)
		}
		p := []unix.PollFd{{Fd: int32(fdOf(b.pidfd)), Events: unix.POLLIN}} //nolint:gosec // a descriptor
		_, _ = unix.Poll(p, 50)
	}
	return len(pids), nil
}

// KillOthers can't be had: who isn't frozen forks while it is killed.
func (b *bareGroup) KillOthers(context.Context, ...int) (int, bool, error) {
	return 0, false, fmt.Errorf("end subprocesses: %w", ErrNoCgroup)
}

func (b *bareGroup) Remove(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.alive() {
		return fmt.Errorf("processes are left in the pid namespace of pid %d: %w", b.init, unix.EBUSY)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"agentrun/runtime/internal/stub"
)

// process is one that becomes a program of the agent's: the first of a run, or one that joins it later. Both
// come the same way: confine, the probe (verifier), served, execute. What no step came to is nil or 0.
type process struct {
	child    *stub.Conn
	io       *stdio
	master   *os.File
	listener *os.File
	ruleset  *os.File // of a process that waits, which enters it with the command; nil: it has entered, or there is none
	agentPID int
	agentFD  *os.File // pidfd
	// keeper has the kernel free pid 1's own filter when it is closed, and not when pid 1 ends: for that a worker of the kernel's would take the
	// processor from it, on the way to who waits. nil: the process is none of pid 1's, or the kernel gave none.
	keeper *os.File
}

// confine sends the confinement and follows the child up to the point where it waits. The order is that of
// package stub's conversation. What is fetched from the child is fetched before it may go on, so its pid
// can't have come to mean another process; each descriptor is ours from then on, also when a later answer is
// wrong (close). fd3, if not nil, becomes the program's descriptor 3.
func (p *process) confine(plan *Plan, control *stub.Conn, msg *stub.Confinement, fd3 *os.File) error {
	child, peer, err := stub.Pair()
	if err != nil {
		return err
	}
	p.child = child
	// Anew: a prepared sandbox may have waited for hours.
	control.Bound(stubPatience)
	err = control.Confine(msg, p.io.in, p.io.out, p.io.err, peer, fd3)
	peer.Close()
	p.io.handedOver()
	if err != nil {
		return err
	}
	if err := p.followStart(plan, control); err != nil {
		return err
	}
	p.child.Bound(stubPatience)
	r, err := p.next(plan, stub.Listener)
	if err != nil {
		return err
	}
	if err := p.fetch(r); err != nil {
		return err
	}
	if err := p.child.Go(); err != nil {
		return fmt.Errorf("tell the child to drop its listener: %w", err)
	}
	_, err = p.next(plan, stub.Ready)
	return err
}

// followStart hears that there is a child, and takes its terminal.
func (p *process) followStart(plan *Plan, control *stub.Conn) error {
	for {
		r, err := control.Next()
		if err != nil {
			return plan.explain(err)
		}
		if r.Kind == stub.PTY {
			if err := p.takePTY(r.File); err != nil {
				return err
			}
			continue
		}
		if r.Kind != stub.Started {
			return fmt.Errorf("pid 1 says %d for started: %w", r.Kind, unix.EPROTO)
		}
		if r.B > 0 {
			p.keep(r)
		}
		return nil
	}
}

// keep fetches the keeper. A pid 1 that is gone already, since the child has failed, has none, and the child says why.
func (p *process) keep(started stub.Report) {
	pid1, err := unix.PidfdOpen(started.PID, 0)
	if err != nil {
		return
	}
	defer unix.Close(pid1)
	if fd, err := unix.PidfdGetfd(pid1, int(started.B-1), 0); err == nil { //nolint:gosec // a wrong number is no descriptor there
		p.keeper = os.NewFile(uintptr(fd), "pid1-filter")
	}
}

// next waits for this report of the child's.
func (p *process) next(plan *Plan, kind stub.Kind) (stub.Report, error) {
	r, err := p.child.Next()
	if err != nil {
		return r, plan.explain(err)
	}
	if r.Kind != kind {
		return r, fmt.Errorf("the agent's process says it is %v, and was to be %v: %w", r.Kind, kind, unix.EPROTO)
	}
	return r, nil
}

// fetch takes what the child's report names.
func (p *process) fetch(r stub.Report) error {
	p.agentPID = r.PID
	fd, err := unix.PidfdOpen(p.agentPID, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	p.agentFD = os.NewFile(uintptr(fd), "agent")
	// Fetched rather than sent: after its filter the child may be left without sendmsg(2) (profile strict).
	fd, err = unix.PidfdGetfd(fd, int(r.A), 0)
	if err != nil {
		return os.NewSyscallError("pidfd_getfd", err)
	}
	p.listener = os.NewFile(uintptr(fd), "seccomp-listener")
	if r.B > 0 {
		if fd, err = unix.PidfdGetfd(int(p.agentFD.Fd()), int(r.B-1), 0); err != nil { //nolint:gosec // a wrong number is no descriptor there
			return os.NewSyscallError("pidfd_getfd", err)
		}
		p.ruleset = os.NewFile(uintptr(fd), "landlock-ruleset")
	}
	return nil
}

// takePTY accepts only a real pty master: what came is a descriptor, and descriptors are checked.
func (p *process) takePTY(f *os.File) error {
	if _, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPTN); err != nil {
		f.Close()
		return fmt.Errorf("the terminal from pid 1 is no pty: %w", err)
	}
	// A read has to end though somebody inside holds the terminal open: with a deadline, and those take one that doesn't block.
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	f.Close()
	if err != nil {
		return os.NewSyscallError("dup", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return os.NewSyscallError("set non-blocking", err)
	}
	f = os.NewFile(uintptr(fd), "pty-master")
	p.master = f
	p.io.usePTY(f)
	return nil
}

// execute sends the command. The end of file on the child's socket is the proof that it was executed: its
// descriptor is close-on-exec. Meanwhile what fn does is done.
func (p *process) execute(plan *Plan, command *stub.Command, fn func()) error {
	p.child.Bound(stubPatience)
	if err := p.child.Execute(command); err != nil {
		return fmt.Errorf("let the agent go: %w", err)
	}
	fn()
	_, err := p.child.Executed()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		err = unix.EPROTO
	}
	return plan.explain(err)
}

// close only closes: who made the process ends it. What it asks meanwhile gets no answer, or ENOSYS when the
// listener is gone.
func (p *process) close() {
	if p.child != nil {
		p.child.Close()
	}
	for _, f := range []*os.File{p.listener, p.ruleset, p.agentFD, p.keeper} {
		if f != nil {
			f.Close()
		}
	}
}

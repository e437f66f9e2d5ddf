// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/cgroups"
	"agentrun/internal/fault"
	"agentrun/internal/read"
	"agentrun/internal/thread"
	"agentrun/rings"
	"agentrun/runtime/internal/stub"
)

// Join is a further command in a live run. Command, Stdout and Stderr are required.
type Join struct {
	Command []string
	Env     []string      // NAME=VALUE, over the plan's; nothing of the caller's
	Cwd     string        // absolute, inside; empty: the plan's
	TTY     bool          // a terminal of its own
	Timeout time.Duration // 0: as long as the run lives
	Limits  Limits        // of its own, within the run's; 0 in a field: the run's
	Stdin   io.Reader     // nil: it reads the end at once
	Stdout  io.Writer
	Stderr  io.Writer
	OnTTY   func(master *os.File)
	// OnRecord is asked when the process waits, confined and compared with the plan. Its error keeps it from
	// starting.
	OnRecord func(program []string, ring rings.Ring) error
	// OnStart is told when it has been executed, OnEnd when it is dead; only of one that OnRecord has agreed
	// to.
	OnStart func()
	OnEnd   func(Status)
}

// Errors of Join, beside ErrEnded, *InvalidSpec and *CommandError.
var (
	ErrNotYet = errors.New("the run is still being started")
	ErrFrozen = errors.New("the run is frozen")
	ErrFull   = errors.New("the run has as many processes as its limit lets it have")
	ErrNoTTY  = errors.New("the run's own processes have its terminals")
)

// errJoinTime is why a joined command is killed whose time is over.
var errJoinTime = errors.New("over its time limit")

// joinDrain is how long the end of the run waits for who reads what a joined command has written.
const joinDrain = time.Second

func (j *Join) check() error {
	var ps read.Problems
	if len(j.Command) == 0 || j.Command[0] == "" {
		ps.Add("command", "missing; put it after --, as in agentrun exec --in REF -- ls")
	}
	checkEnv(&ps, j.Env)
	checkCwd(&ps, j.Cwd)
	if j.Timeout < 0 {
		ps.Add("--timeout", "it is negative")
	}
	for _, text := range slices.Concat(j.Command, j.Env, []string{j.Cwd}) {
		if strings.IndexByte(text, 0) >= 0 {
			ps.Add("command", "it holds a NUL byte")
		}
	}
	if len(ps) > 0 {
		return &InvalidSpec{ps}
	}
	return nil
}

// Join runs a further command in the live run, confined as the first one is and by the ring that holds at
// each moment, and returns when it has ended. An error says why it was not started. The end of ctx kills it,
// and so does the run's.
//
// It has nothing of whoever asks but its three streams. Its limits are the run's, in whose cgroup it is, and
// its own within those (join_group.go). What it starts and leaves behind is the run's too, and ends with it;
// of one with limits of its own it ends with the command.
func (v *Live) Join(ctx context.Context, ask Join) (Status, error) {
	j := &joiner{live: v, ask: &ask}
	if err := v.joins.enter(j); err != nil {
		return Status{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan error, 1)
	go thread.Throwaway(func() {
		defer v.joins.leave(j)
		j.run(ctx, cancel, ended)
	})
	if err := <-ended; err != nil {
		return Status{}, v.joinFailed(err)
	}
	return j.status, nil
}

// full tells whether what joins finds no room: it is three processes until its command is executed.
func (v *Live) full() bool {
	s, err := v.launch.group.Stats()
	return err == nil && s.PIDs+3 > v.launch.group.Limits().PIDs
}

// initDead tells that the sandbox's first process is dead, which is seen to a moment later. Nobody reaps it before the joins are over, so
// its number is nobody else's; a dead one has no root any more.
func (v *Live) initDead() bool {
	var st unix.Stat_t
	err := unix.Stat(fmt.Sprintf("/proc/%d/root", v.launch.initPID), &st)
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
}

// joinFailed gives the true cause of what a kill or a freeze made fail.
func (v *Live) joinFailed(err error) error {
	switch {
	case v.closing.Load() || v.life.Err() != nil || v.initDead():
		return ErrEnded
	case v.held.Load():
		return ErrFrozen
	case errors.Is(err, unix.EAGAIN) && v.full():
		return ErrFull
	}
	// The agent opened all of them, or this one before the command was the one it controls.
	if f, ok := errors.AsType[*stub.Failure](err); ok && f.Step == stub.StepPTY && (f.Errno == unix.ENOSPC || f.Errno == unix.EPERM) {
		return fmt.Errorf("%w: %w", ErrNoTTY, err)
	}
	return fmt.Errorf("join: %w", err)
}

// joiner is a command that joins, from its stub to its end. All of it is its own thread's, which is the
// parent of its processes and what their parent-death signal is tied to, but for what mu guards.
type joiner struct {
	process
	live    *Live
	ask     *Join
	plan    *Plan // the run's, with this command
	warden  *warden
	control *stub.Conn
	status  Status

	group    *cgroups.Group // of its own; nil: it has no limits but the run's
	oom      *os.File       // its OOMEvents
	oomKills uint64

	mu      sync.Mutex
	begin   int   // what the stub is before the command's number is known; 0: not started, or over
	session int   // of all that it is until then
	pid     int   // what becomes the command; 0: not known, or reaped
	why     error // it was killed for; nil: it wasn't
}

// run tells ended as soon as it is known that nothing was started. A run that is frozen on cgroup v1 lets
// nobody die, and who asked doesn't wait for that.
func (j *joiner) run(ctx context.Context, cancel context.CancelCauseFunc, ended chan<- error) {
	stop := context.AfterFunc(ctx, func() { j.kill(context.Cause(ctx)) })
	defer stop()
	defer j.process.close()
	err := j.start(ctx, cancel)
	if err != nil {
		j.kill(err)
		ended <- j.killed()
		j.abandon()
		j.release()
		return
	}
	began := time.Now()
	if j.ask.Timeout > 0 {
		defer time.AfterFunc(j.ask.Timeout, func() { cancel(errJoinTime) }).Stop()
	}
	if j.ask.OnStart != nil {
		j.ask.OnStart()
	}
	ws := j.reap()
	j.release()
	j.drain()
	j.judge(ws, time.Since(began))
	j.ask.OnEnd(j.status)
	ended <- nil
}

// start is the launch of a process that joins. What differs from the first one's: the namespaces and the
// cgroup are there, and the agent runs in them already, so nothing is done by a path that it could change,
// and nothing is in them before it has lost its rights.
func (j *joiner) start(ctx context.Context, cancel context.CancelCauseFunc) (err error) {
	l := j.live.launch
	if j.plan, err = l.planJoin(j.ask); err != nil {
		return err
	}
	if err := j.makeIO(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			j.io.closeAll()
		}
	}()
	control, peer, err := stub.Pair()
	if err != nil {
		return err
	}
	j.control = control
	defer control.Close()
	if err := j.enterSandbox(peer); err != nil {
		return err
	}
	if err := j.confine(j.plan, j.control, j.plan.confinement(l.bpf, false, false), nil); err != nil {
		return err
	}
	if err := j.verify(ctx); err != nil {
		return err
	}
	return j.letGo(cancel)
}

func (j *joiner) makeIO() (err error) {
	if j.plan.TTY {
		j.io, err = newNull()
		return err
	}
	uid := j.live.launch.ids.hostAgent()
	j.io, err = newPipes(uid, uid)
	return err
}

// enterSandbox executes the stub on this thread, and follows it to where it is a process of the sandbox
// without rights. On the way it goes into the run's cgroup.
func (j *joiner) enterSandbox(peer *os.File) error {
	l, control := j.live.launch, j.control
	control.Bound(stubPatience)
	bears, err := j.executeStub(peer)
	peer.Close() // while we held it, one that died would have said nothing until the deadline
	if err == nil {
		err = fault.At("join/begun")
	}
	if err != nil {
		return err
	}
	stage0 := j.begin
	if bears {
		if stage0, err = follow(control, stage0); err != nil {
			return err
		}
		j.mu.Lock()
		j.begin = stage0 // its session keeps the number of what was executed
		j.mu.Unlock()
	}
	if err := writeProc(stage0, "oom_score_adj", fmt.Sprint(l.plan.oomScore())); err != nil {
		return err
	}
	sandbox := l.sandbox("")
	sandbox.Namespaces |= unix.CLONE_NEWNET
	if err := control.Make(sandbox); err != nil {
		return err
	}
	if err := bornTo(control, stub.Hello, j.is); err != nil {
		return err
	}
	j.mu.Lock()
	j.begin, j.session = 0, 0
	j.mu.Unlock()
	return waitFor(stage0)
}

// follow gives what was born in the run's cgroup in place of what was executed, which it waits for; on error it is still that.
func follow(control *stub.Conn, executed int) (stage0 int, err error) {
	r, err := hear(control, stub.Forked)
	if err == nil {
		err = waitFor(executed)
	}
	if err != nil {
		return executed, err
	}
	return int(r.A), nil
}

// is notes the number of what becomes the command.
func (j *joiner) is(pid int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pid = pid
}

// executeStub starts it from a sealed copy of ours: the one in the root view lies where the agent is
// (CVE-2019-5736). It gets pid 1 by descriptor, which is our child and not waited for as long as anything
// joins (joins.end).
func (j *joiner) executeStub(peer *os.File) (bears bool, err error) {
	image, err := sealedStub()
	if err != nil {
		return false, err
	}
	defer image.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer null.Close()
	fd, err := unix.PidfdOpen(j.live.launch.initPID, 0)
	if err != nil {
		return false, os.NewSyscallError("pidfd_open", err)
	}
	init := os.NewFile(uintptr(fd), "pid 1")
	defer init.Close()
	born, err := j.live.launch.group.Birth()
	if err != nil {
		return false, err
	}
	defer born.Close()
	how, files := entering(born, null.Fd(), null.Fd(), null.Fd(), peer.Fd(), init.Fd())
	program := fmt.Sprintf("/proc/self/fd/%d", len(files))
	files = append(files, image.Fd())
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.why != nil {
		return false, j.why
	}
	attr := &syscall.ProcAttr{Dir: "/", Files: files, Sys: &syscall.SysProcAttr{Setsid: true}}
	j.begin, err = syscall.ForkExec(program, []string{stubPath, "join", how}, attr)
	j.session = j.begin
	if err != nil {
		j.begin, j.session = 0, 0
		return false, fmt.Errorf("start the stub: %w", err)
	}
	return born.Folder != nil, nil
}

func sealedStub() (*os.File, error) {
	fd, err := unix.MemfdCreate("agentrun-init", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "stub")
	_, err = f.Write(stub.Image)
	if err == nil {
		const all = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, all)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("copy of the stub: %w", err)
	}
	return f, nil
}

// verify has the turn: no ring, no limit and no freeze changes while it compares.
func (j *joiner) verify(ctx context.Context) error {
	v := j.live
	if err := v.take(ctx); err != nil {
		return err
	}
	defer v.give()
	if v.held.Load() {
		return ErrFrozen
	}
	return errors.Join(fault.At("join/probe"), v.launch.verifyJoined(&j.process))
}

// letGo puts it on record, has its notifications served, and lets it execute.
func (j *joiner) letGo(cancel context.CancelCauseFunc) error {
	v := j.live
	if err := j.hold(); err != nil {
		return err
	}
	ring, _, _ := v.Ring()
	if err := j.ask.OnRecord(j.plan.Command.program(), ring); err != nil {
		return err
	}
	j.warden = v.warden.joined(j.agentPID)
	v.run.answers(v.asking, &j.process, j.warden)
	if j.master != nil && j.ask.OnTTY != nil {
		j.ask.OnTTY(j.master)
	}
	if err := j.execute(j.plan, j.plan.command(false), func() {}); err != nil {
		j.status.State, j.status.ExitCode = Failed, ExitFailed
		if command, ok := errors.AsType[*CommandError](err); ok {
			j.status.ExitCode = command.ExitCode()
		}
		j.ask.OnEnd(j.status)
		return err
	}
	limit := j.plan.Limits.MaxOutput
	j.io.pump(j.ask.Stdin, j.ask.Stdout, j.ask.Stderr, limit, func() {
		cancel(&PolicyError{fmt.Sprintf("output over the limit of %d bytes", limit)})
	})
	return nil
}

// kill ends it and its process group; the first reason counts. What it has started and that has left the
// group is the run's, as a shell's job is.
func (j *joiner) kill(why error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.why == nil {
		j.why = why
	}
	// Our children that nobody has waited for, or their groups: the numbers are nobody else's.
	for _, pid := range []int{j.begin, j.pid} {
		if pid != 0 {
			_ = unix.Kill(-pid, unix.SIGKILL)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	if j.session != 0 { // with one between them that we weren't told of yet
		_ = unix.Kill(-j.session, unix.SIGKILL)
	}
}

func (j *joiner) killed() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.why
}

// abandon waits for what was killed before it was a command.
func (j *joiner) abandon() {
	j.mu.Lock()
	session := j.session
	j.begin, j.session = 0, 0
	j.mu.Unlock()
	for session != 0 && waitFor(-session) == nil {
	}
	if j.pid != 0 {
		j.reap()
	}
}

// reap waits for its end. From then on the number may be another's, and nobody uses it.
func (j *joiner) reap() (ws unix.WaitStatus) {
	var info unix.Siginfo
	for unix.Waitid(unix.P_PID, j.pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WALL, nil) == unix.EINTR {
	}
	j.live.joins.mu.Lock()
	defer j.live.joins.mu.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	_, _ = unix.Wait4(j.pid, &ws, unix.WALL, nil) // it has ended: nothing interrupts this
	j.pid = 0
	return ws
}

// drain waits until what it wrote has been passed on. Others may hold the pipes still, as a shell's jobs do:
// what they write is nobody's output any more. Whoever reads too slowly doesn't hold up the end of the run.
func (j *joiner) drain() {
	done := make(chan struct{})
	go func() { j.io.wg.Wait(); close(done) }()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	var late time.Time
	for {
		select {
		case <-done:
			j.io.drain()
			return
		case now := <-look.C:
			if j.io.empty() {
				j.io.noMore()
			}
			if late.IsZero() && j.live.closing.Load() {
				late = now.Add(joinDrain)
			}
			if !late.IsZero() && now.After(late) {
				return
			}
		}
	}
}

// judge names the true cause of its end, as run.judge does.
func (j *joiner) judge(ws unix.WaitStatus, took time.Duration) {
	s := &j.status
	s.setEnd(ws)
	s.WallTime, s.Output = took, j.io.written.Load()
	why := j.killed()
	if why == nil && s.Signal == "SIGKILL" && j.oomKills == 0 && j.live.ends() {
		why = ErrEnded
	}
	policy, over := errors.AsType[*PolicyError](why)
	switch {
	case errors.Is(why, errJoinTime):
		s.State, s.Reason, s.ExitCode = TimedOut, overTime+j.ask.Timeout.String(), ExitTimeout
	case over:
		s.State, s.Reason, s.ExitCode = Policy, policy.Reason, ExitKilled
	case errors.Is(why, errJoinMemory), why == nil && j.oomKills > 0:
		s.State, s.Reason, s.ExitCode = OOM, j.overMemory(), ExitKilled
	case why != nil:
		s.State, s.Reason, s.ExitCode = Killed, why.Error(), ExitKilled
	case s.Signal == "SIGKILL" && j.warden.killed.Load() != nil: // see run.judge
		s.Signal, s.ExitCode = "SIGSYS", 128+int(unix.SIGSYS)
		s.Reason = "killed for " + *j.warden.killed.Load()
	}
}

// ends tells whether the run ends: the kernel kills all of it before the end is known here.
func (v *Live) ends() bool {
	select {
	case <-v.run.ended:
		return true
	case <-v.life.Done():
		return true
	case <-time.After(50 * time.Millisecond):
		return v.closing.Load()
	}
}

// joins are the commands that have joined a run, from before their stub to after their end.
type joins struct {
	mu   sync.RWMutex // before a joiner's
	now  bool         // the run has been executed
	over bool
	all  map[*joiner]struct{}
	wg   sync.WaitGroup
}

func (s *joins) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now, s.all = true, map[*joiner]struct{}{}
}

func (s *joins) enter(j *joiner) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over || j.live.closing.Load():
		return ErrEnded
	case !s.now:
		return ErrNotYet
	case j.live.held.Load():
		return ErrFrozen
	}
	s.all[j] = struct{}{}
	s.wg.Add(1)
	return nil
}

func (s *joins) leave(j *joiner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, j)
	s.wg.Done()
}

// end kills them all and returns when each is reaped and its end told. None comes after it.
func (s *joins) end() {
	s.mu.Lock()
	s.over = true
	for j := range s.all {
		j.kill(ErrEnded)
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// pinned gives the processes of all, whose numbers stay theirs until do returns.
func (s *joins) pinned(do func(pids []int)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var pids []int
	for j := range s.all {
		j.mu.Lock()
		for _, pid := range []int{j.begin, j.pid} {
			if pid != 0 {
				pids = append(pids, pid)
			}
		}
		j.mu.Unlock()
	}
	do(pids)
}

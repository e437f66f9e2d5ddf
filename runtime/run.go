// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/internal/thread"
	"agentrun/netns"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime/internal/stub"
	"agentrun/seccomp"
)

// Options are what a run needs of its caller. RunDir, Stdout and Stderr are required.
type Options struct {
	RunDir string // folder of live runs, as /run/agentrun
	// CacheDir keeps compiled filters between runs: 3 ms become 40 µs. Empty: none are kept. A cache
	// that can't be trusted or written is not used; OnCacheError hears why.
	CacheDir     string
	OnCacheError func(error)
	Stdin        io.Reader
	Stdout       io.Writer
	Stderr       io.Writer
	// Detached says that nobody waits for Stdout and Stderr: what a full disk keeps out of them is no failure of the run.
	Detached bool
	// Signals are passed on to the agent's first process. SIGTERM, SIGINT, SIGHUP and SIGQUIT also start the
	// grace time, after which everything is killed; a second one ends the grace at once, and a frozen run
	// gets none.
	Signals <-chan os.Signal
	// OnTTY gets the pty's master before the agent runs, to set its size and follow changes.
	OnTTY func(master *os.File)
	// OnStep hears of each launch step, how long it took, and how much processor time of the launching thread.
	OnStep func(name string, took, cpu time.Duration)
	// OnStart gets the status as it stands when the agent has been executed.
	OnStart func(Status)
	// Observer keeps the account of the run and may end it; nil: nobody does.
	Observer Observer
	// Wayout is required if the plan has one.
	Wayout *Wayout
	// Network is a namespace that the run's becomes; nil: one is begun when it is needed. The caller drops it when the run is over.
	Network *netns.Begun
	// Ring says which ring holds now; nil: the plan's, to the end. A ring other than the plan's is applied
	// before OnLive.
	Ring RingSource
	// ApplyTime is how long a change of ring may take before the run is ended instead; 0: 90 ms, of the 100
	// of M-22. Longer is for hosts that are too slow for that, as emulated ones are: the run has the lower
	// ring's calls meanwhile, and M-22's bound isn't kept.
	ApplyTime time.Duration
	// AccountFirst has the rest of a run taken down when Observer.End has answered, not beside it: for who
	// waits for the account only.
	AccountFirst bool
	// OnLive gets the run between the probe and the exec: its process exists, and no code of the agent has
	// run.
	OnLive func(*Live)
	// Changes is the file that what changed in an overlaid workspace is written to, as a tar (fsjail.Root.SaveTree), when the run is
	// over. Empty, they are thrown away.
	Changes string

	// CountChanges has the status say how many files of the workspace were changed; it takes a look at each of them.
	CountChanges bool
	// OnWrites hears what the run has written in the workspace, by whom else ever it may be written, when no process of it lives, and
	// answers with the paths at which that was lost or has replaced another's; more: not all was seen. nil: nobody looks.
	OnWrites func(began time.Time, files []FileWrite, more bool) (conflicts []string)

	// OnPolicy hears, beside the kill that follows, that the run is ended for what it did (Policy), by whomever. nil: nobody does.
	OnPolicy func()
	// OnEvent hears what is done to the live run. It must not block.
	OnEvent func(LiveEvent)

	hook       func(*launch) error
	besideExec func(*launch)
}

// grace is how long an agent may take to end after a signal that asks it to.
const grace = 5 * time.Second

// Run starts what the plan says and returns when nothing of it is left. It always returns a status;
// errors are in it. The context's end kills the run.
func Run(ctx context.Context, plan *Plan, opt Options) Status {
	r := &run{
		ctx: ctx, plan: plan, opt: opt, began: time.Now(), ended: make(chan struct{}), verdicts: make(chan verdict, 4), onRecord: make(chan struct{}),
		stuck: make(chan error, 1), over: make(chan struct{}),
	}
	r.settled = sync.OnceValue(func() error { return r.opt.Observer.Settled() })
	r.looked = sync.OnceValue(func() error { return plan.setIDFiles(false) })
	if len(plan.WritableHostPaths()) > 0 {
		go func() { _ = r.looked() }() // beside the launch: it takes microseconds for a file
	}
	r.status = Status{
		ID: plan.ID, Name: plan.Name, Agent: plan.Agent, Session: plan.Session, Parent: plan.Parent, Ring: plan.Ring,
		Profile: plan.Profile, PlanDigest: plan.Digest, Wider: plan.Wider, Refused: map[string]uint64{}, Events: []Event{},
		Command: plan.Command.program(),
	}
	if opt.Observer == nil {
		r.opt.Observer, opt.Observer = nobody{}, nobody{}
	}
	r.refusals.observer = opt.Observer
	if plan.Image != nil {
		r.status.Image = plan.Image.ID
	}
	for _, m := range plan.Missing {
		r.status.BestEffort = append(r.status.BestEffort, m.Name)
	}
	// A thread of its own that then ends: it gets a mount namespace, and it is the parent of the sandbox
	// for the parent-death signal.
	on := thread.Throwaway
	if in := plan.in; in != nil && opt.RunDir == in.l.opt.RunDir && (plan.Wayout == nil || opt.Wayout != nil) && in.claim() {
		r.in = in
		on = in.run
	} else if in != nil {
		r.unfit = errors.New("the prepared sandbox of this run can't be had")
	}
	first := r.status
	go func() {
		defer close(r.over)
		on(r.start)
	}()
	select {
	case <-r.over:
	case err := <-r.stuck:
		return r.abandoned(first, err)
	}
	if r.ending == nil { // it never started
		<-r.onRecord
		r.ending = r.end()
	}
	defer func() {
		if r.live != nil {
			r.live.finished(r.status)
		}
	}()
	if err := <-r.ending; err != nil {
		r.status.unwritten(err)
	}
	return r.status
}

func (s *Status) unwritten(err error) {
	text := "the end of the run is not on record: " + err.Error()
	if s.State == Failed {
		text = s.Error + "; " + text
	}
	s.State, s.ExitCode, s.Error = Failed, ExitFailed, text
}

// abandoned is the account of a launch whose thread doesn't come back, or too late (guard). What the thread
// may still touch is let be.
func (r *run) abandoned(s Status, err error) Status {
	r.fail(&s, err)
	s.Leftovers = []string{"run " + s.ID + ": " + err.Error() + "; what it made is removed when it comes back, or by agentrun gc when this supervisor is gone"}
	told := make(chan error, 1)
	go func() {
		<-r.onRecord
		told <- r.opt.Observer.End(s)
	}()
	select {
	case err = <-told:
	case <-time.After(teardownTime): // the log may be what the launch waits for
		err = fmt.Errorf("no answer after %v", teardownTime)
	}
	if err != nil {
		s.unwritten(err)
	}
	return s
}

// PolicyError, as the cause of a context's end or an observer's error, ends a run as state policy.
type PolicyError struct{ Reason string }

func (e *PolicyError) Error() string { return e.Reason }

// verdict is a reason to end the run from outside.
type verdict struct {
	state  State
	reason string
}

// run is one run, from Run to its account. Who writes what:
//
//   - status is the starting thread's (start, settle). Others get copies: OnStart, the observer, Live.
//   - verdicts may come from anybody; the first counts (decide). Only watch takes them, and settle the last one.
//   - agent is written by the goroutine that hears pid 1, before it closes ended, and read after that.
//   - startErr is written before onRecord is closed, and read after that.
//
// What is waited for at the end, in this order: the processes (ended, process.Wait), what they wrote
// (io.drain), the gateway's last records (finish), whoever answers notifications (asked, first), and the rest
// (serving). An earlier one may still make work for a later one, never the other way round.
type run struct {
	ctx      context.Context
	plan     *Plan
	opt      Options
	began    time.Time
	status   Status
	launch   *launch
	live     *Live
	in       *Prepared // built before; nil: everything is still to do
	unfit    error     // why the plan's prepared sandbox can't be used
	refusals refusals
	onRecord chan struct{} // closed when Observer.Start has answered
	startErr error         // its answer
	settled  func() error  // Observer.Settled, asked once; after onRecord
	looked   func() error  // waits for the look for set-ID programs; the same answer each time
	ending   <-chan error  // what Observer.End said; nil as long as nobody has asked it
	verdicts chan verdict
	stuck    chan error       // why the launching thread is given up
	over     chan struct{}    // closed when it is through with the run
	ended    chan struct{}    // closed when pid 1 is gone
	agent    *unix.WaitStatus // nil: not known, pid 1 was killed before it was
	full     bool             // the scratch, when the agent ended, not with 0
	wished   string           // how the run was asked to end, when pid 1 was gone; empty: it wasn't
	asked    sync.WaitGroup   // who answers the notifications of commands that joined, and puts refusals on record
	first    sync.WaitGroup   // the same of the first process
	calls    seccomp.Stats    // of that
	listener *os.File         // of the first process, when nobody answers any more: the account doesn't wait for the filter's end; nil: it isn't open
	serving  sync.WaitGroup   // the others
	// stopFollowing ends one of them; nil: it isn't begun. Not with the answers' context: whoever hears of an end has a thread woken, for which the account would wait.
	stopFollowing context.CancelFunc
}

func (r *run) start() {
	r.opt.hook, r.opt.besideExec = r.beforeExec, r.besideExec
	l := &launch{}
	if r.in != nil {
		l = r.in.l
		l.home = r.in.atHome
		if l.wayout != nil {
			l.wayout.Wayout = *r.opt.Wayout
		}
	}
	l.plan, l.opt, l.recorder, l.ctx, l.stuck = r.plan, r.opt, &seccomp.Recorder{}, r.ctx, r.stuck
	r.launch = l
	// On record by the time of the exec; written while the launch waits for the kernel. One that has little
	// to wait for is quicker without a second goroutine.
	status, err := r.status, r.unfit
	if l.waits() {
		if err == nil {
			r.serve(l)
		}
		r.record(status)
	} else {
		go func() {
			thread.Room16()
			r.record(status)
		}()
	}
	if err == nil && !l.waits() {
		l.bpf, err = r.plan.compile(&r.opt)
	}
	if err == nil {
		err = l.upAll()
	} else {
		err = errors.Join(err, l.down())
	}
	if err != nil {
		// up has undone everything; its goroutines end with the descriptors it closed.
		r.asked.Wait()
		r.served()
		r.fail(&r.status, err)
		return
	}
	r.status.StartedAt = time.Now()
	r.status.LaunchTime = r.status.StartedAt.Sub(r.began)
	r.live.joins.open() // whoever is told that it has started may join at once
	if r.opt.OnStart != nil {
		r.opt.OnStart(r.status)
	}
	_, _ = l.group.Account() // the kernel makes what these files are read by when they are first looked for, which the end would wait for
	v := r.watch()
	r.settle(v)
}

// record has the start written.
func (r *run) record(s Status) {
	r.startErr = r.opt.Observer.Start(s)
	close(r.onRecord)
}

// compile makes the BPF program, or takes it from the cache when it was made before. A bundle's own isn't kept there.
func (p *Plan) compile(opt *Options) ([]byte, error) {
	told := opt.OnCacheError
	if told == nil {
		told = func(error) {}
	}
	if opt.CacheDir != "" {
		if err := os.MkdirAll(opt.CacheDir, 0o700); err != nil {
			told(err)
		}
	}
	program, err := p.filter.CompileCached(opt.CacheDir, seccomp.Options{})
	if program.CacheErr != nil {
		told(program.CacheErr)
	}
	if err == nil && p.bundle.Len() > 0 {
		program, err = program.Within(p.bundle)
	}
	if err != nil {
		return nil, &StepError{"seccomp filter", err}
	}
	return program.Bytes(), nil
}

func (r *run) fail(s *Status, err error) {
	s.State, s.ExitCode, s.Error = Failed, ExitFailed, err.Error()
	var step *StepError
	if errors.As(err, &step) {
		s.FailedStep = step.Step
	}
	var cmd *CommandError
	if errors.As(err, &cmd) {
		s.ExitCode, s.Error, s.Hint = cmd.ExitCode(), cmd.Error(), cmd.Hint
	}
	if found, ok := errors.AsType[*fsjail.SetIDError](err); ok {
		s.Hint = found.Hint()
	}
	s.WallTime = time.Since(r.began)
}

// beforeExec runs between the probe and the exec: the listener must be served before the exec, which is
// itself a notified call in ring 3.
func (r *run) beforeExec(l *launch) error {
	<-r.onRecord
	if r.startErr != nil {
		return r.startErr
	}
	// Where the agent could leave behind what a power cut doesn't take back. What it does elsewhere it does
	// by the way out, which settles first.
	if len(r.plan.WritableHostPaths()) > 0 {
		if err := errors.Join(r.settled(), r.looked()); err != nil {
			return err
		}
	}
	if r.live == nil {
		r.serve(l)
	}
	if l.master != nil && r.opt.OnTTY != nil {
		r.opt.OnTTY(l.master)
	}
	if err := l.watchMemory(); err != nil {
		r.decide(verdict{Killed, err.Error()})
	} else if l.oom != nil {
		r.serving.Go(func() { r.watchOOM(l.oom) })
	}
	return r.goLive(r.live.asking)
}

// serve has the calls of the agent's first process answered, which may still wait for its command: whoever answers needs longer to begin than
// the agent to its first call.
func (r *run) serve(l *launch) {
	w := &warden{
		sockets: l.sockets, subprocess: r.plan.Subprocess, programs: r.plan.programs, live: &atomic.Pointer[rights]{},
		agentPID: l.agentPID, recorder: l.recorder, refused: r.refused, profile: &r.plan.profile, bundle: r.plan.bundle,
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.live = newLive(ctx, r, l, w)
	l.over = r.live.end
	l.stopServing = cancel
	r.answers(ctx, &l.process, w)
}

// besideExec begins while the agent's program is executed what only waits for it.
func (r *run) besideExec(l *launch) {
	shared := l.control.Share()
	r.serving.Go(func() {
		defer close(r.ended)
		for {
			report, err := l.control.Shared()
			if err = errors.Join(shared, err); err != nil {
				if !errors.Is(err, io.EOF) { // it lives, and nobody hears it any more
					r.decide(verdict{Killed, "pid 1 of the sandbox: " + err.Error()})
					_ = l.killAll()
				}
				return
			}
			if report.Kind == stub.Exited {
				ws := unix.WaitStatus(report.A)
				r.agent, r.full = &ws, report.B != 0
			}
		}
	})
	if x := l.wayout; x != nil {
		uid := l.ids.hostGateway()
		x.serving = true
		x.group, _ = l.group.(*runGroup)                                                                                               // not in a run without cgroups
		go x.serve(uid, r.settled, r.live.Lease, func(err error) { r.decide(verdict{Policy, "the way out is gone: " + err.Error()}) }) // drop waits for it
	}
	l.io.pump(r.opt.Stdin, r.opt.Stdout, r.opt.Stderr, r.plan.Limits.MaxOutput, func() {
		r.decide(verdict{Policy, fmt.Sprintf("output over the limit of %d bytes", r.plan.Limits.MaxOutput)})
	})
	if l.waits() { // this thread has time for them now, and is on another processor than the agent, where one that is woken may not be
		goruntime.Gosched()
	}
}

// answers has a process's notifications served until nobody is left that its filter applies to, or ctx ends.
func (r *run) answers(ctx context.Context, p *process, w *warden) {
	listener := p.listener
	p.listener = nil
	fd := int(listener.Fd())
	w.waits = func(id uint64) bool { return seccomp.StillWaiting(fd, id) }
	gate := r.live.gate.add()
	asked, stats := &r.asked, new(seccomp.Stats)
	if p == &r.launch.process {
		asked, stats = &r.first, &r.calls
	}
	asked.Go(func() {
		thread.Room8() // the agent's first call waits for the answer
		defer r.live.gate.remove(gate)
		defer func() {
			if p == &r.launch.process {
				r.listener = listener
			} else {
				listener.Close()
			}
		}()
		err := seccomp.Serve(ctx, fd, w.answer, seccomp.ServeOptions{Gate: gate, Stats: stats})
		if err != nil && !errors.Is(err, context.Canceled) {
			// Nobody answers any more: waiting calls would hang for ever. Fail closed.
			r.decide(verdict{Killed, "seccomp notifications: " + err.Error()})
		}
	})
}

// goLive brings the run into the ring that holds now, which may no longer be the plan's, and has it followed
// from here.
func (r *run) goLive(ctx context.Context) error {
	if r.opt.Ring != nil {
		ring, _ := r.opt.Ring.Ring()
		if err := r.live.change(ctx, ring); err != nil && r.live.closing.Load() {
			return err
		}
		follow, stop := context.WithCancel(context.Background())
		r.stopFollowing = stop
		r.serving.Go(func() { r.live.follow(follow, r.opt.Ring) })
	}
	if r.opt.OnLive != nil {
		r.opt.OnLive(r.live)
	}
	return nil
}

// refused passes a refusal on. The caller waits for its answer meanwhile: it is on record before it takes
// effect.
func (r *run) refused(c seccomp.Call, a seccomp.Answer, e seccomp.Event, called rings.Ring) {
	if err := r.refusals.seen(c, a, e, called); err != nil {
		r.decide(verdict{Policy, err.Error()})
	}
}

// watchOOM ends the whole run when one of its processes was killed for memory. cgroup v2 does that by
// itself (memory.oom.group); on v1 the rest would go on half-blind.
func (r *run) watchOOM(events *os.File) {
	if diedOfMemory(events, r.launch.group) {
		r.decide(verdict{OOM, r.overMemory()})
	}
}

// decide files a verdict; the first one counts, and nobody waits to be heard.
func (r *run) decide(v verdict) {
	select {
	case r.verdicts <- v:
	default:
	}
}

// watch waits for the end, whoever brings it, and returns why if it was brought from outside. It is one
// goroutine, so of two causes at one moment one is chosen; judge has the last word. A cause that can't be
// looked for any more ends the run too: a limit that nobody measures is none.
func (r *run) watch() (v verdict) {
	deadline := newWallClock(time.Duration(r.plan.Limits.Timeout), time.Now)
	defer deadline.Stop()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	w := watcher{run: r, began: time.Now(), cpu: time.NewTimer(r.nextCPUCheck(0)), pace: time.NewTicker(paceFirst)}
	defer w.cpu.Stop()
	defer w.pace.Stop()
	w.lease(deadline, More{})
	for _, sig := range r.launch.guard.kept { // during the launch
		v = w.pass(sig, true)
	}
	for v == (verdict{}) {
		select {
		case <-r.ended:
			r.wished = w.asked
			return verdict{}
		case v = <-r.verdicts:
		case <-deadline.C:
			v = w.timeUp(deadline)
		case <-w.cpu.C:
			v = w.checkCPU()
		case now := <-w.pace.C:
			w.keepPace(now)
		case <-second.C:
			v = w.everySecond()
		case <-r.ctx.Done():
			v = verdict{Killed, context.Cause(r.ctx).Error()}
			if _, ok := errors.AsType[*PolicyError](context.Cause(r.ctx)); ok {
				v.state = Policy
			}
		case most := <-r.live.pauses:
			deadline.pause(most)
			w.lease(deadline, More{})
		case e := <-r.live.extensions:
			deadline.extend(e.by.Timeout)
			e.done <- w.lease(deadline, e.by)
			w.cpu.Reset(0)
		case <-r.live.relimit:
			w.cpu.Reset(0)
		case <-w.graceOver:
			v = verdict{Killed, w.asked + ", and still alive after " + grace.String()}
		case sig := <-r.opt.Signals:
			v = w.pass(sig, true)
		case sig := <-r.live.signals:
			v = w.pass(sig, false)
		}
	}
	noted := make(chan struct{})
	go func() {
		defer close(noted)
		if v.state == Policy && r.opt.OnPolicy != nil {
			r.opt.OnPolicy()
		}
	}()
	r.live.close()
	if err := r.launch.killAll(); err != nil {
		r.status.Leftovers = append(r.status.Leftovers, err.Error())
		_ = r.launch.control.Close() // pid 1 ends at the hang-up, and everything with it
		go r.killLater()
	}
	<-r.ended
	select {
	case <-noted:
	case <-time.After(teardownTime): // it may wait for others; nobody's end does
	}
	return v
}

// killLater tries until there is a descriptor for it, or memory: a pid 1 that is frozen hears no hang-up, and would be waited for without end.
func (r *run) killLater() {
	for r.launch.killAll() != nil {
		select {
		case <-r.over:
			return
		case <-time.After(time.Second):
		}
	}
}

// watcher is what watch keeps between two events; only its goroutine uses it.
type watcher struct {
	*run
	began     time.Time
	cpu       *time.Timer
	pace      *time.Ticker
	locks     tooManyLocks
	folders   tooManyFolders
	watches   tooManyWatches
	asked     string           // how the run was asked to end; empty: it wasn't
	graceOver <-chan time.Time // nil until it was asked
}

// pass hands a signal on to the agent: ours is one that came to the supervisor, the others are control's. The verdict is the zero value
// unless the run is to end now: it was asked to end before, or it is frozen and can't do what it is asked for.
func (w *watcher) pass(sig os.Signal, ours bool) verdict {
	s, ok := sig.(unix.Signal)
	if !ok {
		return verdict{}
	}
	ends := endsRun(s)
	switch {
	case ends && w.asked != "":
		return verdict{Killed, w.asked + ", then " + unix.SignalName(s)}
	case ends && ours && w.live.held.Load():
		return verdict{Killed, "asked to end by " + unix.SignalName(s) + " while it was frozen"}
	}
	_ = unix.PidfdSendSignal(int(w.launch.agentFD.Fd()), s, nil, 0)
	if ends {
		w.asked = "asked to end by " + unix.SignalName(s)
		w.graceOver = time.After(grace)
	}
	return verdict{}
}

// timeUp is of the wall clock's timer: the verdict is the zero value where it only warns.
func (w *watcher) timeUp(clock *wallClock) verdict {
	l, _ := w.live.Lease()
	if clock.soon() {
		w.live.tell(LiveEvent{Kind: LiveEndsSoon, Lease: l})
		return verdict{}
	}
	return verdict{TimedOut, overTime + l.Timeout.String()}
}

// lease makes known what the run has with so much more.
func (w *watcher) lease(clock *wallClock, more More) Lease {
	l, _ := w.live.Lease()
	l = l.plus(more)
	if l.Ends = clock.ends; l.Timeout == profiles.NoLimit {
		l.Ends = time.Time{}
	}
	w.live.lease.set(l)
	return l
}

// checkCPU compares the processor time with its limit, and says when to look again.
func (w *watcher) checkCPU() verdict {
	stats, err := w.launch.group.Stats()
	l, _ := w.live.Lease()
	switch {
	case err != nil:
		return verdict{Killed, "cpu time can't be read: " + err.Error()}
	case stats.CPU >= time.Duration(l.CPUTime):
		return verdict{TimedOut, overCompute + l.CPUTime.String()}
	}
	w.cpu.Reset(w.nextCPUCheck(stats.CPU))
	return verdict{}
}

// keepPace has the run yield or not; after its first seconds it looks less often.
func (w *watcher) keepPace(now time.Time) {
	if g, ok := w.launch.group.(*runGroup); ok && !w.live.held.Load() && !w.live.closing.Load() {
		g.pace(now)
	}
	if now.Sub(w.began) > paceSettled {
		w.pace.Reset(time.Second)
	}
}

// everySecond looks at the locks, open folders and watches, and tells the run its own time and memory.
func (w *watcher) everySecond() verdict {
	stats, err := w.launch.group.Stats()
	if err != nil {
		return verdict{} // the check of cpu time says so
	}
	w.launch.tellFacts(stats)
	why, err := w.locks.look(stats.CPU, w.launch.agentPID)
	if err != nil {
		why = "file locks can't be counted: " + err.Error()
	}
	if why == "" {
		if why, err = w.folders.look(stats.CPU, w.launch.group.Pids); err != nil && !errors.Is(err, os.ErrNotExist) {
			why = "open folders can't be counted: " + err.Error()
		}
	}
	if why == "" {
		if why, err = w.watches.look(stats.CPU, w.launch.group.Pids); err != nil && !errors.Is(err, os.ErrNotExist) {
			why = "epoll watches can't be counted: " + err.Error()
		}
	}
	if why == "" {
		return verdict{}
	}
	return verdict{Policy, why}
}

func (r *run) overMemory() string {
	return "over the memory limit of " + profiles.Size(r.memoryLimit()).String() //nolint:gosec // it is positive
}

// memoryLimit is the one that was in force.
func (r *run) memoryLimit() int64 {
	if r.launch != nil && r.launch.group != nil {
		return r.launch.group.Limits().Memory
	}
	return r.plan.Limits.Memory
}

// nextCPUCheck is the earliest the budget can be used up: the quota bounds the rate. At least 10 ms, so
// that the last stretch is not a busy wait.
func (r *run) nextCPUCheck(used time.Duration) time.Duration {
	l, _ := r.live.Lease()
	left := time.Duration(l.CPUTime) - used
	return max(time.Duration(float64(left)/r.launch.group.Limits().CPU), 10*time.Millisecond)
}

// settle reads the account of the run while its cgroup still exists, then takes everything down. What fails
// here is a leftover in the status and stops nothing: an end that isn't told would be worse than one that is
// told in part.
func (r *run) settle(v verdict) {
	l, s := r.launch, &r.status
	r.live.close()
	r.live.joins.end() // pid 1 stays until they are reaped, whose parent it is not (zap_pid_ns_processes)
	// pid 1 is reaped only when every process of its namespace is gone (zap_pid_ns_processes). Looking into
	// each cgroup as well is for runs that were killed; for the others it is done when they are taken down.
	if err := l.reap(); err != nil || v != (verdict{}) {
		if err := l.killAll(); err != nil {
			s.Leftovers = append(s.Leftovers, err.Error())
		}
	}
	if end := l.initEnd; r.agent == nil && end != nil && end.Exited() && end.ExitStatus() == 0 { // as the agent's; any other is reported (stub, reap)
		r.agent = end
	}
	if r.agent == nil && v == (verdict{}) && r.wished != "" {
		v = verdict{Killed, r.wished}
	}
	l.io.drain()
	if v == (verdict{}) {
		// The agent may have ended of what it was about to be ended for: SIGPIPE at the output limit, SIGKILL
		// for memory. What was decided in that instant, or while its last output was drained, still counts.
		select {
		case v = <-r.verdicts:
		default:
		}
	}
	r.live.end()
	l.stopServing()
	s.WallTime, s.ScratchFull = time.Since(s.StartedAt), r.full
	if used, err := l.group.Account(); err == nil {
		s.CPUTime, s.PeakMemory, s.OOMKills = used.CPU, used.MemoryPeak, used.OOMKills
	} else { // and nobody takes the zeros for what it has used
		s.Leftovers = append(s.Leftovers, "what the run has used can't be read: "+err.Error())
	}
	r.judge(v)
	r.missed()
	if l.wayout != nil {
		l.wayout.finish(s.State == Exited && s.ExitCode == 0) // the last records, before the end's own
		if r, ok := l.group.(*runGroup); ok {
			used := r.gatewayUsed()
			s.GatewayCPUTime, s.GatewayPeakMemory = used.CPU, used.MemoryPeak
		}
	}
	r.asked.Wait()
	if !r.calls.Over() { // else who answers has nothing to say any more, and lets others end first
		r.first.Wait()
	}
	snap := l.recorder.Snapshot()
	s.Refused = snap.Refused
	for _, e := range snap.Events {
		s.Events = append(s.Events, Event{At: e.At, Last: e.Last, Kind: "syscall", Syscall: e.Syscall, Detail: e.Detail, Verdict: e.Verdict, Count: e.Count})
	}
	s.Output = l.io.written.Load()
	wrote, more := l.writes.End()
	files := r.plan.tellChanges(s, l.fileClock, r.opt.CountChanges, wrote, l.late)
	if r.opt.OnWrites != nil {
		s.FileConflicts = r.opt.OnWrites(s.StartedAt, files, more || s.RiskyMore)
	}
	if r.opt.AccountFirst {
		if err := l.clearWorkspace(); err != nil {
			s.Leftovers = append(s.Leftovers, err.Error())
		}
		answer := make(chan error, 1)
		answer <- r.opt.Observer.End(*s)
		r.ending = answer
	} else {
		r.ending = r.end() // while the rest is taken down
	}
	if l.oom != nil {
		l.oom.Close()
	}
	r.served()
	if err := l.down(); err != nil {
		s.Leftovers = append(s.Leftovers, err.Error())
	}
}

// served waits until nobody serves the run any more.
func (r *run) served() {
	if r.stopFollowing != nil {
		r.stopFollowing()
	}
	r.serving.Wait()
	r.first.Wait()
	r.listener.Close()
}

// end tells the observer how the run ended, on a goroutine of its own.
func (r *run) end() <-chan error {
	told := make(chan error, 1)
	go func(s Status) { told <- r.opt.Observer.End(s) }(r.status)
	return told
}

// missed says that a caller hasn't got what the agent wrote, however that ended by itself: half of an answer with exit code 0 would be taken
// for all of it.
func (r *run) missed() {
	s := &r.status
	if lost := r.launch.io.lost.Load(); lost != nil && !r.opt.Detached && (s.State == Exited || s.State == Signaled) {
		s.State, s.ExitCode, s.Error = Failed, ExitFailed, "what it wrote could not all be passed on: "+(*lost).Error()
	}
}

// judge names the true cause (M-6). What was decided from outside comes first; then the memory limit,
// which ends a process by SIGKILL just as an operator would; then the agent's own end.
func (r *run) judge(v verdict) {
	s := &r.status
	if r.agent != nil {
		s.setEnd(*r.agent)
	} else {
		s.State, s.Signal, s.ExitCode = Killed, "SIGKILL", ExitKilled
		s.Reason = "pid 1 of the sandbox was killed"
	}
	switch {
	case v.state == TimedOut:
		s.State, s.Reason, s.ExitCode = TimedOut, v.reason, ExitTimeout
	case v.state != "":
		s.State, s.Reason, s.ExitCode = v.state, v.reason, ExitKilled
	case s.OOMKills > 0 && s.Signal == "SIGKILL":
		s.State, s.ExitCode = OOM, ExitKilled
		s.Reason = r.overMemory()
	case s.Signal == "SIGKILL" && r.live != nil && r.live.warden.killed.Load() != nil:
		// The supervisor's SIGKILL stands for that of a filter that kills by itself and tells nobody.
		s.Signal, s.ExitCode = "SIGSYS", 128+int(unix.SIGSYS)
		s.Reason = "killed for " + *r.live.warden.killed.Load()
	}
	if r.live != nil {
		had, _ := r.live.Lease()
		s.Hint = r.plan.moreFor(s, had, r.memoryLimit())
	}
}

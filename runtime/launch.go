// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/cgroups"
	"agentrun/fsjail"
	"agentrun/internal/fault"
	"agentrun/internal/rootless"
	"agentrun/netns"
	"agentrun/runtime/internal/stub"
	"agentrun/seccomp"
)

// step is one piece of the launch. The order of the steps is data: printed by `agentrun plan`, named in
// errors and in the status, and undone in reverse, both when a later step fails and when the run ends.
// undo is called only after do was called, also when do failed halfway, and must cope with that.
type step struct {
	name  string
	why   string
	ahead func(*launch) bool // whether it can be done before the run is known (Prepare); nil: never
	do    func(*launch) error
	undo  func(*launch) error
}

func always(*launch) bool { return true }

// waits says that the agent's process is made before its command is known.
func (l *launch) waits() bool { return l.shape != nil && l.shape.waits }

// whole says that the view has all it will have: no workspace comes later.
func (l *launch) whole() bool { return l.waits() && !l.shape.workspace }

// steps is the launch, top to bottom: what the run needs on the host, then the process, then giving up
// privilege, then the check, and the exec last.
var steps = []step{
	{"run folder", "a place that says this run exists, locked while we live, so that a later start can tell crashed from alive (M-5)",
		always, (*launch).makeFolder, (*launch).removeFolder},
	{"uid range", "host ids that no other live run has (M-1)",
		always, (*launch).claimIDs, (*launch).releaseIDs},
	{"network namespace", "loopback, and the sockets of the tool proxy: nothing else (M-7); ours, so that nobody inside can administer it",
		always, (*launch).makeNetwork, (*launch).dropNetwork},
	{cgroupStep, "limits stand before anything runs under them (M-3)",
		always, (*launch).makeCgroup, (*launch).removeCgroup},
	{"mount namespace", "nothing is mounted where the host can see it, so nothing can stay mounted (M-5)",
		always, (*launch).isolate, nil},
	{"root view", "read-only root, scratch, workspace, assembled by descriptor (M-2)",
		always, (*launch).buildRoot, (*launch).keepChanges},
	{"container", "namespaces, pivot_root, no capability, no_new_privs; ends in our pid 1 (M-1)",
		always, (*launch).startContainer, (*launch).destroyContainer},
	{handOutStep, "a sandbox that was prepared ahead learns whose it is, and gets its workspace (M-2)",
		nil, (*launch).handOut, nil},
	{"live mounts", "what a change of ring opens and closes is held by descriptor, and closed until a ring gives it (M-22)",
		(*launch).whole, (*launch).holdMounts, (*launch).dropMounts},
	{"stdio", "pipes or a pty of the sandbox, never the caller's descriptors",
		(*launch).waits, (*launch).makeStdio, (*launch).closeStdio},
	{"agent process", "session, rlimits, Landlock, seccomp; waits for its command (M-4)",
		(*launch).waits, (*launch).startAgent, (*launch).closeAgent},
	{"cpu quota", "the launch ran at full speed; the agent will not (M-3)",
		nil, (*launch).setQuota, nil},
	{"probe", "what was promised is looked up in the live process before any of its code runs",
		nil, (*launch).verify, nil},
	{"exec", "nothing between the probe and this but the command on a socket",
		nil, (*launch).letGo, nil},
}

// StepError is a launch that failed. It unwraps to the cause.
type StepError struct {
	Step string
	Err  error
}

func (e *StepError) Error() string { return fmt.Sprintf("launch: %s: %v", e.Step, e.Err) }

func (e *StepError) Unwrap() error { return e.Err }

// launch is what the steps share. It lives as long as the run.
//
// A step sets fields, those after it read them, and its undo must do with what is there: nil, or 0, is what
// no step came to. All of it is the launching thread's, with these exceptions:
//
//   - network, grouping and holding are begun on other goroutines; who calls them waits, and gets what the first call got.
//   - group may be asked by anybody, at any time: it has a lock of its own, and killing what is dead already is no error.
//   - listener goes to the goroutine that serves it (run.answers), which closes it; from then on it is nil here.
//   - control is read by another goroutine from beforeExec on, until pid 1 is gone; closing it ends that.
//   - sockets are read by whoever answers notifications; one that is closed counts as too many.
//
// A prepared launch rests between upAhead and upAll, on a thread that does nothing else. Then plan, opt,
// recorder and ctx are replaced by those of the run that it is handed out to; whatever the first half took from the
// plan is in the shape.
type launch struct {
	plan  *Plan
	opt   Options
	shape *Shape       // it was prepared for; nil: for nothing but this run
	done  []bool       // steps begun
	home  func(func()) // runs a function on the thread that sees the upper layer; nil: this is it
	ctx   context.Context
	stuck chan error // holds one: why a step was given up whose thread doesn't come back
	guard *guard     // of the steps under way, or that were last

	dir       string
	lock      *os.File
	ids       *idRange
	grouping  func() (group, error) // waits until it is made, as network
	group     group
	parent    *os.File                  // shared lock on the cgroup all runs are in
	network   func() (*netns.NS, error) // waits until it is made; the same answer each time
	wayout    *wayout                   // nil: there is no way out
	shown     []fsjail.Entry            // what of it the root view shows
	root      *fsjail.Root
	stages    *fsjail.Stages               // nil: none
	guarded   *placeholders                // in the workspace; nil: none, or not yet
	late      []fsjail.Entry               // of these, what an elevation has guarded
	changes   *fsjail.Output               // where those of an overlaid workspace go; nil: nowhere
	facts     *facts                       // nil: /proc is the kernel's own, whole
	keep      *fsjail.Output               // where the changes go; nil: nowhere
	writes    *fsjail.Writes               // of the workspace; nil: nobody asks
	live      *fsjail.Live                 // mounts that a change of ring concerns; nil: the ring can't change
	holding   func() (*fsjail.Live, error) // waits for them; the same answer each time
	stage0    int                          // what makes the sandbox; 0: it wasn't started, or is reaped
	begin     int                          // the process group of all that the stub is before pid 1 says that it is there
	initPID   int                          // pid 1; 0: there was none
	reaped    bool                         // pid 1 is
	initEnd   *unix.WaitStatus             // how pid 1 ended; nil: not known
	control   *stub.Conn
	process   // the agent's first
	recorder  *seccomp.Recorder
	bpf       []byte
	fileClock time.Time // before the agent's first instruction, as the kernel notes times of files
	sockets   *socketCount

	verified       bool           // the process was compared with the plan, or its shape
	verifiedLimits cgroups.Limits // and the group had these

	over        func() // ends the Live
	stopServing context.CancelFunc
	oom         *os.File // v1: readable when the memory limit is hit
}

// up runs the steps that are wanted and not done yet; on failure it takes back all that was done and says
// which step it was. A step counts as done from its begin on, so that its undo comes also when it fails
// halfway. Where the guard has given the launch up, its reason is the error: what the step says is only what
// being killed looks like from within.
func (l *launch) up(wanted func(step) bool) error {
	if l.done == nil {
		l.done = make([]bool, len(steps))
	}
	l.guard = newGuard(l)
	defer func() { _ = l.guard.end() }()
	for i, s := range steps {
		if l.done[i] || !wanted(s) {
			continue
		}
		l.done[i] = true
		clock := l.opt.startClock()
		err := l.guard.begin(s.name, l.group)
		if err == nil {
			err = s.do(l)
		}
		clock.tell(l.opt.OnStep, s.name)
		if err == nil {
			err = fault.At("launch/" + s.name)
		}
		if why := l.guard.cause(); why != nil {
			err = why // what the step says of it is what it was made to say
		}
		if err != nil {
			if _, ok := err.(*StepError); !ok { // of one that was begun before, and is waited for here
				err = &StepError{Step: s.name, Err: err}
			}
			return errors.Join(err, l.down())
		}
	}
	if why := l.guard.end(); why != nil {
		return errors.Join(why, l.down())
	}
	return nil
}

// stepClock is what a step has taken: time, and processor time of the launching thread.
type stepClock struct {
	began time.Time
	cpu   time.Duration
}

func (o *Options) startClock() (c stepClock) {
	if o.OnStep != nil {
		c = stepClock{time.Now(), threadTime()}
	}
	return c
}

func (c stepClock) tell(to func(string, time.Duration, time.Duration), name string) {
	if to != nil {
		to(name, time.Since(c.began), threadTime()-c.cpu)
	}
}

// threadTime is the processor time of this thread so far; 0 if the kernel doesn't tell.
func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

func (l *launch) upAhead() error {
	return l.up(func(s step) bool { return s.ahead != nil && s.ahead(l) })
}

func (l *launch) upAll() error { return l.up(func(step) bool { return true }) }

// down undoes every step that was begun. It goes on past errors: leaving more behind helps nobody.
func (l *launch) down() error {
	var errs []error
	for i := range slices.Backward(l.done) {
		s := steps[i]
		if !l.done[i] || s.undo == nil {
			continue
		}
		l.done[i] = false
		clock := l.opt.startClock()
		if l.guard != nil {
			_ = l.guard.begin("undo "+s.name, l.group)
		}
		err := fault.At("undo/" + s.name)
		if err = errors.Join(err, s.undo(l)); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", s.name, err))
		}
		clock.tell(l.opt.OnStep, "undo "+s.name)
	}
	return errors.Join(errs...)
}

// makeFolder takes the lock before it makes the folder: a folder whose lock is free is a crash, for whoever
// looks.
func (l *launch) makeFolder() (err error) {
	l.dir = filepath.Join(l.opt.RunDir, sandboxesDir, l.plan.ID)
	if l.lock, err = newLock(l.opt.RunDir, l.plan.ID, l.plan.Cgroup); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(l.dir), 0o700); err != nil {
		return err
	}
	return os.Mkdir(l.dir, 0o700)
}

func (l *launch) removeFolder() error {
	return removeRun(l.opt.RunDir, l.plan.ID, l.lock)
}

func (l *launch) claimIDs() (err error) {
	lasting := fsjail.Lasting(l.plan.Entries, l.plan.RootDir)
	if l.ids, err = claimHere(l.plan.Rootless, l.plan.shared, rangeOf(lasting)); err != nil {
		return err
	}
	for _, dir := range lasting {
		if err := l.ids.own(dir); err != nil {
			return err
		}
	}
	return nil
}

// claimHere is claimIDs for whoever we are.
func claimHere(inside, shared bool, prefer int) (*idRange, error) {
	from, err := idPool()
	if err == nil && inside {
		err = openWay() // whoever has the folder has the claims
	}
	if err != nil {
		return nil, err
	}
	return claimIDs(idsDir(), from, shared, prefer)
}

// GatewayUser gives a user that no run has and no other process is, for a gateway that serves none. It is that one's until release.
func GatewayUser() (uid int, release func() error, err error) {
	ids, err := claimHere(rootless.Is(), false, -1)
	if err != nil {
		return 0, nil, err
	}
	return ids.hostGateway(), ids.release, nil
}

func (l *launch) releaseIDs() error {
	if l.ids == nil {
		return nil
	}
	return l.ids.release()
}

const cgroupStep = "cgroup" // the end of it comes later, with its name

// makeCgroup only starts, like makeNetwork: two dozen small writes, of which a few wait for the kernel, beside the view.
func (l *launch) makeCgroup() (err error) {
	if l.plan.bare {
		l.group = &bareGroup{limits: l.limits()}
		return nil
	}
	if l.parent, err = holdParent(); err != nil {
		return err
	}
	// The launch is our work, not the agent's, which under a small quota would sit out the rest of 100 ms. The agent's quota is set before the probe.
	// A child's launch is within its parent's quota, which its group can't be above.
	limits, home := l.limits(), l.plan.Cgroup
	limits.CPU = float64(goruntime.NumCPU())
	l.grouping = sync.OnceValues(func() (group, error) {
		g, err := cgroups.Make(home, limits) // the probe reads them back
		if err != nil {
			return nil, err // a nil group in the interface would not be nil
		}
		return &runGroup{Group: g}, nil
	})
	go func() { _, _ = l.grouping() }()
	return nil
}

// awaitCgroup is the end of the step that makeCgroup began.
func (l *launch) awaitCgroup() error {
	if l.group != nil || l.grouping == nil {
		return nil
	}
	g, err := l.grouping()
	if err != nil {
		return &StepError{Step: cgroupStep, Err: err}
	}
	l.group = g
	return nil
}

func (l *launch) limits() cgroups.Limits { return limitsOf(l.plan) }

func limitsOf(p *Plan) cgroups.Limits {
	return cgroups.Limits{CPU: p.Limits.CPU, Memory: p.Limits.Memory, PIDs: p.Limits.PIDs}
}

// setQuota makes the agent's limits hold, all of them, before any of its code runs. What a prepared sandbox
// has already the probe reads back, as it does with all.
func (l *launch) setQuota() error {
	if l.shape == nil || l.group.Limits() != l.limits() {
		if err := l.group.Update(l.limits()); err != nil {
			return err
		}
	}
	l.tellFacts(cgroups.Stats{})
	return nil
}

// teardownTime bounds each wait for the kernel at the end of a run. Killing and removing takes
// milliseconds; only a broken host comes near this, and then the leftovers are named.
const teardownTime = 10 * time.Second

func (l *launch) removeCgroup() error {
	if l.awaitCgroup() != nil || l.group == nil {
		return releaseParent(l.parent)
	}
	ctx, cancel := context.WithTimeout(context.Background(), teardownTime)
	defer cancel()
	var errs []error
	if r, ok := l.group.(*runGroup); ok {
		if l.wayout != nil && l.wayout.serving { // a launch that failed in its last step may have one
			l.wayout.finish(false)
		}
		errs = append(errs, r.leave(ctx))
	}
	return errors.Join(append(errs, l.group.Remove(ctx), leaveGuest(l.plan.Cgroup), releaseParent(l.parent))...)
}

// makeNetwork only starts: it takes a millisecond, on a thread of its own, beside the steps that
// follow, unless the caller has begun it. The container step is the first to need it.
func (l *launch) makeNetwork() error {
	x, err := newWayout(l.opt.Wayout, l.plan.Wayout)
	if err != nil {
		return err
	}
	l.wayout = x
	making := netns.New
	if l.opt.Network != nil {
		making = l.opt.Network.Make
	}
	l.network = sync.OnceValues(func() (*netns.NS, error) { return networkOf(making, x, l.plan.Wayout) })
	go func() { _, _ = l.network() }()
	return nil
}

func (l *launch) dropNetwork() error {
	if l.network == nil {
		return nil
	}
	ns, err := l.network()
	if l.wayout != nil {
		l.wayout.drop()
	}
	if err != nil {
		return nil // the container step has said so
	}
	return ns.Close()
}

func (l *launch) isolate() error { return fsjail.Isolate() }

func (l *launch) buildRoot() (err error) {
	agent := fsjail.IDs{UID: l.ids.hostAgent(), GID: l.ids.hostAgent()}
	entries := append([]fsjail.Entry{{
		Kind: fsjail.File, Target: stubPath, Content: string(stub.Image), Mode: 0o111,
	}}, l.plan.Entries...)
	if l.opt.Ring == nil {
		for i := range entries {
			entries[i].Live = false // nobody will ever open it
		}
	}
	if err := openWay(); err != nil {
		return err
	}
	if l.shown, err = l.wayoutEntries(); err != nil {
		return err
	}
	accounts, err := l.accounts()
	if err != nil {
		return err
	}
	l.shown = append(l.shown, accounts...)
	entries = append(entries, l.shown...)
	if l.guarded, err = holdPlaceholders(l.opt.RunDir, l.plan.Entries); err != nil {
		return err
	}
	if l.plan.Keep != "" {
		if l.keep, err = fsjail.OpenOutput(l.plan.Keep, l.plan.HostPaths()); err != nil {
			return fmt.Errorf("--keep: %w", err)
		}
	}
	if l.opt.Changes != "" {
		if l.changes, err = fsjail.OpenOutput(l.opt.Changes, nil); err != nil {
			return err
		}
	}
	if viewed.Swap(true) {
		l.stages = &stages
	}
	l.root, err = fsjail.Build(mountDir(), entries, agent,
		fsjail.Options{Writable: l.plan.WritableRoot, UpperSize: l.plan.upperSize(), UpperDir: l.plan.RootDir, Stages: l.stages})
	if err != nil {
		return err
	}
	if err := l.makeFacts(); err != nil {
		return err
	}
	return l.awaitCgroup()
}

// stages are those of the views that this process has built, but for the first: a start alone has no other.
var (
	stages fsjail.Stages
	viewed atomic.Bool
)

// openWay makes the mount point of root views and lets others walk to it; they can list neither folder.
func openWay() error {
	if err := os.MkdirAll(idsDir(), 0o711); err != nil {
		return err
	}
	if err := ownPlace(); err != nil {
		return err
	}
	if err := os.MkdirAll(mountDir(), 0o711); err != nil {
		return err
	}
	for _, d := range []string{idsDir(), mountDir()} {
		if err := os.Chmod(d, 0o711); err != nil { // past the umask, and past a start that came first
			return err
		}
	}
	return nil
}

// keepChanges runs when every process is dead, on the thread that can still see the upper layer.
func (l *launch) keepChanges() (err error) {
	if l.home == nil {
		err = l.dropRoot()
	} else {
		l.home(func() { err = l.dropRoot() })
	}
	return errors.Join(err, l.guarded.drop())
}

// clearWorkspace is for who goes on in the workspace when the run is over, though its view still stands: on this thread that view keeps what
// is mounted on, on others it lets it go. Layers that are saved are saved first.
func (l *launch) clearWorkspace() error {
	if l.guarded == nil || l.keep != nil || l.plan.Overlay {
		return nil
	}
	cleared, guarded := make(chan error, 1), l.guarded
	l.guarded = nil
	go func() { cleared <- guarded.drop() }()
	select {
	case err := <-cleared:
		return err
	case <-time.After(teardownTime): // a file system that doesn't answer holds no account up
		return fmt.Errorf("placeholders in the workspace: not removed after %v", teardownTime)
	}
}

func (l *launch) dropRoot() error {
	var err error
	if l.root != nil && l.root.Upper != "" && l.keep != nil && l.agentPID != 0 {
		err = l.root.SaveLayer(l.keep)
	}
	if l.root != nil && l.changes != nil && l.agentPID != 0 {
		err = errors.Join(err, l.root.SaveTree(l.changes, workspaceDir))
	}
	_, _ = l.keep.Close(), l.changes.Close() // only folders
	if l.facts != nil {
		l.facts.Close()
	}
	// The mounts would end with this thread; saying it here frees the scratch memory now (M-5).
	if l.root != nil {
		err = errors.Join(err, os.NewSyscallError("umount root view", unix.Unmount(mountDir(), unix.MNT_DETACH)))
	}
	return err
}

// stubPatience bounds each answer of the stub before the agent runs. It takes well under a millisecond;
// a machine under heavy load gets ten seconds before the launch is given up.
const stubPatience = 10 * time.Second

// watchMemory opens what tells of the limit being hit (v1), unless it is open already.
func (l *launch) watchMemory() (err error) {
	if l.oom == nil {
		l.oom, err = l.group.OOMEvents()
	}
	return err
}

// killAll returns when the cgroup is proved empty. An empty one stays so: only a process in it could fork
// into it, and nobody else moves processes there.
func (l *launch) killAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), teardownTime)
	defer cancel()
	_, err := l.group.Kill(ctx)
	return err
}

// holdMounts comes after pivot_root and is done before the probe: what it opens, no code of the agent can
// have changed. It only starts, as makeNetwork does: it takes half a millisecond on a thread of its own.
func (l *launch) holdMounts() error {
	if l.opt.Ring == nil && l.shape == nil {
		return nil
	}
	base := l.plan.rightsOf(l.plan.base())
	l.holding = sync.OnceValues(func() (*fsjail.Live, error) {
		return fsjail.HoldLive(l.initPID, l.plan.changes, func(at string) bool { return l.plan.open(at, base) })
	})
	go func() { _, _ = l.holding() }()
	return nil
}

// mountsHeld waits for holdMounts.
func (l *launch) mountsHeld() (err error) {
	if l.holding == nil {
		return nil
	}
	if l.live, err = l.holding(); err == nil && l.opt.OnWrites != nil && l.writes == nil {
		l.writes, err = l.live.WatchWrites(workspaceDir)
	}
	return err
}

// dropMounts waits for a change of ring that is using them.
func (l *launch) dropMounts() error {
	if l.over != nil {
		l.over()
	}
	if l.holding == nil {
		return nil
	}
	live, err := l.holding()
	if err != nil {
		return nil // the probe has said so
	}
	return live.Close()
}

func (l *launch) makeStdio() (err error) {
	if l.plan.TTY {
		l.io, err = newNull()
		return err
	}
	uid := l.ids.hostAgent()
	if l.io, err = newPipes(uid, uid); err == nil {
		l.io.hold = true
	}
	return err
}

func (l *launch) closeStdio() error {
	if l.io != nil {
		l.io.closeAll()
	}
	return nil
}

// startAgent has pid 1 make the agent's first process.
func (l *launch) startAgent() (err error) {
	var tools *os.File
	if l.wayout != nil && l.plan.Wayout.FD != 0 {
		tools = l.wayout.agentFD
	}
	msg := l.plan.confinement(l.bpf, l.waits(), l.waits() && l.shape.workspace)
	if err := l.confine(l.plan, l.control, msg, tools); err != nil {
		return err
	}
	l.sockets, err = countSockets(l.agentPID)
	return err
}

// closeAgent only closes: the processes are ended by the container's undo, which comes after it.
func (l *launch) closeAgent() error {
	l.process.close()
	if l.stopServing != nil {
		l.stopServing()
	}
	if l.oom != nil {
		l.oom.Close()
	}
	l.sockets.close()
	return nil
}

// letGo starts what must be running before the agent is, and lets it execute.
func (l *launch) letGo() error {
	if err := l.opt.hook(l); err != nil {
		return err
	}
	command := l.plan.command(l.waits())
	if l.wayout != nil && l.wayout.Start.Trace != "" {
		// It differs with each run, so it is no part of the plan.
		command.Env = append(slices.Clone(command.Env), "TRACEPARENT="+l.wayout.Start.Trace)
	}
	// From the command on it is a run, and no launch: a signal goes to the agent, and whoever ends the run
	// kills it. What is left of this step has the stub's patience.
	if err := l.guard.end(); err != nil {
		return err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return os.NewSyscallError("clock_gettime", err)
	}
	l.fileClock = time.Unix(now.Unix())
	return l.execute(l.plan, command, func() { l.opt.besideExec(l) })
}

// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/cgroups"
	"agentrun/internal/fault"
	"agentrun/profiles"
	"agentrun/rings"
)

// RingSource says which ring holds for a run now, and gives a channel that is closed at the next change. What
// is no ring, or ring 0, counts as ring 3. A source that gives the same closed channel again has ended: what
// it said last holds, but no elevation.
type RingSource interface {
	Ring() (rings.Ring, <-chan struct{})
	// Unapplied hears that a ring it said can't be given, and why: the run is in a less privileged one, or being killed.
	Unapplied(ring rings.Ring, why error)
}

// Limits are those that can change while a run lives.
type Limits = cgroups.Limits

// LiveState is where a live run is. The zero value is none.
type LiveState string

// States of a live run.
const (
	LiveRunning LiveState = "running"
	LiveFrozen  LiveState = "frozen" // by Freeze; a freeze of some milliseconds at a change of ring is not told
	LiveEnding  LiveState = "ending" // being killed or taken down
	LiveEnded   LiveState = "ended"
)

// Snapshot is what holds for a run at one moment.
type Snapshot struct {
	State  LiveState
	Ring   rings.Ring // applied, in all its parts unless Taking
	Taking bool       // what a more privileged ring gave is still being taken; no system call is decided by that ring any more
	Limits Limits
	Lease  Lease
	Stats  cgroups.Stats
	// Pressure is nil where the kernel tells none for a run.
	Pressure *cgroups.Pressure
	Gateway  cgroups.Stats // CPU and MemoryPeak of its gateway
	Output   int64         // bytes passed on
	Refused  map[string]uint64
}

// Process is a process of a run, by its ids on the host.
type Process struct {
	PID     int
	PPID    int
	Threads int
	Comm    string // the kernel's name for it, at most 15 bytes; the agent chooses it
	First   bool   // the agent's first process
	Inside  int    // its number in the sandbox
	User    int    // its user in the sandbox; -1: one that the sandbox has no number for
	State   byte   // the kernel's letter: R, S, D, T, t, Z, X, I
	Started time.Time
	Command []string // its arguments, as it shows them: the first 4 KiB; nil of a zombie
	From    ProcessFrom
}

// ProcessFrom is what a process comes from. Empty: it can't be told, as its parent has ended.
type ProcessFrom string

// What processes come from.
const (
	FromCommand ProcessFrom = "command" // the run's own command
	FromEntered ProcessFrom = "entered" // a command that has joined
)

// KillCause is what the status of a killed run says.
type KillCause struct {
	State  State // Killed, Policy, TimedOut or OOM; empty: Killed
	Reason string
}

// LiveEventKind names a LiveEvent. The zero value is none.
type LiveEventKind string

// Kinds of LiveEvent.
const (
	LiveRing       LiveEventKind = "ring_changed" // holds for the whole run
	LiveRingFailed LiveEventKind = "ring_failed"  // could not be given, or not be taken: then the run is being killed
	LiveFroze      LiveEventKind = "frozen"
	LiveThawed     LiveEventKind = "thawed"
	LiveLimits     LiveEventKind = "limits_changed"
	LiveExtended   LiveEventKind = "extended"
	LiveEndsSoon   LiveEventKind = "ends_soon" // its time is over in a minute
)

// LiveEvent is something that was done to a live run.
type LiveEvent struct {
	Kind     LiveEventKind
	From, To rings.Ring    // of ring events
	Took     time.Duration // of ring events: since the change was known
	Killed   int           // LiveRing: subprocesses that the agent may no longer have
	Before   Limits        // LiveLimits
	After    Limits
	Err      error // LiveRingFailed
	Lease    Lease // LiveExtended, LiveEndsSoon
}

// ErrEnded is what a Live's methods give when the run is over or being killed.
var ErrEnded = errors.New("the run has ended")

// Live is a run while it lives. Its methods may be called from any goroutine.
//
// Changes take turns (take, give): one at a time, from the look at what holds to the event that tells of it.
// A kill waits for no turn: it sets closing first, so whoever has the turn undoes nothing of it, and only
// then waits for the turn to end, no longer than a change may take. Reading takes no turn, and may see a
// change half done: Snapshot.Taking says so.
type Live struct {
	run    *run
	launch *launch
	warden *warden
	gate   gates           // of everybody who answers for it
	asking context.Context //nolint:containedctx // ends when nobody is answered any more
	joins  joins

	turn chan struct{}   // holds one: who has it may change the run
	life context.Context // ends with the run
	die  context.CancelFunc
	done chan struct{} // closed when the status stands

	stopped atomic.Bool   // frozen for its kill: nothing thaws it
	closing atomic.Bool   // being killed or over: nothing is thawed, opened or raised any more
	held    atomic.Bool   // frozen by an operator
	ring    atomic.Uint32 // rings.Ring
	taking  atomic.Bool   // it is less privileged than before, and mounts, processes and limits don't all follow it yet
	signals chan os.Signal
	relimit chan struct{} // holds one: the CPU limit changed
	pauses  chan time.Duration

	extensions chan extension
	lease      leased

	movedMu sync.Mutex
	moved   chan struct{} // closed when ring or taking has changed

	// By whoever has the turn.
	now      *rights // what holds
	owed     *rights // not nil: what may still hold in part, because the run was frozen by an operator while it was demoted
	doomed   error   // why the run has to end
	operator Limits  // those that stay whatever the ring is; 0: none

	fell       time.Time // the last demotion
	fellKilled int       // the subprocesses that went with it

	ending   sync.Once
	statusMu sync.Mutex
	status   Status
}

func newLive(asking context.Context, r *run, l *launch, w *warden) *Live {
	v := &Live{
		run: r, launch: l, warden: w, asking: asking, turn: make(chan struct{}, 1), done: make(chan struct{}),
		signals: make(chan os.Signal, 8), relimit: make(chan struct{}, 1), pauses: make(chan time.Duration), moved: make(chan struct{}), operator: l.plan.operator,
	}
	limits := l.plan.Limits
	v.extensions = make(chan extension)
	v.lease.now, v.lease.changed = Lease{Timeout: limits.Timeout, CPUTime: limits.CPUTime}, make(chan struct{})
	if limits.Timeout != profiles.NoLimit {
		v.lease.now.Ends = time.Now().Add(time.Duration(limits.Timeout))
	}
	v.life, v.die = context.WithCancel(context.Background())
	v.now = l.plan.rightsOf(l.plan.base())
	v.ring.Store(uint32(v.now.ring))
	return v
}

// take gets the turn, or says why not. Give it back with give.
func (v *Live) take(ctx context.Context) error {
	if v.closing.Load() {
		return ErrEnded
	}
	select {
	case v.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for another change of the run: %w", context.Cause(ctx))
	case <-v.life.Done():
		return ErrEnded
	}
	if v.closing.Load() {
		v.give()
		return ErrEnded
	}
	return nil
}

func (v *Live) give() { <-v.turn }

// within ends with the run too.
func (v *Live) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(v.life, func() { cancel(ErrEnded) })
	return ctx, func() { stop(); cancel(nil) }
}

// close keeps everybody from changing the run, and waits for who is just doing so: a raised pids limit must
// not meet a kill. It gives the subprocesses that a demotion of this instant has killed; 0 if whoever changes
// the run isn't done in time.
func (v *Live) close() (fell int) {
	v.closing.Store(true)
	select {
	case v.turn <- struct{}{}:
		if time.Since(v.fell) < ofOneKill {
			fell = v.fellKilled
		}
		v.give()
	case <-time.After(v.applyTime()):
	}
	return fell
}

// end comes when every process is dead and before anything is taken down.
func (v *Live) end() {
	v.ending.Do(func() {
		v.closing.Store(true)
		v.die()
		v.move()
		v.turn <- struct{}{} // for good; who had it has seen its context end
	})
}

func (v *Live) tell(e LiveEvent) {
	if v.run.opt.OnEvent != nil {
		v.run.opt.OnEvent(e)
	}
}

// Plan is what the run was started from.
func (v *Live) Plan() *Plan { return v.launch.plan }

// PID is the agent's first process, by its id on the host.
func (v *Live) PID() int { return v.launch.agentPID }

// Done is closed when the run is over and nothing of it is left.
func (v *Live) Done() <-chan struct{} { return v.done }

// Status is the account of the run once Done is closed, and the zero value before.
func (v *Live) Status() Status {
	v.statusMu.Lock()
	defer v.statusMu.Unlock()
	return v.status
}

func (v *Live) finished(s Status) {
	v.statusMu.Lock()
	v.status = s
	v.statusMu.Unlock()
	close(v.done)
}

// Ring returns the ring that is applied, whether it is in all its parts, and a channel that is closed when
// either may be another. It is NoRing when the run has ended.
func (v *Live) Ring() (ring rings.Ring, whole bool, changed <-chan struct{}) {
	v.movedMu.Lock()
	changed = v.moved // before the look: what changes after it closes this one
	v.movedMu.Unlock()
	if v.life.Err() != nil {
		return rings.NoRing, true, changed
	}
	ring = rings.Ring(v.ring.Load()) //nolint:gosec // it was a Ring
	return ring, !v.taking.Load(), changed
}

// move tells those who wait for a change of ring that there is one.
func (v *Live) move() {
	v.movedMu.Lock()
	defer v.movedMu.Unlock()
	close(v.moved)
	v.moved = make(chan struct{})
}

// Snapshot reads what holds now.
func (v *Live) Snapshot() (Snapshot, error) {
	if v.life.Err() != nil {
		return Snapshot{State: LiveEnded}, ErrEnded
	}
	s := Snapshot{
		State: LiveRunning, Ring: rings.Ring(v.ring.Load()), Limits: v.launch.group.Limits(), //nolint:gosec // it was a Ring
		Output: v.launch.io.written.Load(), Refused: v.launch.recorder.Snapshot().Refused,
	}
	s.Lease, _ = v.Lease()
	s.Taking = v.taking.Load() // after the ring: a demotion sets it before it changes the ring
	switch {
	case v.closing.Load():
		s.State = LiveEnding
	case v.held.Load():
		s.State = LiveFrozen
	}
	var err error
	if s.Stats, err = v.launch.group.Stats(); err != nil && v.life.Err() != nil {
		return Snapshot{State: LiveEnded}, ErrEnded
	}
	if r, ok := v.launch.group.(*runGroup); ok {
		s.Gateway = r.gatewayUsed()
		if p, err := r.Pressure(); err == nil {
			s.Pressure = &p
		}
	}
	return s, err
}

// Freeze stops every process of the run and returns when all are stopped; the time limit runs on (PauseClock). If ctx ends
// first the run goes on. Changes of ring still apply to a frozen run, and it stays frozen.
func (v *Live) Freeze(ctx context.Context) error {
	if err := v.take(ctx); err != nil {
		return err
	}
	defer v.give()
	ctx, cancel := v.within(ctx)
	defer cancel()
	if v.held.Load() && v.launch.group.Frozen() {
		return nil // a freeze that fails has all of them go on, also whoever has frozen them before
	}
	if err := v.freeze(ctx); err != nil {
		// One may have failed with every process stopped: nobody would know it as frozen.
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTime)
		defer cancel()
		return v.orEnded(errors.Join(err, v.thaw(back)))
	}
	if !v.held.Swap(true) {
		v.tell(LiveEvent{Kind: LiveFroze})
	}
	return nil
}

// PauseClock has the run's wall clock stand still for that long at most, or go on (0): a run that waits frozen for a human's word must
// not end before the word is worthless (S-10). A run that is over has no clock, and that is no error.
func (v *Live) PauseClock(most time.Duration) {
	select {
	case v.pauses <- most:
	case <-v.life.Done():
	}
}

// Thaw undoes Freeze; a run that isn't frozen stays as it is. What a demotion couldn't take from the frozen
// run is taken now, or the run is killed.
func (v *Live) Thaw(ctx context.Context) error {
	if err := v.take(ctx); err != nil {
		return err
	}
	defer v.give()
	ctx, cancel := v.within(ctx)
	defer cancel()
	if !v.held.Swap(false) {
		return nil
	}
	if v.owed != nil {
		defer v.execute()
		if err := v.settle(); err != nil {
			return err
		}
	} else if err := v.thaw(ctx); err != nil {
		v.held.Store(true) // it still stands, and whoever asks again finds something to thaw
		return v.orEnded(err)
	}
	v.tell(LiveEvent{Kind: LiveThawed})
	return nil
}

// freeze stops the run for whatever reason. The quota is lifted meanwhile: a throttled process can be frozen
// only in the next period. So is the rate limit on refusals: a process that waits for one can't be frozen.
func (v *Live) freeze(ctx context.Context) error {
	v.gate.Hurry(true)
	defer func() { v.gate.Hurry(v.closing.Load()) }()
	g := v.launch.group
	err := g.Unthrottle()
	if err == nil {
		err = g.Freeze(ctx)
	}
	if err == nil {
		err = fault.At("live/freeze")
	}
	return errors.Join(err, g.Throttle())
}

// thaw never undoes what FreezeForKill or Kill did: one that came meanwhile is done again.
func (v *Live) thaw(ctx context.Context) error {
	if v.closing.Load() {
		return nil
	}
	err := fault.At("live/thaw")
	if err == nil {
		err = v.launch.group.Thaw(ctx)
	}
	if v.closing.Load() {
		err = errors.Join(err, v.launch.group.Freeze(ctx))
	}
	return err
}

func (v *Live) orEnded(err error) error {
	if v.closing.Load() || v.life.Err() != nil {
		return ErrEnded
	}
	return err
}

// FreezeForKill is the first half of Kill, for who has something to do between the two: the run is frozen and
// stays so, whatever else happens to it, until it is dead. Kill must follow also after an error.
func (v *Live) FreezeForKill(ctx context.Context) error {
	if v.life.Err() != nil {
		return ErrEnded
	}
	v.Doom()
	ctx, cancel := v.within(ctx)
	defer cancel()
	err := v.launch.group.Freeze(ctx)
	if err != nil && v.life.Err() != nil {
		return ErrEnded
	}
	v.stopped.Store(err == nil)
	return err
}

// Doom begins what can't be taken back: no change of the run begins any more, nor does a quota hold it up. Kill must follow.
func (v *Live) Doom() {
	v.closing.Store(true)
	v.gate.Hurry(true)              // and stays: nothing of the run goes on
	_ = v.launch.group.Unthrottle() // with one it only takes longer
}

// freezeForKill bounds the freeze inside Kill, which isn't needed for the outcome.
const freezeForKill = 50 * time.Millisecond

// Kill ends every process of the run and returns when that is proved, with the number of the agent's
// processes that were there. The status says the cause, if nothing else had ended the run before. It may be
// called again and by many at once.
func (v *Live) Kill(ctx context.Context, cause KillCause) (killed int, err error) {
	if v.life.Err() != nil {
		return 0, ErrEnded
	}
	if cause.State == "" {
		cause.State = Killed
	}
	if !slices.Contains([]State{Killed, Policy, TimedOut, OOM}, cause.State) {
		return 0, fmt.Errorf("kill: %q is no state of a run that was killed", cause.State)
	}
	if !v.stopped.Load() {
		v.Doom()
		if len(v.turn) > 0 { // close may wait: nothing of the run goes on meanwhile
			fctx, cancel := context.WithTimeout(ctx, freezeForKill)
			_ = v.FreezeForKill(fctx)
			cancel()
		}
	}
	fell := v.close() // who kills takes the ring first, and what the demotion has killed by then is of this kill (H-22)
	v.run.decide(verdict{cause.State, cause.Reason})
	if err := fault.At("live/kill"); err != nil {
		return 0, err
	}
	killed, err = v.launch.group.Kill(ctx)
	return max(killed-1, 0) + fell, err // pid 1 is no process of the agent's
}

// ofOneKill is how long ago the demotion may be that a kill began with.
const ofOneKill = time.Second

// Update changes limits; 0 leaves one as it is. They must be in the ranges of the ring that holds (*InvalidSpec), and stay over changes
// of the ring as far as the other's ranges have them. A limit that can't be set leaves all as they were: cgroup v1 refuses a memory
// limit below use, with EBUSY; v2 kills the run as out of memory. So does an error of agreed, which is asked before anything changes;
// nil agrees.
func (v *Live) Update(ctx context.Context, to Limits, agreed func(before, after Limits) error) (before, after Limits, err error) {
	if err := v.take(ctx); err != nil {
		return before, after, err
	}
	defer v.give()
	before = v.launch.group.Limits()
	if err := v.launch.plan.checkLimits(v.now.ring, to); err != nil {
		return before, before, err
	}
	was := v.operator
	v.operator = over(was, to)
	after = v.limitsIn(v.now)
	if agreed != nil {
		err = agreed(before, after)
	}
	if err == nil {
		err = fault.At("live/update")
	}
	if err == nil {
		err = v.launch.group.Update(after)
	}
	if err != nil {
		v.operator = was
		return before, before, v.orEnded(err)
	}
	v.limitsChanged()
	v.tell(LiveEvent{Kind: LiveLimits, Before: before, After: after})
	return before, after, nil
}

func (v *Live) limitsChanged() {
	select {
	case v.relimit <- struct{}{}:
	default:
	}
}

// over is b where it says something, else a.
func over(a, b Limits) Limits {
	if b.CPU != 0 {
		a.CPU = b.CPU
	}
	if b.Memory != 0 {
		a.Memory = b.Memory
	}
	if b.PIDs != 0 {
		a.PIDs = b.PIDs
	}
	return a
}

// Signal goes to the agent's first process, with the grace time for those that ask it to end
// (Options.Signals).
func (v *Live) Signal(s os.Signal) error {
	if v.life.Err() != nil {
		return ErrEnded
	}
	if _, ok := s.(unix.Signal); !ok {
		return fmt.Errorf("signal %v: %w", s, unix.EINVAL)
	}
	select {
	case v.signals <- s:
		return nil
	default:
		return fmt.Errorf("signal %v: too many at once: %w", s, unix.EAGAIN)
	}
}

// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/internal/fault"
	"agentrun/rings"
)

// M-22 gives 100 ms for all of it.
const (
	applyTime = 90 * time.Millisecond // for a change, unless Options say otherwise; what is not done then ends the run
	// freezeTime is for the run to stop. It may be longer than the rest: once the freeze is asked for, no
	// process of the run executes an instruction of its own any more, for the kernel looks at the freezer
	// before each return to user mode (exit_to_user_mode_loop, get_signal). What takes time on a busy host is
	// that each one gets a processor once to notice, and to end the call it is in.
	freezeTime = time.Second
	graceTime  = 50 * time.Millisecond // of it, for a run to close what it has open for writing
	graceLast  = 20 * time.Millisecond // before the end, for the last try: cgroup v1 looks long for memory to take back
	graceStep  = 500 * time.Microsecond
)

// applyTime is what a change may take here, and grace the part of it in which a run may let go.
func (v *Live) applyTime() time.Duration { return cmp.Or(v.run.opt.ApplyTime, applyTime) }
func (v *Live) grace() time.Duration     { return graceTime * v.applyTime() / applyTime }

// follow keeps the run in the ring that its source says, until the run ends.
func (v *Live) follow(ctx context.Context, source RingSource) {
	var last <-chan struct{}
	for {
		ring, changed := source.Ring()
		ended := changed != nil && changed == last
		if ended && ring.MorePrivilegedThan(v.launch.plan.base()) {
			ring = v.launch.plan.base() // nobody would tell when the elevation ends
		}
		err := v.change(ctx, ring) // told by an event, and by the status if the run ends of it
		if holds, _, _ := v.Ring(); err != nil && ring.MorePrivilegedThan(holds) && holds != rings.NoRing {
			source.Unapplied(ring, err)
		}
		if ended {
			return
		}
		last = changed
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// change applies a ring to the run, all of it, or ends the run.
func (v *Live) change(ctx context.Context, to rings.Ring) error {
	began := time.Now()
	if err := v.take(ctx); err != nil {
		return err
	}
	defer v.give()
	defer v.execute()
	plan := v.launch.plan
	if to = to.OrSandbox(); to == rings.Root {
		to = rings.Sandbox // never an agent's (H-12)
	}
	var refused error
	if to.MorePrivilegedThan(plan.base()) {
		if refused = plan.Elevatable(); refused != nil {
			v.tell(LiveEvent{Kind: LiveRingFailed, From: v.now.ring, To: to, Took: time.Since(began), Err: refused})
			to = plan.base()
		}
	}
	from := v.now
	if to == from.ring {
		return refused
	}
	e := LiveEvent{Kind: LiveRing, From: from.ring, To: to}
	if to.MorePrivilegedThan(from.ring) {
		e.Err = v.promote(plan.rightsOf(to))
	} else {
		e.Killed, e.Err = v.demote(from, plan.rightsOf(to))
		v.fell, v.fellKilled = time.Now(), e.Killed
	}
	e.Took = time.Since(began)
	if e.Err != nil {
		e.Kind = LiveRingFailed
	}
	v.tell(e)
	return errors.Join(refused, e.Err)
}

// promote gives limits, then mounts, and the system calls last: what is called for is there when it is
// allowed. What can't be given whole is taken back whole.
func (v *Live) promote(to *rights) error {
	from := v.now
	err := v.widen(to)
	if err == nil {
		v.warden.live.Store(to)
		v.holds(to)
		return nil
	}
	_, back := v.demote(to, from)
	return fmt.Errorf("give %v: %w", to.ring, errors.Join(err, back))
}

func (v *Live) widen(to *rights) error {
	if err := v.launch.group.Update(v.limitsIn(to)); err != nil {
		return err
	}
	if err := fault.At("ring/widen"); err != nil {
		return err
	}
	return v.setMounts(to)
}

func (v *Live) setMounts(to *rights) error {
	if err := fault.At("ring/mounts"); err != nil {
		return err
	}
	plan := v.launch.plan
	if to.workspace {
		if err := v.guardWorkspace(); err != nil {
			return err
		}
	}
	return v.launch.live.Set(func(at string) bool { return plan.open(at, to) })
}

// guardWorkspace has the run stand still while a workspace is guarded that it has seen unguarded: what it has open there is looked at, and
// it must open nothing more meanwhile.
func (v *Live) guardWorkspace() (err error) {
	l := v.launch
	ws := l.unguarded()
	if ws == nil {
		return nil
	}
	ctx, cancel := v.within(context.Background())
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, freezeTime)
	defer stop()
	if !v.held.Load() {
		defer func() {
			back, stop := context.WithTimeout(context.Background(), teardownTime)
			defer stop()
			err = errors.Join(err, v.thaw(back))
		}()
	}
	if err := v.freeze(ctx); err != nil {
		return err
	}
	pids, err := l.group.Pids()
	if err != nil {
		return err
	}
	return l.guardWorkspace(*ws, pids)
}

func (v *Live) holds(r *rights) {
	v.now, v.owed = r, nil
	v.ring.Store(uint32(r.ring))
	v.move()
	v.limitsChanged()
}

// demote takes what the run had under from and may not have under to. In order:
//
//  1. Calls are decided by the new ring, and every answer by the old one is out (Barrier).
//  2. The run is frozen. A process that was let fork and hasn't yet meets the freezer's signal on its way, and the kernel starts the
//     call again (copy_process, ERESTARTNOINTR), which asks anew; one that has forked is seen in the next step.
//  3. Subprocesses end, where the profile doesn't keep them.
//  4. Mounts and limits are taken. A file open for writing, or memory that cgroup v1 can't take back, keeps one of them: the run
//     gets one short grace to let go, and then ends.
//  5. The run goes on, unless an operator has frozen it. Then what it still holds is taken when it is thawed: frozen, it can do
//     nothing with it.
//
// Everything is bounded, and whatever doesn't come in time ends the run.
func (v *Live) demote(from, to *rights) (killed int, err error) {
	if v.owed != nil {
		from = v.owed
	}
	d := &demotion{v: v, from: from, to: to}
	v.taking.Store(true)
	defer func() {
		v.taking.Store(false)
		v.move()
	}()
	v.warden.live.Store(to)
	v.ring.Store(uint32(to.ring))
	ctx, cancel := v.within(context.Background())
	defer cancel()
	err = d.run(ctx)
	switch {
	case err == nil:
		v.holds(to)
	case errors.Is(err, errWhenThawed):
		v.holds(to)
		v.owed, err = from, nil
	case v.closing.Load():
		err = ErrEnded
	default:
		err = fmt.Errorf("take %v: %w", from.ring, err)
		v.closing.Store(true)
		v.doomed = err
	}
	return d.killed, err
}

// settle finishes a demotion of a run that was frozen then.
func (v *Live) settle() error {
	_, err := v.demote(v.owed, v.now)
	return err
}

// execute ends a run that could not be brought into its ring. It is frozen, unless it can't be.
func (v *Live) execute() {
	if v.doomed == nil {
		return
	}
	v.run.decide(verdict{Policy, v.doomed.Error()})
	ctx, cancel := v.within(context.Background())
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, teardownTime)
	defer stop()
	_, _ = v.launch.group.Kill(ctx) // the watch does it too, and says what is left
}

// errWhenThawed: the rest can be taken only when the operator thaws the run.
var errWhenThawed = errors.New("taken when the run is thawed")

type demotion struct {
	v        *Live
	from, to *rights
	deadline time.Time
	killed   int
	closed   bool // the mounts are as they should be
	dying    bool // subprocesses have their SIGKILL and wait for the v1 freezer to let them die
}

func (d *demotion) run(ctx context.Context) error {
	v := d.v
	if err := d.stop(ctx); err != nil {
		return err // without it, who is still being forked could be missed
	}
	d.deadline = time.Now().Add(v.applyTime())
	ctx, stop := context.WithDeadline(ctx, d.deadline)
	defer stop()
	if err := d.end(ctx); err != nil {
		return err
	}
	switch err := d.take(); {
	case err == nil && !d.dying:
	case err != nil && !errors.Is(err, unix.EBUSY):
		return err
	case v.held.Load():
		return errWhenThawed
	default:
		return d.grace(ctx, err)
	}
	if v.held.Load() {
		return nil
	}
	if err := d.goOn(); err != nil {
		return err
	}
	return d.end(ctx) // none by the argument at demote; a look costs less than being wrong
}

func (d *demotion) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, freezeTime)
	defer cancel()
	if err := fault.At("ring/stop"); err != nil {
		return err
	}
	_ = d.v.gate.Barrier(ctx) // one that doesn't come is a call that waits for its answer, and the freeze tells
	return d.v.freeze(ctx)
}

// goOn isn't bounded as the rest is: a run that takes its time to thaw is not above its ring.
func (d *demotion) goOn() error {
	ctx, cancel := d.v.within(context.Background())
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, teardownTime)
	defer stop()
	if err := fault.At("ring/go on"); err != nil {
		return err
	}
	return d.v.thaw(ctx)
}

// ends says whether subprocesses have to go.
func (d *demotion) ends() bool {
	return d.from.subprocess && !d.to.subprocess && !d.v.launch.plan.keeps()
}

// end ends the processes that the agent may no longer have.
func (d *demotion) end(ctx context.Context) error {
	l := d.v.launch
	if !d.ends() {
		return nil
	}
	if err := fault.At("ring/end"); err != nil {
		return err
	}
	var n int
	var settled bool
	var err error
	d.v.joins.pinned(func(joined []int) { // each is a process that starts no others in the new ring, as the agent's first
		n, settled, err = l.group.KillOthers(ctx, append(joined, l.initPID, l.agentPID)...)
	})
	d.killed, d.dying = max(d.killed, n), !settled
	return err
}

func (d *demotion) take() error {
	if !d.closed {
		if err := d.v.setMounts(d.to); err != nil {
			return err
		}
		d.closed = true
	}
	if err := fault.At("ring/limits"); err != nil {
		return err
	}
	return d.v.launch.group.Update(d.v.limitsIn(d.to))
}

// grace lets the run go on for a moment so that it can let go. Nothing more is given meanwhile: system calls
// are the new ring's, and each mount is closed as soon as nobody holds it.
func (d *demotion) grace(ctx context.Context, held error) error {
	v := d.v
	if err := d.goOn(); err != nil {
		return err
	}
	err := held // nil: only the dying are waited for
	for end := time.Now().Add(min(v.grace(), time.Until(d.deadline)-graceLast)); time.Now().Before(end); time.Sleep(graceStep) {
		if v.closing.Load() {
			return ErrEnded
		}
		if err = d.end(ctx); err != nil {
			return err
		}
		if err = d.take(); err == nil && !d.dying {
			return nil
		}
	}
	_ = v.freeze(ctx) // so that it does nothing more; it is killed in any case
	if busy, ok := errors.AsType[*fsjail.BusyError](err); ok {
		return fmt.Errorf("still writing after %v of grace: %w", v.grace(), busy)
	}
	if err == nil {
		return fmt.Errorf("its subprocesses are not dead after %v of grace", v.grace())
	}
	return fmt.Errorf("still held after %v of grace: %w", v.grace(), err)
}

// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"agentrun/audit"
	"agentrun/meter"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/store"
)

// Processes are those of a run, all of them.
type Processes interface {
	// Freeze has them stand still until an operator thaws them.
	Freeze(ctx context.Context) error
	// Doom comes first: no change of theirs begins any more, and the kill follows.
	Doom()
	// FreezeForKill stops them for good: nothing thaws them until they are killed.
	FreezeForKill(ctx context.Context) error
	// Kill returns when none is left, and how many it killed. It may be called more than once, and at the same time.
	Kill(ctx context.Context, cause runtime.KillCause) (int, error)
}

// ControlOptions are what the run has. The zero value of each refuses or does nothing, as it says.
type ControlOptions struct {
	Run  string // id; required
	Name string
	// Parent is the run whose child this one is, and which admitted it (H-15); nil: it is none's.
	Parent *Control
	// Elevatable says why the run can't have a ring above its own; nil error: it can. A nil function: no elevation.
	Elevatable func(to rings.Ring) error
	// Processes are what a kill ends. They may be set later, with SetProcesses; a kill that comes before hits them then.
	Processes Processes
	// OnBreach is what follows when what the run was refused amounts to a breach (H-24); empty: profiles.BreachQuarantine.
	OnBreach profiles.OnBreach
	// QuarantineTimeout is how long the agent may stay in quarantine before the run is killed (H-23); 0: for ever.
	QuarantineTimeout time.Duration
	// HandlerLimit bounds each handler and compensation of a kill; 0: 5 s (H-21).
	HandlerLimit time.Duration
	// Ordered hears of each kill before it is on record; nil: nobody does.
	Ordered func() error
	// UndoSaga undoes a saga that nobody runs (H-21), as `agentrun saga resume --undo`. nil: it is left to the operator.
	UndoSaga func(ctx context.Context, id string) error
	// Undo carries out what undoes the run's calls when it is killed (H-7, H-21). nil: they are left to the operator.
	Undo Undoer
	// Settled returns when the ring that holds has been applied to all of the run, or can't be within M-22's time: an agent that is
	// told it has a ring finds it there. nil: it is told at once.
	Settled func(context.Context)
	// Notify hears of what happens, in order, and must not block; nil: nobody does.
	Notify func(Event)
	// Warn hears of what went wrong beside the run; nil: nobody does.
	Warn func(error)
}

// Event is something that happened to a run; package control has the same kinds.
type Event struct {
	Kind string
	Ring rings.Ring // after it
	Data map[string]string
}

// Kinds of events.
const (
	EventElevated     = "elevation_granted" // elevation_id, target, expires_at
	EventNotElevated  = "elevation_denied"  // code
	EventElevationEnd = "elevation_ended"   // elevation_id, cause
	EventRefused      = "refused"           // syscall, count: since the last of this kind, as on record
	EventBreach       = "breach"            // severity
	EventNearBreach   = "near_breach"       // severity, program, call
	EventQuarantine   = "quarantine"        // cause
	EventKill         = "kill"              // reason
	EventKeyEnded     = "key_ended"         // key_id: it has run out, or was revoked
)

// Control decides about one live run: in which ring it is at every moment, who may raise it and for how long, and when it is
// killed. Safe for concurrent use.
type Control struct {
	h     *Hypervisor
	adm   Admission
	opt   ControlOptions
	who   string // the agent, or the run if it belongs to none
	live  *live
	kills *rings.KillSwitch

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
	ticks  sync.Once

	wakeMu sync.Mutex    // of the next two
	wake   chan struct{} // of who keeps; nil: nobody had to yet
	done   bool          // nobody has to any more

	// loanMu is held while an elevation is decided on, begins or ends, the audit's disk included. Nothing that lowers the
	// ring waits for it.
	loanMu sync.Mutex
	lent   atomic.Pointer[lent] // nil: none; the rest is about it
	failed atomic.Pointer[unapplied]
	lock   *store.Lock // its place on the node
	timer  *time.Timer
	turn   atomic.Pointer[store.Lock] // in a strong session, taken for an elevation; nil: as the admission has it

	calls calls

	frozen atomic.Bool // for a breach, until Thawed

	mu         sync.Mutex
	processes  Processes
	killed     bool
	candidates []string        // to take over
	unfit      map[string]bool // those of them that must not
	ending     bool            // the session's end was seen
	toldHeld   bool
	secluded   bool // a breach put the agent into quarantine, and its release was not seen yet
	patience   *time.Timer
	closed     bool
	children   map[*context.CancelCauseFunc]struct{} // of the runs that its tools are: what ends each
	brood      sync.WaitGroup                        // the same, to wait for; none comes once killed or closed
}

// Control takes charge of an admitted run. It must be closed, after the run's last process is dead and before adm.Done.
func (h *Hypervisor) Control(adm Admission, opt ControlOptions) *Control {
	if adm.alarm == nil {
		adm.meter, adm.reports = meter.Alone(h.boot), meter.Alone(h.boot)
		adm.alarm = h.newAlarm(adm.Session, adm.meter)
	}
	c := &Control{h: h, adm: adm, opt: opt, who: adm.breacher(opt.Run), processes: opt.Processes, unfit: map[string]bool{}}
	adm.alarm.heard = func(r *audit.Refusal) {
		c.notify(EventRefused, map[string]string{"syscall": r.Syscall, "count": strconv.FormatInt(r.Count, 10)})
	}
	if rings.CheckAgentID(c.who) != nil {
		c.who = "run" // a kill must not fail for a name
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.live = newLive(h, adm, c.nudge)
	c.kills = c.killSwitch()
	if p := opt.Parent; p != nil {
		c.opt.Elevatable = nil // it would be above what its parent may give it
		c.live.parent = p.live
		c.work.Go(func() { c.heed(p.live) })
	}
	if s := adm.Settings.Substitute; s != "" {
		c.warn(c.RegisterSubstitute(s))
	}
	if adm.Agent != "" {
		c.tick()
	}
	return c
}

// tick looks at the state every lookTime from now on. What an operator runs itself is in no state: there it begins with the
// first elevation, whose end a timer alone might miss while the machine is suspended.
func (c *Control) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.ticks.Do(func() { c.work.Go(c.watch) })
	}
}

// watch keeps the ring true for those who wait for its change.
func (c *Control) watch() {
	t := time.NewTicker(lookTime)
	defer t.Stop()
	told := false
	for {
		_, _, _ = c.live.now(context.Background()) // bounded by readTime; what can't be read is ring 3
		if !told && c.live.keyOver() {
			told = true
			c.notify(EventKeyEnded, map[string]string{"key_id": c.live.key.ID})
		}
		if c.live.armed().id != "" {
			c.nudge()
		}
		select {
		case <-c.ctx.Done():
			return
		case <-t.C:
		}
	}
}

// nudge has keep look again. It begins with the first: a run of the operator's own has nothing to keep, as a rule.
func (c *Control) nudge() {
	c.wakeMu.Lock()
	defer c.wakeMu.Unlock()
	if c.done {
		return
	}
	if c.wake == nil {
		wake := make(chan struct{}, 1)
		c.wake = wake
		c.work.Go(func() { c.keep(wake) })
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// keep does what follows from a change and may take its time: the ring is what it is already.
func (c *Control) keep(wake <-chan struct{}) {
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-wake:
		}
		c.loanMu.Lock()
		c.bookLocked("")
		c.loanMu.Unlock()
		c.follow()
	}
}

// follow is what the state's changes have for consequences beside the ring.
func (c *Control) follow() {
	c.mu.Lock()
	s := c.live.stands.Load() // after secluded was set it is no older than that quarantine
	if s.err != nil {
		c.mu.Unlock()
		return
	}
	over := s.sessionOver && !c.ending
	c.ending = c.ending || over
	entered := s.Quarantined != nil && !c.toldHeld
	left := s.Quarantined == nil && (c.toldHeld || c.secluded) // one that was short was never seen
	c.toldHeld, c.secluded = s.Quarantined != nil, c.secluded && s.Quarantined != nil
	c.mu.Unlock()
	switch {
	case entered:
		c.notify(EventQuarantine, map[string]string{"cause": s.Quarantined.By})
		c.bePatient()
	case left:
		c.endPatience()
		c.adm.alarm.reset() // what it did before was forgiven by an operator
	}
	if over {
		c.killSoon(KillRequest{Reason: rings.KillSessionTimeout, By: "session", Detail: "session " + c.adm.Session + " is over"})
	}
}

// bePatient starts the time after which a run in quarantine is killed.
func (c *Control) bePatient() {
	if c.opt.QuarantineTimeout <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.patience == nil && !c.closed {
		c.patience = time.AfterFunc(c.opt.QuarantineTimeout, func() {
			c.killSoon(KillRequest{Reason: rings.KillQuarantineTimeout, By: "quarantine", Detail: "in quarantine for " + c.opt.QuarantineTimeout.String()})
		})
	}
}

func (c *Control) endPatience() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.patience != nil {
		c.patience.Stop()
		c.patience = nil
	}
}

// Ring is the effective ring, the one that everything about the run follows. changed is closed when it is another, and stays
// closed from the run's end on. A state that can't be read is ring 3.
func (c *Control) Ring() (ring rings.Ring, changed <-chan struct{}) { return c.live.ring() }

// Agent is who the run belongs to, read now. Without agent, ID is empty.
func (c *Control) Agent(ctx context.Context) (Agent, error) {
	a, _, err := c.live.now(ctx)
	return a, err
}

// SetProcesses says what a kill ends. If the run has been killed before, they are killed at once.
func (c *Control) SetProcesses(p Processes) {
	c.mu.Lock()
	c.processes = p
	late := c.killed && p != nil && !c.closed
	if late {
		c.work.Add(1)
	}
	c.mu.Unlock()
	if !late {
		return
	}
	go func() {
		defer c.work.Done()
		if _, err := p.Kill(context.Background(), runtime.KillCause{Reason: "killed before it began"}); err != nil {
			c.warn(err)
		}
	}()
}

func (c *Control) notify(kind string, data map[string]string) {
	if c.opt.Notify != nil {
		ring, _ := c.live.ring()
		c.opt.Notify(Event{Kind: kind, Ring: ring, Data: data})
	}
}

func (c *Control) warn(err error) {
	if c.opt.Warn != nil && err != nil {
		c.opt.Warn(err)
	}
}

// Leave gives back what runs to come are refused for: the place in the plan and the turn in a strong session. No process of the run is left, nor
// its gateway.
func (c *Control) Leave() {
	c.adm.slot.Unlock()
	c.adm.lock.Unlock()
	c.turn.Load().Unlock()
}

// Close ends what the run has on loan and waits for kills that are under way. The error tells of kills that the audit doesn't
// have.
func (c *Control) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	c.endPatience()
	c.warn(c.awaitChildren(context.Background())) // what they count is counted here
	c.wakeMu.Lock()
	c.done = true
	c.wakeMu.Unlock()
	c.cancel()
	c.work.Wait()
	c.loanMu.Lock()
	c.bookLocked("run_end")
	c.loanMu.Unlock()
	c.live.end()
	c.turn.Load().Unlock()
	err := c.adm.alarm.flush()
	if e := c.kills.Retry(context.Background()); e != nil {
		return errors.Join(err, errors.New("a kill is not on record"), e)
	}
	return err
}

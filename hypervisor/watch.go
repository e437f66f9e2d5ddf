// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"fmt"
	"time"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/runtime"
)

// WatchOptions are what an operator chose for one run.
type WatchOptions struct {
	// Control decides what a breach leads to; KillOnBreach and Warn are then its. nil: nothing can lower or kill the run while
	// it lives, and a breach above ring 3 ends it.
	Control *Control
	// KillOnBreach is ControlOptions'.
	KillOnBreach bool
	// SignLater leaves it to Hypervisor.Close to sign where the chain stands: for who waits for the end's record only.
	SignLater bool
	// Warn hears of what went wrong beside the run; nil: nobody does.
	Warn func(error)
}

func (o WatchOptions) warn(err error) {
	if o.Warn != nil {
		o.Warn(err)
	}
}

// Watch is the observer of one admitted run: it puts the run on record and weighs its refused calls.
func (h *Hypervisor) Watch(adm Admission, opt WatchOptions) runtime.Observer {
	w := &watch{h: h, adm: adm, opt: opt, control: opt.Control, kinds: map[kind]*gathered{}}
	if w.control == nil {
		w.control = h.newControl(adm, ControlOptions{KillOnBreach: opt.KillOnBreach, Warn: opt.Warn})
		w.control.alone = true
	}
	return w
}

type watch struct {
	h       *Hypervisor
	adm     Admission
	opt     WatchOptions
	run     string
	control *Control
	settled func() error       // waits for the start to be on disk
	kinds   map[kind]*gathered // of refused calls; runtime bounds them
}

// kind is what refused calls have in common that are recorded together.
type kind struct{ syscall, class, verdict string }

type gathered struct {
	count int64 // not on record yet
	last  time.Time
}

// gatherTime is how long refused calls of one kind are counted before they are put on record together, after the first,
// which is at once: an agent that floods the filter fills neither the log nor the disk.
const gatherTime = time.Second

// Start puts the run on record. An agent that runs can do what can't be undone, once Settled says that it is on disk too.
func (w *watch) Start(s runtime.Status) error {
	w.run = s.ID
	if w.opt.Control == nil {
		w.control.opt.Run = s.ID
		w.control.who = w.adm.breacher(s.ID)
	}
	digest, err := audit.ParseHash(s.PlanDigest)
	if err != nil {
		return fmt.Errorf("plan digest: %w", err)
	}
	w.settled, err = w.h.recordThen(s.Session, &audit.SandboxStart{
		AgentID: s.Agent, PlanDigest: digest, Profile: s.Profile, Ring: audit.RingOf(s.Ring), RunID: s.ID, SessionID: s.Session,
		Without: s.BestEffort,
	})
	return err
}

// Settled returns when the start is on disk, which one that isn't on record never is.
func (w *watch) Settled() error {
	if w.settled == nil {
		return errors.New("audit: the start is not on record")
	}
	return w.settled()
}

// Refused counts each refused call as an attempt (M-4, H-24) and puts it on record, repeated ones together.
func (w *watch) Refused(r runtime.Refusal) error {
	k := kind{r.Syscall, r.Detail, r.Verdict}
	g := w.kinds[k]
	if g == nil {
		g = &gathered{}
		w.kinds[k] = g
	}
	g.count++
	c := w.control
	b, trips := c.adm.alarm.denied(&c.adm, w.run, c.live.weighed(), r.Called)
	if trips || r.At.Sub(g.last) >= gatherTime {
		if err := w.tell(k, g, r.At); err != nil {
			return err
		}
	}
	if !trips {
		return nil
	}
	return w.breach(b)
}

// breach answers runtime with an error only if nothing else ends the run: a kill freezes it first, and has its handlers. It
// isn't waited for: the run's processes wait for this answer, and a process in the kernel's hands can't be frozen.
func (w *watch) breach(b rings.BreachResult) error {
	err := w.control.breach(b)
	if w.control.alone || !w.control.over() {
		return err
	}
	return nil
}

func (w *watch) tell(k kind, g *gathered, at time.Time) error {
	n := g.count
	g.count, g.last = 0, at
	return w.h.record(w.adm.Session, false, &audit.Refusal{
		AgentID: w.adm.Agent, Class: k.class, Count: n, RunID: w.run, Syscall: k.syscall, Verdict: k.verdict,
	})
}

// End puts the end on record, which is on disk within 100 ms (H-28), and signs where the chain stands (H-26). A checkpoint that can't be made is told, and
// doesn't undo the run: its end is on record.
func (w *watch) End(s runtime.Status) error {
	for k, g := range w.kinds {
		if g.count == 0 {
			continue
		}
		if err := w.tell(k, g, g.last); err != nil {
			return err
		}
	}
	var refused int64
	for _, n := range s.Refused {
		refused += int64(n)
	}
	digest, err := audit.ParseHash(s.PlanDigest)
	if err != nil {
		return fmt.Errorf("plan digest: %w", err)
	}
	if err := w.h.begin(chainOf(s.Session)); err != nil {
		w.opt.warn(fmt.Errorf("checkpoint: %w", err))
	}
	err = w.h.record(s.Session, false, &audit.SandboxEnd{
		AgentID: s.Agent, ExitCode: int64(s.ExitCode), FailedStep: s.FailedStep, PlanDigest: digest, Refused: refused,
		RunID: s.ID, SessionID: s.Session, State: string(s.State), WallTimeNS: int64(s.WallTime),
	})
	if err != nil {
		return err
	}
	if w.opt.SignLater {
		return nil
	}
	if err := w.h.checkpoint(chainOf(s.Session)); err != nil {
		w.opt.warn(fmt.Errorf("checkpoint: %w", err))
	}
	return nil
}

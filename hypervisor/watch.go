// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"fmt"
	"time"

	"agentrun/audit"
	"agentrun/runtime"
)

// WatchOptions are what an operator chose for one run.
type WatchOptions struct {
	// KillOnBreach ends a run whose refused calls amount to a breach of severity high or critical (H-24). Without it
	// the agent is quarantined, and its run ended only if it is in a ring above 3: it can't be lowered while it lives.
	KillOnBreach bool
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
	if adm.alarm == nil {
		adm.alarm = newAlarm(h.now)
	}
	return &watch{h: h, adm: adm, opt: opt, kinds: map[kind]*gathered{}}
}

type watch struct {
	h     *Hypervisor
	adm   Admission
	opt   WatchOptions
	run   string
	kinds map[kind]*gathered // of refused calls; runtime bounds them
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

// Start puts the run on record, on disk: an agent that runs can do what can't be undone.
func (w *watch) Start(s runtime.Status) error {
	w.run = s.ID
	digest, err := audit.ParseHash(s.PlanDigest)
	if err != nil {
		return fmt.Errorf("plan digest: %w", err)
	}
	return w.h.record(s.Session, true, &audit.SandboxStart{
		AgentID: s.Agent, PlanDigest: digest, Profile: s.Profile, Ring: audit.RingOf(s.Ring), RunID: s.ID, SessionID: s.Session,
	})
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
	b, trips := w.adm.alarm.denied(&w.adm, w.run, w.adm.Ring, r.Called)
	if trips || r.At.Sub(g.last) >= gatherTime {
		if err := w.tell(k, g, r.At); err != nil {
			return err
		}
	}
	if !trips {
		return nil
	}
	return w.h.breach(&w.adm, w.run, w.opt.KillOnBreach, b)
}

func (w *watch) tell(k kind, g *gathered, at time.Time) error {
	n := g.count
	g.count, g.last = 0, at
	return w.h.record(w.adm.Session, false, &audit.Refusal{
		AgentID: w.adm.Agent, Class: k.class, Count: n, RunID: w.run, Syscall: k.syscall, Verdict: k.verdict,
	})
}

// End puts the end on record, on disk, and signs where the chain stands (H-26). A checkpoint that can't be made is told, and
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
	err = w.h.record(s.Session, true, &audit.SandboxEnd{
		AgentID: s.Agent, ExitCode: int64(s.ExitCode), FailedStep: s.FailedStep, PlanDigest: digest, Refused: refused,
		RunID: s.ID, SessionID: s.Session, State: string(s.State), WallTimeNS: int64(s.WallTime),
	})
	if err != nil {
		return err
	}
	if err := w.h.checkpoint(chainOf(s.Session)); err != nil {
		w.opt.warn(fmt.Errorf("checkpoint: %w", err))
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strings"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/runtime"
)

// WatchOptions are what an operator chose for one run.
type WatchOptions struct {
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

// Watch is the observer of the run: it puts the run on record and weighs its refused calls.
func (c *Control) Watch(opt WatchOptions) runtime.Observer {
	return &watch{control: c, h: c.h, opt: opt}
}

type watch struct {
	control *Control
	h       *Hypervisor
	opt     WatchOptions
	settled func() error // waits for the start to be on disk
}

// Start puts the run on record. An agent that runs can do what can't be undone, once Settled says that it is on disk too.
func (w *watch) Start(s runtime.Status) error {
	digest, err := audit.ParseHash(s.PlanDigest)
	if err != nil {
		return fmt.Errorf("plan digest: %w", err)
	}
	if check := w.control.adm.check; check != nil {
		check.AgentID, check.RunID = w.control.who, s.ID
		if err := w.h.record(s.Session, false, check); err != nil {
			return err
		}
	}
	w.settled, err = w.h.recordThen(s.Session, &audit.SandboxStart{
		AgentID: s.Agent, Image: s.Image, ParentRunID: s.Parent, PlanDigest: digest, Profile: s.Profile, Ring: audit.RingOf(s.Ring), RunID: s.ID, SessionID: s.Session,
		Wider: s.Wider, Without: s.BestEffort,
	})
	if err == nil {
		w.h.Counts().RunStarted(s.Ring)
	}
	if !w.opt.SignLater {
		go audit.Warm(filepath.Join(w.h.opt.StateDir, keysDir)) // while the launch waits for the kernel: the end of the run would wait for it
	}
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
	c := w.control
	kind := uint16(0)
	// What a higher ring has: trying it again is busy, not hostile. Another architecture's call is a way past the filter each time.
	if r.Called != rings.Root && !strings.HasPrefix(r.Detail, "arch=") {
		kind = kindOf(r.Syscall, r.Detail)
	}
	b, trips := c.adm.alarm.denied(rings.CallWeight(c.live.weighed(), r.Called, r.Never), kind)
	c.near(b, r.Program, strings.TrimSpace(r.Syscall+" "+r.Detail))
	err := c.adm.alarm.refused.add(&audit.Refusal{
		AgentID: c.adm.Agent, Class: r.Detail, Count: 1, ParentRunID: c.adm.parent.run, RunID: c.opt.Run,
		Syscall: r.Syscall, Verdict: r.Verdict,
	})
	if err != nil || !trips {
		return err
	}
	// An error only if nothing else ends the run: a kill freezes it first, and has its handlers. It isn't waited for: the
	// run's processes wait for this answer, and a process in the kernel's hands can't be frozen.
	err = c.breach(b)
	if _, ends := errors.AsType[*runtime.PolicyError](err); ends || !c.over() {
		return err // the run's end is decided here, so that no process which ends by itself is quicker
	}
	return nil
}

// kindOf tells kinds of calls apart within a window. Two that happen to be one count as one.
func kindOf(syscall, detail string) uint16 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(syscall + " " + detail))
	return uint16(max(h.Sum32()%(1<<16), 1))
}

// End puts the end on record, which is on disk within 100 ms (H-28), and signs where the chain stands (H-26). A checkpoint that can't be made is told, and
// doesn't undo the run: its end is on record.
func (w *watch) End(s runtime.Status) error {
	if err := w.control.adm.alarm.flush(); err != nil {
		return err
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
		AgentID: s.Agent, ExitCode: int64(s.ExitCode), FailedStep: s.FailedStep, ParentRunID: s.Parent, PlanDigest: digest, Refused: refused,
		RunID: s.ID, SessionID: s.Session, State: string(s.State), WallTimeNS: int64(s.WallTime),
	})
	if err != nil {
		return err
	}
	w.h.Counts().RunEnded(s.Ring, string(s.State), causeOf(s), s.WallTime)
	if w.opt.SignLater {
		return nil
	}
	if err := w.h.checkpoint(chainOf(s.Session)); err != nil {
		w.opt.warn(fmt.Errorf("checkpoint: %w", err))
	}
	return nil
}

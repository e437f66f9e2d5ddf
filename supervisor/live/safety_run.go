// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"agentrun/control"
	"agentrun/hypervisor"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/safetyloop"
	"agentrun/safetyloop/judge"
	"agentrun/telemetry"
	"agentrun/toolproxy/link"
)

// runSafety is the safety loop as the gateway of one run asks it. Who asks is the run, whatever the request says (S-15).
type runSafety struct {
	loop *safetyloop.Loop
	who  func() safetyloop.Caller
}

var _ link.Safeties = runSafety{}

// Safety implements link.Safeties.
func (s runSafety) Safety(ctx context.Context, q link.Safety) (json.RawMessage, error) {
	call := safetyloop.Call{Caller: s.who(), Endpoint: endpointOf(q.Endpoint), Operation: q.Operation, Params: telemetry.NewPlaintext(q.Params)}
	return json.Marshal(s.loop.Do(context.WithValue(ctx, judgedKey{}, q), call))
}

// Intent implements link.Safeties.
func (s runSafety) Intent(ctx context.Context, tool, target string) error {
	return answerOf(s.loop.Intent(ctx, s.who(), tool, target))
}

// Blocked implements link.Safeties.
func (s runSafety) Blocked(ctx context.Context) error { return answerOf(s.loop.Blocked(ctx, s.who())) }

// answerOf is an error as a gateway is told: what it says is the operator's business.
func answerOf(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, safetyloop.ErrBlocked), errors.Is(err, safetyloop.ErrUnread):
		return link.ErrStopped
	case errors.Is(err, safetyloop.ErrIntent):
		return link.ErrNoIntent
	}
	return errors.New("the safety loop can't answer")
}

func endpointOf(word string) safetyloop.Endpoint {
	for e := safetyloop.Create; e <= safetyloop.Any; e++ {
		if word == e.String() {
			return e
		}
	}
	return safetyloop.NoEndpoint
}

// judgedKey is where carried finds what came with a call.
type judgedKey struct{}

// carried judges by what the run's gateway found: the hint is a hostile agent's, and is taken apart there, without privileges. A
// gateway that was taken over can call everything harmless; it can't answer a challenge, nor undo a stop.
type carried struct{}

var errUnjudged = errors.New("no judgement of this hint came with the step")

// Judge implements safetyloop.Judge.
func (carried) Judge(ctx context.Context, hint string) (safetyloop.Judgement, error) {
	q, _ := ctx.Value(judgedKey{}).(link.Safety)
	if q.Judgement == nil || q.Judged != link.HintSum(hint) {
		return safetyloop.Judgement{}, errUnjudged
	}
	return *q.Judgement, nil
}

// loopKind is what the runs that share a loop have in common; the rest is asked for at each step.
type loopKind struct {
	mode    safetyloop.Mode
	confirm safetyloop.Confirm
}

func kindOf(s *profiles.Safety) (k loopKind, err error) {
	var merr, cerr error
	k.mode, merr = judge.ParseMode(string(s.Mode))
	k.confirm, cerr = judge.ParseConfirm(string(cmp.Or(s.Confirm, profiles.SafetyServer)))
	return k, errors.Join(merr, cerr)
}

// principal is who a run is to the safety loop: its agent, or the run itself if it belongs to none.
func (v *Run) principal() string { return cmp.Or(v.Plan.Agent, v.Plan.ID) }

func (v *Run) safetyCaller() safetyloop.Caller {
	ring, _ := v.Control.Ring()
	return safetyloop.Caller{Principal: v.principal(), Bound: true, Ring: ring, Session: v.Plan.Session}
}

// enforced tells whether a stop is for this run.
func (v *Run) enforced() bool {
	return v.Plan.Safety != nil && v.Plan.Safety.Mode == profiles.SafetyEnforcing
}

// stop shuts the run's ways out and has its processes stand still (S-15). The agent's answer is on its way all the same: it is read
// when the agent goes on. Stopping a run that is stopped is no error.
//
// The ways out are shut first: what a process does before it stands still then reaches nobody. It counts as
// stopped from there, also where the freeze fails: the loop tries again, and the event is told once.
func (v *Run) stop(ctx context.Context, reason string) error {
	v.Control.Stop()
	first := !v.stopped.Swap(true)
	v.ports.cut()
	err := v.freeze(ctx, bySafety)
	if errors.Is(err, runtime.ErrEnded) {
		return nil
	}
	if err == nil {
		v.pauseClock(safetyloop.ChallengeTTL)
	}
	if first {
		v.event(control.EventStopped, map[string]string{"reason": reason})
		v.all.warn(fmt.Errorf("run %s: the safety loop has stopped the agent: %s (agentrun challenges list)", v.Plan.ID, reason))
	}
	// What can't be frozen can only be killed: it would do in the meantime what it was stopped for.
	if v.Plan.Safety.OnStop == profiles.SafetyKill || errors.Is(err, runtime.ErrNoCgroup) {
		v.Control.KillSoon(hypervisor.KillRequest{Reason: rings.KillPolicyViolation, By: "safety loop", Detail: reason})
		return nil
	}
	return err
}

// resume takes back what stop did. Whoever else has frozen the run keeps it so.
func (v *Run) resume(ctx context.Context) error {
	if !v.stopped.Load() {
		return nil
	}
	v.Control.Resume() // before: it is to find its tools there
	if err := v.thaw(ctx, bySafety); err != nil && !errors.Is(err, errStillHeld) && !errors.Is(err, runtime.ErrEnded) {
		v.Control.Stop()
		return err
	}
	v.pauseClock(0)
	v.stopped.Store(false)
	v.event(control.EventResumed, nil)
	return nil
}

// pauseClock holds the run's time limit, which a stop must not use up: its code is good for five minutes, and whoever brings it wants
// to find the run alive (S-10).
func (v *Run) pauseClock(most time.Duration) {
	if run, err := v.process(); err == nil {
		run.PauseClock(most)
	}
}

// workspaceInside is where agents find their folder.
const workspaceInside = "/workspace"

// SafetyStart is what the gateway of a run has to know; nil: there is no loop.
func SafetyStart(plan *runtime.Plan) *link.SafetyStart {
	s := plan.Safety
	if s == nil {
		return nil
	}
	start := &link.SafetyStart{Mode: string(s.Mode), RequireIntent: s.RequireIntent}
	for _, e := range plan.Entries {
		if e.Target == workspaceInside || strings.HasPrefix(e.Target, workspaceInside+"/") {
			start.Workspace = workspaceInside
		}
	}
	return start
}

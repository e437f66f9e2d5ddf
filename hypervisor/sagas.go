// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"slices"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/sagas"
	"agentrun/store"
)

// SagaTransition implements sagas.Auditor: every transition of a step is on disk before its call, because a call may be one
// that can't be undone (H-27, H-28). A step of an agent in quarantine doesn't begin (H-31): the saga stops where it is, and
// can be resumed or undone. Nor does one of a saga about which a kill left an order (H-21). Undoing is not the agent's action
// and goes on.
func (h *Hypervisor) SagaTransition(ctx context.Context, t sagas.Transition) error {
	if startsStep(t) {
		err := h.view(ctx, func(tx *store.Tx) error {
			if t.Agent != "" {
				if err := notHeld(tx, t.Agent, "begin step "+t.StepID+" of saga "+t.SagaID); err != nil {
					return err
				}
			}
			return notOrdered(tx, t)
		})
		if err != nil {
			return err
		}
	}
	if followsOrder(t) {
		if err := h.followed(ctx, t.SagaID); err != nil {
			return err
		}
	}
	r := &audit.SagaStep{
		AgentID: t.Agent, AttemptCount: int64(t.AttemptCount), Compensated: t.Compensated, SagaID: t.SagaID, State: t.State.String(), StepID: t.StepID,
	}
	if t.Undo && t.State == sagas.StepCommitted {
		r.State = "undoing"
	}
	if t.Error != "" {
		r.Error = "failed" // the text is the step's own, and may hold its data
	}
	return h.record("", true, r)
}

// SagaEnded puts on record how a saga ended, with the steps that could not be undone (H-19).
func (h *Hypervisor) SagaEnded(rec sagas.Record) error {
	r := &audit.Saga{AgentID: rec.Doer(), SagaID: rec.ID, State: rec.State.String()}
	for _, s := range rec.Steps {
		if s.State == sagas.StepCompensationFailed && len(r.FailedSteps) < maxFailedSteps {
			r.FailedSteps = append(r.FailedSteps, s.ID)
		}
	}
	return h.record("", true, r)
}

// maxFailedSteps is what a record holds; the journal has them all.
const maxFailedSteps = 64

// sagaOrdersBucket holds what kills decided about sagas that another process ran at that moment.
const sagaOrdersBucket = "saga-orders"

// SagaOrder is what a kill decided about a saga (H-21). Until it is followed no step of the saga begins (SagaTransition); the
// process that runs it stops, and whoever goes on with it hands it off to Substitute (sagas.Orchestrator.HandOff, then
// Resume), or undoes it if that is empty (Abort). The first step of either ends the order.
type SagaOrder struct {
	Saga       string `json:"saga_id"`
	Substitute string `json:"substitute,omitempty"`
	Run        string `json:"run_id"` // that was killed
}

// SagaOrder returns what was ordered about a saga; ok is false if nothing was, or it was followed.
func (h *Hypervisor) SagaOrder(ctx context.Context, id string) (o SagaOrder, ok bool, err error) {
	err = h.view(ctx, func(tx *store.Tx) error {
		ok, err = store.GetJSON(tx.Bucket(sagaOrdersBucket), id, &o)
		return err
	})
	return o, ok, err
}

// CodeKilled is why a step of a saga doesn't begin whose agent was killed.
const CodeKilled rings.Code = "killed"

func notOrdered(tx *store.Tx, t sagas.Transition) error {
	var o SagaOrder
	ordered, err := store.GetJSON(tx.Bucket(sagaOrdersBucket), t.SagaID, &o)
	if err != nil || !ordered {
		return err
	}
	who, what := "agent "+t.Agent, "it is to be undone"
	if t.Agent == "" {
		who = "its step"
	}
	if o.Substitute != "" {
		what = "agent " + o.Substitute + " takes over"
	}
	return &DeniedError{
		What:     "begin step " + t.StepID + " of saga " + t.SagaID,
		Decision: rings.Decision{Verdict: rings.Deny, Code: CodeKilled, Rule: "H-21", Reason: who + " was killed in run " + o.Run + ": " + what},
		Hint:     "agentrun saga resume " + t.SagaID,
	}
}

// followed ends an order: the saga was handed off, or its undoing begins.
func (h *Hypervisor) followed(ctx context.Context, id string) error {
	if _, ok, err := h.SagaOrder(ctx, id); err != nil || !ok {
		return err
	}
	return h.update(ctx, func(tx *store.Tx) error { return tx.Bucket(sagaOrdersBucket).Delete(id) })
}

// startsStep tells whether a transition begins a step's work rather than its undoing.
func startsStep(t sagas.Transition) bool { return t.State == sagas.StepExecuting && !t.Undo }

// followsOrder tells whether a transition is what an order asks for.
func followsOrder(t sagas.Transition) bool {
	return t.Undo || slices.Contains([]sagas.StepState{sagas.StepHandedOff, sagas.StepCompensated, sagas.StepCompensationFailed}, t.State)
}

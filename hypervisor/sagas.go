// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"

	"agentrun/audit"
	"agentrun/sagas"
	"agentrun/store"
)

// SagaTransition implements sagas.Auditor: every transition of a step is on disk before its call, because a call may be one
// that can't be undone (H-27, H-28). A step of an agent in quarantine doesn't begin (H-31): the saga stops where it is, and
// can be resumed or undone. Nor does one of a saga about which a kill left an order (H-21). Undoing is not the agent's action
// and goes on.
func (h *Hypervisor) SagaTransition(ctx context.Context, t sagas.Transition) error {
	if t.Agent != "" && startsStep(t) {
		err := h.view(ctx, func(tx *store.Tx) error {
			if err := notHeld(tx, t.Agent, "begin step "+t.StepID+" of saga "+t.SagaID); err != nil {
				return err
			}
			return notOrdered(tx, t)
		})
		if err != nil {
			return err
		}
	}
	if t.Agent != "" && followsOrder(t) {
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
	r := &audit.Saga{AgentID: rec.Agent, SagaID: rec.ID, State: rec.State.String()}
	for _, s := range rec.Steps {
		if s.State == sagas.StepCompensationFailed && len(r.FailedSteps) < maxFailedSteps {
			r.FailedSteps = append(r.FailedSteps, s.ID)
		}
	}
	return h.record("", true, r)
}

// maxFailedSteps is what a record holds; the journal has them all.
const maxFailedSteps = 64

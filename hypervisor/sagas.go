// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"

	"agentrun/audit"
	"agentrun/sagas"
)

// SagaTransition implements sagas.Auditor: every transition of a step is on disk before its call, because a call may be one
// that can't be undone (H-27, H-28).
func (h *Hypervisor) SagaTransition(_ context.Context, t sagas.Transition) error {
	r := &audit.SagaStep{
		AttemptCount: int64(t.AttemptCount), Compensated: t.Compensated, SagaID: t.SagaID, State: t.State.String(), StepID: t.StepID,
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

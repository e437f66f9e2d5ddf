// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"context"
)

// execution serves execute_agent, complete_execution and abort_execution.
func (l *Loop) execution(ctx context.Context, call Call, op *Operation, v values, p *principal) Reply {
	element := v.text(pElement)
	if refused := l.mayChange(op, v, p); refused != nil {
		return l.refuse(ctx, call, element, refused)
	}
	if err := l.recordOperation(ctx, call, element, "ok"); err != nil {
		return failed(unrecorded())
	}
	l.observe("execution", op.Name)
	own := l.own(call.Caller, element)
	l.mu.Lock()
	defer l.mu.Unlock()
	if op.Name == opExecute {
		return succeed(l.begin(call.Caller, v, p, own))
	}
	e := p.running[element]
	delete(p.running, element)
	status := "completed"
	if op.Name == opAbort {
		status = "aborted"
	}
	data := map[string]any{"element_name": element, "execution_id": e.id, "status": status}
	if len(e.notes) > 0 {
		data["notifications"] = e.notes // the last occasion to tell them
	}
	return succeed(data)
}

func (l *Loop) mayChange(op *Operation, v values, p *principal) *Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	element := v.text(pElement)
	e := p.running[element]
	switch {
	case op.Name == opExecute && e != nil && e.begun:
		return refusal(CodeExists, map[string]any{"execution_id": e.id}, "An execution of '%s' is running already", element)
	case op.Name == opExecute && e == nil && len(p.running) >= maxExecutions:
		return tooManyExecutions()
	case op.Name != opExecute && e == nil:
		return refusal(CodeNoResource, map[string]any{"resource_type": "execution", "resource_id": element}, "Resource 'execution' not found: '%s'", element)
	}
	return nil
}

func tooManyExecutions() *Error {
	return refusal(CodeRateLimit, map[string]any{"limit": maxExecutions}, "%d executions are running; end one first", maxExecutions)
}

// begin gives an execution a counter of its own where a human said yes to it, here or in the client's dialog. Where no human did, by
// a policy, or in a sandbox, which has no dialog, it goes on counting: execute_agent would be the way around the step limit and
// around a failure (S-6). The caller holds mu.
func (l *Loop) begin(c Caller, v values, p *principal, own Own) map[string]any {
	lowered, _ := v.number(pSteps)
	e := p.running[v.text(pElement)]
	if e == nil {
		e = &execution{id: newID(), run: &p.shared}
		p.running[v.text(pElement)] = e
	}
	if l.set.Confirm == ConfirmServer || l.set.Confirm != ConfirmPolicy && !c.Bound {
		e.run = &run{}
	}
	e.begun, e.lowered, e.own = true, lowered, own
	return map[string]any{"element_name": v.text(pElement), "execution_id": e.id, "status": "running", "maxAutonomousSteps": e.limit()}
}

// ensure gives the execution of an element. One that no execute_agent began counts its steps with all others of its principal
// that nobody let begin: otherwise a new name, or complete_execution between two steps, would be a new counter (S-6, stage 1).
func (l *Loop) ensure(p *principal, c Caller, element string) (*execution, *Error) {
	own := l.own(c, element)
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := p.running[element]; e != nil {
		e.own = own
		return e, nil
	}
	if len(p.running) >= maxExecutions {
		return nil, tooManyExecutions()
	}
	e := &execution{id: newID(), run: &p.shared, own: own}
	p.running[element] = e
	return e, nil
}

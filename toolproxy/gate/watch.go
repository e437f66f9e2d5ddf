// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"

	"agentrun/toolproxy/link"
)

// watch ends the call as soon as its ring no longer allows it (M-22), and within a second when the safety loop stops its agent (S-15).
// It lasts as long as the call.
func (p *permit) watch(changed <-chan struct{}) {
	ctx := p.ctx
	go func() {
		defer func() {
			if v := recover(); v != nil {
				p.cancel(broke(v))
			}
		}()
		tick, stop := p.ticks()
		defer stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick:
				if e := p.halted(ctx); e != nil {
					p.cancel(e)
					return
				}
				continue
			case <-changed:
			}
			if ctx.Err() != nil {
				return // both were ready
			}
			before := changed
			if _, changed = p.gate.o.Supervisor.Ring(); changed == before {
				p.cancel(runEnded())
				return
			}
			if e := p.recheck(ctx); e != nil {
				p.cancel(e)
				return
			}
		}
	}()
}

// recheck asks whether a call that passed may still go on. It takes no place. A denial for its pace is none: the call was
// paced when it came.
func (p *permit) recheck(ctx context.Context) *Error {
	ring, _ := p.gate.o.Supervisor.Ring()
	if e := p.ringAllows(ring); e != nil {
		return e
	}
	if p.call.Admit != nil {
		if e := p.call.Admit(ring); e != nil {
			return e
		}
	}
	v, err := p.gate.o.Supervisor.Check(ctx, link.Check{Action: p.call.Action})
	if err != nil {
		return unavailable("the supervisor", err)
	}
	e := ofVerdict(v)
	if e != nil && (e.Code == CodeRateLimited || e.Code == CodeConcurrency) {
		return nil
	}
	if e == nil {
		return p.ringAllows(v.Ring)
	}
	return e
}

func runEnded() *Error {
	return &Error{Code: CodeCanceled, Message: "the run has ended", Next: "end"}
}

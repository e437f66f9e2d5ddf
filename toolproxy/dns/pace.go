// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"sync"
	"time"
)

const burst = 256

// pace spreads queries: an agent that asks without end must not get a core of the supervisor's. Its
// arrival times are compared with those of an even stream (the generic cell rate algorithm).
type pace struct {
	interval, ahead time.Duration

	mu   sync.Mutex
	next time.Time // when the next query of an even stream would come
}

func newPace(perSecond int) pace {
	interval := time.Second / time.Duration(perSecond)
	return pace{interval: interval, ahead: burst * interval}
}

// wait returns when it is this query's turn; false if ctx ended before.
func (p *pace) wait(ctx context.Context) bool {
	d := p.reserve(time.Now())
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *pace) reserve(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(p.interval)
	return p.next.Sub(now) - p.ahead
}

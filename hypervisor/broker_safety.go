// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"agentrun/rings"
	"agentrun/safetyloop"
	"agentrun/toolproxy/link"
)

var (
	_ link.Safeties = (*Broker)(nil)

	errNoSafetyLoop = errors.New("this run has no safety loop")
	errStopped      = errors.New("the safety loop has stopped the agent")
)

const (
	stoppedText = "the safety loop has stopped the agent"
	stoppedNext = "nothing: an operator has to let the agent go on"
)

// safetyRate answers a request that came too soon after others (S-1).
func safetyRate(wait time.Duration) json.RawMessage {
	return json.RawMessage(`{"success":false,"error":{"code":"` + safetyloop.CodeRateLimit + `","message":"Too many requests; repeat it in ` + wait.String() + `"}}`)
}

// Safety implements link.Safeties. How often is bounded by the ring's rate (H-16), apart from that of tools: each call that needs a
// step would else cost two. In the long run it is a fifth of that, which is a report for each of the run's steps: every answer
// of the loop is an entry in the audit, on disk before it is given.
func (b *Broker) Safety(ctx context.Context, s link.Safety) (json.RawMessage, error) {
	loop, err := b.safety()
	if err != nil {
		return nil, err
	}
	ring, _ := b.live.ring()
	if r := b.adm.reports.Take(ring, 1); !r.Allowed {
		return safetyRate(r.RetryAfter), nil
	}
	if most, unlimited := rings.RateLimitOf(ring); !unlimited {
		long := pace{burst: float64(8 * most.PerSecond), perSecond: float64(most.PerSecond) / 5}
		if !b.takeFrom(&b.reports, long) {
			return safetyRate(time.Duration(float64(time.Second) / long.perSecond)), nil
		}
	}
	return loop.Safety(ctx, s)
}

// Intent implements link.Safeties.
func (b *Broker) Intent(ctx context.Context, tool, target string) error {
	loop, err := b.unstopped()
	if err != nil {
		return err
	}
	return loop.Intent(ctx, tool, target)
}

// Blocked implements link.Safeties.
func (b *Broker) Blocked(ctx context.Context) error {
	loop, err := b.unstopped()
	if err != nil {
		return err
	}
	return loop.Blocked(ctx)
}

func (b *Broker) unstopped() (link.Safeties, error) {
	loop, err := b.safety()
	if err == nil && b.live.isStopped() {
		err = link.ErrStopped
	}
	return loop, err
}

func (b *Broker) safety() (link.Safeties, error) {
	switch {
	case b.opt.Safety == nil:
		return nil, errNoSafetyLoop
	case b.over():
		return nil, errors.New("the run has ended")
	}
	return b.opt.Safety, nil
}

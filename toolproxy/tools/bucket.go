// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"fmt"
	"sync"
	"time"

	"agentrun/toolproxy/gate"
)

// Rate limits one tool within one run, beside the ring's rate (M-11).
type Rate struct {
	PerSecond float64 `yaml:"per_second"`
	Burst     int     `yaml:"burst"`
}

// bucket starts full and is refilled as time passes.
type bucket struct {
	rate Rate
	now  func() time.Time

	mu     sync.Mutex
	tokens float64
	at     time.Time
}

func newBucket(r *Rate, now func() time.Time) *bucket {
	if r == nil {
		return nil
	}
	return &bucket{rate: *r, now: now, tokens: float64(r.Burst), at: now()}
}

func (b *bucket) take() *gate.Error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if passed := now.Sub(b.at); passed > 0 { // a clock that was set back gives nothing and takes nothing
		b.tokens = min(float64(b.rate.Burst), b.tokens+passed.Seconds()*b.rate.PerSecond)
	}
	b.at = now
	if b.tokens >= 1 {
		b.tokens--
		return nil
	}
	wait := time.Duration((1 - b.tokens) / b.rate.PerSecond * float64(time.Second))
	return &gate.Error{
		Code: gate.CodeRateLimited, Retry: wait, Rule: "M-11",
		Message: fmt.Sprintf("this tool takes %v calls a second from a run, %d at once", b.rate.PerSecond, b.rate.Burst),
		Next:    "wait as long as Retry-After says",
	}
}

// SPDX-License-Identifier: Apache-2.0

package breaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"agentrun/toolproxy/gate"
)

// Options of New.
type Options struct {
	Entrance gate.Entrance // required: what decides about calls
	Config   Config
	// Alarm is called once, on a goroutine of its own, when the share of failures over all tools reaches Config.KillAt.
	Alarm func(detail string)
	Log   *slog.Logger // nil: nothing is logged
}

// Entrance is a gate.Entrance with breakers. It is safe for concurrent use.
type Entrance struct {
	o     Options
	c     Config
	run   *gobreaker.TwoStepCircuitBreaker[any] // over all tools; nil: nothing kills
	mu    sync.Mutex
	tools map[string]*one
}

// one is the breaker of one tool.
type one struct {
	*gobreaker.TwoStepCircuitBreaker[any]
	mu    sync.Mutex
	until time.Time // when a call is let through again
}

var _ gate.Entrance = (*Entrance)(nil)

// maxTools bounds the breakers of a run. Tools that exist are at most 1024 (package tools), and names that don't never get here.
const maxTools = 2048

// own runs the agent's programs: that they fail says nothing about the tool.
const own = "code-executor"

// New returns the entrance. With Config.Off it only passes on.
func New(o Options) *Entrance {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	e := &Entrance{o: o, c: o.Config.withDefaults(), tools: map[string]*one{}}
	if e.c.KillAt > 0 && !e.c.Off {
		e.run = gobreaker.NewTwoStepCircuitBreaker[any](e.runSettings())
	}
	return e
}

// A bucket of a window: the counts leave it in tenths.
const buckets = 10

func (e *Entrance) settings(name string, b *one) gobreaker.Settings {
	return gobreaker.Settings{
		Name: name, Interval: e.c.Window, BucketPeriod: e.c.Window / buckets, Timeout: e.c.Open,
		ReadyToTrip: func(c gobreaker.Counts) bool { return over(c, e.c.Calls, e.c.Rate) },
		IsExcluded:  func(err error) bool { return errors.Is(err, errNothing) },
		OnStateChange: func(name string, _, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				b.mu.Lock()
				b.until = time.Now().Add(e.c.Open)
				b.mu.Unlock()
			}
			e.o.Log.Warn("circuit breaker", "tool", name, "state", to.String())
		},
	}
}

// The run's breaker never closes again: what was said to be killed stays refused.
const forGood = 100 * 365 * 24 * time.Hour

func (e *Entrance) runSettings() gobreaker.Settings {
	return gobreaker.Settings{
		Name: "run", Interval: e.c.KillWindow, BucketPeriod: e.c.KillWindow / buckets, Timeout: forGood,
		ReadyToTrip: func(c gobreaker.Counts) bool { return over(c, e.c.KillCalls, e.c.KillAt) },
		IsExcluded:  func(err error) bool { return errors.Is(err, errNothing) },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if to != gobreaker.StateOpen {
				return
			}
			detail := fmt.Sprintf("%.0f %% or more of %d or more calls of tools failed within %v", 100*e.c.KillAt, e.c.KillCalls, e.c.KillWindow)
			e.o.Log.Error("circuit breaker", "run", "all tools", "detail", detail)
			if e.o.Alarm != nil {
				go e.o.Alarm(detail) // not here: the breaker is locked
			}
		},
	}
}

// over counts what has ended: calls under way, and those that count as nothing, are neither.
func over(c gobreaker.Counts, calls int, rate float64) bool {
	ended := c.TotalSuccesses + c.TotalFailures
	return int64(ended) >= int64(calls) && float64(c.TotalFailures) >= rate*float64(ended)
}

// errNothing is the end of a call that says nothing about its tool; errFailed is one that does.
var (
	errNothing = errors.New("neither a success nor a failure")
	errFailed  = errors.New("the tool failed")
)

// Enter decides one call: everything else that decides comes first in the order that the inner entrance keeps, but for what costs.
func (e *Entrance) Enter(ctx context.Context, c gate.Call) (gate.Permit, *gate.Error) {
	if e.c.Off || c.Tool == own {
		return e.o.Entrance.Enter(ctx, c)
	}
	var done func(error)
	rate := c.Rate
	c.Rate = func() *gate.Error {
		if rate != nil {
			if refused := rate(); refused != nil {
				return refused
			}
		}
		var refused *gate.Error
		done, refused = e.allow(c.Tool)
		return refused
	}
	p, refused := e.o.Entrance.Enter(ctx, c)
	if refused != nil {
		if done != nil {
			done(errNothing) // something behind the breaker refused
		}
		return nil, refused
	}
	if done == nil { // an entrance that doesn't ask for the rate
		done = func(error) {}
	}
	return &permit{Permit: p, tell: done}, nil
}

// May tells whether a call would be listed. A tool that is shut for a while is still the agent's.
func (e *Entrance) May(ctx context.Context, c gate.Call) bool {
	m, ok := e.o.Entrance.(interface {
		May(context.Context, gate.Call) bool
	})
	return ok && m.May(ctx, c)
}

// allow asks both breakers, and tells both how the call ended.
func (e *Entrance) allow(name string) (func(error), *gate.Error) {
	overall := func(error) {}
	if e.run != nil {
		var err error
		if overall, err = e.run.Allow(); err != nil {
			return nil, &gate.Error{Code: gate.CodeCanceled, Message: "the run is ended: its tools fail too often", Next: "end", Rule: "H-23"}
		}
	}
	b := e.of(name)
	if b == nil {
		overall(errNothing)
		return nil, shut(name, e.c.Open)
	}
	tell, err := b.Allow()
	if err != nil {
		overall(errNothing)
		return nil, shut(name, b.wait())
	}
	return func(err error) {
		tell(err)
		overall(err)
	}, nil
}

func (e *Entrance) of(name string) *one {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.tools[name]
	if b == nil && len(e.tools) < maxTools {
		b = &one{}
		b.TwoStepCircuitBreaker = gobreaker.NewTwoStepCircuitBreaker[any](e.settings(name, b))
		e.tools[name] = b
	}
	return b
}

// wait is how long the tool stays shut; a moment while its one call is under way.
func (b *one) wait() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(time.Until(b.until), time.Second)
}

func shut(name string, wait time.Duration) *gate.Error {
	return &gate.Error{
		Code: gate.CodeToolUnavailable, Message: "calls of " + name + " failed too often; none is made for a while",
		Next: "go on without this tool, or wait as long as Retry-After says", Retry: wait, Rule: "H-23",
	}
}

// permit tells the breakers how its call ended, once.
type permit struct {
	gate.Permit
	once sync.Once
	tell func(error)
}

func (p *permit) End(o gate.Outcome) *gate.Error {
	p.once.Do(func() { p.tell(judged(o.Err)) })
	return p.Permit.End(o)
}

func judged(e *gate.Error) error {
	switch {
	case e == nil:
		return nil
	case e.Asked:
		return errNothing
	}
	switch e.Code {
	case gate.CodeToolFailed, gate.CodeToolTimeout, gate.CodeUnavailable:
		return errFailed
	}
	return errNothing
}

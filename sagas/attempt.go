// SPDX-License-Identifier: Apache-2.0

package sagas

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"sync"
	"time"
)

// contained calls fn and comes back: after the time limit or the end of ctx it tells fn to stop and waits grace more. A
// function that is still running then may yet do what it was asked for, so its outcome is unknown. One that stopped when
// told is over: its error counts as a failure like any other, and its nil as success, however late.
func contained(ctx context.Context, fn Func, call *Call, limit, grace time.Duration) error {
	a := &attempt{parent: ctx, begun: time.Now(), limit: limit, result: make(chan error, 1)}
	go protect(a, fn, call)
	// A step without any waiting is over when this returns, and then needs no timer: half of its price.
	goruntime.Gosched()
	select {
	case err := <-a.result:
		a.stop(context.Canceled)
		return err
	default:
	}
	return a.wait(grace)
}

// direct calls fn right here.
func direct(ctx context.Context, fn Func, call *Call) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicError(p)
		}
	}()
	return fn(ctx, *call)
}

// attempt is the context of a call, and what its two sides share. It is context.WithTimeout without what most steps never
// ask for: the channel is made when somebody wants it.
type attempt struct {
	parent context.Context
	begun  time.Time
	limit  time.Duration
	result chan error

	mu   sync.Mutex
	done chan struct{} // nil: nobody has asked
	err  error
}

func (a *attempt) Deadline() (time.Time, bool) {
	own := a.begun.Add(a.limit)
	if theirs, has := a.parent.Deadline(); has && theirs.Before(own) {
		return theirs, true
	}
	return own, true
}

func (a *attempt) Value(key any) any { return a.parent.Value(key) }

// Err looks at the parent too: the side that waits may not have heard of its end yet.
func (a *attempt) Err() error {
	if err := a.parent.Err(); err != nil {
		a.stop(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

func (a *attempt) Done() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done == nil {
		a.done = make(chan struct{})
		if a.err != nil {
			close(a.done)
		}
	}
	return a.done
}

func (a *attempt) stop(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return
	}
	a.err = err
	if a.done != nil {
		close(a.done)
	}
}

func (a *attempt) wait(grace time.Duration) error {
	timer := time.NewTimer(a.limit - time.Since(a.begun))
	defer timer.Stop()
	var why string
	select {
	case err := <-a.result:
		a.stop(context.Canceled)
		return err
	case <-timer.C:
		a.stop(context.DeadlineExceeded)
		why = fmt.Sprintf("time limit %v", a.limit)
	case <-a.parent.Done():
		a.stop(a.parent.Err())
		why = "stopped"
	}
	timer.Reset(grace)
	select {
	case err := <-a.result:
		if err != nil {
			err = fmt.Errorf("%s: %w", why, err)
		}
		return err
	case <-timer.C:
		return fmt.Errorf("%s, and still running %v later: %w", why, grace, ErrUnknown)
	}
}

var errGoexit = errors.New("ended its goroutine")

// protect sends exactly one result. A step that panicked or called Goexit failed; what it holds is its own business.
func protect(a *attempt, fn Func, call *Call) {
	err := errGoexit
	defer func() {
		if p := recover(); p != nil {
			err = panicError(p)
		}
		a.result <- err
	}()
	err = fn(a, *call)
}

// panicError prints p, whose own methods are as little to be trusted as the step.
func panicError(p any) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("panic")
		}
	}()
	return fmt.Errorf("panic: %v", p)
}

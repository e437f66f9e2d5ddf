// SPDX-License-Identifier: Apache-2.0

package sagas

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// contained calls fn and comes back: after the time limit or the end of ctx it tells fn to stop and waits grace more. A
// function that is still running then may yet do what it was asked for, so its outcome is unknown. One that stopped when
// told is over: its error counts as a failure like any other, and its nil as success, however late.
func contained(parent context.Context, fn Func, call *Call, limit, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(parent, limit)
	defer cancel()
	result := make(chan error, 1)
	go protect(ctx, fn, call, result)
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	why := fmt.Sprintf("time limit %v", limit)
	if parent.Err() != nil {
		why = "stopped"
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-result:
		if err != nil {
			err = fmt.Errorf("%s: %w", why, err)
		}
		return err
	case <-timer.C:
		return fmt.Errorf("%s, and still running %v later: %w", why, grace, ErrUnknown)
	}
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

var errGoexit = errors.New("ended its goroutine")

// protect sends exactly one result. A step that panicked or called Goexit failed; what it holds is its own business.
func protect(ctx context.Context, fn Func, call *Call, result chan<- error) {
	err := errGoexit
	defer func() {
		if p := recover(); p != nil {
			err = panicError(p)
		}
		result <- err
	}()
	err = fn(ctx, *call)
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

// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// M-22: the barrier is passed only when what was being decided has its answer; what comes later is decided later.
func TestM22GateBarrier(t *testing.T) {
	began, goOn, first := make(chan struct{}), make(chan struct{}), true
	fd, done := filtered(t, permissive(t, "mount"), func() { mount(); mount() })
	gate := &Gate{}
	out := serve(context.Background(), fd, func(Call) Answer {
		if first {
			first = false
			close(began)
			<-goOn
		}
		return Answer{}
	}, ServeOptions{Gate: gate})
	<-began
	short, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := gate.Barrier(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("during an answer: %v, want %v", err, context.DeadlineExceeded)
	}
	passed := make(chan error)
	go func() { passed <- gate.Barrier(context.Background()) }()
	close(goOn)
	if err := <-passed; err != nil {
		t.Error(err)
	}
	<-done
	if err := <-out; err != nil {
		t.Error(err)
	}
	if err := gate.Barrier(context.Background()); err != nil {
		t.Errorf("after the end: %v", err)
	}
	if err := new(Gate).Barrier(context.Background()); err != nil {
		t.Errorf("before the start: %v", err)
	}
}

// A refusal that waits for its turn, for an hour at this rate, leaves at once when somebody is in a hurry; and none waits while he is.
func TestM22GateHurry(t *testing.T) {
	var errs [4]error
	tried := make(chan struct{})
	fd, done := filtered(t, permissive(t, "mount"), func() {
		errs[0] = mount()
		close(tried)
		for i := range 3 {
			errs[i+1] = mount()
		}
	})
	gate, stats := &Gate{}, &Stats{}
	start := time.Now()
	now := func() time.Time { return start } // stands still: nothing held is ever due
	out := serve(context.Background(), fd, func(Call) Answer { return Answer{} }, ServeOptions{DenyRate: 1, DenyBurst: 1, Gate: gate, Stats: stats, Clock: now})
	<-tried
	for stats.Delayed.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	gate.Hurry(true)
	<-done
	gate.Hurry(false)
	if err := <-out; err != nil {
		t.Error(err)
	}
	for i, err := range errs {
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("call %d: %v, want %v", i, err, unix.EPERM)
		}
	}
	if got := stats.Delayed.Load(); got != 1 {
		t.Errorf("%d were held, want 1", got)
	}
}

// Poking a loop that ends is nobody else's wake-up: under -race and with the descriptor's number in use again.
func TestGateAtTheEnd(t *testing.T) {
	for range 20 {
		fd, done := filtered(t, permissive(t, "mount"), func() { mount() })
		gate := &Gate{}
		ctx, cancel := context.WithCancel(context.Background())
		out := serve(ctx, fd, func(Call) Answer { return Answer{} }, ServeOptions{Gate: gate})
		poking := make(chan struct{})
		go func() {
			defer close(poking)
			for range 50 {
				gate.Hurry(true)
				_ = gate.Barrier(ctx)
				gate.Hurry(false)
			}
		}()
		<-done
		cancel()
		<-out
		<-poking
	}
}

// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentrun/internal/hinted"
)

// plenty is a host with more memory than anybody asks for.
var plenty = Memory{Available: func() (int64, error) { return 1 << 50, nil }, Used: func(string) int64 { return 0 }}

// In the order they came; each one that leaves lets one in.
func TestQueueQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Limits{Runs: 2, Waiting: 3, Timeout: time.Minute}, plenty)
		a, errA := q.Enter(t.Context(), 1)
		b, errB := q.Enter(t.Context(), 1)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				_, err := q.Enter(t.Context(), 1)
				if last := i == 2; last != errors.Is(err, errEnding) {
					t.Errorf("waiter %d: got %v", i, err)
				}
				order <- i
			}()
			synctest.Wait() // the next comes when this one waits
		}
		if _, err := q.Enter(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "the node is full: 3 runs wait") {
			t.Errorf("a full queue: got %v", err)
		}
		q.Leave(a)
		q.Leave(b)
		if x, y := <-order, <-order; x+y != 1 {
			t.Errorf("let in: %d and %d, want the first two", x, y)
		}
		q.Close()
		synctest.Wait()
	})
}

func TestQueueTimesOutCancelsAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Limits{Runs: 1, Waiting: 10, Timeout: 5 * time.Second}, plenty)
		first, _ := q.Enter(t.Context(), 1)
		began := time.Now()
		_, err := q.Enter(t.Context(), 1)
		if h, ok := errors.AsType[*hinted.Error](err); !ok || h.Hint == "" || time.Since(began) != 5*time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := make(chan error, 1)
		go func() { _, err := q.Enter(ctx, 1); gone <- err }()
		synctest.Wait()
		cancel(context.DeadlineExceeded)
		if err := <-gone; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("gone: got %v", err)
		}
		go func() { _, err := q.Enter(t.Context(), 1); gone <- err }()
		synctest.Wait()
		q.Close()
		if err := <-gone; !errors.Is(err, errEnding) {
			t.Errorf("closed: got %v", err)
		}
		if _, err := q.Enter(t.Context(), 1); !errors.Is(err, errEnding) {
			t.Errorf("after close: got %v", err)
		}
		q.Leave(first)
		if live, waiting := q.Counts(); live != 0 || waiting != 0 {
			t.Errorf("left: %d live, %d waiting", live, waiting)
		}
	})
}

// What live runs may still take is not given twice; what they use is gone from the host already.
func TestQueueMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var available atomic.Int64
		available.Store(1000 << 20)
		host := Memory{Available: func() (int64, error) { return available.Load(), nil }, Used: func(string) int64 { return 0 }}
		for _, tt := range []struct {
			share float64
			want  int
		}{{1, 3}, {2, 6}, {0, 3}} {
			q := New(Limits{Waiting: 10, Reserve: 100 << 20, Share: tt.share, Timeout: time.Millisecond}, host)
			n := 0
			for ; n < 10; n++ {
				if _, err := q.Enter(t.Context(), 256<<20); err != nil {
					break
				}
			}
			if n != tt.want {
				t.Errorf("share %v: %d runs of 256 MiB fit into 900, want %d", tt.share, n, tt.want)
			}
			q.Close()
		}
		// It comes back without anybody leaving.
		q := New(Limits{Waiting: 10, Reserve: 100 << 20, Share: 1, Timeout: time.Minute}, host)
		available.Store(200 << 20)
		in := make(chan error, 1)
		go func() { _, err := q.Enter(t.Context(), 256<<20); in <- err }()
		synctest.Wait()
		available.Store(400 << 20)
		if err := <-in; err != nil {
			t.Error(err)
		}
		// What stands still takes no more.
		q = New(Limits{Reserve: 100 << 20, Share: 1}, Memory{Available: func() (int64, error) { return 1000 << 20, nil }, Used: func(run string) int64 {
			if run == "still" {
				return math.MaxInt64
			}
			return 0
		}})
		for i := range 10 {
			s, err := q.Enter(t.Context(), 256<<20)
			if err != nil {
				t.Fatalf("beside %d that stand still: %v", i, err)
			}
			q.Started(s, "still")
			time.Sleep(time.Second)
		}
		// A host that waits for memory has none, whatever it says.
		stalled := 10.0
		q = New(Limits{Waiting: 10, Share: 1, Timeout: time.Millisecond}, Memory{Available: plenty.Available, Used: plenty.Used, Stalled: func() float64 { return stalled }})
		if _, err := q.Enter(t.Context(), 1); err != nil {
			t.Error(err)
		}
		stalled = 10.1
		if _, err := q.Enter(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "pressure") {
			t.Errorf("on a host that waits for memory: %v", err)
		}
		// A host that doesn't tell has no room.
		q = New(Limits{Waiting: 10, Share: 1, Timeout: time.Millisecond}, Memory{Available: func() (int64, error) { return 0, io.ErrUnexpectedEOF }, Used: func(string) int64 { return 0 }})
		if _, err := q.Enter(t.Context(), 1); err == nil {
			t.Error("let in without knowing the memory")
		}
		q.Close()
	})
}

// The look at the host that was made ahead is for one who enters soon after; the next, and one who comes late, looks himself.
func TestQueueAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		q := New(Limits{Share: 1}, Memory{Available: func() (int64, error) { looks++; return 1 << 40, nil }, Used: plenty.Used})
		enter := func(want int, who string) {
			t.Helper()
			if _, err := q.Enter(t.Context(), 1); err != nil || looks != want {
				t.Errorf("%s: %d looks, want %d, %v", who, looks, want, err)
			}
		}
		q.Ahead()
		enter(1, "who comes first")
		enter(2, "the next")
		q.Ahead()
		time.Sleep(aheadTime + 1)
		enter(4, "one who comes late")
		q.ahead.Store(&reading{at: time.Now(), err: io.ErrUnexpectedEOF})
		if _, err := q.Enter(t.Context(), 1); err == nil {
			t.Error("let in by a look that told nothing")
		}
	})
}

// M-3: a live run that is given more memory takes it of the node's room, and is refused what others were promised.
func TestM3QueueCountsMoreMemory(t *testing.T) {
	q := New(Limits{Runs: 2}, Memory{Available: func() (int64, error) { return 1000, nil }, Used: func(string) int64 { return 0 }})
	a, errA := q.Enter(t.Context(), 200)
	b, errB := q.Enter(t.Context(), 200)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	for _, tt := range []struct {
		of     *Slot
		memory int64
		fits   bool
	}{{a, 500, true}, {b, 600, false}, {b, 400, true}, {a, 100, true}, {b, 800, true}, {b, 1 << 40, false}, {b, 1, true}} {
		if err := q.Resize(tt.of, tt.memory); (err == nil) != tt.fits {
			t.Errorf("%d: got %v", tt.memory, err)
		}
	}
	if a.memory != 100 || b.memory != 1 {
		t.Errorf("counted: %d and %d", a.memory, b.memory)
	}
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentrun/runtime"
)

// As many are wanted as were asked for at once in the last minute, and never fewer than configured.
func TestPoolDemand(t *testing.T) {
	start := time.Unix(1e9, 0)
	f := &shelf{least: 1}
	at := func(after time.Duration) time.Time { return start.Add(after) }
	check := func(after time.Duration, want int) {
		t.Helper()
		if got := f.wanted(at(after)); got != want {
			t.Errorf("after %v: got %d, want %d", after, got, want)
		}
	}
	check(0, 1)
	for i := range 3 {
		f.demand(at(time.Duration(i) * burstTime / 4))
	}
	check(time.Second, 3)
	f.demand(at(30 * time.Second))
	check(31*time.Second, 3)
	f.demand(at(70 * time.Second)) // the three are forgotten, this one isn't
	check(71*time.Second, 1)
	f.least = 0
	check(71*time.Second, 1)
	check(3*time.Minute, 0)
	f.least = 2
	check(3*time.Minute, 2)
}

// What can't be built is not tried again at once, and the pool ends whatever happens.
func TestPoolFailsQuietly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries, warned, asked atomic.Int64
		p := New(Options{
			Prepare: func(runtime.Shape) (*runtime.Prepared, error) { tries.Add(1); return nil, errors.New("no") },
			Room:    func() bool { return true },
			Always: func(profile string) ([]runtime.Shape, error) {
				asked.Add(1)
				if profile != "ring3" {
					return nil, errors.New("unknown")
				}
				return []runtime.Shape{{}}, nil
			},
			Warn: func(string, error) { warned.Add(1) },
		})
		p.Set(4, map[string]int{"ring3": 1, "other": 1})
		p.Begin()
		time.Sleep(failedTime - time.Second)
		synctest.Wait()
		if n := tries.Load(); n != 1 {
			t.Errorf("tried %d times within %v, want 1", n, failedTime)
		}
		time.Sleep(10 * failedTime)
		synctest.Wait()
		if n := tries.Load(); n < 5 || n > 12 {
			t.Errorf("tried %d times in %v", n, 11*failedTime)
		}
		if warned.Load() < tries.Load()+asked.Load()/2 {
			t.Errorf("%d tries, %d asked, %d warnings", tries.Load(), asked.Load(), warned.Load())
		}
		p.Close()
		p.Close()
		n := tries.Load()
		time.Sleep(10 * failedTime)
		if tries.Load() != n || p.Ready() != 0 {
			t.Errorf("after the end: %d more tries, %d ready", tries.Load()-n, p.Ready())
		}
	})
	New(Options{}).Close() // never begun
	(*Pool)(nil).Close()
}

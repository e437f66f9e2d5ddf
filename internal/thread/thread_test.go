// SPDX-License-Identifier: Apache-2.0

package thread

import (
	goruntime "runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Whatever thread the goroutine lands on, fn never sees the main one: many at once, so that some land there.
func TestNeverTheMainThread(t *testing.T) {
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			Throwaway(func() {
				if unix.Gettid() == unix.Getpid() {
					t.Error("ran on the main thread")
				}
				goruntime.Gosched()
			})
		})
	}
	wg.Wait()
}

// The thread ends, and with it what was done to it.
func TestThreadEnds(t *testing.T) {
	var tid int
	Throwaway(func() { tid = unix.Gettid() })
	for unix.Tgkill(unix.Getpid(), tid, 0) == nil {
		goruntime.Gosched() // the test's time limit is the bound
	}
}

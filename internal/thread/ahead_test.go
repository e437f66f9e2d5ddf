// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"errors"
	goruntime "runtime"
	"sync/atomic"
	"testing"
)

// It is done once, whoever comes to it first, and all hear the same.
func TestAhead(t *testing.T) {
	for range 200 {
		var begun atomic.Int32
		broken := errors.New("broken")
		answer := Ahead(func() (int32, error) { return begun.Add(1), broken })
		told := make(chan bool, 2)
		for range 2 {
			go func() {
				n, err := answer()
				told <- n == 1 && errors.Is(err, broken)
			}()
		}
		if !<-told || !<-told || begun.Load() != 1 {
			t.Fatalf("begun %d times", begun.Load())
		}
	}
}

// With one place for all goroutines nobody else comes to it while its caller goes on: he does it himself, and waits for nobody.
func TestAheadIsDoneByWhoAsks(t *testing.T) {
	defer goruntime.GOMAXPROCS(goruntime.GOMAXPROCS(1))
	done := false
	answer := Ahead(func() (bool, error) { done = true; return true, nil })
	if ok, _ := answer(); !ok || !done {
		t.Error("not done")
	}
}

// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"os"
	goruntime "runtime"
	"sync"
	"time"
)

// width has Go schedule on twice as many processors as there are while several runs begin at once. Much of a launch is system calls
// that wait, for the kernel's grace periods or the disk, and such a thread keeps its place among those that run until the runtime's
// monitor looks. A run alone is quicker without: each further place has a thread that looks for work (docs/benchmarks.md).
type width struct {
	set func(wide bool)

	mu        sync.Mutex
	beginning int // runs that do
	wide      bool
	calm      *time.Timer

	setting sync.Mutex
}

// calmTime is how long it stays wide after the last that began beside another.
const calmTime = 200 * time.Millisecond

// newWidth is Go's own. Where the environment has GOMAXPROCS, that is the operator's word, and stays.
func newWidth() *width {
	if os.Getenv("GOMAXPROCS") != "" {
		return &width{set: func(bool) {}}
	}
	return &width{set: func(wide bool) {
		goruntime.SetDefaultGOMAXPROCS()
		if wide {
			goruntime.GOMAXPROCS(2 * goruntime.GOMAXPROCS(0))
		}
	}}
}

// enter tells of a run that begins; what it gives, once, of its having begun.
func (w *width) enter() (begun func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.beginning++; w.beginning > 1 {
		w.widen()
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.beginning--
	}
}

func (w *width) widen() {
	if w.calm == nil {
		w.calm = time.AfterFunc(calmTime, func() { w.turn(false) })
	} else {
		w.calm.Reset(calmTime)
	}
	if !w.wide {
		go w.turn(true) // it waits for the garbage collector, and nobody for it
	}
	w.wide = true
}

// turn sets what is wanted last.
func (w *width) turn(wide bool) {
	w.setting.Lock()
	defer w.setting.Unlock()
	w.mu.Lock()
	if !wide {
		w.wide = false
	}
	wide = w.wide
	w.mu.Unlock()
	w.set(wide)
}

// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	goruntime "runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestWidth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sets []bool
		w := &width{set: func(wide bool) { sets = append(sets, wide) }}
		is := func(when string, want ...bool) {
			t.Helper()
			if synctest.Wait(); !slices.Equal(sets, want) {
				t.Errorf("%s: got %v, want %v", when, sets, want)
			}
		}
		w.enter()()
		begun := w.enter()
		time.Sleep(time.Hour)
		is("one at a time")
		w.enter()()
		w.enter()()
		is("two at once", true)
		time.Sleep(calmTime / 2)
		w.enter()()
		time.Sleep(calmTime / 2)
		is("again in between", true)
		begun()
		time.Sleep(calmTime)
		is("calm", true, false)
		w.enter()()
		time.Sleep(time.Hour)
		is("one after it", true, false)
	})
}

func TestWidthIsGos(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	w := newWidth()
	w.set(false)
	before := goruntime.GOMAXPROCS(0)
	w.set(true)
	wide := goruntime.GOMAXPROCS(0)
	w.set(true)
	again := goruntime.GOMAXPROCS(0)
	w.set(false)
	if wide != 2*before || again != wide || goruntime.GOMAXPROCS(0) != before {
		t.Errorf("got %d and %d of %d, %d after", wide, again, before, goruntime.GOMAXPROCS(0))
	}
	t.Setenv("GOMAXPROCS", "1")
	w = newWidth()
	w.set(true)
	if got := goruntime.GOMAXPROCS(0); got != before {
		t.Errorf("against the operator's word: %d", got)
	}
}

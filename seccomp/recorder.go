// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"sync"
	"time"
)

// maxEvents is how many kinds of attempts a Recorder tells apart. A kind is a system call with its class of arguments, which
// the agent chooses (2³² ioctl requests), so there must be an end; 256 is more than a run of any known program shows.
const maxEvents = 256

// Event is one kind of attempt, however often it was made.
type Event struct {
	// At is when it was first seen, Last when it was last.
	At, Last time.Time
	Syscall  string
	// Detail is what of the call's arguments, number or architecture tells what was tried; "other" gathers what
	// came after the limit of kinds.
	Detail string
	// Verdict is what the last one was answered: "allowed" or an error name.
	Verdict string
	Count   uint64
}

// Snapshot is what a Recorder has seen.
type Snapshot struct {
	// Refused counts refused calls by name.
	Refused map[string]uint64
	// Events in the order in which their kinds were first seen.
	Events []Event
	// Total is the number of refused calls.
	Total uint64
	// Overflowed says that some kinds were gathered under "other".
	Overflowed bool
}

// Recorder counts attempts. It allocates for a new kind only, and is bounded: past maxEvents kinds each system call gets
// one more event, "other", so that filling the list with junk does not hide the first mount. The zero value is ready.
type Recorder struct {
	// Clock replaces time.Now in tests.
	Clock func() time.Time

	mu         sync.Mutex
	index      map[class]int
	events     []recorded
	overflowed bool
}

type recorded struct {
	Event
	verdict Answer
	refused uint64
}

// otherClass marks the gathering event of a call: no argument class has all bits set.
const otherClass = ^uint64(0)

// Record takes note of a call and its answer, and returns the event it is counted in, as it stands now.
func (r *Recorder) Record(c Call, a Answer) Event {
	now := time.Now
	if r.Clock != nil {
		now = r.Clock
	}
	at := now()
	k := classOf(&c)
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.index[k]
	if !ok {
		if len(r.index) >= maxEvents {
			r.overflowed = true
			k.value = otherClass
			i, ok = r.index[k]
		}
		if !ok {
			i = r.addLocked(k, c, at)
		}
	}
	e := &r.events[i]
	e.Last, e.verdict = at, a
	e.Count++
	if !a.Allowed() {
		e.refused++
	}
	return e.Event
}

func (r *Recorder) addLocked(k class, c Call, at time.Time) int {
	if r.index == nil {
		r.index = make(map[class]int)
	}
	detail := "other"
	if k.value != otherClass {
		detail = c.detail()
	}
	r.events = append(r.events, recorded{Event: Event{At: at, Syscall: c.Name, Detail: detail}})
	r.index[k] = len(r.events) - 1
	return len(r.events) - 1
}

// Snapshot gives a copy of what was seen so far.
func (r *Recorder) Snapshot() Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Snapshot{Refused: make(map[string]uint64), Overflowed: r.overflowed}
	for _, e := range r.events {
		e.Verdict = e.verdict.String()
		s.Events = append(s.Events, e.Event)
		if e.refused > 0 {
			s.Refused[e.Syscall] += e.refused
			s.Total += e.refused
		}
	}
	return s
}

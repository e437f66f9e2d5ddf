// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"agentrun/audit"
)

// gatherer bounds what one run makes us write. The attack: an agent that is refused has lost nothing, so it asks again, with
// another name each time; one entry for each fills the disk, and a full state folder stops every new run of the node.
//
// What holds. The first of a kind is on record before its caller hears. Later ones are counted, and the counts are written
// together: after a second, and while the flood lasts after 2, 4, 8 and then every 15. No count is lost but by the death of this
// process, and then those of one interval at most. What can be told apart goes down with the flood: entries one by one as long as
// there is room, then one for each name, then one for each code with severalNames for the name.
type gatherer struct {
	write func(audit.Record) error
	now   func() time.Time
	limit gatherLimit

	mu      sync.Mutex
	alone   bucket // entries that may still be written by themselves
	kinds   map[kind]*gathered
	waiting int  // kinds that have something pending
	broken  bool // they couldn't be written
	every   time.Duration
	flushed time.Time
	timer   *time.Timer // nil: none is set
}

// gatherLimit is what may be written.
type gatherLimit struct {
	alone    pace // entries by themselves
	together int  // gathered entries at a time; beyond that they are written by their codes
}

var (
	// refusedLimit is of what passed nowhere. A minute of a flood comes to 20 + 6 single entries and 8 times some gathered
	// ones, of about 600 bytes: 50 KB, so 20 runs stay below a megabyte.
	refusedLimit = gatherLimit{alone: pace{burst: 20, perSecond: 0.1}, together: 8}
	// passedLimit is of connections, which a ring above 3 may make without number. Where a run connected to is what an
	// operator looks for, so they have more room: 180 KB a minute in the long run.
	passedLimit = gatherLimit{alone: pace{burst: 256, perSecond: 5}, together: 32}
)

const (
	severalNames = "(several)"
	severalCodes = "several"
	syscalls     = "syscall"

	gatherTime = time.Second      // the first interval
	gatherMost = 15 * time.Second // the longest
	// maxKinds is how many are told apart. Names beyond it go by their codes, and codes, of which the tool proxy has some
	// dozens, as severalCodes: a gateway that has fallen could make up any number.
	maxKinds = 64
)

// kind is what entries have in common that may be written together. With less of it, more have it in common.
type kind struct{ what, code, name, detail string }

type gathered struct {
	pending audit.Record // counted, not on record yet; nil: nothing
	last    time.Time
}

func newGatherer(limit gatherLimit, now func() time.Time, write func(audit.Record) error) *gatherer {
	return &gatherer{write: write, now: now, limit: limit, every: gatherTime, kinds: map[kind]*gathered{}}
}

// kindsOf gives the kind of r, that without what an agent makes up most easily, and that without any name.
func kindsOf(r audit.Record) (fine, named, coarse kind) {
	switch r := r.(type) {
	case *audit.ToolCall:
		coarse = kind{what: r.Type, code: r.Code}
		return kind{r.Type, r.Code, r.Name, r.Rule}, coarse, coarse
	case *audit.Egress:
		coarse = kind{what: r.Type, code: r.Code}
		return kind{r.Type, r.Code, r.Destination, r.Detail}, coarse, coarse
	case *audit.RingCheck:
		coarse = kind{what: "ring_check", code: r.Reason}
		return kind{coarse.what, r.Reason, r.Action, ""}, coarse, coarse
	case *audit.RateLimit:
		coarse = kind{what: "rate_limit"}
		return kind{what: coarse.what, name: r.Action}, coarse, coarse
	case *audit.Refusal:
		// Each system call is named at least once (M-4): there are some hundreds, and no more.
		coarse = kind{what: syscalls, code: r.Verdict}
		return kind{syscalls, r.Verdict, r.Syscall, r.Class}, kind{syscalls, r.Verdict, r.Syscall, severalNames}, coarse
	}
	return kind{}, kind{}, kind{}
}

// add records r or counts it. After an error it is neither.
func (g *gatherer) add(r audit.Record) error {
	fine, named, _ := kindsOf(r)
	if fine == (kind{}) {
		return fmt.Errorf("gather: record of kind %s: it has no count", r.Kind())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if g.broken { // what was counted before comes first
		if err := g.flushLocked(now); err != nil {
			return err
		}
	}
	of := g.kinds[fine]
	// A system call that is repeated says nothing new; a tool call has other arguments.
	if (of == nil || of.pending == nil && fine.what != syscalls) && g.alone.take(now, g.limit.alone) {
		return g.firstLocked(fine, r, now, maxKinds/2)
	}
	if of == nil {
		if len(g.kinds) >= maxKinds && g.kinds[named] == nil && named.what != syscalls {
			named.code = severalCodes
		}
		if of = g.kinds[named]; of == nil {
			return g.firstLocked(named, r, now, math.MaxInt)
		}
	}
	if of.pending == nil {
		g.waiting++
	}
	of.pending = merged(of.pending, r)
	g.scheduleLocked(now)
	return nil
}

// firstLocked writes an entry by itself, and knows its kind from then on, if there is room for it.
func (g *gatherer) firstLocked(k kind, r audit.Record, now time.Time, most int) error {
	if err := g.write(r); err != nil {
		return err
	}
	if len(g.kinds) >= most {
		g.forgetLocked(now)
	}
	if g.kinds[k] == nil && len(g.kinds) < most {
		g.kinds[k] = &gathered{}
	}
	if of := g.kinds[k]; of != nil {
		of.last = now
	}
	return nil
}

// forgetLocked makes room for other kinds. One that comes again is a first one then.
func (g *gatherer) forgetLocked(now time.Time) {
	for k, of := range g.kinds {
		if of.pending == nil && now.Sub(of.last) >= 3*gatherMost {
			delete(g.kinds, k)
		}
	}
}

func (g *gatherer) scheduleLocked(now time.Time) {
	if g.timer != nil {
		return
	}
	if now.Sub(g.flushed) >= 2*g.every {
		g.every = gatherTime // it was calm since
	}
	g.timer = time.AfterFunc(g.every, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		_ = g.flushLocked(g.now()) // whoever adds or flushes next hears of it
	})
}

// flush writes what was counted.
func (g *gatherer) flush() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.flushLocked(g.now())
}

// flushLocked writes one entry for each kind, or for each code if there are too many kinds.
func (g *gatherer) flushLocked(now time.Time) error {
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	if g.waiting == 0 {
		return nil
	}
	g.flushed, g.every = now, min(2*g.every, gatherMost)
	together := map[kind][]*gathered{}
	for k, of := range g.kinds {
		if of.pending == nil {
			continue
		}
		if g.waiting > g.limit.together {
			_, _, k = kindsOf(of.pending)
		}
		together[k] = append(together[k], of)
	}
	var errs error
	for _, k := range slices.SortedFunc(maps.Keys(together), compareKinds) {
		var all audit.Record
		for _, of := range together[k] {
			all = merged(all, of.pending)
		}
		if err := g.write(all); err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		for _, of := range together[k] {
			of.pending, of.last = nil, now
			g.waiting--
		}
	}
	g.broken = errs != nil
	return errs
}

func compareKinds(a, b kind) int {
	return cmp.Or(cmp.Compare(a.what, b.what), cmp.Compare(a.code, b.code), cmp.Compare(a.name, b.name), cmp.Compare(a.detail, b.detail))
}

// merged is one entry for both: what they have in common, and their sums. into may be nil.
func merged(into, r audit.Record) audit.Record {
	switch r := r.(type) {
	case *audit.ToolCall:
		sum := *r
		if a, ok := into.(*audit.ToolCall); ok {
			common(&sum.ApprovalID, a.ApprovalID, "")
			common(&sum.Args, a.Args, "")
			common(&sum.CallID, a.CallID, "")
			common(&sum.UndoUntil, a.UndoUntil, time.Time{})
			common(&sum.Code, a.Code, severalCodes)
			common(&sum.Name, a.Name, severalNames)
			common(&sum.Rule, a.Rule, "")
			common(&sum.TraceID, a.TraceID, "")
			common(&sum.Ring, a.Ring, audit.NoRing)
			common(&sum.RequiredRing, a.RequiredRing, audit.NoRing)
			common(&sum.EffScore, a.EffScore, audit.Number{})
			sum.Allowed = sum.Allowed && a.Allowed
			sum.Flags = commonFlags(sum.Flags, a.Flags)
			add(&sum.Cost, a.Cost)
			add(&sum.Count, a.Count)
			add(&sum.DurationNS, a.DurationNS)
			add(&sum.Received, a.Received)
			add(&sum.Sent, a.Sent)
			add(&sum.Tokens, a.Tokens)
		}
		return &sum
	case *audit.Egress:
		sum := *r
		if a, ok := into.(*audit.Egress); ok {
			common(&sum.Code, a.Code, severalCodes)
			common(&sum.Destination, a.Destination, severalNames)
			common(&sum.Detail, a.Detail, "")
			common(&sum.Rule, a.Rule, "")
			common(&sum.TraceID, a.TraceID, "")
			sum.Allowed = sum.Allowed && a.Allowed
			sum.Flags = commonFlags(sum.Flags, a.Flags)
			add(&sum.Count, a.Count)
			add(&sum.DurationNS, a.DurationNS)
			add(&sum.Received, a.Received)
			add(&sum.Sent, a.Sent)
		}
		return &sum
	case *audit.RingCheck:
		sum := *r
		if a, ok := into.(*audit.RingCheck); ok {
			common(&sum.Action, a.Action, severalNames)
			common(&sum.Reason, a.Reason, severalCodes)
			common(&sum.Rule, a.Rule, "")
			common(&sum.AgentRing, a.AgentRing, audit.NoRing)
			common(&sum.EffScore, a.EffScore, audit.Number{})
			sum.RequiredRing = min(sum.RequiredRing, a.RequiredRing) // the most that was asked for
			add(&sum.Count, a.Count)
		}
		return &sum
	case *audit.RateLimit: // the tokens are those of the last
		sum := *r
		if a, ok := into.(*audit.RateLimit); ok {
			common(&sum.Action, a.Action, severalNames)
			common(&sum.Ring, a.Ring, audit.NoRing)
			common(&sum.RequiredRing, a.RequiredRing, audit.NoRing)
			common(&sum.EffScore, a.EffScore, audit.Number{})
			add(&sum.Count, a.Count)
		}
		return &sum
	case *audit.Refusal:
		sum := *r
		if a, ok := into.(*audit.Refusal); ok {
			common(&sum.Class, a.Class, severalNames)
			common(&sum.Syscall, a.Syscall, severalNames)
			add(&sum.Count, a.Count)
		}
		return &sum
	}
	return r
}

func common[T comparable](s *T, other, differ T) {
	if *s != other {
		*s = differ
	}
}

func commonFlags(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), maxFlags)]
}

func add(n *int64, more int64) { *n = min(*n+more, audit.MaxInteger) }

// pace is how much of something there may be: so much at once, and so much a second in the long run.
type pace struct{ burst, perSecond float64 }

// bucket holds what is left of a pace. A new one is full.
type bucket struct {
	used   float64
	filled time.Time
}

// take takes one, if there is one left.
func (b *bucket) take(now time.Time, p pace) bool {
	b.used = max(b.used-max(now.Sub(b.filled), 0).Seconds()*p.perSecond, 0)
	b.filled = now
	if b.used+1 > p.burst {
		return false
	}
	b.used++
	return true
}

// maxFlags is what a record holds.
const maxFlags = 16

// SPDX-License-Identifier: Apache-2.0

// Package pool keeps sandboxes ready that were built before anybody asked for them. What is taken from it is used for one run and
// gone; what it gives is no promise: whoever gets none builds their own.
//
// A pool holds, for each shape of sandbox (runtime.Shape), as many as were asked for at once in the last minute, or as many as the
// configuration says if that is more. One at a time is built, when no launch is under way.
package pool

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"agentrun/runtime"
)

// Options are what a pool asks its owner. Each must be set.
type Options struct {
	Prepare func(runtime.Shape) (*runtime.Prepared, error) // builds one
	Room    func() bool                                    // whether the host has memory for one more
	Always  func(profile string) ([]runtime.Shape, error)  // what the configuration wants ready; asked anew as the host changes
	Warn    func(what string, err error)
	Now     func() time.Time // nil: time.Now
}

// Pool is the sandboxes of one daemon that are ready.
//
// One goroutine (work) builds, looks whether the host is still the one that was built for, and takes down what is
// too old or too much. Take only moves a sandbox out, so a run waits for no build. mu is never held over anything
// that asks the kernel. What could not be built is told, and tried again after failedTime: a host that lacks
// something must not be asked in a loop.
type Pool struct {
	ask Options

	mu        sync.Mutex
	most      int            // ready at once, of all shapes
	least     map[string]int // by profile
	changed   bool           // they were set and not looked at yet
	shelves   map[string]*shelf
	launching int
	wake      chan struct{} // holds one
	stop      chan struct{}
	done      chan struct{}
	begun     sync.Once
	dropping  sync.WaitGroup // beside work
	retry     time.Time      // not before: the last one could not be built
}

// shelf is the sandboxes of one shape.
type shelf struct {
	shape  runtime.Shape
	ready  []*runtime.Prepared // the longest wait first
	asked  []time.Time         // lately, to see how many at once
	peak   int                 // most at once
	peakAt time.Time
	least  int
}

const (
	demandTime = time.Minute            // demand is forgotten after it
	burstTime  = 100 * time.Millisecond // what is asked for while one or two could be built is asked for at once
	staleTime  = 10 * time.Minute       // the oldest a sandbox is handed out at
	tendTime   = 5 * time.Second        // how often the pool looks at itself
	failedTime = 10 * time.Second       // after one could not be built
	maxShelves = 32
)

// New returns a pool that is empty and stays so until it is told how many to keep, and to begin.
func New(o Options) *Pool {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Pool{ask: o, shelves: map[string]*shelf{}, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
}

// Begin starts to fill. It may be called again.
func (p *Pool) Begin() {
	p.begun.Do(func() { go p.work() })
}

// Set changes how many are kept.
func (p *Pool) Set(most int, least map[string]int) {
	p.mu.Lock()
	p.most, p.least, p.changed = most, least, true
	p.mu.Unlock()
	p.poke()
}

func (p *Pool) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Take notes that one is asked for, also where the pool has none: demand is what fills it. While a launch is
// under way nothing is built, so every Take must be followed by a call of launched, which may be made more
// than once.
//
// Take gives a sandbox for a plan, made the plan's own, or nil. launched is called when the launch is through or given up.
func (p *Pool) Take(plan *runtime.Plan) (s *runtime.Prepared, launched func()) {
	if p == nil {
		return nil, func() {}
	}
	shape, err := plan.Shape()
	p.mu.Lock()
	p.launching++
	if err == nil && p.most > 0 {
		s = p.pick(shape)
	}
	p.mu.Unlock()
	if s != nil {
		if err := shape.Use(s); err != nil {
			p.Drop([]*runtime.Prepared{s})
			s = nil
		}
	}
	return s, sync.OnceFunc(func() {
		p.mu.Lock()
		p.launching--
		p.mu.Unlock()
		p.poke()
	})
}

// pick notes the demand and takes the freshest that lives: it is the likeliest to be in the caches.
func (p *Pool) pick(shape runtime.Shape) *runtime.Prepared {
	now := p.ask.Now()
	f := p.shelves[shape.Key()]
	if f == nil {
		if len(p.shelves) >= maxShelves {
			return nil
		}
		f = &shelf{shape: shape.Kept()}
		p.shelves[shape.Key()] = f
	}
	f.demand(now)
	for len(f.ready) > 0 {
		s := f.ready[len(f.ready)-1]
		f.ready = f.ready[:len(f.ready)-1]
		if s.Alive() && now.Sub(s.Since()) < staleTime {
			return s
		}
		p.dropping.Go(func() { p.Drop([]*runtime.Prepared{s}) })
	}
	return nil
}

// demand counts how many are asked for at once.
func (f *shelf) demand(now time.Time) {
	f.asked = append(slices.DeleteFunc(f.asked, func(t time.Time) bool { return now.Sub(t) > burstTime }), now)
	if len(f.asked) >= f.peak || now.Sub(f.peakAt) > demandTime {
		f.peak, f.peakAt = len(f.asked), now
	}
}

// wanted is how many there should be.
func (f *shelf) wanted(now time.Time) int {
	n := f.least
	if now.Sub(f.peakAt) <= demandTime {
		n = max(n, f.peak)
	} else if len(f.asked) > 0 && now.Sub(f.asked[len(f.asked)-1]) <= demandTime {
		n = max(n, 1)
	}
	return n
}

// work fills and tidies until the pool is closed. It is the only one that builds and, but for Take and Close,
// the only one that changes the shelves. A poke that comes while it builds is kept (wake holds one), and more
// than one say no more than one.
func (p *Pool) work() {
	defer close(p.done)
	look := time.NewTicker(tendTime)
	defer look.Stop()
	p.configured()
	for {
		for p.fill() {
		}
		select {
		case <-p.stop:
			p.Drop(p.empty())
			return
		case <-p.wake:
			p.mu.Lock()
			changed := p.changed
			p.mu.Unlock()
			if changed {
				p.configured()
				p.Drop(p.surplus())
			}
		case <-look.C:
			p.configured()
			p.Drop(p.follow())
			p.Drop(p.surplus())
		}
	}
}

// configured brings the shapes that the configuration wants ready up to date. A profile that can't be read
// any more is told and counts as not wanted: what is ready of it is kept only as long as it is asked for. The
// lock is let go meanwhile, since profiles are files; a Set that comes in between is noted in changed again
// and looked at in the next round.
func (p *Pool) configured() {
	p.mu.Lock()
	least := p.least
	if p.most == 0 {
		least = nil
	}
	p.changed = false
	p.mu.Unlock()
	shapes := map[string][]runtime.Shape{}
	for profile := range least {
		var err error
		if shapes[profile], err = p.ask.Always(profile); err != nil {
			p.ask.Warn("serve.pool: "+profile, err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.shelves {
		f.least = 0
	}
	for profile, list := range shapes {
		for _, shape := range list {
			f := p.shelves[shape.Key()]
			if f == nil {
				f = &shelf{shape: shape.Kept()}
				p.shelves[shape.Key()] = f
			}
			f.least = max(f.least, least[profile])
		}
	}
}

// follow gives each shelf the shape that its kind of run has on the host as it is now, and takes out what is ready in another: a run
// would ask for the new one only.
func (p *Pool) follow() (out []*runtime.Prepared) {
	p.mu.Lock()
	old := maps.Clone(p.shelves)
	p.mu.Unlock()
	for key, f := range old {
		now, err := f.shape.Renewed() // without the lock: it looks at files
		if err != nil || now.Key() == key {
			continue // gone: preparing the next one tells
		}
		p.mu.Lock()
		if p.shelves[key] == f {
			delete(p.shelves, key)
			out = append(out, f.ready...)
			if p.shelves[now.Key()] == nil {
				f.shape, f.ready = now, nil
				p.shelves[now.Key()] = f
			}
		}
		p.mu.Unlock()
	}
	return out
}

// fill builds one if one is wanted, and says whether to look again. Building takes many times longer than a
// launch that finds one ready, so no lock is held; the shelf may be gone, or stand for another shape, when
// the sandbox is done: then nobody will ask for it, and it is taken down.
func (p *Pool) fill() bool {
	select {
	case <-p.stop:
		return false
	default:
	}
	f := p.next()
	if f == nil || !p.ask.Room() {
		return false
	}
	s, err := p.ask.Prepare(f.shape)
	if errors.Is(err, runtime.ErrShapeChanged) {
		p.Drop(p.follow())
		return false // while packages are installed it changes again and again: not before the next look
	}
	p.mu.Lock()
	if err != nil {
		// It has no room, or what is shown is gone: whoever comes asks for what is right then.
		delete(p.shelves, f.shape.Key())
		p.retry = p.ask.Now().Add(failedTime)
		left := f.ready
		p.mu.Unlock()
		p.ask.Warn("preparing a sandbox", err)
		p.Drop(left)
		return false
	}
	if p.shelves[f.shape.Key()] != f {
		p.mu.Unlock()
		p.Drop([]*runtime.Prepared{s})
		return true
	}
	f.ready = append(f.ready, s)
	p.mu.Unlock()
	return true
}

// next is the shelf that lacks most; nil: none, or not now. Building beside a launch would slow the one that
// somebody waits for, for the sake of one that nobody may ever ask for.
func (p *Pool) next() (best *shelf) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.ask.Now()
	if p.launching > 0 || now.Before(p.retry) {
		return nil
	}
	total, lack := 0, 0
	for _, f := range p.shelves {
		total += len(f.ready)
		if n := f.wanted(now) - len(f.ready); n > lack {
			best, lack = f, n
		}
	}
	if total >= p.most {
		return nil
	}
	return best
}

// surplus takes out what nobody asked for lately, what died, what is old, and everything when memory is
// short. It counts as old at half the age up to which it is handed out: the next look may be late, and is
// then still in time.
func (p *Pool) surplus() (out []*runtime.Prepared) {
	short := !p.ask.Room()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.ask.Now()
	total := 0
	for key, f := range p.shelves {
		want := f.wanted(now)
		if short {
			want = 0
		}
		f.ready = slices.DeleteFunc(f.ready, func(s *runtime.Prepared) bool {
			bad := !s.Alive() || now.Sub(s.Since()) >= staleTime/2
			if bad {
				out = append(out, s)
			}
			return bad
		})
		for len(f.ready) > 0 && (len(f.ready) > want || total+len(f.ready) > p.most) {
			out, f.ready = append(out, f.ready[0]), f.ready[1:]
		}
		total += len(f.ready)
		if len(f.ready) == 0 && want == 0 {
			delete(p.shelves, key)
		}
	}
	return out
}

func (p *Pool) empty() (out []*runtime.Prepared) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = 0
	for _, f := range p.shelves {
		out = append(out, f.ready...)
	}
	p.shelves = map[string]*shelf{}
	return out
}

func (p *Pool) Drop(list []*runtime.Prepared) {
	for _, s := range list {
		if err := s.Close(); err != nil {
			p.ask.Warn("taking down a sandbox that nobody asked for", err)
		}
	}
}

// Close takes everything down and returns when it is gone. Nothing is given out any more. It waits for the
// builder, which may be in the middle of one and takes it down itself, then empties the shelves once more,
// and last waits for those that Take found dead. It may be called again, and without Begin.
func (p *Pool) Close() {
	if p == nil {
		return
	}
	p.begun.Do(func() { close(p.done) })
	p.mu.Lock()
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.most = 0
	p.mu.Unlock()
	<-p.done
	p.Drop(p.empty())
	p.dropping.Wait()
}

// Ready is how many wait.
func (p *Pool) Ready() (n int) {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.shelves {
		n += len(f.ready)
	}
	return n
}

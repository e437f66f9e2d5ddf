// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"agentrun/toolproxy/dns"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/link"

	"agentrun/rings"
)

const (
	maxWaiting  = 1024 // records on their way; then whoever makes one waits
	maxGathered = 64   // different denials that are counted one by one
	everyDenial = time.Second
	quiet       = 30 * time.Second // after that a denial is a new one
	lastWords   = 5 * time.Second  // for records that are left when the proxy ends
)

// ledger brings records to the supervisor, each decision in exactly one. A record that isn't taken is tried
// again, and until it is nothing new is granted: no egress without audit.
type ledger struct {
	supervisor link.Supervisor
	now        func() time.Time
	log        *slog.Logger
	queue      chan link.Record
	done       chan struct{}
	ctx        context.Context
	broken     atomic.Bool
	lost       atomic.Int64

	mu       sync.Mutex
	ended    bool
	gathered map[denialKey]*gathering
	timer    *time.Timer
}

type denialKey struct {
	kind, name string
	code       rings.Code
	detail     string
}

type gathering struct {
	last    time.Time
	pending link.Record // Count 0: none
}

func newLedger(ctx context.Context, s link.Supervisor, now func() time.Time, log *slog.Logger) *ledger {
	l := &ledger{supervisor: s, now: now, log: log, queue: make(chan link.Record, maxWaiting), done: make(chan struct{}), ctx: ctx,
		gathered: map[denialKey]*gathering{}}
	go l.deliver()
	return l
}

func (l *ledger) deliver() {
	defer close(l.done)
	for r := range l.queue {
		l.bring(r)
	}
}

// bring tries until the record is taken, with waits up to a second between. broken is set meanwhile, and
// refuses everything new (session.ready). At the proxy's end each record has one more try, bounded by
// lastWords, with a context of its own: that of the proxy has ended, and the records of its last connections
// are those that matter.
func (l *ledger) bring(r link.Record) {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), lastWords)
		err := l.supervisor.Record(ctx, r)
		cancel()
		if err == nil {
			l.broken.Store(false)
			return
		}
		if !l.broken.Swap(true) {
			l.log.Error("egress: nothing is granted until records are taken again", "error", err)
		}
		select {
		case <-time.After(wait):
		case <-l.ctx.Done():
			l.lost.Add(1)
			return
		}
	}
}

// put waits for a place: an agent that makes records faster than they are taken is slowed by that.
func (l *ledger) put(r link.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.putLocked(r)
}

func (l *ledger) putLocked(r link.Record) {
	if l.ended {
		l.lost.Add(1)
		return
	}
	l.queue <- r
}

// deny records the first of its kind at once, and the others of one second as one: a flood fills no disk, and
// no denial goes uncounted. Beyond maxGathered kinds the name is left out.
func (l *ledger) deny(r link.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := denialKey{r.Kind, r.Name, r.Code, r.Detail}
	g := l.gathered[key]
	if g == nil && len(l.gathered) >= maxGathered {
		r.Name, r.Rule = "(others)", ""
		key.name = r.Name
		g = l.gathered[key]
	}
	if g == nil {
		l.gathered[key] = &gathering{last: l.now()}
		l.scheduleLocked()
		l.putLocked(r)
		return
	}
	r.Count += g.pending.Count
	g.pending = r
	l.scheduleLocked()
}

func (l *ledger) scheduleLocked() {
	if l.timer == nil && !l.ended {
		l.timer = time.AfterFunc(everyDenial, l.flush)
	}
}

// flush records what was gathered and forgets what has been quiet.
func (l *ledger) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = nil
	l.flushLocked()
	if len(l.gathered) > 0 {
		l.scheduleLocked()
	}
}

func (l *ledger) flushLocked() {
	for key, g := range l.gathered {
		if g.pending.Count > 0 {
			l.putLocked(g.pending)
			g.pending, g.last = link.Record{}, l.now()
		} else if l.now().Sub(g.last) >= quiet {
			delete(l.gathered, key)
		}
	}
}

// close brings what was gathered and what waits, and takes nothing after it. The lock isn't held while it
// waits for deliver: a timer that fires meanwhile must find the ledger ended and not a lock.
func (l *ledger) close() error {
	l.mu.Lock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.flushLocked()
	l.ended = true
	close(l.queue)
	l.mu.Unlock()
	<-l.done
	if n := l.lost.Load(); n > 0 {
		return fmt.Errorf("egress: %d records were not taken by the supervisor", n)
	}
	return nil
}

// lookupRefused hears of refused lookups at the 1st, 2nd, 4th … time, with their number; the ledger adds up
// what it is told, so it gets the difference. It must not wait, so the queue is filled by a goroutine of its
// own when it is full.
func (p *Proxy) lookupRefused(r dns.Refusal) {
	more := int64(r.Count)
	if r.Count > 1 {
		more = int64(r.Count / 2) // since the last time, as Count is a power of two
	}
	rec := link.Record{Kind: "dns", Name: r.Name, Code: egress.CodeEgressDenied, Rule: "M-8", Detail: string(r.Reason), Count: more}
	go p.ledger.deny(rec)
}

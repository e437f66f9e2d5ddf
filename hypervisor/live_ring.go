// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/rings"
	"agentrun/store"
)

// live is what holds for a run now. Its effectiveLocked is the one place that says in which ring the run is.
//
// Another process may put the agent into quarantine, change its score or end its session at any moment. Every question looks
// at the state file's stamp, which costs a microsecond, and reads the file again if it is another one: an answer is never
// older than the question. For what asks nothing (an open tunnel, a running process), Control looks every lookTime.
type live struct {
	h       *Hypervisor
	agent   string        // empty: the operator's own run; nothing in the state is about it
	session string        // empty: none
	base    rings.Ring    // that it was admitted to: only an elevation gives it more
	key     *AgentKey     // that it was started with; nil: none
	keyEnds time.Duration // of the key, by the clock since boot
	parent  *live         // the run whose child this one is; nil: it is none's. Its locks are taken under this one's, never the other way
	news    func()        // called when the ring or the standing is another, without a lock; must not block

	loans *rings.Elevations

	readMu  sync.Mutex
	seen    stamp
	sure    bool // what was read is of seen
	readAt  time.Time
	wasHeld bool // at the last look

	stands atomic.Pointer[standing] // never nil
	held   atomic.Bool              // ring 3 until the end

	ringMu  sync.Mutex
	present rings.Ring
	changed chan struct{}
	over    bool
	stopped bool // by a safety loop: nothing leaves the sandbox
	loan    loan
	before  rings.Ring // the ring before the latest fall, and when that was
	fell    time.Duration
}

// standing is how the run's agent stands, as last read. After an error the rest is what was read before.
type standing struct {
	Agent
	sessionOver bool
	keyGone     bool // revoked, or not in the state any more
	err         error
}

// loan is an elevation that is on record, and so counts. The zero value is none.
type loan struct {
	id    string
	until time.Duration // by the clock since boot
}

const (
	// lookTime is half of the 100 ms in which a new ring has to hold (M-22); the other half is for whoever acts on it.
	lookTime = 50 * time.Millisecond
	// sureTime is how old a stamp must be to tell two writes apart. Kernels before 6.13 count file times in ticks of up to
	// 10 ms: a second write in the tick of the first leaves the stamp as it is.
	sureTime = 20 * time.Millisecond
	// anywayTime bounds what trusting the stamp can cost, whatever a file system does with it.
	anywayTime = time.Second
	// readTime is how long a question waits for a state that somebody else has locked.
	readTime = time.Second
	// fallTime is how long what an agent tries is weighed by the ring it has just lost: it is in the middle of what it was
	// allowed a moment ago, and refusing it is enough (H-24: an agent that is merely busy is left alone).
	fallTime = 5 * time.Second
)

// stamp changes with every transaction that writes.
type stamp struct {
	ino          uint64
	size         int64
	mtime, ctime unix.Timespec
}

func stampOf(path string) (stamp, error) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if errors.Is(err, unix.ENOENT) {
		return stamp{}, nil // there is no state yet: nobody has a score, nobody is held
	}
	if err != nil {
		return stamp{}, fmt.Errorf("state %s: %w", path, err)
	}
	return stamp{st.Ino, st.Size, st.Mtim, st.Ctim}, nil
}

func (s stamp) settled(now time.Time) bool {
	return now.Sub(time.Unix(s.mtime.Unix())) > sureTime
}

func newLive(h *Hypervisor, adm Admission, news func()) *live {
	l := &live{
		h: h, agent: adm.Agent, session: adm.Session, base: adm.Ring.OrSandbox(), news: news,
		present: adm.Ring.OrSandbox(), changed: make(chan struct{}),
	}
	if l.key = adm.Key; l.key != nil {
		l.keyEnds = h.boot() + l.key.Expires.Sub(h.now())
	}
	// Until the first reading it is as it was admitted; a question reads before it answers.
	first := &standing{Agent: operatorsOwn(l.base)}
	if l.agent != "" {
		first.ID, first.Score, first.Consensus = l.agent, nil, false
	}
	l.stands.Store(first)
	l.loans = rings.NewElevations(rings.ElevationOptions{Now: h.now, Quarantined: l.isHeld, Trust: l.trust})
	return l
}

// operatorsOwn is who a run without agent is: its ring is the operator's word, not a score's.
func operatorsOwn(ring rings.Ring) Agent {
	one := 1.0
	return Agent{Ring: ring, Score: &one, Consensus: true}
}

// isHeld and trust are what loans asks, under its lock: they take none.
func (l *live) isHeld() bool {
	return l.held.Load() || l.stands.Load().Quarantined != nil || l.keyOver() || l.parent != nil && l.parent.isHeld()
}

// keyOver tells whether the key that the run was started with isn't good any more (M-9). The time that a machine's clock is set back
// by is no more time for a key, hence the second clock.
func (l *live) keyOver() bool {
	return l.key != nil && (l.stands.Load().keyGone || l.h.boot() >= l.keyEnds || !l.h.now().Before(l.key.Expires))
}

func (l *live) trust() (score float64, consensus bool) {
	s := l.stands.Load()
	return trustOf(s.Agent), s.Consensus
}

// trustOf is NaN for an agent without a score: nothing is what it has earned, not zero.
func trustOf(a Agent) float64 {
	if a.Score == nil {
		return math.NaN()
	}
	return *a.Score
}

// now returns the agent and the ring the run is in, as of after the call.
func (l *live) now(ctx context.Context) (Agent, rings.Ring, error) {
	if l.agent == "" {
		return l.stands.Load().Agent, l.settle(), nil
	}
	l.readMu.Lock()
	defer l.readMu.Unlock()
	old := l.stands.Load()
	s := l.readLocked(ctx, old)
	if s != old {
		l.stands.Store(s)
		defer l.tell()
	}
	// One that was in ring 3 already is in no other ring when it is held. What it has under way ends all the same (H-31), so whoever
	// waits for a change looks again.
	if held := l.isHeld(); held != l.wasHeld {
		l.wasHeld = held
		l.rouse()
	}
	ring := l.settle()
	if s.err != nil {
		return Agent{}, rings.Sandbox, s.err
	}
	return s.Agent, ring, nil
}

func (l *live) tell() {
	if l.news != nil {
		l.news()
	}
}

// readLocked returns old if nothing can have changed.
func (l *live) readLocked(ctx context.Context, old *standing) *standing {
	now := time.Now()
	s, err := stampOf(filepath.Join(l.h.opt.StateDir, stateFile))
	if err == nil && l.sure && s == l.seen && now.Sub(l.readAt) < anywayTime {
		return old
	}
	sure := l.sure && old.err == nil
	l.sure = false
	var read standing
	if err == nil {
		// A caller that gives up must not look like a state that can't be read: that would cut the run's tunnels.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTime)
		defer cancel()
		read, err = l.read(ctx)
	}
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, store.ErrBusy) // and not what can't be read
	if late && sure && now.Sub(l.readAt) < store.DefaultLockTimeout {
		// Whoever has it locked, as one whose audit waits for the disk, has written nothing yet: what was read stands.
		if after, serr := stampOf(filepath.Join(l.h.opt.StateDir, stateFile)); serr == nil && after == l.seen {
			l.sure = true
			return old
		}
	}
	if err != nil {
		if old.err != nil {
			return old
		}
		return &standing{Agent: old.Agent, sessionOver: old.sessionOver, keyGone: old.keyGone, err: err}
	}
	l.seen, l.readAt, l.sure = s, now, s.settled(now)
	return &read
}

func (l *live) read(ctx context.Context) (s standing, err error) {
	err = l.h.view(ctx, func(tx *store.Tx) error {
		if l.key != nil {
			s.keyGone = stands(tx, l.key.ID) != nil
		}
		if s.Agent, err = agent(tx, l.agent); err != nil || l.session == "" {
			return err
		}
		session, err := l.h.session(tx, l.session)
		if errors.Is(err, ErrNoSession) {
			s.sessionOver = true
			return nil
		}
		if err == nil {
			s.sessionOver = session.State() != rings.SessionActive // it was, when the run was admitted
		}
		return err
	})
	return s, err
}

// effectiveLocked is the run's ring: 3 if anything is wrong, the run's key among it, else the less privileged of what it was admitted to and what
// its agent's score gives, raised by an elevation that is on record, not over, and still earned (M-22, H-13, H-14, H-31).
func (l *live) effectiveLocked() rings.Ring {
	s := l.stands.Load()
	if l.over || s.err != nil || s.sessionOver || l.isHeld() {
		return rings.Sandbox
	}
	ring := l.base
	if ring.MorePrivilegedThan(s.Ring) {
		ring = s.Ring
	}
	if l.parent != nil {
		return max(ring, rings.ChildRing(l.parent.settle())) // H-15; nobody raises it
	}
	if l.loan.id == "" || l.h.boot() >= l.loan.until {
		return ring
	}
	return l.loans.Effective(ring)
}

// settle makes the ring what it is. It reads clocks but no files.
func (l *live) settle() rings.Ring {
	ring, _ := l.ring()
	return ring
}

func (l *live) settleLocked() (turned bool) {
	ring := l.effectiveLocked()
	if ring == l.present || l.over {
		return false
	}
	if l.present.MorePrivilegedThan(ring) {
		l.before, l.fell = l.present, l.h.boot()
	}
	close(l.changed)
	l.present, l.changed = ring, make(chan struct{})
	return true
}

// ring needs nobody to have noticed that an elevation is over (H-14).
func (l *live) ring() (rings.Ring, <-chan struct{}) {
	l.ringMu.Lock()
	turned := l.settleLocked()
	ring, changed := l.present, l.changed
	l.ringMu.Unlock()
	if turned {
		l.tell()
	}
	return ring, changed
}

// rouse has whoever waits for a change look again.
func (l *live) rouse() {
	l.ringMu.Lock()
	turned := l.settleLocked()
	if !turned && !l.over {
		close(l.changed)
		l.changed = make(chan struct{})
	}
	l.ringMu.Unlock()
	if turned {
		l.tell()
	}
}

// weighed is the ring that refused attempts are measured from.
func (l *live) weighed() rings.Ring {
	l.ringMu.Lock()
	defer l.ringMu.Unlock()
	if l.before.MorePrivilegedThan(l.present) && l.h.boot()-l.fell < fallTime {
		return l.before
	}
	return l.present
}

// arm makes an elevation count. It must be on record.
func (l *live) arm(id string, until time.Duration) rings.Ring {
	l.ringMu.Lock()
	l.loan = loan{id, until}
	l.ringMu.Unlock()
	return l.settle()
}

// ringWithout forgets an elevation that has ended, and returns the ring there is without it.
func (l *live) ringWithout(id string) rings.Ring {
	l.ringMu.Lock()
	if l.loan.id == id {
		l.loan = loan{}
	}
	l.ringMu.Unlock()
	return l.settle()
}

func (l *live) armed() loan {
	l.ringMu.Lock()
	defer l.ringMu.Unlock()
	return l.loan
}

// hold keeps the run in ring 3 until its end.
func (l *live) hold() {
	l.held.Store(true)
	l.settle()
}

// end is the run's: whoever waits is told, and finds the least privileged ring.
func (l *live) end() {
	l.ringMu.Lock()
	defer l.ringMu.Unlock()
	if !l.over {
		l.over, l.present = true, rings.Sandbox
		close(l.changed)
	}
}

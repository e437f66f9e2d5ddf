// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/rings"
)

// live is what holds for a run's agent now: another process may put it into quarantine, or lower its score, at any moment.
//
// Every question looks at the state file's stamp, which costs a microsecond, and reads the file again if it is another one: an
// answer is never older than the question. For what asks nothing (an open tunnel), watch looks every lookTime.
type live struct {
	h     *Hypervisor
	agent string     // empty: the operator's own run; nothing about it can change
	base  rings.Ring // that it was admitted to: it never has more

	readMu sync.Mutex
	seen   stamp
	sure   bool // what was read is of seen
	readAt time.Time
	last   Agent

	ringMu  sync.Mutex
	present rings.Ring
	changed chan struct{}
	over    bool
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

func newLive(h *Hypervisor, adm Admission) *live {
	l := &live{h: h, agent: adm.Agent, base: adm.Ring, present: adm.Ring.OrSandbox(), changed: make(chan struct{})}
	if l.agent == "" {
		l.last = operatorsOwn(adm.Ring)
	}
	return l
}

// operatorsOwn is who a run without agent is: its ring is the operator's word, not a score's.
func operatorsOwn(ring rings.Ring) Agent {
	one := 1.0
	return Agent{Ring: ring, Score: &one, Consensus: true}
}

// now returns the agent and the ring it is in, as of after the call.
func (l *live) now(ctx context.Context) (Agent, rings.Ring, error) {
	if l.agent == "" {
		return l.last, l.base, nil
	}
	l.readMu.Lock()
	defer l.readMu.Unlock()
	a, err := l.readLocked(ctx)
	ring := rings.Sandbox
	if err == nil {
		if ring = l.base.OrSandbox(); ring.MorePrivilegedThan(a.Ring) {
			ring = a.Ring
		}
	}
	l.turn(ring)
	return a, ring, err
}

func (l *live) readLocked(ctx context.Context) (Agent, error) {
	now := time.Now()
	s, err := stampOf(filepath.Join(l.h.opt.StateDir, stateFile))
	if err == nil && l.sure && s == l.seen && now.Sub(l.readAt) < anywayTime {
		return l.last, nil
	}
	l.sure = false
	if err != nil {
		return Agent{}, err
	}
	// A caller that gives up must not look like a state that can't be read: that would cut the run's tunnels.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTime)
	defer cancel()
	a, err := l.h.Agent(ctx, l.agent)
	if err != nil {
		return Agent{}, err
	}
	l.seen, l.last, l.readAt, l.sure = s, a, now, s.settled(now)
	return a, nil
}

// watch keeps ring true for those who wait for its change.
func (l *live) watch(ctx context.Context) {
	if l.agent == "" {
		return
	}
	t := time.NewTicker(lookTime)
	defer t.Stop()
	for {
		_, _, _ = l.now(context.Background()) // bounded by readTime; what can't be read is ring 3
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (l *live) ring() (rings.Ring, <-chan struct{}) {
	l.ringMu.Lock()
	defer l.ringMu.Unlock()
	return l.present, l.changed
}

func (l *live) turn(ring rings.Ring) {
	l.ringMu.Lock()
	defer l.ringMu.Unlock()
	if ring == l.present || l.over {
		return
	}
	close(l.changed)
	l.present, l.changed = ring, make(chan struct{})
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

// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// window is a time; an open one ends at forEver.
type window struct{ from, to time.Time }

var forEver = time.Unix(1<<40, 0)

func (w window) meets(from, to time.Time) bool { return !to.Before(w.from) && !from.After(w.to) }

// spells are when something was so. It begins a little early and ends a little late, for who asks whether it explains something.
type spells struct {
	mu  sync.Mutex
	all []window
}

func (s *spells) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, window{time.Now(), forEver})
}

func (s *spells) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[len(s.all)-1].to = time.Now()
}

func (s *spells) meet(from, to time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.all, func(w window) bool { return w.meets(from, to) })
}

// faults come one after the other: a full disk, a daemon that dies. After each of them runs start again.
func (s *soak) faults(end time.Time) {
	for i := 0; time.Until(end) > 2*time.Second; i++ {
		time.Sleep(time.Until(end) / 4)
		if i%2 == 0 {
			s.count("disk full")
			s.full.begin()
			s.fillDisk(500 * time.Millisecond)
			s.full.end()
		} else {
			s.count("daemon killed")
			s.gone.begin()
			_ = s.daemon.Process.Kill()
			_ = s.daemon.Wait()
			s.daemon.start(s.t)
			s.gone.end()
		}
		if r := s.daemon.exec(s.t, opts{dir: s.ws}, "/probe", "exit", "0"); r.exit != 0 {
			s.t.Errorf("fault %d is over, and no run starts: exit %d\n%s", i, r.exit, r.stderr)
		}
	}
}

func (s *soak) fillDisk(length time.Duration) {
	name := filepath.Join(s.state, "filler")
	f, err := os.Create(name)
	if err != nil {
		return
	}
	defer os.Remove(name)
	defer f.Close()
	for size := 1 << 20; size >= 512; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, unix.ENOSPC) {
			s.t.Errorf("fill the disk: %v", err)
		}
	}
	time.Sleep(length)
	// A child of ours that is between fork and exec has the file too, and removing it frees nothing as long as it has.
	if err := f.Truncate(0); err != nil {
		s.t.Error(err)
	}
}

// outages take the policy decision point away, each in another way, and give it back. The steady agent, which nobody does anything to,
// is to be refused meanwhile, and to get on afterwards.
func (s *soak) outages(end time.Time) {
	r := rand.New(rand.NewPCG(9, 5)) //nolint:gosec // the same soak every time
	steady := &soaked{soak: s, id: "steady", base: 3, alone: true, asks: true}
	for i := 0; ; i++ {
		if !s.getsOn(steady, time.Now()) {
			s.t.Errorf("after %d outages of the policy decision point no call gets through", i)
			break
		}
		if i > 0 && time.Until(end) < 2*time.Second {
			break
		}
		time.Sleep(time.Duration(r.Int64N(int64(max(time.Until(end)/20, 300*time.Millisecond)))))
		mood := []string{"hang", "gone", "nonsense"}[i%3]
		s.count("policy " + mood)
		began := time.Now()
		if err := s.policy.fail(mood); err != nil {
			s.t.Error(err)
		}
		// Longer than a request may take, and until one has begun and ended in it: on a busy machine that takes longer.
		length := time.Duration(min(slow, 3) * float64(900*time.Millisecond))
		time.Sleep(length)
		for time.Since(began) < 8*length && !steady.dead() && !steady.refused(began) {
			time.Sleep(20 * time.Millisecond)
		}
		if err := s.policy.mend(); err != nil {
			s.t.Error(err)
			break
		}
	}
	steady.kill()
	steady.check()
	if len(s.policy.down.all) > 0 && !steady.refused(time.Time{}) {
		s.t.Errorf("nothing was refused while there was no policy decision: %v", steady.asked)
	}
}

// refused tells whether the agent was refused something that it asked after a time, in an outage.
func (a *soaked) refused(after time.Time) bool {
	a.gotMu.Lock()
	defer a.gotMu.Unlock()
	return slices.ContainsFunc(a.asked, func(q request) bool { return !q.yes() && q.from.After(after) && a.soak.policy.within(q) })
}

// getsOn waits until the agent was given a call that it began after a time. Faults of others may end it; then it is begun again.
func (s *soak) getsOn(a *soaked, after time.Time) bool {
	for give := time.Now().Add(hang()); time.Now().Before(give); time.Sleep(20 * time.Millisecond) {
		if a.dead() {
			a.start()
			continue
		}
		a.gotMu.Lock()
		now := slices.Clone(a.asked[min(len(a.asked), a.askedBefore):])
		a.gotMu.Unlock()
		if slices.ContainsFunc(now, func(q request) bool { return q.what == "call" && q.yes() && q.from.After(after) }) {
			return true
		}
		// A run may have so many calls and no more.
		if slices.ContainsFunc(now, func(q request) bool { return q.code == "steps_exceeded" }) {
			a.kill()
		}
	}
	return false
}

// kill ends a run, if there is one.
func (a *soaked) kill() {
	for give := time.Now().Add(hang()); !a.dead(); {
		r := a.soak.do("kill", a.name)
		if r.exit == 0 || time.Now().After(give) {
			break
		}
		a.soak.count("kill " + a.id + ": " + strings.TrimSpace(r.stderr))
	}
	a.over()
}

// whyNot tells why a start was refused. Each reason needs what explains it.
func (a *soaked) whyNot(from time.Time) string {
	s, said, to := a.soak, a.call.errOut.String(), time.Now()
	switch {
	case (strings.Contains(said, "no space left on device") || strings.Contains(said, "can't be had: its disk is full")) && s.full.meet(from, to):
		return "disk full"
	case strings.Contains(said, "the daemon is gone") && s.gone.meet(from, to) && !a.alone:
		return "daemon gone"
	case a.asks && strings.Contains(said, "(pdp_malformed") && s.policy.down.meet(from, to),
		a.asks && (strings.Contains(said, "no policy decision could be had") || strings.Contains(said, "(pdp_timeout")): // without an outage it was too slow
		return "no policy decision"
	case strings.Contains(said, "i/o timeout") && to.Sub(from) > 10*time.Second:
		return "too slow" // what a launch waits for one step
	case strings.Contains(said, "(insufficient_ring") && a.unsure:
		a.low = true // by a command that failed: what lowers holds before it is on record
		return "score"
	case strings.Contains(said, "(quarantined"):
		a.held = true // likewise, or a breach's
		return "quarantined"
	}
	s.t.Errorf("%s (alone: %v) did not start, and no fault explains it: %v\n%s", a.name, a.alone, a.call.ProcessState, said)
	return "unexplained"
}

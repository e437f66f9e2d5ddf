// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// stepPatience bounds each step of a launch, and each of its undoing. The slowest step takes 10 ms here, and
// under emulation, with a crowd of other starts beside it, some seconds; within a step every answer of the
// stub has stubPatience, twice at most, and every wait of an undo teardownTime. It is longer than all of
// these, so that the more exact error comes first. A launch that is over it will not come.
const stepPatience = 30 * time.Second

// testStepPatience shortens it. It can only make a launch fail.
const testStepPatience = "AGENTRUN_TESTONLY_STEP_PATIENCE"

func patience() time.Duration {
	if d, err := time.ParseDuration(os.Getenv(testStepPatience)); err == nil {
		return min(d, stepPatience)
	}
	return stepPatience
}

// guard watches over a launch that takes long, from another goroutine: the launching thread may be waiting in the kernel, for
// what somebody else made (a root view, a file system). When a step takes too long, a signal asks the run to
// end or its context ends, the guard
//
//  1. notes why, and the step fails with that;
//  2. kills what the launch has started, again and again until the step is over: whatever waits for a process then hears of its end.
//     The launching thread undoes everything, as after any failed step;
//  3. gives up waiting where that doesn't help, or an undo takes too long: then the thread is in a call that nothing but the end of this
//     process interrupts. Whoever waits for the run gets its account, which names the step as left behind. The thread goes on with the
//     undoing when its call returns at last; if this process ends before, Collect does it.
type guard struct {
	ctx     context.Context
	signals <-chan os.Signal // nil: none
	stuck   chan<- error     // 3.; holds one
	tid     int              // of the launching thread, whose children the processes are

	over   sync.Once
	late   *time.Timer
	unhook func() bool   // from ctx
	stop   chan struct{} // closed when the launch is through or undone
	gone   chan struct{}

	mu       sync.Mutex
	watching bool // on a goroutine, until gone is closed
	ended    bool
	step     string
	since    time.Time
	group    group // that the step's processes are in; nil: there are none yet
	why      error
	kept     []os.Signal // those that are for the agent
}

// guardTime is how long a launch has no goroutine that watches over it, unless its context ends: signals are looked for before and after each
// step. Most launches are over by then, and beginning and ending the goroutine are two wakes of a thread.
const guardTime = 100 * time.Millisecond

func newGuard(l *launch) *guard {
	g := &guard{ctx: l.ctx, signals: l.opt.Signals, stuck: l.stuck, tid: unix.Gettid(), stop: make(chan struct{}), gone: make(chan struct{}), since: time.Now()}
	g.late = time.AfterFunc(min(guardTime, patience()), g.watch)
	g.unhook = context.AfterFunc(g.ctx, g.watch)
	return g
}

// begin notes that a step begins. The error is why it must not.
func (g *guard) begin(step string, in group) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.step, g.since, g.group = step, time.Now(), in
	g.hear()
	return g.why
}

// hear is what watch does, without waiting, as long as nobody watches. Whoever calls it has the lock.
func (g *guard) hear() {
	if g.watching || g.ended {
		return
	}
	if g.why == nil {
		g.why = context.Cause(g.ctx)
	}
	for g.why == nil {
		select {
		case sig := <-g.signals:
			g.why = g.pass(sig)
		default:
			return
		}
	}
}

// pass keeps a signal for the agent; one that ends the run is an error. Whoever calls it has the lock.
func (g *guard) pass(sig os.Signal) error {
	if s, ok := sig.(unix.Signal); ok && endsRun(s) {
		return fmt.Errorf("asked to end by %s", unix.SignalName(s))
	}
	g.kept = append(g.kept, sig)
	return nil
}

// cause is why the launch is given up; nil: it isn't.
func (g *guard) cause() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hear()
	return g.why
}

// end stops the watching. The error is why the launch is given up, if it came before.
func (g *guard) end() error {
	g.over.Do(func() {
		g.late.Stop()
		g.unhook()
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.hear(); !g.watching {
			close(g.gone)
		}
		g.ended = true
		close(g.stop)
	})
	<-g.gone
	return g.why
}

// left is how long the step may still take.
func (g *guard) left() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return patience() - time.Since(g.since)
}

func (g *guard) watch() {
	g.mu.Lock()
	if g.watching || g.ended {
		g.mu.Unlock()
		return
	}
	g.watching = true
	g.mu.Unlock()
	defer close(g.gone)
	timer := time.NewTimer(g.left())
	defer timer.Stop()
	for {
		select {
		case <-g.stop:
			return
		case <-timer.C:
			if left := g.left(); left > 0 {
				timer.Reset(left)
				continue
			}
			g.giveUp(fmt.Errorf("not done after %v", patience()))
			return
		case <-g.ctx.Done():
			g.giveUp(context.Cause(g.ctx))
			return
		case sig := <-g.signals:
			g.mu.Lock()
			why := g.pass(sig)
			g.mu.Unlock()
			if why != nil {
				g.giveUp(why)
				return
			}
		}
	}
}

// endsRun: the other signals are between the caller and the agent.
func endsRun(s unix.Signal) bool {
	return slices.Contains([]unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT}, s)
}

// strikeTime is how often what a failed step still starts is looked for.
const strikeTime = 20 * time.Millisecond

func (g *guard) giveUp(why error) {
	g.mu.Lock()
	g.why = why
	failed, since := g.step, time.Now()
	g.mu.Unlock()
	for {
		bound := min(teardownTime, patience())
		g.mu.Lock()
		step, in := g.step, g.group
		if step != failed {
			since, bound = g.since, patience()
		}
		g.mu.Unlock()
		if step == failed {
			g.strike(in) // an undo kills by itself, and says what it couldn't
		}
		select {
		case <-g.stop:
			return
		case <-time.After(strikeTime):
		}
		if time.Since(since) > bound {
			g.stuck <- &StepError{Step: failed, Err: fmt.Errorf("%w; %s waits in the kernel", why, step)}
			return
		}
	}
}

// strike kills the processes of a launch that is given up.
func (g *guard) strike(in group) {
	if in != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = in.Kill(ctx) // the undo does it again, and says what is left
	}
	if _, bare := in.(*bareGroup); !bare {
		return
	}
	// Before the pid namespace is known, pid 1 and what forks it are children of the launching thread.
	for _, pid := range g.children() {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if slices.Contains(g.children(), pid) { // still: so the descriptor is of ours, not of one that has the number now
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		unix.Close(fd)
	}
}

// children of the launching thread, which starts nothing but the sandbox.
func (g *guard) children() (pids []int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", g.tid))
	if err != nil {
		return nil // the kernel has no such file: closing the control socket, by the undo, must do
	}
	for _, word := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(word); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

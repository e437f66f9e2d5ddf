// SPDX-License-Identifier: Apache-2.0

// Package live keeps the runs of one supervisor while they live, and lets operators act on them (M-23). For each run it joins two
// things: the processes, which package runtime has, and what is decided about them, which package hypervisor decides and records. It
// decides nothing by itself and records nothing by itself.
//
//	runs := live.New(live.Options{Node: open, Log: log})
//	silence, err := runs.Serve(runDir, "daemon", version, access)
//	run, err := runs.Begin(node, admission, plan, live.RunOptions{})
//	run.Follow(&options)
//	run.Over(runtime.Run(ctx, plan, options))
//	run.Close()
//
// A run is known from Begin, before its first step, to Close, after its account is complete: whoever asks in between for something
// that needs processes is told that they are not there yet, or any more. The safety loops of all runs (S-15) are here too, because
// a stop has to reach each run of the agent in this process.
package live

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/control"
	"agentrun/hypervisor"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/toolproxy/link"
)

// Runs are the runs of one supervisor, and what its operators may do to them: one for exec alone, many for the daemon. It is
// the control API's Controller (M-23).
type Runs struct {
	bus    *control.Bus
	safety *safetyLoops
	log    *slog.Logger
	opt    Options

	mu     sync.Mutex
	live   map[string]*Run
	coming map[*Coming]struct{}
}

var _ control.Controller = (*Runs)(nil)

// Run is one run: its processes by runtime, what is decided about it by hypervisor.
//
// It is starting until begun gives it its processes, between the probe and the exec, then live, and over when
// ended is closed. Nothing waits for a state: who asks for processes too early is told to come again, who asks too
// late that the run has ended. Only Wait and Attach wait, for the end.
//
// Locks are taken in this order: enforcing, freezing, mu. The first two are held while processes are frozen, which
// may take a second; mu never is, so that a list of runs waits for no freeze.
type Run struct {
	all     *Runs
	Plan    *runtime.Plan
	Control *hypervisor.Control
	room    func(memory int64) error // nil: nobody counts
	stands  func(still bool) error   // hears of freezes other than pauses; nil: nobody does
	output  string                   // file of a detached run's; empty: its caller has it
	since   time.Time
	Safety  link.Safeties // the run's safety loop; nil: it has none

	enforcing sync.Mutex    // held by who stops or resumes it for a safety loop
	stopped   atomic.Bool   // by one
	follows   bool          // another run, by itself
	followed  bool          // it may be, likewise
	watches   atomic.Int32  // of its files
	freezing  sync.Mutex    // held while frozenBy is made true
	frozenBy  holder        // changed under mu too
	idleAfter time.Duration // the run is paused when it is idle for so long; 0: never
	uses      atomic.Int64  // what needs it running now; see wake
	copies    atomic.Int32  // into its files, under way

	ports published

	mu     sync.Mutex
	paused *paused         // nil: it isn't
	run    *runtime.Live   // nil: nothing of the agent's has been executed yet
	status *runtime.Status // nil: it hasn't ended
	code   int
	ended  chan struct{}
	once   sync.Once
}

// add begins to answer for a run.
func (s *Runs) add(v *Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[v.Plan.ID] = v
}

// Over keeps the account of a run that has ended, for those who wait for it.
//
// The account is kept first and ended is closed last: whoever hears of the end, by an event or by waiting,
// finds the account there. The kill in between waits for the operator's hooks, and so does everybody who
// waits for the end.
func (v *Run) Over(status runtime.Status) {
	v.ports.close() // whoever hears of the end finds nobody listening for it
	v.mu.Lock()
	v.status, v.code = &status, status.ExitCode
	v.mu.Unlock()
	if status.State == runtime.OOM {
		// The kernel or runtime was quicker than anybody's order. What a kill does besides, and its record, follow (H-22, H-23).
		v.Control.Kill(context.Background(), hypervisor.KillRequest{Reason: rings.KillResourceExhaustion, By: "agentrun", Detail: status.Reason})
	}
	end := map[string]string{"state": string(status.State), "exit_code": strconv.Itoa(status.ExitCode)}
	if status.State != runtime.Exited || status.ExitCode != 0 {
		v.event(control.EventFailed, causeOf(status, end))
	}
	v.event(control.EventEnded, end)
	v.end()
}

// maxCause bounds each word of a cause in an event, of which a supervisor keeps the last thousand.
const maxCause = 1 << 10

// causeOf is the true cause of a failed run, as its status has it (M-6).
func causeOf(s runtime.Status, end map[string]string) map[string]string {
	cause := maps.Clone(end)
	for name, text := range map[string]string{"signal": s.Signal, "reason": s.Reason, "failed_step": s.FailedStep, "error": s.Error} {
		if text != "" {
			cause[name] = strings.ToValidUTF8(text[:min(len(text), maxCause)], "")
		}
	}
	return cause
}

func (v *Run) end() { v.once.Do(func() { close(v.ended) }) }

// remove ends what add began. Waiters are let go before the run leaves the list: those who found it already
// hold it. A run that never came to its start has no account: whoever waits for it gets none.
func (s *Runs) remove(v *Run) {
	v.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, v.Plan.ID)
}

func (v *Run) event(kind string, data map[string]string) {
	ring, _ := v.Control.Ring()
	v.all.bus.Publish(control.Event{Kind: kind, ID: v.Plan.ID, Ring: ring.Value(), Data: data})
}

// begun is runtime's OnLive. A kill may have come before there was anything to kill: the processes go to the
// kill switch, which then ends them at once, and only then is the start told.
func (v *Run) begun(l *runtime.Live) {
	v.mu.Lock()
	v.run = l
	v.mu.Unlock()
	v.Control.SetProcesses(processes{v, l})
	if v.idleAfter > 0 {
		go v.followIdle(l)
	}
	v.event(control.EventStarted, map[string]string{"profile": v.Plan.Profile, "plan": v.Plan.Digest})
}

// process is the run's, once there is one. It stays when the run has ended: runtime then says so, by
// ErrEnded. Too early is a conflict and not an absence, so that the asker tries again instead of giving the
// run up.
func (v *Run) process() (*runtime.Live, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.run == nil {
		return nil, &control.Error{Status: 409, Code: control.CodeConflict, Message: "run " + v.Plan.ID + " is still being started", Hint: "try again in a moment"}
	}
	return v.run, nil
}

// changed passes on what runtime did to the live process.
func (v *Run) changed(e runtime.LiveEvent) {
	data := map[string]string{}
	switch e.Kind {
	case runtime.LiveRing, runtime.LiveRingFailed:
		if !e.To.MorePrivilegedThan(e.From) {
			v.ports.cut()
		}
		data["from"], data["to"] = strconv.Itoa(e.From.Value()), strconv.Itoa(e.To.Value())
		data["took"] = e.Took.String()
		if e.Killed > 0 {
			data["killed"] = strconv.Itoa(e.Killed)
		}
		if e.Err != nil {
			data["error"] = e.Err.Error()
			v.all.warn(fmt.Errorf("run %s: from %s to %s: %w", v.Plan.ID, e.From, e.To, e.Err))
		}
	case runtime.LiveExtended, runtime.LiveEndsSoon:
		if e.Kind == runtime.LiveExtended {
			data["timeout"], data["cpu_time"] = e.Lease.Timeout.String(), e.Lease.CPUTime.String()
		}
		if !e.Lease.Ends.IsZero() {
			data["ends_at"] = e.Lease.Ends.UTC().Format(time.RFC3339Nano)
		}
	case runtime.LiveLimits:
		data["cpu"], data["memory_bytes"], data["pids"] = fmt.Sprint(e.After.CPU), strconv.FormatInt(e.After.Memory, 10), strconv.FormatInt(e.After.PIDs, 10)
	}
	v.event(string(e.Kind), data)
}

// decided passes on what was decided about the run.
func (v *Run) decided(e hypervisor.Event) {
	switch e.Kind {
	case hypervisor.EventQuarantine, hypervisor.EventKeyEnded, hypervisor.EventKill: // a run of ring 3 is in no lower one by that
		v.ports.cut()
	}
	v.event(e.Kind, e.Data)
}

// processes is runtime.Live as the kill switch takes it.
type processes struct {
	of  *Run
	run *runtime.Live
}

// Freeze freezes as an operator does, who alone is to thaw.
func (p processes) Freeze(ctx context.Context) error { return dead(p.of.freeze(ctx, byOperator)) }

func (p processes) Doom() { p.run.Doom() }

func (p processes) FreezeForKill(ctx context.Context) error {
	defer p.of.ports.stop() // a kill follows whatever comes of this
	return dead(p.run.FreezeForKill(ctx))
}

func (p processes) Kill(ctx context.Context, cause runtime.KillCause) (int, error) {
	p.of.ports.stop()
	n, err := p.run.Kill(ctx, cause)
	return n, dead(err)
}

// dead is what was asked for.
func dead(err error) error {
	if errors.Is(err, runtime.ErrEnded) {
		return nil
	}
	return err
}

func (s *Runs) find(id string) (*Run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.live[id]
	if v == nil {
		return nil, &control.Error{Status: 404, Code: control.CodeNotFound, Message: fmt.Sprintf("no live run has the id %.64q", id), Hint: "agentrun ps lists them"}
	}
	return v, nil
}

func (s *Runs) list() []*Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.live), func(a, b *Run) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.Plan.ID, b.Plan.ID))
	})
}

// Sandboxes implements control.Controller.
func (s *Runs) Sandboxes(ctx context.Context) ([]control.Sandbox, error) {
	list := []control.Sandbox{}
	for _, v := range s.list() {
		list = append(list, v.sandbox(ctx))
	}
	return list, nil
}

// states of runtime in the words of the API.
var liveStates = [...]struct {
	of runtime.LiveState
	is control.State
}{{runtime.LiveRunning, control.Running}, {runtime.LiveFrozen, control.Frozen}, {runtime.LiveEnding, control.Ending}, {runtime.LiveEnded, control.Ended}}

// sandbox is what a list shows of a run. Plan, decisions and processes are asked one after the other and no
// lock holds all three, so a ring may be that of a moment later than the limits. What the processes say comes
// last and counts: a ring that was decided and isn't applied yet does not hold. A run whose processes can't
// be asked any more is shown as ended.
func (v *Run) sandbox(ctx context.Context) control.Sandbox {
	p := v.Plan
	ring, _ := v.Control.Ring()
	b := control.Sandbox{
		ID: p.ID, Name: p.Name, Agent: p.Agent, Session: p.Session, Parent: p.Parent, Profile: p.Profile, State: control.Starting,
		BaseRing: p.Ring, Ring: ring.Value(), Command: append([]string{p.Command.Exe}, p.Command.Args[min(1, len(p.Command.Args)):]...),
		Supervisor: unix.Getpid(), StartedAt: v.since, Detached: v.output != "", Writes: p.WritableHostPaths(),
		Limits: control.Limits{CPU: p.Limits.CPU, Memory: p.Limits.Memory, PIDs: p.Limits.PIDs},
	}
	if a, err := v.Control.Agent(ctx); err == nil {
		b.Quarantined = a.Quarantined != nil
	}
	b.Stopped = v.stopped.Load()
	if e, reason, ok := v.Control.Elevation(); ok {
		b.Elevation = elevationOf(e, reason)
	}
	run, err := v.process()
	if err != nil {
		return b
	}
	b.PID = run.PID()
	s, err := run.Snapshot()
	if err != nil {
		b.State = control.Ended
		return b
	}
	for _, known := range liveStates {
		if known.of == s.State {
			b.State = known.is
		}
	}
	v.mu.Lock()
	if v.paused != nil {
		pause := v.paused.Pause
		b.Pause = &pause
		if b.State == control.Frozen && v.frozenBy == byPause {
			b.State = control.Paused
		}
	}
	v.mu.Unlock()
	b.Ring = s.Ring.Value()
	b.Limits, b.EndsAt = limitsOf(s.Limits), s.Lease.Ends.UTC()
	b.Usage = control.Usage{CPUTime: s.Stats.CPU, Memory: s.Stats.MemoryCurrent, MemoryPeak: s.Stats.MemoryPeak, PIDs: s.Stats.PIDs, Output: s.Output,
		GatewayCPUTime: s.Gateway.CPU, GatewayMemoryPeak: s.Gateway.MemoryPeak, Pressure: (*control.Pressure)(s.Pressure)}
	return b
}

func elevationOf(e rings.Elevation, reason string) *control.Elevation {
	return &control.Elevation{ID: e.ID, From: e.From, Target: e.Target, GrantedAt: e.GrantedAt, ExpiresAt: e.ExpiresAt, Reason: reason}
}

// processStates are the kernel's letters (proc_pid_stat(5)), in words.
var processStates = map[byte]string{
	'R': "running", 'S': "sleeping", 'I': "sleeping", 'D': "waiting", 'T': "stopped", 't': "traced", 'Z': "zombie", 'X': "dead",
}

// Inspect implements control.Controller.
func (s *Runs) Inspect(ctx context.Context, id string) (control.Inspection, error) {
	v, err := s.find(id)
	if err != nil {
		return control.Inspection{}, err
	}
	plan, err := json.Marshal(v.Plan.WithoutValues())
	if err != nil {
		return control.Inspection{}, err
	}
	i := control.Inspection{Sandbox: v.sandbox(ctx), Plan: plan, Processes: []control.Process{}, Refused: map[string]uint64{}}
	run, err := v.process()
	if err != nil {
		return i, nil
	}
	if snap, err := run.Snapshot(); err == nil && snap.Refused != nil {
		i.Refused = snap.Refused
	}
	list, err := run.Processes()
	if err != nil && !errors.Is(err, runtime.ErrEnded) {
		return i, err
	}
	for _, p := range list {
		i.Processes = append(i.Processes, control.Process{PID: p.PID, Inside: p.Inside, Parent: p.PPID, User: p.User, Threads: p.Threads,
			State: processStates[p.State], StartedAt: p.Started.UTC(), Name: p.Comm, Command: p.Command, First: p.First, From: string(p.From)})
	}
	return i, nil
}

// on does something to a run's live process. The run may end between the look and the deed; runtime holds its
// processes by descriptors, so that the deed then meets nobody else's.
func (s *Runs) on(id string, do func(*runtime.Live) error) error {
	v, err := s.find(id)
	if err != nil {
		return err
	}
	run, err := v.process()
	if err != nil {
		return err
	}
	return endedError(do(run))
}

func endedError(err error) error {
	if errors.Is(err, runtime.ErrEnded) {
		return &control.Error{Status: 409, Code: control.CodeEnded, Message: "the run has ended"}
	}
	return err
}

// Signal implements control.Controller.
func (s *Runs) Signal(ctx context.Context, id string, signal int, by string) error {
	if signal < 1 || signal > 64 { // with the real-time ones: systemd stops by SIGRTMIN+3
		return &control.Error{Status: 400, Code: control.CodeBadRequest, Message: fmt.Sprintf("%d is no signal", signal)}
	}
	v, err := s.find(id)
	if err != nil {
		return err
	}
	run, err := v.process()
	if err != nil {
		return err
	}
	done, err := v.wake(ctx, by, forSignal)
	if err != nil {
		return err
	}
	defer done()
	unwritten := v.Control.RecordSignal(signal, by) // it grants nothing: where that fails it is sent all the same
	return errors.Join(endedError(run.Signal(unix.Signal(signal))), unwritten)
}

// Elevate implements control.Controller.
func (s *Runs) Elevate(ctx context.Context, id string, r control.ElevateRequest, by string) (control.Elevation, error) {
	v, err := s.find(id)
	if err != nil {
		return control.Elevation{}, err
	}
	ask := hypervisor.ElevateRequest{Target: r.Target, TTL: r.TTL, Reason: r.Reason, Note: r.Reason, By: by}
	if r.DryRun {
		now, ttl := time.Now(), min(cmp.Or(r.TTL, rings.DefaultElevation), rings.MaxElevation)
		return control.Elevation{From: v.base(), Target: r.Target, GrantedAt: now, ExpiresAt: now.Add(ttl), Reason: r.Reason}, decisionError(v.Control.CheckElevation(ctx, ask))
	}
	e, err := v.Control.Elevate(ctx, ask)
	if err != nil {
		return control.Elevation{}, decisionError(err)
	}
	v.settled(ctx)
	if err := v.Control.Held(ask, e.ID); err != nil {
		return control.Elevation{}, decisionError(err)
	}
	return *elevationOf(e, r.Reason), nil
}

// settled waits until the ring that was decided holds for all of the run, so that who elevates or revokes finds it done. What
// takes longer than M-22 allows is told by events.
func (v *Run) settled(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if run, err := v.process(); err == nil {
		settle(ctx, v.Control, run)
	}
}

// settle waits until what holds is what is decided, or nothing holds any more. Both may change meanwhile: an elevation can end before it
// was applied, and then nothing is ever applied.
func settle(ctx context.Context, decided runtime.RingSource, run interface {
	Ring() (rings.Ring, bool, <-chan struct{})
}) {
	var last <-chan struct{} // closed
	for {
		holds, whole, applied := run.Ring()
		ring, changed := decided.Ring()
		if holds == rings.NoRing || holds == ring && whole {
			return
		}
		if changed == last { // the source has ended: what it said last stays
			changed = nil
		}
		select {
		case <-applied:
		case <-changed:
			last = changed
		case <-ctx.Done():
			return
		}
	}
}

func (v *Run) base() rings.Ring {
	ring, _ := rings.RingOf(v.Plan.Ring)
	return ring
}

// Revoke implements control.Controller.
func (s *Runs) Revoke(ctx context.Context, id, elevation, by string) error {
	v, err := s.find(id)
	if err != nil {
		return err
	}
	if _, err = v.Control.Revoke(ctx, elevation, by); err != nil {
		return decisionError(err)
	}
	v.settled(ctx)
	return nil
}

// decisionError gives a decision its code on the API.
func decisionError(err error) error {
	if d, ok := errors.AsType[*hypervisor.DeniedError](err); ok {
		status := 403
		if d.Code == rings.CodeDuplicateElevation || d.Code == hypervisor.CodeSessionBusy {
			status = 409
		}
		return &control.Error{Status: status, Code: string(d.Code), Message: d.Error(), Hint: d.Hint}
	}
	if errors.Is(err, rings.ErrElevationNotFound) {
		return &control.Error{Status: 404, Code: control.CodeNotFound, Message: err.Error(), Hint: "agentrun inspect shows the elevation of a run"}
	}
	return endedError(err)
}

// Kill implements control.Controller. Several runs die at the same time: one that is slow to die keeps no other alive.
func (s *Runs) Kill(ctx context.Context, sel control.Selector, reason, by string) ([]control.KillResult, error) {
	s.endComing(sel, by) // first: one that is begun meanwhile is in the list
	var chosen []*Run
	for _, v := range s.list() {
		if v.Plan.Parent != "" && v.Plan.ID != sel.ID {
			continue // its parent's kill ends it
		}
		if sel.All || sel.ID != "" && v.Plan.ID == sel.ID || sel.Agent != "" && v.Plan.Agent == sel.Agent || sel.Session != "" && v.Plan.Session == sel.Session {
			chosen = append(chosen, v)
		}
	}
	results := make([]control.KillResult, len(chosen)) // one place for each goroutine; errs alone needs the lock
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for i, v := range chosen {
		wg.Go(func() {
			text, err := json.Marshal(v.Control.Kill(ctx, killRequest(reason, by)))
			results[i] = control.KillResult{ID: v.Plan.ID, Result: text}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return results, errors.Join(errs...)
}

// killRequest takes a reason of H-23, or an operator's words for a manual one.
func killRequest(reason, by string) hypervisor.KillRequest {
	if r := rings.KillReason(reason); r.Valid() {
		return hypervisor.KillRequest{Reason: r, By: by}
	}
	return hypervisor.KillRequest{Reason: rings.KillManual, By: by, Detail: reason, Note: reason}
}

// Wait implements control.Controller.
func (s *Runs) Wait(ctx context.Context, id string) (json.RawMessage, error) {
	v, err := s.find(id)
	if err != nil {
		return nil, err
	}
	select {
	case <-v.ended:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.status == nil {
		return nil, endedError(runtime.ErrEnded)
	}
	return json.Marshal(v.status)
}

// Events implements control.Controller.
func (s *Runs) Events(ctx context.Context, since uint64, follow bool, send func(control.Event) error) error {
	return s.bus.Events(ctx, since, follow, send)
}

var errNotDetached = &control.Error{Status: 409, Code: control.CodeConflict, Message: "the run's output belongs to whoever started it", Hint: "agentrun exec --detach keeps it for later"}

// openOutput opens the output of a detached run.
func (s *Runs) openOutput(id string) (*Run, *os.File, error) {
	v, err := s.find(id)
	if err != nil {
		return nil, nil, err
	}
	if v.output == "" {
		return nil, nil, errNotDetached
	}
	f, err := os.Open(v.output)
	return v, f, err
}

// Output implements control.Controller.
func (s *Runs) Output(ctx context.Context, id string, follow bool, w io.Writer) error {
	v, f, err := s.openOutput(id)
	if err != nil {
		return err
	}
	defer f.Close()
	return v.copyOutput(ctx, f, follow, w)
}

// Attach implements control.Controller.
func (s *Runs) Attach(ctx context.Context, id string, conn io.ReadWriter) error {
	v, f, err := s.openOutput(id)
	if err != nil {
		return err
	}
	defer f.Close()
	v.uses.Add(1) // somebody watches: it isn't paused for being idle
	defer v.uses.Add(-1)
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	frames := control.NewAttachServer(conn)
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	go func() {
		defer leave()
		for {
			// The input of a detached run has ended: what is typed goes nowhere. The end of what is sent is the caller's leaving.
			if _, _, err := frames.Next(); err != nil {
				return
			}
		}
	}()
	if err := v.copyOutput(ctx, f, true, frames.Writer(control.Stdout)); err != nil {
		return err
	}
	if code, ok := v.exitCode(); ok {
		return frames.SendExit(code)
	}
	return nil
}

// lookAgain is how often the output of a detached run is looked at for more.
const lookAgain = 50 * time.Millisecond

// copyOutput writes what is in the file, and with follow what is added to it. Whether the run is over is
// looked at before the copy and not after it: what the run wrote up to its end is in the file by then, and
// this copy has all of it.
func (v *Run) copyOutput(ctx context.Context, f *os.File, follow bool, w io.Writer) error {
	for {
		over := false
		select {
		case <-v.ended:
			over = true
		default:
		}
		if _, err := io.Copy(w, f); err != nil {
			return err
		}
		if over || !follow {
			return nil
		}
		select {
		case <-v.ended:
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return nil
		}
	}
}

func (v *Run) exitCode() (code int, ok bool) {
	select {
	case <-v.ended:
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.code, true
	default:
		return 0, false
	}
}

// errDryRun leaves a change that would be made.
var errDryRun = errors.New("only asked")

// Update implements control.Controller. The order is on record before it takes effect.
func (s *Runs) Update(ctx context.Context, id string, to control.Limits, dryRun bool, by string) (control.LimitChange, error) {
	change := control.LimitChange{DryRun: dryRun}
	v, err := s.find(id)
	if err != nil {
		return change, err
	}
	run, err := v.process()
	if err != nil {
		return change, err
	}
	_, _, err = run.Update(ctx, runtime.Limits{CPU: to.CPU, Memory: to.Memory, PIDs: to.PIDs}, func(before, after runtime.Limits) error {
		change.Before, change.After = limitsOf(before), limitsOf(after)
		if dryRun {
			return errDryRun
		}
		if err := v.takeRoom(after.Memory); err != nil {
			return err
		}
		return v.Control.RecordLimits(hypervisor.LimitOrder{By: by, Limits: limitsText(to)})
	})
	switch {
	case errors.Is(err, errDryRun):
		err = nil
	case err != nil && change.Before.Memory > 0:
		_ = v.takeRoom(change.Before.Memory) // gives back what wasn't used; less is never refused
	}
	return change, limitError(err)
}

// takeRoom has the node count the memory that the run may use from now on.
func (v *Run) takeRoom(memory int64) error {
	if v.room == nil {
		return nil
	}
	if err := v.room(memory); err != nil {
		return &control.Error{Status: 409, Code: control.CodeConflict, Message: err.Error(), Hint: "end runs (agentrun ps), or give less"}
	}
	return nil
}

// Extend implements control.Controller. The order is on record before it takes effect.
func (s *Runs) Extend(ctx context.Context, id string, r control.ExtendRequest, by string) (control.Lease, error) {
	v, err := s.find(id)
	if err != nil {
		return control.Lease{}, err
	}
	run, err := v.process()
	if err != nil {
		return control.Lease{}, err
	}
	l, err := run.Extend(ctx, runtime.More{Timeout: r.Time, CPUTime: r.CPUTime}, func(l runtime.Lease) error {
		return v.Control.RecordLimits(hypervisor.LimitOrder{By: by, Limits: []string{"timeout " + l.Timeout.String(), "cpu_time " + l.CPUTime.String()}, Note: r.Reason})
	})
	if err != nil {
		return control.Lease{}, limitError(err)
	}
	return leaseOf(l), nil
}

func leaseOf(l runtime.Lease) control.Lease {
	limit := func(d profiles.Duration) time.Duration {
		if d == profiles.NoLimit {
			return 0
		}
		return time.Duration(d)
	}
	return control.Lease{Timeout: limit(l.Timeout), CPUTime: limit(l.CPUTime), EndsAt: l.Ends.UTC()}
}

// limitsText are limits for the record, in the words of config.yaml's ranges.
func limitsText(l control.Limits) (list []string) {
	if l.CPU != 0 {
		list = append(list, fmt.Sprintf("cpu %v", l.CPU))
	}
	if l.Memory != 0 {
		list = append(list, "memory "+profiles.Size(l.Memory).String())
	}
	if l.PIDs != 0 {
		list = append(list, fmt.Sprintf("pids %d", l.PIDs))
	}
	return list
}

// limitError gives a refused change of limits its code on the API.
func limitError(err error) error {
	if bad, ok := errors.AsType[*runtime.InvalidSpec](err); ok {
		return &control.Error{Status: 400, Code: control.CodeOutOfRange, Message: bad.Error(), Hint: "nothing was changed; what is left out stays as it is"}
	}
	return decisionError(err)
}

func limitsOf(l runtime.Limits) control.Limits {
	return control.Limits{CPU: l.CPU, Memory: l.Memory, PIDs: l.PIDs}
}

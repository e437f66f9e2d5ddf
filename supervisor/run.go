// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"agentrun/config"
	"agentrun/fsjail"
	"agentrun/hypervisor"
	"agentrun/internal/thread"
	"agentrun/netns"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/supervisor/changes"
	"agentrun/supervisor/homes"
	"agentrun/supervisor/killhooks"
	"agentrun/supervisor/live"
	"agentrun/supervisor/sandboxes"
)

// step is one piece of the way from a request to the account of how it ended. The order of the steps is data,
// as that of the launch (package runtime), which is one of them. Those that were begun are undone in reverse,
// whatever came of them: undo is called also when do failed halfway, and must cope with that.
type step struct {
	name string
	why  string
	do   func(*run) error
	undo func(*run)
}

// steps is the whole way. Up to the admission nothing is on record but a refusal; up to the launch no process
// of the run exists. A step takes what those before it have found from the run.
var steps = []step{
	{"node", "admission, sessions and the audit are in its state",
		(*run).openNode, (*run).closeNode},
	{"spec", "what was asked for, in the ring that it may have; what is wrong with it is told before it waits",
		(*run).specifyOnRecord, nil},
	{"place", "the node must have room: whoever waits here holds nothing yet",
		(*run).enter, (*run).leave},
	{"files", "what is written after the run can be; their folders are held from before any code of the agent",
		(*run).openFiles, nil},
	{"home", "what the agent keeps from run to run is one run's at a time, and is there before the plan shows it",
		(*run).takeHome, (*run).leaveHome},
	{"kept sandbox", "it is one run's at a time too, and what it keeps is within its quota",
		(*run).takeSandbox, (*run).leaveSandbox},
	{"image", "nobody removes it while the run shows it",
		(*run).useImage, (*run).leaveImage},
	{"plan", "what will be applied on this host; it shows nobody else's workspace, no key and no log (H-30)",
		(*run).planOnRecord, (*run).dropNetwork},
	{"sandbox", "one that is ready may suit the plan, and is part of it then",
		(*run).take, (*run).cool},
	{"admission", "asked again with the plan at hand: score, quarantine, session and turn; on record (H-9)",
		(*run).admit, (*run).endAdmission},
	{"policy", "the operator's policies are asked about every start; what the gateway would refuse is told now (M-9)",
		(*run).askPolicy, nil},
	{"operators", "they can stop and kill the run from before its first step (M-23)",
		(*run).begin, (*run).unregister},
	{"way out", "the account of its calls and connections; closed when no process could make one (M-7)",
		(*run).openWayOut, (*run).closeWayOut},
	{"hold", "whoever makes a container and starts it later has everything checked and admitted by then",
		(*run).hold, nil},
	{"launch", "the steps of package runtime, the agent's life, and the end",
		(*run).launch, nil},
	{"account", "told last, when it can't change any more",
		(*run).tellEnd, nil},
}

// run is one request on its way. It is one goroutine's, but for end, which the account of tool calls and the
// start of a detached run call from theirs.
//
// What goes wrong before the launch is an error: nothing has run, and undoing the steps begun leaves the host as
// it was. From the launch on there is none: what goes wrong is in the status, which is on record, and the same
// undoing takes the run down. The one exception is an account that could not be told at the end.
type run struct {
	ctx  context.Context
	end  context.CancelCauseFunc // kills the run
	node *Node
	by   *Caller
	host Host
	want *Request

	parent *run   // whose tool this one is; nil: it is none's (H-15)
	way    []step // that it goes, and that its tools do

	h         *hypervisor.Hypervisor // nil: the state could not be opened
	asked     hypervisor.Request
	token     hypervisor.Token // the agent's key, not looked at yet
	spec      runtime.Spec
	file      config.Gateway    // as it was when the request was looked at
	statusTo  *fsjail.Output    // nil: nowhere, or not opened yet
	home      *homes.Home       // nil: it keeps none
	kept      sandboxes.Sandbox // as the spec was made of it
	keptIn    sandboxes.Folder
	sandbox   *sandboxes.Taken // nil: it is none's
	bundle    *specs.Spec      // of a container; nil: it is none
	starts    net.Conn         // of whoever has started a run that was held; nil: nobody
	image     *os.File         // the claim on the image that the run shows; nil: it shows none
	told      atomic.Bool      // a signal for the agent came by the supervisor
	ahead     *Ahead           // until the way out is open; nil: nothing was looked at
	plan      *runtime.Plan
	hooks     killhooks.Hooks
	admission hypervisor.Admission
	live      *live.Run
	over      func() // ends what operators may do
	broker    *hypervisor.Broker
	out       *runtime.Wayout // nil: there is no way out
	outcome   *outcome
	status    *runtime.Status // nil: the launch was not begun
	network   *netns.Begun    // nil: begun by the launch
	signals   func() <-chan os.Signal
	beside    sync.WaitGroup // looks after what crashed runs have left
}

func newRun(ctx context.Context, n *Node, by *Caller, host Host, want *Request) *run {
	s := &run{node: n, by: by, host: host, want: want, over: func() {}}
	if host != nil {
		s.signals = sync.OnceValue(host.Signals)
	}
	s.ctx, s.end = context.WithCancelCause(ctx)
	return s
}

// Run carries a request out and returns the agent's exit code, when nothing of the run is left. The error is
// why nothing was run: *runtime.InvalidSpec, *runtime.CommandError, *runtime.MissingError and
// *hypervisor.DeniedError among others. A run that was started has an account instead, which has been told
// where the request says so. A refusal is told there too: whoever waits for a status file must not wait for
// ever. The end of the context kills the run.
func Run(ctx context.Context, n *Node, by *Caller, host Host, want *Request) (code int, err error) {
	if !host.Outlives() {
		if err := OwnDescriptors(); err != nil {
			return runtime.ExitFailed, err
		}
	}
	s := newRun(ctx, n, by, host, want)
	code, err = s.whole(steps)
	if want.Sandbox != "" && s.status != nil {
		s.again(ctx)
	}
	return code, err
}

// OwnDescriptors has programs that we start, which may read what an agent or a stranger has written, get nothing that whoever started us has
// left open. All of ours close on exec already. An error: they would pass. Linux 5.11.
func OwnDescriptors() error {
	return os.NewSyscallError("close_range", unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC))
}

// whole takes the run all the way.
func (s *run) whole(way []step) (code int, err error) {
	defer s.end(nil)
	if err := s.through(way); err != nil {
		return 0, err
	}
	return s.status.ExitCode, nil
}

// Plan returns what Run would apply, without starting anything or putting anything on record. The error is as
// Run's.
func Plan(ctx context.Context, n *Node, by *Caller, want *Request) (*runtime.Plan, error) {
	s := newRun(ctx, n, by, nil, want)
	defer s.end(nil)
	err := s.openNode()
	if err != nil {
		return nil, err
	}
	defer s.closeNode()
	if err = s.specify(); err == nil {
		err = s.newPlan()
	}
	return s.plan, err
}

// through takes the run from step to step. The undoing is deferred before a step is tried, so that a step
// which fails halfway is undone too; the refusal is told while all of it still stands, the node's state among
// it.
func (s *run) through(list []step) error {
	s.way = list
	for _, st := range list {
		if st.undo != nil {
			defer st.undo(s)
		}
		began := time.Now()
		if err := st.do(s); err != nil {
			return s.refused(err)
		}
		s.node.Log.Debug("run", "step", st.name, "took", time.Since(began))
	}
	return nil
}

// openNode begins to open the log that the run will be on, beside what comes next. Not for a process that
// ends with the run: one that is refused must leave nothing.
func (s *run) openNode() (err error) {
	if s.parent != nil {
		return nil // its parent's, who closes it
	}
	if s.h, err = s.node.Open(); err != nil {
		return err
	}
	if s.host != nil && s.host.Outlives() && s.want.Session == "" {
		s.h.Expect("")
	}
	return nil
}

// closeNode only warns: what had to be on disk was put there when it was decided.
func (s *run) closeNode() {
	if s.h == nil || s.parent != nil {
		return
	}
	if err := s.h.Counts().Problem(); err != nil {
		s.node.Log.Warn("metrics", "err", err)
	}
	if err := s.h.Close(); err != nil {
		s.node.Log.Warn("closing the state", "err", err)
	}
}

// specifyOnRecord asks once more where the answer was no: then it is on record.
func (s *run) specifyOnRecord() error {
	err := s.specify()
	if err == nil {
		err = s.spec.Check()
	}
	if denied, ok := errors.AsType[*hypervisor.DeniedError](err); ok {
		if _, err := s.h.Admit(s.ctx, s.asked); err != nil {
			return err
		}
		return denied
	}
	return err
}

func (s *run) enter() error {
	who := live.Coming{Agent: s.asked.Agent, Session: s.spec.Session, End: s.end}
	if err := s.host.Admit(s.ctx, int64(s.spec.Limits.Memory), who); err != nil {
		return err
	}
	if s.host.Outlives() { // and has a goroutine of its own for it
		s.host.Collect(s.ctx)
	} else {
		s.beside.Go(func() {
			thread.Room32()
			s.host.Collect(s.ctx)
		})
	}
	return nil
}

func (s *run) leave() {
	s.beside.Wait()
	s.host.Close()
}

func (s *run) openFiles() error {
	if err := s.openStatusFile(); err != nil {
		return err
	}
	if s.spec.Keep != "" {
		if err := writable(s.spec.Keep, s.shown()); err != nil {
			return fmt.Errorf("--keep: %w", err)
		}
	}
	return nil
}

// newPlan is runtime's, of host paths that the session may see and that no kill handler is run from.
func (s *run) newPlan() (err error) {
	var secret []string
	if s.want.KeyFile != "" {
		secret = []string{s.want.KeyFile}
	}
	if s.host != nil {
		s.ahead = s.host.Ahead()
	}
	ahead := s.ahead.now()
	check := s.h.PathCheck(ahead.own, secret...)
	spec := s.spec
	spec.Ahead = ahead.host
	if s.plan, err = runtime.NewPlan(spec); err != nil {
		return err
	}
	s.asked.Run = s.plan.ID
	if s.hooks, err = s.node.Kill.ForRun(s.plan); err != nil {
		return err
	}
	return check(s.spec.Session, s.notOwn(s.plan.HostPaths()), s.plan.Seen())
}

// planOnRecord also begins what depends on nothing that the plan will say: a processor has nothing else to do until it is made. To catch
// signals takes the runtime most of a millisecond, and goes first, as the launch waits for it sooner; one that comes from here on is the
// run's, and until here ends us, however long the steps before take. The network namespace takes a millisecond; whoever outlives runs has
// sandboxes ready, or other runs' work.
func (s *run) planOnRecord() error {
	if !s.host.Outlives() {
		go s.signals()
		s.network = netns.Begin()
	}
	err := s.newPlan()
	if denied, ok := errors.AsType[*hypervisor.DeniedError](err); ok {
		ring, _ := rings.RingOf(s.spec.Profile.Ring)
		err = s.h.Refuse(s.asked, ring, denied)
	}
	return err
}

func (s *run) dropNetwork() {
	if s.network != nil {
		s.network.Drop()
	}
}

func (s *run) take() error {
	s.host.Take(s.plan)
	return nil
}

func (s *run) cool() { s.host.Cool() }

func (s *run) admit() (err error) {
	if s.parent != nil {
		return s.admitChild()
	}
	if s.admission, err = s.h.Admit(s.ctx, s.asked); err != nil {
		return err
	}
	if ring := s.admission.Ring.Value(); ring != s.plan.Ring {
		s.endAdmission() // a step that failed isn't undone
		return fmt.Errorf("the ring of agent %s changed to %d while the run was planned for ring %d",
			s.asked.Agent, ring, s.plan.Ring)
	}
	return nil
}

func (s *run) endAdmission() { s.admission.Done() }

func (s *run) begin() (err error) {
	for _, m := range s.plan.Missing {
		Tell(s.by.Stderr, "best effort: running without "+m.Name+": "+m.Loses, "")
	}
	if s.by.Watched && s.parent == nil && s.plan.Ring == 2 && len(s.plan.WritableHostPaths()) == 0 {
		Tell(s.by.Stderr, "no --workspace: what the run writes is gone when it is over", "--workspace . lets it write this folder")
	}
	o := live.RunOptions{
		QuarantineTimeout: s.want.QuarantineTimeout, IdlePause: s.want.IdlePause, Hooks: s.hooks, Undo: s.node.undoer(s.by, s.another),
	}
	if s.want.Detach {
		o.Output = s.node.Outputs().File(s.plan.ID)
	}
	if err := s.begins(); err != nil {
		return err
	}
	if s.sandbox != nil {
		o.Ordered, o.Stands, o.Follows, o.Followed = s.notAgain, s.stands, s.asked.Again, s.kept.Restart != sandboxes.RestartNo
	}
	v, over, err := s.host.Begin(s.h, s.admission, s.plan, o)
	if err == nil {
		s.live, s.over = v, over
	}
	return err
}

func (s *run) unregister() { s.over() }

// launch starts the agent and returns when it has ended. Where the process outlives the run, the account is
// told as soon as it is on record, unless somebody waits for more than the exit code.
func (s *run) launch() error {
	plan, by := s.plan, s.by
	s.outcome = &outcome{s: s, early: s.host.Outlives() && plan.Keep == "" && !plan.Overlay && !plan.TTY && !s.want.Account() && s.home == nil && s.sandbox == nil}
	observer := s.outcome.watch(s.live.Control.Watch(hypervisor.WatchOptions{
		SignLater: s.outcome.early, // closeNode does
		Warn:      func(err error) { s.node.Log.Warn("audit", "err", err) },
	}))
	opt := runtime.Options{
		RunDir: s.node.RunDir, Wayout: s.out, Network: s.network, Stdout: by.Stdout, Stderr: by.Stderr,
		Observer:     observer,
		CacheDir:     s.node.FilterCache(),
		AccountFirst: s.host.Outlives(),
		ApplyTime:    s.node.ApplyTime,
		OnCacheError: s.node.NoFilterCache,
		OnStep:       s.node.Steps("launch"),
	}
	opt.CountChanges = by.Watched || s.want.Account()
	if plan.Session != "" && !plan.Rootless && !plan.Overlay {
		opt.OnWrites = s.wrote
	}
	if s.sandbox != nil {
		opt.OnPolicy = func() {
			if err := s.notAgain(); err != nil {
				s.node.Log.Warn("sandbox", "name", s.want.Sandbox, "err", err)
			}
		}
	}
	if plan.Overlay {
		folder, owner := plan.WorkspaceOf()
		var err error
		if s.sandbox != nil {
			err = s.workspaceLayer().Begin(folder, int(owner.UID), int(owner.GID), plan.Guard())
		} else {
			opt.Changes, err = s.node.Changes().Begin(plan.ID, folder, int(owner.UID), int(owner.GID), plan.Guard())
		}
		if err != nil {
			return err
		}
	}
	said := func(runtime.Status) {}
	if s.want.Detach {
		log, err := s.node.Outputs().Create(plan.ID)
		if err != nil {
			return err
		}
		defer log.Close()
		opt.Stdout, opt.Stderr, opt.Detached = log, log, true
		said = func(status runtime.Status) { s.letGo(status, log) }
	} else if by.Terminal == nil || s.want.Interactive || plan.TTY {
		opt.Stdin = by.Stdin
	} else if by.Watched && asks(s.want.Command) {
		Tell(by.Stderr, "nothing is typed into it: the terminal isn't the agent's", "-t gives it one of its own")
	}
	opt.OnStart = func(status runtime.Status) {
		s.node.Log.Info("started",
			"id", status.ID, "ring", status.Ring, "launch", status.LaunchTime, "plan", status.PlanDigest)
		s.h.Counts().Launched(status.LaunchTime)
		s.host.Started()
		s.begun()
		said(status)
	}
	if plan.TTY && by.Terminal != nil {
		defer follow(by.Terminal, &opt)()
	}
	s.live.Follow(&opt)
	opt.OnEvent = s.warned(opt.OnEvent)
	opt.Signals = s.heard(s.signals()) // before there is anything that dying of one would leave
	if !s.host.Outlives() {
		go learnStatus() // the run's end would wait for it
	}
	status := runtime.Run(s.ctx, plan, opt)
	s.sumUp(&status)
	s.live.Over(status)
	s.status = &status
	return nil
}

// learnStatus has encoding/json look at the types of an account, which takes a process' first a quarter of a millisecond.
var learnStatus = sync.OnceFunc(func() { _, _ = json.Marshal(runtime.Status{}) })

// wrote tells the session what the run has left in the workspace that its participants share (H-32).
func (s *run) wrote(began time.Time, files []runtime.FileWrite, more bool) []string {
	if more {
		s.node.Log.Warn("not all that the run wrote in its session's workspace was seen", "run", s.plan.ID)
	}
	folder, _ := s.plan.WorkspaceOf()
	conflicts, err := s.live.Control.RecordWrites(context.WithoutCancel(s.ctx), folder, began, files)
	if err != nil {
		s.node.Log.Warn("what the run wrote", "run", s.plan.ID, "err", err)
	}
	return conflicts
}

// letGo says which run it is to the command that asked for it, and ends that. A run that nobody knows of is
// killed.
func (s *run) letGo(status runtime.Status, log *os.File) {
	s.keepAccount(status) // of a run whose supervisor is killed nothing else tells the name
	err := s.tellDetached(status)
	if err == nil {
		err = s.host.LetGo(log)
	}
	if err != nil {
		s.end(err)
	}
}

func (s *run) tellEnd() error {
	s.keepAccount(*s.status)
	if err := s.tellStatus(*s.status); err != nil {
		return err
	}
	for _, l := range s.status.Leftovers {
		Tell(s.by.Stderr, "left behind: "+l, "")
	}
	s.outcome.say(*s.status)
	if s.plan.Overlay && s.sandbox == nil {
		s.tellChanges()
	}
	return nil
}

// tellChanges says what waits to be looked at, or that nothing does.
func (s *run) tellChanges() {
	set, err := s.node.Changes().Open(s.plan.ID)
	if err == nil {
		defer set.Close()
		var list []changes.Change
		if list, err = set.List(); err == nil && len(list) == 0 {
			err = set.Discard()
		} else if err == nil && !s.want.JSON {
			Tell(s.by.Stderr, fmt.Sprintf("%d changes of the workspace wait", len(list)), "agentrun diff "+s.plan.ID+"; agentrun apply or agentrun discard ends the waiting")
		}
	}
	if err != nil && s.status.State != runtime.Failed {
		Tell(s.by.Stderr, "changes of the workspace: "+err.Error(), Hint(err))
	}
}

// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"agentrun/audit"
	"agentrun/governance"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/store"
	"agentrun/toolproxy/link"
)

// BrokerOptions are what the run that the broker stands for has, beside what its Control knows.
type BrokerOptions struct {
	MaxSteps int // tool calls of the run's profile (M-3); the plan may allow fewer. 0 allows none
	// MaxModelCalls are calls of models, which are counted apart: a coding agent makes one for each of its steps and
	// few of tools. 0 allows none.
	MaxModelCalls int
	// Safety is the run's safety loop (S-15); nil: it has none.
	Safety link.Safeties
	// Parent is the broker of the run whose child this one is: steps and costs are also its (H-15); nil: it is none's.
	Parent *Broker
	// Gateway is the path of the gateway.yaml that the run's tools are of; empty: built-in ones alone.
	Gateway string
	// Guarded says whether a path of the session's folder is what the host runs later; nil: names that begin with a dot alone are.
	Guarded func(folder, path string) bool
	// Execute starts an operator's command in a sandbox of its own; nil: there are none.
	Execute func(ctx context.Context, tool string) (link.Process, error)
}

// Broker answers what the gateway of one run asks of its supervisor: it implements link.Supervisor. It believes the
// gateway nothing that the supervisor knows itself. Safe for concurrent use. With every error the answer is the zero
// value, a denial.
type Broker struct {
	h       *Hypervisor
	adm     Admission
	opt     BrokerOptions
	control *Control
	live    *live // control's
	run     string
	ledger  *governance.Ledger
	steps   int // at most

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	calls  sync.WaitGroup // approvals that wait, and the watcher of the state

	memory sync.Mutex // held while the memory is asked

	mu      sync.Mutex
	places  map[uint64]*openCall
	last    uint64
	taken   int    // steps, model calls among them
	models  int    // of them, model calls
	told    int    // of them that have an entry of their own
	written int    // changes of what lasts: the memory, the session's context and files
	filed   int64  // bytes written to files
	asked   int    // approvals of tools
	asking  bucket // requests for a ring
	reports bucket // to the safety loop
	refused []runtime.GatewayRefusal
	tokens  audit.Number // left of the rate, when it was last asked
	closed  bool
	capped  atomic.Bool // the run is at a cap, and its end has begun
	asks    *store.Lock // held from the first approval on
}

var _ link.Supervisor = (*Broker)(nil)

// Broker opens the broker of the run. It must be closed, after the run's last process is dead and before c and adm.Done.
func (c *Control) Broker(opt BrokerOptions) *Broker {
	b := &Broker{
		h: c.h, adm: c.adm, opt: opt, control: c, live: c.live, run: c.opt.Run, steps: max(opt.MaxSteps, 0),
		places: map[uint64]*openCall{},
	}
	if most := b.adm.Grant.Limits.Steps; most != governance.Unlimited {
		b.steps = int(min(int64(b.steps), most))
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	if opt.Parent != nil {
		b.ledger = opt.Parent.ledger
		return b
	}
	b.ledger = governance.NewLedger(b.adm.Grant, bank{b.h, b.adm.Settings.subject(b.adm.Agent)}, b.h.now)
	return b
}

// Close ends everything that was asked for and gives back what was borrowed.
func (b *Broker) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	b.calls.Wait()
	b.asks.Unlock()
	errs := b.cutOff()
	if b.opt.Parent != nil { // whose the ledger is
		return errors.Join(errs, b.adm.alarm.flush())
	}
	ctx, cancel := context.WithTimeout(context.Background(), bookTime)
	defer cancel()
	return errors.Join(errs, b.ledger.Close(ctx), b.adm.alarm.flush())
}

// MaxSteps is the smaller of the profile's and the plan's, for link.Start.
func (b *Broker) MaxSteps() int { return b.steps }

// Caller is who an admitted run is to the tool proxy and the policy.
func (a *Admission) Caller(run, name string) link.Caller {
	s := a.Settings
	mode := s.Mode
	if mode == "" {
		mode = ModePublic
	}
	return link.Caller{
		Run: run, Name: name, Agent: a.Agent, Session: a.Session, Team: s.Team, Role: s.Role, Plan: a.Grant.Plan, Mode: mode, Key: a.Key.toLink(),
	}
}

func no(ring rings.Ring, code rings.Code, message, next string, retry time.Duration) link.Verdict {
	return link.Verdict{Code: code, Message: message, Next: next, Retry: retry, Ring: ring}
}

// Check decides in the order of M-9 as far as the supervisor knows: quarantine, ring, the plan's tools, rate, concurrency,
// steps. What the gateway counts itself is counted here as well: it reads what a hostile agent sends.
func (b *Broker) Check(ctx context.Context, c link.Check) (link.Verdict, error) {
	b.control.calls.made.Add(1)
	if b.over() {
		return no(b.adm.Ring, link.CodeCanceled, "the run has ended", "nothing", 0), nil
	}
	if b.live.isStopped() {
		return no(rings.Sandbox, link.CodeStopped, stoppedText, stoppedNext, 0), nil
	}
	a, ring, err := b.live.now(ctx)
	if err != nil {
		return link.Verdict{}, err
	}
	if b.live.keyOver() {
		return no(ring, link.CodeKeyInvalid, "the run's key has expired or was revoked", "end; the run gets nothing any more", 0), nil
	}
	if a.Quarantined != nil {
		return no(ring, rings.CodeQuarantined, "the agent is in quarantine", "an operator has to release the agent; this run gets nothing any more", 0), nil
	}
	if c.Egress {
		if d := rings.ResourceAllowed(ring, rings.Network); !d.Allowed() {
			return no(ring, link.CodeRing, d.Reason, "use the tools at AGENTRUN_TOOLS_URL", 0), nil
		}
	}
	// A connection may come without an action: then the ring's constraint decides alone.
	if !c.Egress || c.Action.ID != "" {
		if r := rings.Check(ring, a.score(), a.Consensus, c.Action); !r.Allowed {
			return no(ring, link.CodeRing, r.Reason, "use a tool that your ring allows, or ask the operator for an elevation", 0), nil
		}
	}
	if c.Egress {
		return link.Verdict{Allowed: true, Code: rings.CodeOK, Ring: ring}, nil
	}
	if tool, ok := toolOf(c.Action.ID); ok && !b.adm.Grant.Allows(tool) {
		return no(ring, link.CodeToolRestricted, "plan "+b.adm.Grant.Plan+" or the agent's role doesn't include this tool", "GET /internal/tools lists the tools that you may call", 0), nil
	}
	r := b.adm.meter.Take(ring, c.Action.RateCost())
	b.remember(r)
	if !r.Allowed {
		return no(ring, link.CodeRateLimited, "too many calls a second for "+ring.String(), "wait, then try again", r.RetryAfter), nil
	}
	if c.Held && c.Action.UndoWindowSeconds > 0 && !b.h.roomToUndo(b.run, b.adm.Agent) { // it would be one that can't be undone (H-6)
		return no(ring, link.CodeUnavailable, "no more calls can be kept to be undone", "go on without this tool", 0), nil
	}
	return b.take(c, ring), nil
}

// busyRetry is when a place may be free again: tools take some seconds at most (M-11).
const busyRetry = 100 * time.Millisecond

func (b *Broker) take(c link.Check, ring rings.Ring) link.Verdict {
	v := link.Verdict{Allowed: true, Code: rings.CodeOK, Ring: ring}
	if !c.Held {
		return v
	}
	tool, _ := toolOf(c.Action.ID)
	model := tool == "llm" || tool == "embeddings"
	b.mu.Lock()
	defer b.mu.Unlock()
	switch most := rings.ConstraintsOf(ring).MaxConcurrentTools; {
	case len(b.places) >= most:
		return no(ring, link.CodeConcurrency, "too many tools at once for "+ring.String(), "wait for the end of one of your calls", busyRetry)
	case b.stepLocked(model):
	case model:
		return no(ring, link.CodeSteps, fmt.Sprintf("the run has used its %d model calls", b.opt.MaxModelCalls),
			"end with what you have; an operator gives more by llm: {limits: {calls: …}} in gateway.yaml", 0)
	default:
		return no(ring, link.CodeSteps, "the run has used its tool calls", b.moreSteps(), 0)
	}
	b.last++
	b.control.calls.open.Add(1)
	b.places[b.last] = &openCall{action: c.Action, began: b.h.now(), ring: ring, tokens: b.tokens}
	v.Place = b.last
	return v
}

// moreSteps is what becomes of a run that has used its steps, and where more come from: the profile's or --max-steps, or the plan's.
func (b *Broker) moreSteps() string {
	const end = "end with what you have; an operator gives the next run more by "
	if b.steps < b.opt.MaxSteps {
		return end + "another plan than " + b.adm.Grant.Plan
	}
	return fmt.Sprintf("%s--max-steps %d", end, 2*max(b.steps, 1))
}

// step takes a step for a child, of its own and of whose child it is (M-3).
func (b *Broker) step(model bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stepLocked(model)
}

func (b *Broker) stepLocked(model bool) bool {
	left := b.steps - (b.taken - b.models)
	if model {
		left = b.opt.MaxModelCalls - b.models
	}
	if left <= 0 || b.opt.Parent != nil && !b.opt.Parent.step(model) {
		return false
	}
	b.taken++
	if model {
		b.models++
	}
	return true
}

// bucket and session name the rate's token bucket (H-16). What has no session shares one that no session can be called.
func (b *Broker) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed || b.control.over()
}

// Ring implements link.Supervisor. A state that can't be read is ring 3.
func (b *Broker) Ring() (rings.Ring, <-chan struct{}) { return b.live.brokerRing() }

// Execute implements link.Supervisor.
func (b *Broker) Execute(ctx context.Context, tool string) (link.Process, error) {
	if b.opt.Execute == nil || b.over() {
		return nil, errors.New("no command can be run for this tool")
	}
	if b.live.isStopped() {
		return nil, errStopped
	}
	return b.opt.Execute(ctx, tool)
}

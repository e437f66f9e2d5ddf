// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// KillReason says what triggered a kill (H-23).
type KillReason string

const (
	KillManual             KillReason = "manual"
	KillRingBreach         KillReason = "ring_breach"
	KillPolicyViolation    KillReason = "policy_violation"
	KillCircuitBreaker     KillReason = "circuit_breaker"
	KillBehavioralDrift    KillReason = "behavioral_drift"
	KillRateLimit          KillReason = "rate_limit"
	KillQuarantineTimeout  KillReason = "quarantine_timeout"
	KillSessionTimeout     KillReason = "session_timeout"
	KillResourceExhaustion KillReason = "resource_exhaustion"
)

// KillReasons returns all reasons.
func KillReasons() []KillReason {
	return []KillReason{
		KillManual, KillRingBreach, KillPolicyViolation, KillCircuitBreaker, KillBehavioralDrift,
		KillRateLimit, KillQuarantineTimeout, KillSessionTimeout, KillResourceExhaustion,
	}
}

// Valid tells whether r is one of KillReasons.
func (r KillReason) Valid() bool { return slices.Contains(KillReasons(), r) }

// KillContext says what led to a kill.
type KillContext struct {
	Action *string    // the action that triggered it; nil if none did
	Reason KillReason // unknown ones are recorded as manual, with an error that has the given one: no kill is refused for its reason
}

// Callback is a handler or a compensation. Its context ends with its time limit.
type Callback func(ctx context.Context) error

// StepOutcome is what became of a saga step that a killed agent was at.
type StepOutcome string

const (
	HandedOff   StepOutcome = "HANDED_OFF"  // the substitute goes on with it
	Compensated StepOutcome = "COMPENSATED" // it is undone
)

// KillHooks are the effects, which belong to others. Each runs under a time limit of its own, without the caller's
// cancellation, its errors and panics contained. What a nil one means stands at each.
type KillHooks struct {
	// Freeze stops every process of the agent so that none runs until killed. Nil counts as failed.
	Freeze func(ctx context.Context, agent string) error
	// Intent records that the agent is about to be killed, synced to disk (H-28). Nil records nothing.
	Intent func(ctx context.Context, agent string, kc KillContext) error
	// Steps hands the agent's saga steps that are in flight to the substitute, or compensates them if there is none
	// (to is empty then), and returns their ids. Nil: there are no sagas.
	Steps func(ctx context.Context, agent string, outcome StepOutcome, to string) (steps []string, err error)
	// Processes kills every process of the agent and returns when they are dead. It may be called twice.
	Processes func(ctx context.Context, agent string) (killed int, err error)
	// Audit keeps the result. Until it returns nil for a result, the history keeps it; nil keeps all in the history.
	Audit func(ctx context.Context, result KillResult) error
}

// KillOptions configures a KillSwitch.
type KillOptions struct {
	Clock      func() time.Time // required
	Limit      time.Duration    // of each handler and compensation; 0 means 5 s (H-21)
	HookLimit  time.Duration    // of each hook; 0 means 10 s
	Hooks      KillHooks
	Quarantine *Quarantine // who may take over; nil: nobody may
}

const (
	defaultKillLimit = 5 * time.Second
	defaultHookLimit = 10 * time.Second

	maxCallbacks   = 64      // of each kind and agent: all hanging, a kill takes 64 × 2 × 5 s, the agent frozen
	maxKilled      = 100_000 // remembered as unfit to take over
	maxKillHistory = 1024    // results kept that the audit has
)

var (
	// ErrKilled is what registering for an agent gives that was killed and not started again.
	ErrKilled = errors.New("the agent was killed")
	// ErrTooManyCallbacks is what registering beyond 64 of a kind gives.
	ErrTooManyCallbacks = errors.New("too many registrations for one agent")
)

type namedCallback struct {
	name string
	run  Callback
}

type killRegistration struct {
	handlers, compensations []namedCallback
	substitutes             []string
}

// KillSwitch ends agents (H-21 to H-23). It is safe for concurrent use. The zero value can't register anything and
// kills nothing, and says so in its results.
type KillSwitch struct {
	opt KillOptions

	mu         sync.Mutex
	registered map[string]*killRegistration
	killed     map[string]bool
	forgot     bool // killed is full: nobody may take over any more
	history    killHistory
}

// NewKillSwitch checks opt. The clock and Processes are required.
func NewKillSwitch(opt KillOptions) (*KillSwitch, error) {
	if opt.Clock == nil || opt.Hooks.Processes == nil {
		return nil, errors.New("kill switch: needs a clock and a way to kill processes")
	}
	if opt.Limit < 0 || opt.HookLimit < 0 {
		return nil, errors.New("kill switch: negative time limit")
	}
	if opt.Limit == 0 {
		opt.Limit = defaultKillLimit
	}
	if opt.HookLimit == 0 {
		opt.HookLimit = defaultHookLimit
	}
	return &KillSwitch{opt: opt, registered: map[string]*killRegistration{}, killed: map[string]bool{}}, nil
}

// RegisterHandler adds a handler that runs when agent is killed, after those added before it. The name stands in
// errors. Registrations are used up by the first kill: compensating twice is as wrong as not at all.
func (k *KillSwitch) RegisterHandler(agent, name string, run Callback) error {
	return k.register(agent, "handler", name, run, func(r *killRegistration) *[]namedCallback { return &r.handlers })
}

// RegisterCompensation adds what undoes something agent did; it runs after all handlers, in registration order.
func (k *KillSwitch) RegisterCompensation(agent, name string, run Callback) error {
	return k.register(agent, "compensation", name, run, func(r *killRegistration) *[]namedCallback { return &r.compensations })
}

func (k *KillSwitch) register(agent, kind, name string, run Callback, list func(*killRegistration) *[]namedCallback) error {
	if run == nil || name == "" || len(name) > maxKeyBytes {
		return fmt.Errorf("register %s %.256q of %.256q: want a name of 1 to %d bytes and a function", kind, name, agent, maxKeyBytes)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	r, err := k.registration(agent)
	if err != nil {
		return fmt.Errorf("register %s %q: %w", kind, name, err)
	}
	l := list(r)
	if len(*l) >= maxCallbacks {
		return fmt.Errorf("register %s %q of %q: %w", kind, name, agent, ErrTooManyCallbacks)
	}
	*l = append(*l, namedCallback{name, run})
	return nil
}

// RegisterSubstitute names an agent that may take over from agent. With several the first that is fit does: not the
// agent itself, not one that was killed or is in quarantine when it comes to it.
func (k *KillSwitch) RegisterSubstitute(agent, substitute string) error {
	if err := CheckAgentID(substitute); err != nil {
		return fmt.Errorf("register substitute: %w", err)
	}
	if substitute == agent {
		return fmt.Errorf("register substitute: %q can't take over from itself", agent)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	r, err := k.registration(agent)
	if err != nil {
		return fmt.Errorf("register substitute %q: %w", substitute, err)
	}
	if len(r.substitutes) >= maxCallbacks {
		return fmt.Errorf("register substitute %q of %q: %w", substitute, agent, ErrTooManyCallbacks)
	}
	r.substitutes = append(r.substitutes, substitute)
	return nil
}

// registration returns agent's registration, made if there is none. k.mu is held.
func (k *KillSwitch) registration(agent string) (*killRegistration, error) {
	if err := CheckAgentID(agent); err != nil {
		return nil, err
	}
	if k.registered == nil {
		return nil, errors.New("kill switch: not set up")
	}
	if k.killed[agent] {
		return nil, fmt.Errorf("%q: %w", agent, ErrKilled)
	}
	r := k.registered[agent]
	if r == nil {
		r = &killRegistration{}
		k.registered[agent] = r
	}
	return r, nil
}

// Started forgets that agent was killed, and what was registered for it: call it when agent starts (again), and with
// its end, so that nothing is kept for those that are gone. What survives from an earlier life would undo things in this one.
func (k *KillSwitch) Started(agent string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.killed, agent)
	delete(k.registered, agent)
}

// Kill ends agent. It always returns a result, and the result is always in the history:
//
//  1. Freeze: whatever hangs from here on, the agent doesn't run meanwhile. If that fails, the processes are killed at
//     once, before anybody's callback: the order of H-21 is worth nothing if it gives the agent time.
//  2. Intent: the audit has the kill before anything that can't be undone (H-28). Its failure stops nothing: a kill
//     grants nothing.
//  3. Handlers, then compensations, one after the other, each for as long as its limit. One that hangs is left behind;
//     Go can't end it, but nobody waits for it.
//  4. A substitute is chosen; Steps hands the work over or compensates it.
//  5. Processes, whatever happened before.
//  6. History, then Audit.
//
// Cancelling ctx doesn't stop a kill; only its values are used.
func (k *KillSwitch) Kill(ctx context.Context, agent string, kc KillContext) KillResult {
	if ctx == nil {
		ctx = context.Background() // a mistake of the caller's must not be what saves the agent
	}
	ctx = context.WithoutCancel(ctx)
	run := &killRun{k: k, ctx: ctx, agent: agent}
	if k.opt.Clock != nil {
		run.res.KilledAt = k.opt.Clock()
	}
	run.describe(kc)
	if err := CheckAgentID(agent); err != nil {
		// No agent was ever given such a name. What a hook would make of it (of "", say) is anybody's guess.
		run.fail(StageAgent, "", err)
	} else {
		run.end(kc, k.take(agent))
	}
	if k.opt.Clock != nil {
		run.res.Duration = max(0, k.opt.Clock().Sub(run.res.KilledAt))
	}
	return k.record(run)
}

// take marks agent as killed and returns what was registered for it.
func (k *KillSwitch) take(agent string) killRegistration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.registered == nil {
		return killRegistration{}
	}
	switch {
	case k.killed[agent]:
	case len(k.killed) < maxKilled:
		k.killed[agent] = true
	default:
		k.forgot = true
	}
	var r killRegistration
	if p := k.registered[agent]; p != nil {
		r = *p
	}
	delete(k.registered, agent)
	return r
}

// substitute chooses who takes over; nil if nobody is fit.
func (k *KillSwitch) substitute(agent string, candidates []string) *string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.forgot {
		return nil
	}
	for _, c := range candidates {
		if c != agent && !k.killed[c] && !k.opt.Quarantine.Holds(c) {
			return &c
		}
	}
	return nil
}

// record puts the result into the history and then into the audit, with what the audit says of it.
func (k *KillSwitch) record(run *killRun) KillResult {
	if run.res.Errors == nil {
		run.res.Errors = []KillError{}
	}
	k.mu.Lock()
	seq := k.history.add(run.res)
	k.mu.Unlock()
	if k.opt.Hooks.Audit == nil {
		return run.res
	}
	if err := k.audit(run.ctx, seq, run.res); err != nil {
		run.fail(StageAudit, "", err)
		k.mu.Lock()
		k.history.amend(seq, run.res)
		k.mu.Unlock()
	}
	return run.res
}

// audit offers one result to the audit, unless somebody is at it already.
func (k *KillSwitch) audit(ctx context.Context, seq uint64, res KillResult) error {
	k.mu.Lock()
	mine := k.history.claim(seq)
	k.mu.Unlock()
	if !mine {
		return nil
	}
	_, err := contain(ctx, k.opt.HookLimit, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, k.opt.Hooks.Audit(ctx, res.clone())
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.history.release(seq, err == nil)
	return err
}

// Retry offers the results that the audit doesn't have yet to it again, oldest first, and stops at the first that it
// refuses. One that the audit kept without saying so in time comes to it twice.
func (k *KillSwitch) Retry(ctx context.Context) error {
	if k.opt.Hooks.Audit == nil {
		return errors.New("kill switch: no audit")
	}
	k.mu.Lock()
	pending := slices.Clone(k.history.pending)
	k.mu.Unlock()
	for _, p := range pending {
		if err := k.audit(ctx, p.seq, p.res); err != nil {
			return fmt.Errorf("audit kill of %q: %w", p.res.AgentID, err)
		}
	}
	return nil
}

// History returns the results, oldest first: all that the audit doesn't have, and the last 1024 that it has.
func (k *KillSwitch) History() []KillResult {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.history.all()
}

// Unpersisted returns how many results the audit doesn't have yet.
func (k *KillSwitch) Unpersisted() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.history.pending)
}

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

// Compensation is one that is known only when the agent is killed. The name stands in errors.
type Compensation struct {
	Name string
	Run  Callback
}

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
	Freeze func(ctx context.Context) error
	// Intent records that the agent is about to be killed, synced to disk (H-28). Nil records nothing.
	Intent func(ctx context.Context, kc KillContext) error
	// Undos returns what undoes the agent's calls (H-7), the latest first. They are compensations, and run frozen and
	// after those that were registered; more than 64 are not run, and are told as an error. Nil: there are none.
	Undos func(ctx context.Context) ([]Compensation, error)
	// Steps hands the agent's saga steps that are in flight to the substitute, or compensates them if there is none
	// (to is empty then), and returns their ids. Nil: there are no sagas.
	Steps func(ctx context.Context, outcome StepOutcome, to string) (steps []string, err error)
	// Processes kills every process of the agent and returns when they are dead. It may be called twice.
	Processes func(ctx context.Context) (killed int, err error)
	// Audit keeps the result. Until it returns nil for a result, the history keeps it; nil keeps all in the history.
	Audit func(ctx context.Context, result KillResult) error
}

// KillOptions configures a KillSwitch.
type KillOptions struct {
	Agent string           // required
	Clock func() time.Time // required
	Limit time.Duration    // of each handler and compensation; 0 means 5 s (H-21)
	Hooks KillHooks
	// Fit tells whether another agent may take over: one that is held, for instance, may not. nil: nobody may.
	Fit func(agent string) bool
}

const (
	defaultKillLimit = 5 * time.Second
	hookLimit        = 10 * time.Second // of each hook

	maxCallbacks   = 64   // of each kind: all hanging, a kill takes 64 × 2 × 5 s, the agent frozen
	maxKillHistory = 1024 // results kept that the audit has
)

var (
	// ErrKilled is what registering gives when the agent was killed.
	ErrKilled = errors.New("the agent was killed")
	// ErrTooManyCallbacks is what registering beyond 64 of a kind gives.
	ErrTooManyCallbacks = errors.New("too many registrations for one agent")
)

type killRegistration struct {
	handlers, compensations []Compensation
	substitutes             []string
}

// KillSwitch ends one agent in one run (H-21 to H-23). It is safe for concurrent use. The zero value can't register
// anything and kills nothing, and says so in its results.
type KillSwitch struct {
	opt KillOptions

	mu         sync.Mutex
	registered *killRegistration // nil: the agent was killed, or nothing was set up
	history    []*killRecord     // oldest first
}

// NewKillSwitch checks opt. Agent, the clock and Processes are required.
func NewKillSwitch(opt KillOptions) (*KillSwitch, error) {
	if err := CheckAgentID(opt.Agent); err != nil {
		// What a hook would make of such a name (of "", say) is anybody's guess.
		return nil, fmt.Errorf("kill switch: %w", err)
	}
	if opt.Clock == nil || opt.Hooks.Processes == nil {
		return nil, errors.New("kill switch: needs a clock and a way to kill processes")
	}
	if opt.Limit < 0 {
		return nil, errors.New("kill switch: negative time limit")
	}
	if opt.Limit == 0 {
		opt.Limit = defaultKillLimit
	}
	return &KillSwitch{opt: opt, registered: &killRegistration{}}, nil
}

// RegisterHandler adds a handler that runs when the agent is killed, after those added before it. The name stands in
// errors. Registrations are used up by the first kill: compensating twice is as wrong as not at all.
func (k *KillSwitch) RegisterHandler(name string, run Callback) error {
	return k.register("handler", name, run, func(r *killRegistration) *[]Compensation { return &r.handlers })
}

// RegisterCompensation adds what undoes something the agent did; it runs after all handlers, in registration order.
func (k *KillSwitch) RegisterCompensation(name string, run Callback) error {
	return k.register("compensation", name, run, func(r *killRegistration) *[]Compensation { return &r.compensations })
}

func (k *KillSwitch) register(kind, name string, run Callback, list func(*killRegistration) *[]Compensation) error {
	if run == nil || name == "" || len(name) > maxKeyBytes {
		return fmt.Errorf("register %s %.256q of %q: want a name of 1 to %d bytes and a function", kind, name, k.opt.Agent, maxKeyBytes)
	}
	return register(k, kind, name, list, Compensation{name, run})
}

// RegisterSubstitute names an agent that may take over. With several the first that is fit does, never the agent itself.
func (k *KillSwitch) RegisterSubstitute(substitute string) error {
	if err := CheckAgentID(substitute); err != nil {
		return fmt.Errorf("register substitute: %w", err)
	}
	if substitute == k.opt.Agent {
		return fmt.Errorf("register substitute: %q can't take over from itself", substitute)
	}
	return register(k, "substitute", substitute, func(r *killRegistration) *[]string { return &r.substitutes }, substitute)
}

// register adds one to a list of k's.
func register[T any](k *KillSwitch, kind, name string, list func(*killRegistration) *[]T, one T) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.registered == nil {
		return fmt.Errorf("register %s %q: %q: %w", kind, name, k.opt.Agent, ErrKilled)
	}
	l := list(k.registered)
	if len(*l) >= maxCallbacks {
		return fmt.Errorf("register %s %q of %q: %w", kind, name, k.opt.Agent, ErrTooManyCallbacks)
	}
	*l = append(*l, one)
	return nil
}

// Kill ends the agent. It always returns a result, and the result is always in the history:
//
//  1. Freeze: whatever hangs from here on, the agent doesn't run meanwhile. If that fails, the processes are killed at
//     once, before anybody's callback: the order of H-21 is worth nothing if it gives the agent time. Without callbacks
//     only if what follows hasn't come to the processes within 2 ms.
//  2. Intent: the audit has the kill before anything that can't be undone (H-28). Its failure stops nothing: a kill
//     grants nothing.
//  3. Handlers, then compensations, one after the other, each for as long as its limit. One that hangs is left behind;
//     Go can't end it, but nobody waits for it.
//  4. A substitute is chosen; Steps hands the work over or compensates it.
//  5. Processes, whatever happened before.
//  6. History, then Audit.
//
// Cancelling ctx doesn't stop a kill; only its values are used.
func (k *KillSwitch) Kill(ctx context.Context, kc KillContext) KillResult {
	if ctx == nil {
		ctx = context.Background() // a mistake of the caller's must not be what saves the agent
	}
	run := &killRun{k: k, ctx: context.WithoutCancel(ctx)}
	if k.opt.Clock != nil {
		run.res.KilledAt = k.opt.Clock()
	}
	run.describe(kc)
	run.end(kc, k.take())
	if k.opt.Clock != nil {
		run.res.Duration = max(0, k.opt.Clock().Sub(run.res.KilledAt))
	}
	return k.record(run)
}

// take returns what was registered. Nothing can be registered from then on.
func (k *KillSwitch) take() (r killRegistration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.registered != nil {
		r, k.registered = *k.registered, nil
	}
	return r
}

// substitute chooses who takes over; nil if nobody is fit.
func (k *KillSwitch) substitute(candidates []string) *string {
	if i := slices.IndexFunc(candidates, func(c string) bool { return k.opt.Fit != nil && k.opt.Fit(c) }); i >= 0 {
		return &candidates[i]
	}
	return nil
}

// record puts the result into the history and then into the audit, with what the audit says of it.
func (k *KillSwitch) record(run *killRun) KillResult {
	if run.res.Errors == nil {
		run.res.Errors = []KillError{}
	}
	rec := &killRecord{res: run.res.clone()}
	k.mu.Lock()
	k.history = append(k.history, rec)
	k.mu.Unlock()
	if k.opt.Hooks.Audit == nil {
		return run.res
	}
	if err := k.audit(run.ctx, rec); err != nil {
		run.fail(StageAudit, "", err)
		k.mu.Lock()
		rec.res = run.res.clone()
		k.mu.Unlock()
	}
	return run.res
}

// audit offers one result to the audit, unless the audit has it or somebody is at it already.
func (k *KillSwitch) audit(ctx context.Context, rec *killRecord) error {
	k.mu.Lock()
	mine, res := !rec.kept && !rec.busy, rec.res.clone()
	rec.busy = rec.busy || mine
	k.mu.Unlock()
	if !mine {
		return nil
	}
	_, err := contain(ctx, hookLimit, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, k.opt.Hooks.Audit(ctx, res)
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	rec.busy, rec.kept = false, err == nil
	k.forgetLocked()
	return err
}

// forgetLocked drops the oldest of the results that the audit has. Never one that it has not: with a broken audit the
// history grows by one small value a kill.
func (k *KillSwitch) forgetLocked() {
	over := -maxKillHistory
	for _, r := range k.history {
		if r.kept {
			over++
		}
	}
	k.history = slices.DeleteFunc(k.history, func(r *killRecord) bool {
		drop := r.kept && over > 0
		if drop {
			over--
		}
		return drop
	})
}

// Retry offers the results that the audit doesn't have yet to it again, oldest first, and stops at the first that it
// refuses. One that the audit kept without saying so in time comes to it twice.
func (k *KillSwitch) Retry(ctx context.Context) error {
	if k.opt.Hooks.Audit == nil {
		return errors.New("kill switch: no audit")
	}
	k.mu.Lock()
	all := slices.Clone(k.history)
	k.mu.Unlock()
	for _, rec := range all {
		if err := k.audit(ctx, rec); err != nil {
			return fmt.Errorf("audit kill of %q: %w", k.opt.Agent, err)
		}
	}
	return nil
}

// History returns the results, oldest first: all that the audit doesn't have, and the last 1024 that it has.
func (k *KillSwitch) History() []KillResult {
	k.mu.Lock()
	defer k.mu.Unlock()
	results := make([]KillResult, len(k.history))
	for i, r := range k.history {
		results[i] = r.res.clone()
	}
	return results
}

// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/runtime"
)

// KillRequest says why a run is killed.
type KillRequest struct {
	Reason rings.KillReason // of H-23; unknown ones are recorded as manual, with an error
	Action string           // that triggered it; may be empty
	By     string           // who ordered it: "uid:0", or the part of agentrun that did
	Detail string           // for people
	Note   string           // the operator's own words, for the audit
	State  runtime.State    // how the run ends; empty: runtime.Killed
}

func (r KillRequest) String() string {
	s := "killed (" + string(r.Reason) + ")"
	if r.By != "" {
		s += " by " + r.By
	}
	if r.Detail != "" {
		s += ": " + r.Detail
	}
	return s
}

// Kill ends the run as H-21 has it and returns what was done, whatever failed; the result is on record. Cancelling ctx
// doesn't stop it. The run is in ring 3 from the first instant on. Every call is a kill of its own, with a result of its own.
func (c *Control) Kill(ctx context.Context, r KillRequest) rings.KillResult {
	if c.underWay() {
		defer c.work.Done()
	}
	c.doom()
	kc := rings.KillContext{Reason: r.Reason}
	if r.Action != "" {
		kc.Action = &r.Action
	}
	if ctx == nil {
		ctx = context.Background()
	}
	res := c.kills.Kill(context.WithValue(ctx, orderKey{}, r), kc)
	c.notify(EventKill, map[string]string{"reason": string(res.Reason)})
	return res
}

// underWay has Close wait for a kill until c.work is done, unless the run is closed already: an operator's comes from the control socket, which nobody at the run's end
// waits for, and may have run only some of its compensations by then.
func (c *Control) underWay() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.work.Add(1)
	}
	return !c.closed
}

// orderKey is where the hooks of a kill find its KillRequest.
type orderKey struct{}

// KillRequestOf gives a handler or compensation the request that it is run for.
func KillRequestOf(ctx context.Context) KillRequest { return orderOf(ctx) }

func orderOf(ctx context.Context) KillRequest {
	r, _ := ctx.Value(orderKey{}).(KillRequest)
	return r
}

// doom marks the run as one that has no more rights. Its processes end at once; what is none of them (its calls, its tunnels) isn't
// stopped by that. To change their ring before would only take time.
func (c *Control) doom() {
	c.mu.Lock()
	c.killed = true
	c.endChildrenLocked()
	c.mu.Unlock()
	if p, err := c.those(); err == nil {
		p.Doom()
	}
	c.live.hold()
	c.nudge()
}

// killSoon kills without making its caller wait: who triggers a kill may be what the kill waits for.
func (c *Control) killSoon(r KillRequest) {
	if !c.underWay() {
		return
	}
	c.doom()
	go func() {
		defer c.work.Done()
		c.Kill(context.Background(), r)
	}()
}

// RegisterHandler adds what runs when the run is killed, after it was frozen and before it is dead; see rings.KillSwitch.
func (c *Control) RegisterHandler(name string, run rings.Callback) error {
	return c.kills.RegisterHandler(name, run)
}

// RegisterCompensation adds what undoes something the run did; it runs after the handlers.
func (c *Control) RegisterCompensation(name string, run rings.Callback) error {
	return c.kills.RegisterCompensation(name, run)
}

// RegisterSubstitute names an agent that may take over, after that of the agent's settings.
func (c *Control) RegisterSubstitute(agent string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.kills.RegisterSubstitute(agent); err != nil {
		return err
	}
	c.candidates = append(c.candidates, agent)
	return nil
}

func (c *Control) substitutes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.candidates)
}

func (c *Control) killSwitch() *rings.KillSwitch {
	k, err := rings.NewKillSwitch(rings.KillOptions{
		Agent: c.who, Clock: c.h.now, Fit: c.fit, Limit: max(0, c.opt.HandlerLimit),
		Hooks: rings.KillHooks{Freeze: c.freeze, Intent: c.intent, Undos: c.undos, Steps: c.steps, Processes: c.killProcesses, Audit: c.recordKill},
	})
	if err != nil {
		panic(err) // only for options that aren't these
	}
	return k
}

var errNoProcesses = errors.New("the run has no processes yet; they are killed as soon as it has")

func (c *Control) those() (Processes, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.processes == nil {
		return nil, errNoProcesses
	}
	return c.processes, nil
}

func (c *Control) freeze(ctx context.Context) error {
	p, err := c.those()
	if err != nil {
		return err
	}
	return p.FreezeForKill(ctx)
}

func (c *Control) killProcesses(ctx context.Context) (int, error) {
	p, err := c.those()
	if err != nil {
		return 0, err
	}
	r := orderOf(ctx)
	n, err := p.Kill(ctx, runtime.KillCause{State: r.State, Reason: r.String()})
	return n, errors.Join(err, c.awaitChildren(ctx)) // one may just have been put where the kill had looked
}

// intent puts the order on record, on disk (H-28). The run is frozen, or dead: now there is time to see who may take over.
func (c *Control) intent(ctx context.Context, kc rings.KillContext) error {
	var unread error
	if c.opt.Ordered != nil {
		unread = c.opt.Ordered()
	}
	for _, s := range c.substitutes() {
		unread = errors.Join(unread, c.refuseUnfit(ctx, s))
	}
	r := &audit.KillOrder{AgentID: c.who, ParentRunID: c.adm.parent.run, Reason: string(kc.Reason), RunID: c.opt.Run, Trigger: cmp.Or(triggers[kc.Reason], "operator")}
	if by := orderOf(ctx).By; by != "" {
		r.By = audit.Claimed(by)
		if strings.HasPrefix(by, "uid:") { // who may give any reason
			r.Trigger = "operator"
		}
	}
	r.Note = noteOf(orderOf(ctx).Note)
	return errors.Join(c.h.record(c.adm.Session, true, r), unread)
}

// triggers are the audit's words for what orders kills for a reason; for any other it is an operator.
var triggers = map[rings.KillReason]string{
	rings.KillRingBreach:         "ring_breach",
	rings.KillPolicyViolation:    "policy_engine",
	rings.KillCircuitBreaker:     "circuit_breaker",
	rings.KillSessionTimeout:     "session",
	rings.KillResourceExhaustion: "budget",
	rings.KillQuarantineTimeout:  "quarantine",
}

const maxKillErrors = 64

// recordKill puts a kill's result on record, on disk.
func (c *Control) recordKill(_ context.Context, res rings.KillResult) error {
	r := &audit.Kill{
		AgentID: c.who, CallbacksExecuted: int64(res.CallbacksExecuted), CompensationsExecuted: int64(res.CompensationsExecuted),
		DurationNS: max(0, int64(res.Duration)), KilledAt: res.KilledAt.UTC(), ParentRunID: c.adm.parent.run, ProcessesKilled: int64(res.ProcessesKilled), Reason: string(res.Reason), RunID: c.opt.Run,
	}
	if res.Action != nil {
		r.Action = audit.Claimed(*res.Action)
	}
	if res.HandoffAgentID != nil {
		r.HandoffAgentID = *res.HandoffAgentID
	}
	for _, e := range res.Errors[:min(len(res.Errors), maxKillErrors)] {
		what := string(e.Stage)
		if e.Name != "" {
			what += ":" + e.Name
		}
		r.Errors = append(r.Errors, audit.Claimed(what))
	}
	return c.h.record(c.adm.Session, true, r)
}

// Kills returns what the run's kills did, oldest first (H-22).
func (c *Control) Kills() []rings.KillResult { return c.kills.History() }

// fitTime bounds how long a kill asks whether a substitute is fit.
const fitTime = 2 * time.Second

// refuseUnfit looks up who may not take over: the run is frozen. What can't be read is unfit.
func (c *Control) refuseUnfit(ctx context.Context, substitute string) error {
	ctx, cancel := context.WithTimeout(ctx, fitTime)
	defer cancel()
	a, err := c.h.Agent(ctx, substitute)
	if err == nil && a.Quarantined == nil {
		return nil
	}
	c.mu.Lock()
	c.unfit[substitute] = true
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("substitute %s: %w", substitute, err)
	}
	return nil
}

func (c *Control) fit(substitute string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.unfit[substitute]
}

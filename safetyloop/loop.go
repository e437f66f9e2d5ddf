// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"
)

// Loop is one safety loop: a supervisor's for its sandboxes, or the dongle's for its clients. It is for use by many goroutines at
// once. Printed in any way, it shows nothing of what it holds.
type Loop struct {
	set     Settings
	done    context.Context // of deliveries to channels
	end     context.CancelFunc
	showing chan struct{}
	wg      sync.WaitGroup

	// mu guards everything below, and what principals point to. It is held for moments only: nothing is judged, stored, recorded
	// or shown under it. The order of a principal's calls is kept by its turn, which is taken before mu.
	mu         sync.Mutex
	closed     bool
	principals map[string]*principal
	challenges map[string]*challenge
	tokens     map[tokenHash]*token
}

// New makes a loop over what the store holds. An error names the setting that is missing. A store that can't be read is no error
// here: the loop begins with everybody blocked (S-8).
func New(s Settings) (*Loop, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	done, end := context.WithCancel(context.Background())
	l := &Loop{
		set: s, done: done, end: end, showing: make(chan struct{}, maxShowing),
		principals: map[string]*principal{}, challenges: map[string]*challenge{}, tokens: map[tokenHash]*token{},
	}
	if l.evaluates() {
		l.forgetOldFailures()
	}
	return l, nil
}

func (s *Settings) check() error {
	evaluates := s.Mode == Enforcing || s.Mode == Monitoring
	for _, c := range []struct {
		missing bool
		field   string
	}{
		{s.Mode < Enforcing || s.Mode > Disabled, "Mode"},
		{evaluates && s.Tolerance.Score() == 0, "Tolerance"},
		{evaluates && (s.MaxSteps < 1 || s.MaxSteps > 10000), "MaxSteps"},
		{evaluates && (s.Confirm < ConfirmServer || s.Confirm > ConfirmPolicy), "Confirm"},
		{evaluates && s.Store == nil, "Store"},
		{evaluates && s.Judge == nil, "Judge"},
		{s.Mode != Disabled && s.Record == nil, "Record"},
		{s.Now == nil, "Now"},
	} {
		if c.missing {
			return fmt.Errorf("%w %s: missing, or out of its range", ErrSetting, c.field)
		}
	}
	return nil
}

func (l *Loop) evaluates() bool { return l.set.Mode == Enforcing || l.set.Mode == Monitoring }

func (l *Loop) now() time.Time { return l.set.Now() }

func (l *Loop) observe(stage, verdict string) {
	if l.set.Observe != nil {
		l.set.Observe(stage, verdict)
	}
}

// Close ends what is under way to Channels and waits for it. Calls after it are refused.
func (l *Loop) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.end()
	l.wg.Wait()
}

// Format prints a name and nothing more, whatever the verb: a loop holds codes.
func (l *Loop) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("safetyloop.Loop")) }

// principal is what is known of a caller while the loop lives. Blocks and failed attempts are in the store.
type principal struct {
	name string
	turn chan struct{} // held by the one call of it that is under way
	// enforcing is held by who tells the Enforcer about it.
	enforcing chan struct{}
	users     int // calls that have or wait for the turn
	used      time.Time

	bound     bool // an agent of ours, that the Enforcer acts on
	frozen    bool // by us
	unsaved   *block
	confirmed bool // CREATE was confirmed for the session
	shared    run  // of executions that no human let begin
	running   map[string]*execution
	approvals []approval
	intents   []intent
	outcomes  []bool // of the last steps; true: failure
}

// run counts what an agent did by itself since a human looked.
type run struct {
	steps  int
	failed bool
}

// own gives what holds for an agent now.
func (l *Loop) own(c Caller, element string) (o Own) {
	if l.set.For != nil {
		o = l.set.For(c, element)
	}
	if o.Judge == nil {
		o.Judge = l.set.Judge
	}
	if o.Tolerance.Score() == 0 {
		o.Tolerance = l.set.Tolerance
	}
	if o.MaxSteps < 1 || o.MaxSteps > 10000 {
		o.MaxSteps = l.set.MaxSteps
	}
	return o
}

// execution is an agent at work: of a principal, by its element_name.
type execution struct {
	id      string
	run     *run // its own, or the principal's
	own     Own  // as its last step found it
	begun   bool // by execute_agent
	lowered int  // the limit that execute_agent asked for; 0: the agent's
	notes   []Notification
}

func (e *execution) limit() int {
	if e.lowered > 0 {
		return min(e.lowered, e.own.MaxSteps)
	}
	return e.own.MaxSteps
}

// approval is a step that a human let pass by verifying its challenge.
type approval struct {
	bound   digest // of its agent and its hint
	since   time.Time
	expires time.Time
}

// within tells whether now is in a span by both clocks. The monotonic one stands still while the machine sleeps, the other can be
// set; one that goes backwards ends the span, because what was made in the future isn't good.
func within(now, since, expires time.Time) bool {
	wall := now.Round(0)
	return !now.Before(since) && now.Before(expires) && !wall.Before(since.Round(0)) && wall.Before(expires.Round(0))
}

func validPrincipal(name string) bool {
	return name != "" && len(name) <= maxPrincipal && utf8.ValidString(name)
}

// take gives the principal's turn. Its calls come one after the other: two steps at once would both be judged by what was before
// either, and a stop would come too late for the other.
func (l *Loop) take(ctx context.Context, c Caller) (*principal, func(), error) {
	p, err := l.enter(c)
	if err != nil {
		return nil, nil, err
	}
	leave := func() {
		l.mu.Lock()
		p.users--
		p.used = l.now()
		l.mu.Unlock()
	}
	select {
	case p.turn <- struct{}{}:
		return p, func() { <-p.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, nil, ctx.Err()
	}
}

func (l *Loop) enter(c Caller) (*principal, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	p := l.principals[c.Principal]
	if p == nil {
		if len(l.principals) >= maxPrincipals && !l.makeRoom() {
			return nil, fmt.Errorf("%w: %d clients", ErrBusy, maxPrincipals)
		}
		p = &principal{name: c.Principal, turn: make(chan struct{}, 1), enforcing: make(chan struct{}, 1), running: map[string]*execution{}}
		l.principals[c.Principal] = p
	}
	if p.users >= maxWaiting {
		return nil, fmt.Errorf("%w: %d calls of one client", ErrBusy, maxWaiting)
	}
	p.users++
	p.bound = p.bound || c.Bound
	return p, nil
}

// makeRoom forgets the principal that was away longest, if it was away for an hour. One that is stopped by the Enforcer, whose
// block couldn't be saved, or that has a challenge, is never forgotten. The caller holds mu.
func (l *Loop) makeRoom() bool {
	var oldest *principal
	for _, p := range l.principals {
		if p.users == 0 && !p.frozen && p.unsaved == nil && l.now().Sub(p.used) >= idlePrincipal && (oldest == nil || p.used.Before(oldest.used)) &&
			l.countChallenges(p.name) == 0 {
			oldest = p
		}
	}
	if oldest == nil {
		return false
	}
	l.drop(oldest)
	return true
}

func (l *Loop) drop(p *principal) {
	delete(l.principals, p.name)
	for h, t := range l.tokens {
		if t.Principal == p.name {
			delete(l.tokens, h)
		}
	}
}

// Forget drops what is known of a principal whose run has ended: its executions, step counters, confirmations and approved steps.
// Blocks, lockouts and challenges stay. A principal with a call under way isn't forgotten. It is for ends that a human's start
// follows: a client that could bring it about by hanging up would be rid of its step limit.
func (l *Loop) Forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.principals[name]; p != nil && p.users == 0 && !p.frozen && p.unsaved == nil {
		l.drop(p)
	}
}

// agentName is the agent as operators and the audit see it.
func agentName(c Caller, element string) string {
	if c.Bound || element == "" {
		return c.Principal
	}
	return c.Principal + "/" + element
}

// Do answers one request of an agent or of another client (S-1 to S-4). It never panics on what it is given, and never fails
// otherwise than by a Reply.
func (l *Loop) Do(ctx context.Context, call Call) Reply {
	if !validPrincipal(call.Caller.Principal) {
		return failed(refusal(CodeDenied, nil, "Permission denied: the connection has no principal"))
	}
	op, v, err := route(call)
	if err != nil {
		l.observe("route", word(err))
		return l.refuse(ctx, call, "", err)
	}
	if op.Name == opIntrospect {
		return l.introspect(ctx, call.Caller, v)
	}
	if l.set.Mode == Disabled {
		return succeed(Directive{Continue: true, Factors: []string{"disabled"}})
	}
	p, leave, terr := l.take(ctx, call.Caller)
	if terr != nil {
		return l.refuse(ctx, call, v.text(pElement), unavailable(terr))
	}
	defer leave()
	// From here on the client's hanging up changes nothing: a call that is cut off where it would have been stopped is a way to
	// find out what stops.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	return l.act(ctx, call, op, v, p)
}

func unavailable(err error) *Error {
	if errors.Is(err, ErrBusy) {
		return refusal(CodeRateLimit, map[string]any{"limit": maxWaiting}, "Too much is under way; repeat the call later")
	}
	return refusal(CodeInternal, nil, "Internal error: %v", err)
}

// route is the Gatekeeper's first layer, and the check of the parameters behind it.
func route(call Call) (*Operation, values, *Error) {
	op := operation(call.Operation)
	if op == nil {
		return nil, values{}, refusal(CodeNoOperation, map[string]any{"operation": shown(call.Operation, 64), "available": operationNames()},
			"Unknown operation: '%s'", shown(call.Operation, 64))
	}
	if right := op.endpoint(); call.Endpoint != right && call.Endpoint != Any {
		return nil, values{}, refusal(CodeDenied, map[string]any{
			"operation": op.Name, "endpoint": call.Endpoint.String(), "required_endpoint": right.String(), "required_tool": right.Tool(),
		}, "Permission denied: '%s' is called on %s by %s, not on %s", op.Name, right, right.Tool(), call.Endpoint)
	}
	v, err := decode(op, call.Params.Reveal())
	return op, v, err
}

func operationNames() []string {
	var names []string
	for _, o := range Operations() {
		names = append(names, o.Name)
	}
	return names
}

func (l *Loop) act(ctx context.Context, call Call, op *Operation, v values, p *principal) Reply {
	if l.set.Mode == Logging {
		return l.logOnly(ctx, call, op, v)
	}
	if l.set.Mode == Enforcing {
		if b, err := l.blockOf(ctx, p); (b != nil || err != nil) && op.Name != opVerify {
			return l.stopped(ctx, call, op, v, p, b, err)
		}
	}
	switch op.Name {
	case opVerify:
		return l.verifyChallenge(ctx, call, v, p)
	case opConfirm:
		return l.confirmOperation(ctx, call, v)
	case opStep:
		return l.step(ctx, call, v, p)
	}
	if refused := l.permit(ctx, call, op, v, p); refused != nil {
		return l.refuse(ctx, call, v.text(pElement), refused)
	}
	return l.execution(ctx, call, op, v, p)
}

// logOnly is S-14's logging: recorded, not evaluated.
func (l *Loop) logOnly(ctx context.Context, call Call, op *Operation, v values) Reply {
	var err error
	if op.Name == opStep {
		err = l.recordStep(ctx, call.Caller, v, verdict{kind: goOn, stage: "none"}, "", nil)
	} else {
		err = l.recordOperation(ctx, call, v.text(pElement), "ok")
	}
	if err != nil {
		return failed(unrecorded())
	}
	return succeed(Directive{Continue: true, Factors: []string{"logging only"}})
}

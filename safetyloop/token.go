// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"agentrun/audit"
	"agentrun/safetyloop/judge"
)

type tokenHash digest

// scope says what a token is good for.
type scope uint8

const (
	forOnce    scope = iota + 1 // one call of an operation
	forSession                  // CREATE, for the session
	forPause                    // one step that was paused
)

// token is a confirmation that was asked for (S-12). The text isn't secret from the agent that it was given to: what keeps it from
// confirming itself is who presents it.
type token struct {
	Pending
	hash      tokenHash
	scope     scope
	session   string
	bound     digest
	confirmed bool
	used      bool
}

func hashOf(text string) tokenHash { return tokenHash(sha256.Sum256([]byte(text))) }

func newToken() string { return fmt.Sprintf("conf_%x", randomBytes(24)) }

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: crypto/rand ends the program instead
	return b
}

func (t *token) live(now time.Time) bool { return !t.used && within(now, t.Created, t.Expires) }

// request is what a confirmation is asked for.
type request struct {
	scope     scope
	operation string
	element   string
	bound     digest
	summary   string
	reason    string
}

// ask gives the token of a request: the one that waits already, if there is one. An agent that repeats itself then gets no second.
func (l *Loop) ask(ctx context.Context, c Caller, r request) (*token, error) {
	now := l.now().UTC()
	l.mu.Lock()
	l.sweepTokens(now)
	waiting := 0
	for _, t := range l.tokens {
		if t.Principal != c.Principal || !t.live(now) {
			continue
		}
		if t.scope == r.scope && t.Operation == r.operation && t.bound == r.bound {
			l.mu.Unlock()
			return t, nil
		}
		waiting++
	}
	l.mu.Unlock()
	if waiting >= maxTokens {
		return nil, fmt.Errorf("%w: %d confirmations of this client wait", ErrBusy, waiting)
	}
	text := newToken()
	t := &token{
		Pending: Pending{
			Token: text, Principal: c.Principal, Agent: agentName(c, r.element), Operation: r.operation,
			Summary: shown(r.summary, maxSummary), Reason: r.reason, Created: now, Expires: now.Add(TokenTTL),
		},
		hash: hashOf(text), scope: r.scope, session: c.Session, bound: r.bound,
	}
	if err := l.recordToken(ctx, t, "requested", "", ""); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.tokens[t.hash] = t
	l.mu.Unlock()
	return t, nil
}

// sweepTokens drops what has been spent for long enough that nobody needs to be told. The caller holds mu.
func (l *Loop) sweepTokens(now time.Time) {
	spent := map[string][]*token{}
	for h, t := range l.tokens {
		switch {
		case now.After(t.Expires.Add(TokenTTL)):
			delete(l.tokens, h)
		case !t.live(now):
			spent[t.Principal] = append(spent[t.Principal], t)
		}
	}
	for _, list := range spent {
		if len(list) > maxSpent {
			slices.SortFunc(list, func(a, b *token) int { return a.Created.Compare(b.Created) })
			for _, t := range list[:len(list)-maxSpent] {
				delete(l.tokens, t.hash)
			}
		}
	}
}

func (l *Loop) recordToken(ctx context.Context, t *token, event, by, reason string) error {
	return l.keep(ctx, t.session, &audit.SafetyConfirmation{
		AgentID: audit.Claimed(t.Agent), Bound: t.bound.String(), By: claimedOr(by), Event: event, ExpiresAt: t.Expires,
		Operation: t.Operation, Reason: reason, Token: audit.Hash(t.hash),
	})
}

func claimedOr(s string) string {
	if s == "" {
		return ""
	}
	return audit.Claimed(s)
}

// find looks a token up for whoever presents it. Its hash is the key, so that finding it takes the same time however much of it
// was guessed.
func (l *Loop) find(text string) (token, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tokens[hashOf(text)]
	if t == nil {
		return token{}, false
	}
	return *t, true
}

// problem says why a token is no good, in the order of the draft; nil if it is.
func (t *token) problem(now time.Time, operation string, bound digest) *Error {
	switch {
	case t.Operation != operation || t.bound != bound:
		return refusal(CodeTokenMismatch, map[string]any{"requested_operation": operation}, "Confirmation token scope mismatch")
	case t.used:
		return refusal(CodeTokenUsed, nil, "Confirmation token has already been used")
	case !within(now, t.Created, t.Expires):
		at := map[string]any{"expired_at": t.Expires.UTC()}
		return refusal(CodeTokenExpired, at, "Confirmation token has expired")
	}
	return nil
}

// use spends a confirmed token. Without an error and without a token, nobody has confirmed it yet.
func (l *Loop) use(ctx context.Context, c Caller, s scope, operation string, bound digest, text string) (*token, *Error) {
	t, found := l.find(text)
	if !found || t.Principal != c.Principal {
		return nil, l.badToken(ctx, c, text, operation, refusal(CodeTokenInvalid, nil, "Invalid confirmation token"))
	}
	bad := t.problem(l.now(), operation, bound)
	if bad == nil && t.scope != s {
		bad = refusal(CodeTokenMismatch, map[string]any{"requested_operation": operation}, "Confirmation token scope mismatch")
	}
	if bad != nil {
		return nil, l.badToken(ctx, c, text, operation, bad)
	}
	if !t.confirmed {
		return nil, nil
	}
	l.mu.Lock()
	kept := l.tokens[t.hash]
	won := kept != nil && !kept.used
	if won {
		kept.used = true // before it takes effect, and for good: an error behind this burns it
	}
	l.mu.Unlock()
	if !won {
		return nil, refusal(CodeTokenUsed, nil, "Confirmation token has already been used")
	}
	if err := l.recordToken(ctx, &t, "used", "", ""); err != nil {
		return nil, unrecorded()
	}
	return &t, nil
}

func (l *Loop) badToken(ctx context.Context, c Caller, text, operation string, e *Error) *Error {
	err := l.keep(ctx, c.Session, &audit.SafetyConfirmation{
		AgentID: audit.Claimed(c.Principal), By: audit.Claimed(c.Principal), Event: "refused", Operation: operation, Reason: word(e), Token: audit.Hash(hashOf(text)),
	})
	if err != nil {
		return unrecorded()
	}
	l.observe("confirmation", word(e))
	return e
}

// asks tells whether a call needs somebody's confirmation before it is looked at. A sandbox's session is its run: whoever started
// it with a loop has confirmed that it may report its steps.
func (l *Loop) asks(c Caller, op *Operation, p *principal) bool {
	if l.set.Mode != Enforcing || l.set.Confirm == ConfirmClient || c.Operator || op.Permission == autoApprove {
		return false
	}
	return op.Permission != confirmSession || !c.Bound && !l.sessionConfirmed(p, false)
}

// byPolicy is the policy's word about an operation that asks, where it has one; RuleDefault: an operator is asked. What can't be
// judged has none: patterns that nobody could read must not let anything pass.
func (l *Loop) byPolicy(ctx context.Context, c Caller, op *Operation, element string) judge.Rule {
	if l.set.Confirm != ConfirmPolicy {
		return RuleDefault
	}
	j, err := l.judge(ctx, l.own(c, element).Judge, judge.OperationHint(op.Name, element))
	if err != nil {
		return RuleDefault
	}
	return j.Rule
}

// permit is the Gatekeeper's second and fourth layer: the endpoint's default permission, and its confirmation (S-2, S-5). The
// permission of CREATE is asked once for a session, as clients do it for a tool.
func (l *Loop) permit(ctx context.Context, call Call, op *Operation, v values, p *principal) *Error {
	c := call.Caller
	if !l.asks(c, op, p) {
		return nil
	}
	switch l.byPolicy(ctx, c, op, v.text(pElement)) {
	case RuleDeny:
		l.observe("permission", "denied")
		return refusal(CodeDenied, map[string]any{"reason": "policy"}, "Permission denied: the policy forbids this operation")
	case RuleAutoApprove:
		l.observe("permission", "policy")
		return nil
	}
	r := request{scope: forOnce, operation: op.Name, element: v.text(pElement), bound: boundTo(op.Name, v), summary: v.canonical(), reason: permissionReason(op)}
	if op.Permission == confirmSession {
		r.scope = forSession
	}
	if text := v.text(pToken); text != "" {
		t, bad := l.use(ctx, c, r.scope, op.Name, r.bound, text)
		if bad != nil {
			return bad
		}
		if t != nil {
			l.observe("permission", "confirmed")
			if r.scope == forSession {
				l.sessionConfirmed(p, true)
			}
			delete(v.raw.Reveal(), pToken) // spent: it isn't a pause's as well
			return nil
		}
	}
	t, err := l.ask(ctx, c, r)
	if err != nil {
		return askError(err)
	}
	l.observe("permission", "asked")
	l.mu.Lock()
	if e := p.running[r.element]; e != nil && op.Name != opStep {
		e.add(l.note(notePermission, fmt.Sprintf("Operation '%s' requires confirmation", op.Name), pendingData(op.Name, op.Permission, t)))
	}
	l.mu.Unlock()
	return refusal(CodeConfirmation, map[string]any{
		"operation": op.Name, "level": op.Permission, "reasons": []string{r.reason},
		"confirmation_message": "Somebody else confirms the token; then repeat this same call with confirmation_token",
		"confirmation_token":   t.Token, "expires_at": t.Expires.UTC(),
	}, "This operation requires confirmation")
}

func permissionReason(op *Operation) string { return op.Endpoint + " asks for " + op.Permission }

func askError(err error) *Error {
	if e := unavailable(err); e.Code == CodeRateLimit {
		return e
	}
	return unrecorded()
}

func pendingData(operation, level string, t *token) map[string]any {
	return map[string]any{
		"operation": operation, "level": level, "confirmation_token": t.Token, "expires_at": t.Expires.UTC(),
	}
}

func (l *Loop) sessionConfirmed(p *principal, now bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.confirmed = p.confirmed || now
	return p.confirmed
}

// boundTo is what a token confirms. A step is its agent and its hint, with runs of white space in a line as one space; the outcome of the step
// before may be told differently the second time. Everything else is all of its parameters, but for the token itself and a code.
func boundTo(operation string, v values) digest {
	if operation == opStep {
		return stepDigest(v.text(pElement), v.text(pHint))
	}
	return digestOf(operation, v.canonical())
}

// confirmOperation serves confirm_operation.
func (l *Loop) confirmOperation(ctx context.Context, call Call, v values) Reply {
	c := call.Caller
	text := v.text(pToken)
	t, found := l.find(text)
	var bad *Error
	switch {
	case !found:
		bad = refusal(CodeTokenInvalid, nil, "Invalid confirmation token")
	case t.Principal == c.Principal:
		// The caller comes from the connection: an agent that calls itself something else is still the same one.
		bad = refusal(CodeDenied, map[string]any{"reason": "self_approval"}, "Permission denied: nobody confirms for themselves")
	case l.set.OnlyOperators && !c.Operator:
		bad = refusal(CodeDenied, map[string]any{"reason": "operators_only"}, "Permission denied: only an operator confirms here")
	case v.text(pOperation) != "" && v.text(pOperation) != t.Operation:
		bad = refusal(CodeTokenMismatch, map[string]any{"requested_operation": shown(v.text(pOperation), 64)}, "Confirmation token scope mismatch")
	case t.confirmed:
		bad = refusal(CodeTokenUsed, nil, "Confirmation token has already been used")
	default:
		bad = t.problem(l.now(), t.Operation, t.bound)
	}
	if bad != nil {
		return failed(l.badToken(ctx, c, text, opConfirm, bad))
	}
	if err := l.confirm(ctx, t, c.Principal); err != nil {
		return failed(unrecorded())
	}
	return succeed(map[string]any{
		"confirmed": true, "operation": t.Operation, "agent": t.Agent, "summary": t.Summary, "expires_at": t.Expires.UTC(),
	})
}

func (l *Loop) confirm(ctx context.Context, t token, by string) error {
	if err := l.recordToken(ctx, &t, "confirmed", by, ""); err != nil {
		return err
	}
	l.observe("confirmation", "confirmed")
	l.mu.Lock()
	defer l.mu.Unlock()
	if kept := l.tokens[t.hash]; kept != nil {
		kept.confirmed = true
	}
	return nil
}

// Pending lists what waits for Confirm, oldest first.
func (l *Loop) Pending(context.Context) []Pending {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	list := []Pending{}
	for _, t := range l.tokens {
		if t.live(now) && !t.confirmed {
			list = append(list, t.Pending)
		}
	}
	slices.SortFunc(list, func(a, b Pending) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Token, b.Token)) })
	return list
}

// Confirm answers a token (S-12): ErrNotFound, ErrUsed, ErrExpired, or the audit's error.
func (l *Loop) Confirm(ctx context.Context, by, text string) error {
	t, found := l.find(text)
	switch now := l.now(); {
	case !found:
		return fmt.Errorf("confirm token: %w", ErrNotFound)
	case t.used || t.confirmed:
		return fmt.Errorf("confirm token: %w", ErrUsed)
	case !within(now, t.Created, t.Expires):
		return fmt.Errorf("confirm token: %w", ErrExpired)
	}
	return l.confirm(ctx, t, by)
}

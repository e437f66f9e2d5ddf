// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"agentrun/audit"
	"agentrun/telemetry"
)

// Kinds of challenges.
const (
	challengeVerify = "verify"
	challengeDanger = "danger_zone"
)

// challenge is a code that a human has to bring back (S-10). Challenges live in memory only: a code on a disk is a code that an
// agent could come to read. After a restart a stopped agent's next call makes a new one.
type challenge struct {
	Challenge // without its code
	principal string
	session   string
	bound     digest
	code      telemetry.Plaintext[string]
	claimed   bool // somebody's right code is being acted upon
}

// newID gives a UUIDv4 (RFC 9562).
func newID() string {
	b := randomBytes(16)
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return idFrom(b)
}

func idFrom(b []byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// isID takes an id in the one spelling that newID has.
func isID(s string) bool {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	return err == nil && len(b) == 16 && idFrom(b) == s
}

// called names a challenge in an error; what is no id isn't repeated, it may be the code.
func called(id string) string {
	if isID(id) {
		return "challenge " + id
	}
	return "challenge that is no UUID"
}

// normal takes a code as people copy it: in groups, in small letters.
func normal(code string) string {
	return strings.ToUpper(strings.NewReplacer("-", "", " ", "", "\t", "").Replace(strings.TrimSpace(code)))
}

// matches compares in constant time. What is compared are digests: their lengths are the same whatever was given.
func (c *challenge) matches(code string) bool {
	want, got := sha256.Sum256([]byte(c.code.Reveal())), sha256.Sum256([]byte(normal(code)))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

// Format prints a challenge without its hint, whatever the verb.
func (c Challenge) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "challenge %s (%s) of %q", c.ID, c.Kind, c.Agent)
}

// LogValue is Format for slog.
func (c Challenge) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// issue makes a challenge. It gives none, and no error, where too many wait already: the agent stays paused or stopped all the same.
// It isn't shown to Channels yet.
func (l *Loop) issue(ctx context.Context, p *principal, c Caller, element, what, hint, reason string) (*challenge, error) {
	now := l.now().UTC()
	l.mu.Lock()
	l.sweepChallenges(now)
	// A stop always gets its challenge: there is one at a time for each of the principals, which are bounded.
	full := what == challengeVerify && (len(l.challenges) >= maxChallenges || l.countChallenges(p.name) >= maxOwnChallenges)
	l.mu.Unlock()
	if full {
		l.observe("challenge", "full")
		return nil, nil
	}
	code := rand.Text() // 26 letters and digits: 130 bits from the kernel's generator
	ch := &challenge{
		Challenge: Challenge{ID: newID(), Agent: agentName(c, element), Kind: what, Hint: shown(hint, maxSummary), Reason: reason, Created: now, Expires: now.Add(ChallengeTTL)},
		principal: p.name, session: c.Session, bound: stepDigest(element, hint), code: telemetry.NewPlaintext(code),
	}
	if err := l.recordChallenge(ctx, ch, "issued", "", attempts{}); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.challenges[ch.ID] = ch
	l.mu.Unlock()
	l.observe("challenge", "issued")
	return ch, nil
}

// sweepChallenges drops what has expired: an expired challenge is a failed one. The caller holds mu.
func (l *Loop) sweepChallenges(now time.Time) {
	for id, c := range l.challenges {
		if !within(now, c.Created, c.Expires) && !c.claimed {
			delete(l.challenges, id)
		}
	}
}

// countChallenges: the caller holds mu.
func (l *Loop) countChallenges(principal string) (n int) {
	for _, c := range l.challenges {
		if c.principal == principal {
			n++
		}
	}
	return n
}

// waiting gives a principal's live challenge of a kind; for verify, that of one of its agents.
func (l *Loop) waiting(principal, what, agent string) *challenge {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepChallenges(l.now())
	for _, c := range l.challenges {
		if c.principal == principal && c.Kind == what && (what == challengeDanger || c.Agent == agent) {
			return c
		}
	}
	return nil
}

func (l *Loop) pendingVerification(c Caller, element string) *challenge {
	return l.waiting(c.Principal, challengeVerify, agentName(c, element))
}

func (l *Loop) recordChallenge(ctx context.Context, c *challenge, event, by string, a attempts) error {
	return l.keep(ctx, c.session, &audit.SafetyChallenge{
		AgentID: audit.Claimed(c.Agent), By: claimedOr(by), ChallengeID: c.ID, Event: event, ExpiresAt: c.Expires,
		Failures: int64(len(a.Failures)), LockedUntil: a.until(), Type: c.Kind,
	})
}

// show hands the code to the channels, each by itself: one that hangs or fails leaves the others alone. Who has none of them finds
// the challenge on the control socket.
func (l *Loop) show(c *challenge) {
	if c == nil {
		return
	}
	open := c.Challenge
	open.Code = c.code
	for _, channel := range l.set.Channels {
		l.mu.Lock()
		closed := l.closed
		if !closed {
			l.wg.Add(1)
		}
		l.mu.Unlock()
		if closed {
			return
		}
		select {
		case l.showing <- struct{}{}:
		default:
			l.wg.Done()
			l.observe("channel", "dropped")
			continue
		}
		go func() {
			defer l.wg.Done()
			defer func() { <-l.showing }()
			ctx, cancel := context.WithTimeout(l.done, channelTime)
			defer cancel()
			if channel.Show(ctx, open) != nil {
				l.observe("channel", "error") // not its text: a channel's error might have what it sent
				return
			}
			l.observe("channel", "shown")
		}()
	}
}

// pauseForVerification is the verify tier (S-9).
func (l *Loop) pauseForVerification(ctx context.Context, call Call, v values, p *principal, e *execution, got verdict, by *token) Reply {
	c, err := l.issue(ctx, p, call.Caller, v.text(pElement), challengeVerify, v.text(pHint), reasonOf(got))
	if err != nil {
		return failed(unrecorded())
	}
	if err := l.recordStep(ctx, call.Caller, v, got, idOf(c), by); err != nil {
		return failed(unrecorded())
	}
	l.show(c)
	return succeed(l.paused(e, got, c))
}

func reasonOf(got verdict) string {
	return shown(got.reason+" ("+strings.Join(got.factors, "; ")+")", maxSummary)
}

func idOf(c *challenge) string {
	if c == nil {
		return ""
	}
	return c.ID
}

func (l *Loop) paused(e *execution, got verdict, c *challenge) Directive {
	d := l.directive(e, got)
	if c == nil {
		d.Factors = append(d.Factors, "too many challenges wait: none was issued")
	}
	d.Notifications = append(d.Notifications, l.note(notePause, got.reason, toVerify(c)))
	return d
}

// toVerify tells how a challenge is answered; c is nil where none could be issued.
func toVerify(c *challenge) map[string]any {
	if c == nil {
		return map[string]any{"operation": opVerify}
	}
	return map[string]any{"operation": opVerify, "verificationId": c.ID, "expires_at": c.Expires.UTC()}
}

// stillPaused answers every step of an agent whose verification waits, whatever the step is (S-9).
func (l *Loop) stillPaused(ctx context.Context, call Call, v values, e *execution, c *challenge) Reply {
	got := verdict{kind: mustVerify, stage: "verification", tier: tierVerify, reason: "A verification of this agent waits", factors: []string{"verification pending: " + c.ID}}
	if err := l.recordStep(ctx, call.Caller, v, got, c.ID, nil); err != nil {
		return failed(unrecorded())
	}
	l.observe("verification", "pause")
	return succeed(l.paused(e, got, c))
}

// takeApproval spends the verification of this very step, if there is one.
func (l *Loop) takeApproval(p *principal, bound digest) bool {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	found := false
	p.approvals = slices.DeleteFunc(p.approvals, func(a approval) bool {
		hit := !found && a.bound == bound && within(now, a.since, a.expires)
		found = found || hit
		return hit || !within(now, a.since, a.expires)
	})
	return found
}

// verifyChallenge serves verify_challenge (S-10, S-11). What went wrong is told to the audit and not to the agent: unknown,
// another's, expired and wrong are one answer.
func (l *Loop) verifyChallenge(ctx context.Context, call Call, v values, p *principal) Reply {
	if refused := l.permit(ctx, call, operation(opVerify), v, p); refused != nil {
		return l.refuse(ctx, call, "", refused)
	}
	id := v.text(pChallenge)
	if !isID(id) {
		return l.refuse(ctx, call, "", refusal(CodeInvalidType, map[string]any{"param_name": pChallenge, "expected_type": "UUIDv4"}, "Parameter '%s' expected a UUID", pChallenge))
	}
	c := l.lookup(id)
	if c != nil && c.principal != call.Caller.Principal && !call.Caller.Operator {
		c = nil
	}
	got, a, err := l.attempt(ctx, call.Caller.Principal, c, v.text(pCode))
	if err != nil {
		return l.refuse(ctx, call, "", refusal(CodeInternal, nil, "Internal error: failed verifications can't be counted, so none is taken"))
	}
	if refused := l.tell(ctx, call.Caller, id, c, got, a); refused != nil {
		return failed(refused)
	}
	if err := l.verified(ctx, c, call.Caller.Principal); err != nil {
		return failed(refusal(CodeInternal, nil, "Internal error: the verification couldn't take effect"))
	}
	return succeed(map[string]any{"verified": true, "verificationId": id, "kind": c.Kind})
}

func (l *Loop) lookup(id string) *challenge {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepChallenges(l.now())
	return l.challenges[id]
}

// tell records an attempt that failed, and answers it; nil for one that didn't.
func (l *Loop) tell(ctx context.Context, who Caller, id string, c *challenge, got outcome, a attempts) *Error {
	if got == right {
		return nil
	}
	r := &audit.SafetyChallenge{
		AgentID: audit.Claimed(who.Principal), By: audit.Claimed(who.Principal), ChallengeID: id, Event: got.String(), Failures: int64(len(a.Failures)), LockedUntil: a.until(),
	}
	if c != nil {
		r.Type = c.Kind
	}
	l.observe("challenge", got.String())
	if err := l.keep(ctx, who.Session, r); err != nil {
		return unrecorded()
	}
	if got == refused || got == lockedOut {
		return l.tooMany(a)
	}
	return refusal(CodeDenied, map[string]any{"reason": "verification_failed"}, "Permission denied: the verification failed")
}

func (l *Loop) tooMany(a attempts) *Error {
	left := max(a.until().Sub(l.now()), 0)
	return refusal(CodeRateLimit, map[string]any{
		"limit": maxFailures, "remaining": 0, "window": "minute", "resets_at": a.until(), "retry_after_seconds": int((left + time.Second - 1) / time.Second),
	}, "Too many failed verifications")
}

// verified lets a right code take effect, once. What it releases is recorded before it is released.
func (l *Loop) verified(ctx context.Context, c *challenge, by string) error {
	l.mu.Lock()
	kept := l.challenges[c.ID] == c && !c.claimed
	c.claimed = c.claimed || kept
	l.mu.Unlock()
	if !kept {
		return fmt.Errorf("challenge %s: %w", c.ID, ErrUsed)
	}
	err := l.recordChallenge(ctx, c, "verified", by, attempts{})
	if err == nil && c.Kind == challengeDanger {
		err = l.release(ctx, c.principal, by, "verified", "")
	}
	if err == nil {
		l.observe("challenge", "verified")
	}
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	c.claimed = false
	if err != nil {
		return err
	}
	kept = l.challenges[c.ID] == c // or a stop has taken it back meanwhile
	delete(l.challenges, c.ID)
	if p := l.principals[c.principal]; p != nil && kept && c.Kind == challengeVerify {
		p.approvals = append(p.approvals, approval{c.bound, now, now.Add(ChallengeTTL)})
	}
	return nil
}

// Challenges lists what waits for an operator, without codes, oldest first.
func (l *Loop) Challenges(context.Context) []Challenge {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepChallenges(l.now())
	list := []Challenge{}
	for _, c := range l.challenges {
		list = append(list, c.Challenge)
	}
	slices.SortFunc(list, func(a, b Challenge) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return list
}

// Show gives one challenge with its code. Who saw it is recorded first.
func (l *Loop) Show(ctx context.Context, by, id string) (Challenge, error) {
	c := l.lookup(id)
	if c == nil {
		return Challenge{}, fmt.Errorf("%s: %w", called(id), ErrNotFound)
	}
	if err := l.recordChallenge(ctx, c, "shown", by, attempts{}); err != nil {
		return Challenge{}, fmt.Errorf("show challenge %s: %w", id, err)
	}
	open := c.Challenge
	open.Code = c.code
	return open, nil
}

// Verify answers a challenge for an operator (S-10). A wrong code doesn't burn it: ErrCode.
func (l *Loop) Verify(ctx context.Context, by, id, code string) error {
	c := l.lookup(id)
	if c == nil {
		return fmt.Errorf("%s: %w", called(id), ErrNotFound)
	}
	if !c.matches(code) {
		if err := l.recordChallenge(ctx, c, wrong.String(), by, attempts{}); err != nil {
			return fmt.Errorf("challenge %s: %w", id, err)
		}
		return fmt.Errorf("challenge %s: %w", id, ErrCode)
	}
	return l.verified(ctx, c, by)
}

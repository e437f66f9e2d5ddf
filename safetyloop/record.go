// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"

	"agentrun/audit"
)

// digest is a SHA-256 of what a confirmation, an approval or a record is bound to.
type digest [sha256.Size]byte

func (d digest) String() string { return audit.Hash(d).String() }

// digestOf keeps the parts apart by their lengths: ("ab", "c") isn't ("a", "bc").
func digestOf(parts ...string) digest {
	h := sha256.New()
	for _, p := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s;", len(p), p)
	}
	return digest(h.Sum(nil))
}

func unrecorded() *Error {
	return refusal(CodeInternal, nil, "Internal error: the decision couldn't be recorded, so it isn't one")
}

// keep records, and lets nobody see the error: its text is the operator's business, and the answer is the same for all.
func (l *Loop) keep(ctx context.Context, session string, r audit.Record) error {
	if l.set.Record == nil {
		return nil // Disabled
	}
	if err := l.set.Record.Record(ctx, session, r); err != nil {
		l.observe("audit", "error")
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return nil
}

// refuse records a refusal and answers it.
func (l *Loop) refuse(ctx context.Context, call Call, element string, e *Error) Reply {
	if err := l.recordOperation(context.WithoutCancel(ctx), call, element, word(e)); err != nil {
		return failed(unrecorded())
	}
	return failed(e)
}

func (l *Loop) recordOperation(ctx context.Context, call Call, subject, code string) error {
	endpoint := ""
	if call.Endpoint != NoEndpoint {
		endpoint = strings.ToLower(call.Endpoint.String())
	}
	if subject != "" {
		subject = audit.Claimed(subject)
	}
	return l.keep(ctx, call.Caller.Session, &audit.SafetyOperation{
		AgentID: audit.Claimed(agentName(call.Caller, "")), Code: code, Endpoint: endpoint, Operation: audit.Claimed(call.Operation), Subject: subject,
	})
}

func (l *Loop) recordStep(ctx context.Context, c Caller, v values, got verdict, challenge string, by *token) error {
	element := v.text(pElement)
	r := &audit.SafetyStep{
		AgentID: audit.Claimed(agentName(c, element)), ChallengeID: challenge, Element: audit.Claimed(element),
		Hint: audit.Hash(sha256.Sum256([]byte(v.text(pHint)))), Mode: l.set.Mode.String(), Stage: got.stage, Tier: got.tier, Verdict: got.kind.String(),
	}
	if got.judged {
		r.Score = audit.NumberOf(float64(got.score))
	}
	if got.pattern != "" {
		r.Rule = audit.Claimed(got.pattern)
	}
	for _, f := range got.added[:min(len(got.added), 32)] {
		r.Factors = append(r.Factors, audit.Claimed(fmt.Sprintf("%s:%d", f.Name, f.Points)))
	}
	if by != nil {
		r.Token = digest(by.hash).String()
	}
	return l.keep(ctx, c.Session, r)
}

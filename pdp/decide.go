// SPDX-License-Identifier: Apache-2.0

package pdp

import (
	"cmp"
	"context"
	"errors"
	"slices"

	cedar "github.com/cedar-policy/cedar-go"

	"agentrun/rings"
)

// Match is a policy that applies to a request.
type Match struct {
	Policy string     `json:"policy"`
	Where  string     `json:"where"`
	Reason rings.Code `json:"reason,omitempty"` // of a forbid
	Error  string     `json:"error,omitempty"`  // why it could not be evaluated
	// Critical: the forbid has @severity("critical").
	Critical bool `json:"critical,omitempty"`
}

// Explanation is a decision with every policy that had a part in it.
type Explanation struct {
	Decision Decision `json:"decision"`
	Forbids  []Match  `json:"forbids"` // in the order in which their reasons count
	Permits  []Match  `json:"permits"`
	Errors   []Match  `json:"errors"`
}

// Decide answers by this set of policies.
func (s *Set) Decide(ctx context.Context, r Request) Decision { return s.Explain(ctx, r).Decision }

// Explain is Decide with its grounds. Where no policy was asked, because of the request or the ring, there is only the
// decision.
func (s *Set) Explain(ctx context.Context, r Request) Explanation {
	var x Explanation
	x.Decision = Guarded(DeciderFunc(func(context.Context, Request) Decision {
		if s == nil || s.byID == nil {
			return Denied(CodeUnavailable, "there are no policies", nil)
		}
		s.evaluate(translate(r), &x)
		return s.conclude(x)
	})).Decide(ctx, r)
	if s != nil {
		x.Decision.Revision = s.revision
	}
	return x
}

// Forbids and permits are asked apart, because the library tells of the permits only where nothing forbids, and M-9 wants
// rbac_denied before acl_block where both hold.
func (s *Set) evaluate(q *question, x *Explanation) {
	_, forbidden := cedar.Authorize(candidates{&s.forbids, q.anchors}, q, q.request)
	_, permitted := cedar.Authorize(candidates{&s.permits, q.anchors}, q, q.request)
	x.Forbids, x.Permits = s.matches(forbidden.Reasons), s.matches(permitted.Reasons)
	for _, e := range append(forbidden.Errors, permitted.Errors...) {
		p := s.byID[e.PolicyID]
		x.Errors = append(x.Errors, Match{Policy: string(p.id), Where: p.where, Reason: p.reason, Error: e.Message, Critical: p.critical})
	}
}

func (s *Set) matches(found []cedar.DiagnosticReason) []Match {
	if len(found) == 0 {
		return nil
	}
	ps := make([]*policy, len(found))
	for i, f := range found {
		ps[i] = s.byID[f.PolicyID]
	}
	slices.SortFunc(ps, func(a, b *policy) int {
		return cmp.Or(cmp.Compare(rank(a.reason), rank(b.reason)), cmp.Compare(a.seq, b.seq))
	})
	out := make([]Match, len(ps))
	for i, p := range ps {
		out[i] = Match{Policy: string(p.id), Where: p.where, Reason: p.reason, Critical: p.critical}
	}
	return out
}

// criticalOf returns the first critical policy that forbids. It needn't be the one whose reason is told: a violation doesn't become
// a lesser one by a key that has expired as well. One that couldn't be evaluated isn't known to forbid: it refuses, and kills nobody.
func criticalOf(forbids []Match) (Match, bool) {
	i := slices.IndexFunc(forbids, func(m Match) bool { return m.Critical })
	if i < 0 {
		return Match{}, false
	}
	return forbids[i], true
}

// conclude: a reason of M-9 that holds is told before a policy that couldn't be evaluated, and that before an allowance. An
// error of a permit only takes the permit away; an error of a forbid may hide a refusal, so it is one.
func (s *Set) conclude(x Explanation) Decision {
	reason, by := rings.Code(""), Match{}
	if len(x.Forbids) > 0 {
		by = x.Forbids[0]
		reason = by.Reason
	}
	if len(x.Permits) == 0 && (reason == "" || rank(CodeRBACDenied) < rank(reason)) {
		reason, by = CodeRBACDenied, Match{}
	}
	broken := slices.IndexFunc(x.Errors, func(m Match) bool { return m.Reason != "" })
	switch {
	case reason != "":
		d := Denied(reason, cmp.Or(sentences[reason], "refused"), errorsOf(x.Errors))
		d.Policy, d.Where = by.Policy, by.Where
		if m, critical := criticalOf(x.Forbids); critical {
			d.Critical, d.Policy, d.Where = true, m.Policy, m.Where
		}
		return d
	case broken >= 0:
		m := x.Errors[broken]
		d := Denied(CodeError, "a policy that may forbid this could not be evaluated", errorsOf(x.Errors))
		d.Policy, d.Where = m.Policy, m.Where
		return d
	}
	by = x.Permits[0]
	return Decision{Verdict: rings.Allow, Code: CodeOK, Message: "permitted", Policy: by.Policy, Where: by.Where}
}

func errorsOf(ms []Match) error {
	var errs []error
	for _, m := range ms {
		errs = append(errs, errors.New(m.Where+": "+m.Policy+": "+m.Error))
	}
	return errors.Join(errs...)
}

// sentences are what people are told of a reason.
var sentences = map[rings.Code]string{
	CodeKeyInvalid:        "the key is missing, unknown, expired or revoked",
	CodeNoRole:            "the subject has no role in its team",
	CodeCapabilityMissing: "the key doesn't carry the capability for this",
	CodeRBACDenied:        "nothing permits this to the subject's role",
	CodeACLBlock:          "a policy blocks this",
	CodeConfidential:      "not in confidential mode",
	CodeQuotaExceeded:     "the quota is used up",
}

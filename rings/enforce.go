// SPDX-License-Identifier: Apache-2.0

package rings

import "encoding/json"

// CheckResult is the RingCheckResult of H-10, with the code and the rule of a Decision. The zero value denies.
type CheckResult struct {
	Allowed            bool
	RequiredRing       Ring
	AgentRing          Ring
	EffScore           float64
	Reason             string
	RequiresConsensus  bool       // consensus, and nothing else, stands between the agent and the ring that the action requires
	RequiresSREWitness bool       // only an operator with an attestation can do it (H-12); never the agent
	DeniedResources    []Resource // kinds of resource that the required ring has and the agent's has not
	Code               Code
	Rule               string
}

// Decision returns the verdict with its grounds.
func (r CheckResult) Decision() Decision {
	d := Decision{Code: r.Code, Reason: r.Reason, Rule: r.Rule}
	if r.Allowed {
		d.Verdict = Allow
	}
	return d
}

// MarshalJSON uses the names of H-10. A score that is no number in [0,1] is null: JSON has no NaN, and a record that
// can't be written would be a refusal that leaves no trace. So is a ring that is none.
func (r CheckResult) MarshalJSON() ([]byte, error) {
	out := struct {
		Allowed            bool       `json:"allowed"`
		RequiredRing       *Ring      `json:"required_ring"`
		AgentRing          *Ring      `json:"agent_ring"`
		EffScore           *float64   `json:"eff_score"`
		Reason             string     `json:"reason"`
		RequiresConsensus  bool       `json:"requires_consensus"`
		RequiresSREWitness bool       `json:"requires_sre_witness"`
		DeniedResources    []Resource `json:"denied_resources"`
		Code               Code       `json:"code"`
		Rule               string     `json:"rule"`
	}{
		Allowed: r.Allowed, Reason: r.Reason, Code: r.Code, Rule: r.Rule,
		RequiresConsensus: r.RequiresConsensus, RequiresSREWitness: r.RequiresSREWitness,
		DeniedResources: append([]Resource{}, r.DeniedResources...),
	}
	if r.RequiredRing.Valid() {
		out.RequiredRing = &r.RequiredRing
	}
	if r.AgentRing.Valid() {
		out.AgentRing = &r.AgentRing
	}
	if validScore(r.EffScore) {
		out.EffScore = &r.EffScore
	}
	return json.Marshal(out)
}

// Check decides whether an agent that is in agentRing now, with this effective score and consensus, may do the action.
//
// The order is H-9's: (1) what requires Root is denied to everyone, with RequiresSREWitness; (2) an agent whose ring is
// less privileged than the required one is denied; (3) the rest is granted, unless H-5 forbids: what requires Privileged is
// denied to a score below 0.70, whatever the ring. A ring can be older than the score: an elevation, or a demotion that is
// still on its way.
//
// An action that breaks H-7, a ring that is none and a score that is none are denied after (1) and before (2), so that the
// answer to an administrative action doesn't depend on them.
func Check(agentRing Ring, effScore float64, hasConsensus bool, action Action) CheckResult {
	r := CheckResult{RequiredRing: action.RequiredRing(), AgentRing: agentRing, EffScore: effScore}
	switch {
	case action.Admin:
		r.RequiresSREWitness = true
		return r.because("H-9", CodeRing0Forbidden, "administrative actions require ring 0, which no agent has: an operator with an SRE witness must do it")
	case !agentRing.Valid():
		return r.because("H-9", CodeInvalidRing, "the agent's ring is none of 0, 1, 2, 3")
	case !validScore(effScore):
		return r.because("H-2", CodeInvalidScore, "the effective score is no number from 0 to 1")
	}
	if err := action.Check(); err != nil {
		return r.because("H-7", CodeInvalidAction, err.Error())
	}
	if r.RequiredRing.MorePrivilegedThan(agentRing) {
		r.RequiresConsensus = r.RequiredRing == Privileged && !hasConsensus && effScore > Ring1TrustThreshold
		r.DeniedResources = lacking(agentRing, r.RequiredRing)
		return r.because("H-9", CodeInsufficientRing, agentRing.String()+" is not enough, the action requires "+r.RequiredRing.String())
	}
	// !(a >= b) rather than a < b: it also holds for what is no number.
	if r.RequiredRing == Privileged && !(effScore >= Ring1EnforcerThreshold) {
		return r.because("H-5", CodeInsufficientTrust, "ring 1 actions require an effective score of at least 0.70")
	}
	r.Allowed, r.Code, r.Rule, r.Reason = true, CodeOK, "H-9", "the agent's ring is enough"
	return r
}

func (r CheckResult) because(rule string, code Code, reason string) CheckResult {
	r.Rule, r.Code, r.Reason = rule, code, reason
	return r
}

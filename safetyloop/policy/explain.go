// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"context"
	"fmt"

	"agentrun/safetyloop/judge"
	"agentrun/safetyloop/risk"
)

// Verdict is what a hint leads to by itself, with no history and no ring.
type Verdict string

const (
	Continue Verdict = "continue"
	Pause    Verdict = "pause"  // someone confirms
	Verify   Verdict = "verify" // a pause, and a code out of band
	Stop     Verdict = "stop"   // the agent is blocked until a code is given
)

// Explanation tells how a hint is judged, for `agentrun safety check`.
type Explanation struct {
	Hint    string         `json:"hint"`
	Folded  string         `json:"folded"` // as it is compared
	Verdict Verdict        `json:"verdict"`
	Rule    string         `json:"rule"`
	Pattern string         `json:"pattern,omitempty"`
	Score   int            `json:"score"`
	Tier    string         `json:"tier"`
	Vague   bool           `json:"vague,omitempty"`
	Verb    string         `json:"verb,omitempty"`
	Target  string         `json:"target,omitempty"`
	Factors []judge.Factor `json:"factors"`
	Stages  []Stage        `json:"stages"`
}

// Stage is one step of the evaluation, in its order.
type Stage struct {
	Name    string  `json:"name"` // patterns, tier, tolerance
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail"`
	Decides bool    `json:"decides,omitempty"` // the first that doesn't let go on, or an autoApprove
}

// Explain judges a hint and tells each stage, also those after the one that decides.
func (v *View) Explain(ctx context.Context, hint string) (Explanation, error) {
	j, m, err := v.judge(ctx, hint)
	if err != nil {
		return Explanation{}, err
	}
	e := Explanation{Hint: hint, Folded: m.reading.Split, Rule: j.Rule.String(), Pattern: j.Pattern, Score: j.Score, Tier: m.assessment.Tier.String(), Vague: j.Vague,
		Verb: j.Verb, Target: j.Target, Factors: j.Factors}
	e.Stages = []Stage{patternStage(j, m), tierStage(j), v.toleranceStage(j)}
	e.Verdict = Continue
	for i := range e.Stages {
		s := &e.Stages[i]
		if s.Verdict != Continue || i == 0 && j.Rule == judge.RuleAutoApprove {
			s.Decides, e.Verdict = true, s.Verdict
			break
		}
	}
	return e, nil
}

func patternStage(j judge.Judgement, m *matched) Stage {
	s := Stage{Name: "patterns", Verdict: Continue, Detail: "no pattern matches"}
	switch j.Rule {
	case judge.RuleDeny:
		s.Verdict, s.Detail = Stop, "deny: "+j.Pattern
	case judge.RuleRequiresApproval:
		s.Verdict, s.Detail = Pause, "requiresApproval: "+j.Pattern
	case judge.RuleAutoApprove:
		s.Detail = "autoApprove: " + j.Pattern + "; the stages below aren't asked"
	default:
		if len(m.passed) > 0 {
			s.Detail = "autoApprove: " + m.passed[0]
		}
	}
	return s
}

func tierStage(j judge.Judgement) Stage {
	tier := risk.TierOf(j.Score)
	return Stage{Name: "tier", Verdict: tierVerdicts[tier], Detail: fmt.Sprintf("score %d: %s", j.Score, tier)}
}

// tierVerdicts are what the tiers of S-6 lead to. TierOf gives no other.
var tierVerdicts = [...]Verdict{
	risk.Advisory: Continue, risk.Confirm: Pause, risk.Verify: Verify, risk.DangerZone: Stop,
}

func (v *View) toleranceStage(j judge.Judgement) Stage {
	t := cmp.Or(v.settings.Tolerance, judge.Moderate)
	s := Stage{Name: "tolerance", Verdict: Continue, Detail: fmt.Sprintf("score %d, %s up to %d", j.Score, t, t.Score())}
	if j.Score > t.Score() {
		s.Verdict = Pause
	}
	return s
}

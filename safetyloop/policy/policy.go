// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"agentrun/internal/fold"
	"agentrun/safetyloop/judge"
	"agentrun/safetyloop/risk"
)

// ErrTooLong is a hint longer than risk.MaxHint.
var ErrTooLong = errors.New("hint too long")

// Policy is a file that was read. It doesn't change. The zero value has no patterns, and judges by risk alone.
type Policy struct {
	settings Settings
	rules    rules
	agents   map[string]rules
}

// rules are the lists and limits of the file, or of one agent.
type rules struct {
	deny, approval, approve []pattern
	tolerance               judge.Tolerance
	steps                   int
}

// View is a policy as it holds for one agent. It implements judge.Judge.
type View struct {
	settings Settings
	sets     []rules // the agent's own first
	own      bool    // the agent's own autoApprove counts
	env      risk.Env
}

// For gives the policy for an agent. bound says that the name was given by an operator or the sandbox. Where it is the client's own choice
// (element_name), an entry can only tighten: its autoApprove, a higher tolerance and more steps are left out, or a client would
// name itself into them.
func (p *Policy) For(agent string, bound bool) *View {
	v := &View{settings: p.settings, sets: []rules{p.rules}, own: bound, env: risk.Env{Workspace: p.settings.Workspace}}
	v.settings.Tolerance, v.settings.MaxSteps = p.rules.tolerance, p.rules.steps
	own, ok := p.agents[agent]
	if !ok {
		return v
	}
	v.sets = []rules{own, p.rules}
	if t := own.tolerance; t != judge.NoTolerance && (bound || t < cmp.Or(p.rules.tolerance, judge.Moderate)) {
		v.settings.Tolerance = t
	}
	if n := own.steps; n > 0 && (bound || p.rules.steps == 0 || n < p.rules.steps) {
		v.settings.MaxSteps = n
	}
	return v
}

// In is the view with another workspace, which goes before the file's: a sandbox knows its own. Empty changes nothing.
func (v *View) In(workspace string) *View {
	c := *v
	if workspace != "" {
		c.env.Workspace = workspace
		c.settings.Workspace = workspace
	}
	return &c
}

// Settings are those of the file, with the agent's own.
func (v *View) Settings() Settings { return v.settings }

// Judge implements judge.Judge.
func (v *View) Judge(ctx context.Context, hint string) (judge.Judgement, error) {
	j, _, err := v.judge(ctx, hint)
	return j, err
}

// matched is how a judgement came about, for Explain.
type matched struct {
	assessment risk.Assessment
	reading    fold.Reading
	passed     []string // autoApprove patterns that match and weren't followed, with the reason
}

func (v *View) judge(ctx context.Context, hint string) (judge.Judgement, *matched, error) {
	if err := ctx.Err(); err != nil {
		return judge.Judgement{}, nil, err
	}
	if len(hint) > risk.MaxHint {
		return judge.Judgement{}, nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, len(hint), risk.MaxHint)
	}
	m := &matched{assessment: risk.Assess(hint, v.env), reading: fold.Read(hint)}
	a := &m.assessment
	j := judge.Judgement{Score: a.Score, Vague: a.Vague, Verb: a.Verb, Target: a.Target}
	for _, f := range a.Factors {
		j.Factors = append(j.Factors, judge.Factor(f))
	}
	j.Rule, j.Pattern = v.rule(ctx, hint, m)
	return j, m, ctx.Err()
}

// rule finds the pattern that decides: deny > requiresApproval > autoApprove > default.
func (v *View) rule(ctx context.Context, hint string, m *matched) (judge.Rule, string) {
	spellings := []spelling{spell(m.reading)}
	if m.reading.Shadow != "" {
		spellings = append(spellings, spell(fold.Read(m.reading.Shadow)))
	}
	if plain := risk.Unescaped(hint); plain != m.reading.Clean {
		spellings = append(spellings, spell(fold.Read(plain)))
	}
	for _, op := range m.assessment.Operations {
		spellings = append(spellings, spell(fold.Read(op)))
	}
	for _, set := range v.sets {
		if p := forbidden(ctx, set.deny, spellings); p != nil {
			return judge.RuleDeny, p.source
		}
	}
	for _, set := range v.sets {
		if p := forbidden(ctx, set.approval, spellings); p != nil {
			return judge.RuleRequiresApproval, p.source
		}
	}
	for i, set := range v.sets {
		if i == 0 && len(v.sets) > 1 && !v.own {
			continue
		}
		for n := range set.approve {
			ok, why := set.approve[n].approves(m.reading.Split, &m.assessment)
			if ok {
				return judge.RuleAutoApprove, set.approve[n].source
			}
			if why != "" {
				m.passed = append(m.passed, fmt.Sprintf("%s isn't followed: %s", set.approve[n].source, why))
			}
		}
	}
	return judge.RuleDefault, ""
}

// forbidden stops early when nobody waits any more; judge then gives the context's error.
func forbidden(ctx context.Context, list []pattern, spellings []spelling) *pattern {
	for i := range list {
		if ctx.Err() != nil {
			return nil
		}
		if list[i].forbids(spellings) {
			return &list[i]
		}
	}
	return nil
}

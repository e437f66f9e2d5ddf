// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"path/filepath"

	"agentrun/internal/read"
	"agentrun/safetyloop/judge"
)

// compiler makes a Policy of a file, and collects every fault on the way.
type compiler struct{ errs []error }

func (c *compiler) fault(at string, err error) { c.errs = append(c.errs, read.Under(at, err)) }

func compile(f file) (*Policy, []error) {
	c := &compiler{}
	p := &Policy{agents: map[string]rules{}}
	p.settings.Mode = word(c, "mode", f.Mode, judge.ParseMode)
	p.settings.Confirm = word(c, "confirm", f.Confirm, judge.ParseConfirm)
	p.settings.Workspace = word(c, "workspace", f.Workspace, func(s string) (string, error) {
		if !filepath.IsAbs(s) || filepath.Clean(s) == "/" {
			return "", fmt.Errorf("%.64q: want an absolute path below /", s)
		}
		return s, nil
	})
	p.rules = c.rules("", agent{f.Tolerance, f.MaxAutonomousSteps, f.Deny, f.RequiresApproval, f.AutoApprove})
	if len(f.Agents) > MaxAgents {
		c.fault("agents", fmt.Errorf("more than %d", MaxAgents))
	}
	for who, a := range f.Agents {
		if who == "" || len(who) > 128 {
			c.fault("agents", fmt.Errorf("%.40q: want a name of 1 to 128 bytes", who))
		}
		p.agents[who] = c.rules("agents."+who+".", a)
	}
	return p, c.errs
}

// word parses a text; the zero value if the key isn't there.
func word[T any](c *compiler, at string, said *string, parse func(string) (T, error)) (v T) {
	if said != nil {
		var err error
		v, err = parse(*said)
		c.fault(at, err)
	}
	return v
}

func (c *compiler) rules(at string, a agent) (r rules) {
	r.tolerance = word(c, at+"tolerance", a.Tolerance, judge.ParseTolerance)
	if steps := a.MaxAutonomousSteps; steps != nil {
		if r.steps = *steps; r.steps < 1 || r.steps > MaxSteps {
			c.fault(at+"maxAutonomousSteps", fmt.Errorf("%d: want a number from 1 to %d", r.steps, MaxSteps))
		}
	}
	r.deny = c.patterns(at+"deny", a.Deny, false)
	r.approval = c.patterns(at+"requiresApproval", a.RequiresApproval, false)
	r.approve = c.patterns(at+"autoApprove", a.AutoApprove, true)
	return r
}

func (c *compiler) patterns(at string, words []string, approve bool) (out []pattern) {
	if len(words) > MaxPatterns {
		c.fault(at, fmt.Errorf("more than %d patterns", MaxPatterns))
		return nil
	}
	for i, word := range words {
		p, err := newPattern(word, approve)
		c.fault(fmt.Sprintf("%s[%d]", at, i), err)
		out = append(out, p)
	}
	return out
}

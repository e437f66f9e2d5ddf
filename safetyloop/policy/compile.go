// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"agentrun/safetyloop/judge"
)

// compiler makes a Policy of a file, and collects every fault on the way.
type compiler struct{ errs []error }

func (c *compiler) fault(at string, n *yaml.Node, err error) {
	if err != nil {
		c.errs = append(c.errs, fmt.Errorf("%s: %w (line %d)", at, err, n.Line))
	}
}

func compile(name string, f file) (*Policy, error) {
	c := &compiler{}
	p := &Policy{agents: map[string]rules{}}
	var err error
	if word, ok := c.word(name+".mode", &f.Mode); ok {
		p.settings.Mode, err = judge.ParseMode(word)
		c.fault(name+".mode", &f.Mode, err)
	}
	if word, ok := c.word(name+".confirm", &f.Confirm); ok {
		p.settings.Confirm, err = judge.ParseConfirm(word)
		c.fault(name+".confirm", &f.Confirm, err)
	}
	if word, ok := c.word(name+".workspace", &f.Workspace); ok {
		if p.settings.Workspace = word; !filepath.IsAbs(word) || filepath.Clean(word) == "/" {
			c.fault(name+".workspace", &f.Workspace, fmt.Errorf("%.64q: want an absolute path below /", word))
		}
	}
	p.rules = c.rules(name, agent{f.Tolerance, f.MaxAutonomousSteps, f.Deny, f.RequiresApproval, f.AutoApprove})
	c.agents(name, p, f.Agents)
	if len(c.errs) > 0 {
		return nil, errors.Join(c.errs...)
	}
	return p, nil
}

func (c *compiler) agents(name string, p *Policy, all map[string]agent) {
	if len(all) > MaxAgents {
		c.errs = append(c.errs, fmt.Errorf("%s.agents: more than %d", name, MaxAgents))
	}
	names := make([]string, 0, len(all))
	for who := range all {
		names = append(names, who)
	}
	slices.Sort(names)
	for _, who := range names {
		if who == "" || len(who) > 128 {
			c.errs = append(c.errs, fmt.Errorf("%s.agents: %.40q: want a name of 1 to 128 bytes", name, who))
		}
		p.agents[who] = c.rules(name+".agents."+who, all[who])
	}
}

// word is a single text; false if the key isn't there.
func (c *compiler) word(at string, n *yaml.Node) (string, bool) {
	if n.Kind == 0 {
		return "", false
	}
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		c.fault(at, n, errors.New("want text"))
		return "", false
	}
	return n.Value, true
}

func (c *compiler) rules(at string, a agent) (r rules) {
	var err error
	if word, ok := c.word(at+".tolerance", &a.Tolerance); ok {
		r.tolerance, err = judge.ParseTolerance(word)
		c.fault(at+".tolerance", &a.Tolerance, err)
	}
	if n := &a.MaxAutonomousSteps; n.Kind != 0 {
		if r.steps, err = strconv.Atoi(n.Value); err != nil || n.Tag != "!!int" || r.steps < 1 || r.steps > MaxSteps {
			c.fault(at+".maxAutonomousSteps", n, fmt.Errorf("%.40q: want a number from 1 to %d", n.Value, MaxSteps))
		}
	}
	r.deny = c.patterns(at+".deny", &a.Deny, false)
	r.approval = c.patterns(at+".requiresApproval", &a.RequiresApproval, false)
	r.approve = c.patterns(at+".autoApprove", &a.AutoApprove, true)
	return r
}

// patterns compiles a list. A key without a value isn't an empty list: whoever wrote "deny:" meant something.
func (c *compiler) patterns(at string, n *yaml.Node, approve bool) (out []pattern) {
	switch {
	case n.Kind == 0:
		return nil
	case n.Kind != yaml.SequenceNode:
		c.fault(at, n, errors.New("want a list of patterns"))
		return nil
	case len(n.Content) > MaxPatterns:
		c.fault(at, n, fmt.Errorf("more than %d patterns", MaxPatterns))
		return nil
	}
	for i, each := range n.Content {
		where := fmt.Sprintf("%s[%d]", at, i)
		word, ok := c.word(where, each)
		if !ok {
			continue
		}
		p, err := newPattern(word, approve)
		c.fault(where, each, err)
		out = append(out, p)
	}
	return out
}

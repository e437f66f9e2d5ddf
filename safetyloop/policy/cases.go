// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"agentrun/internal/read"
	"agentrun/safetyloop/judge"
	"agentrun/safetyloop/risk"
)

// Cases is a file of expectations, for `agentrun safety test`: what the operator wants of a policy, kept with it.
type Cases struct {
	Agent     string `yaml:"agent" json:"agent,omitempty"`         // whose policy; empty: one without an entry
	Workspace string `yaml:"workspace" json:"workspace,omitempty"` // goes before the policy's
	Cases     []Case `yaml:"cases" json:"cases"`
}

// Case is a hint and what is expected of it. What isn't given isn't compared; something must be.
type Case struct {
	Hint   string `yaml:"hint" json:"hint"`
	Expect Expect `yaml:"expect" json:"expect"`
}

// Expect is compared with an Explanation.
type Expect struct {
	Verdict string `yaml:"verdict" json:"verdict,omitempty"`
	Rule    string `yaml:"rule" json:"rule,omitempty"`
	Pattern string `yaml:"pattern" json:"pattern,omitempty"`
	Tier    string `yaml:"tier" json:"tier,omitempty"`
	Vague   *bool  `yaml:"vague" json:"vague,omitempty"`
	// Factors must all be there; Not must not. Others may be.
	Factors []string `yaml:"factors" json:"factors,omitempty"`
	Not     []string `yaml:"not" json:"not,omitempty"`
}

// MaxCases of one file.
const MaxCases = 10000

// ParseCases reads a file of expectations; its error is a *read.InvalidError. name is the file's in it.
func ParseCases(name string, text []byte) (*Cases, error) {
	n := read.YAML(read.Source{File: name, Max: 1 << 20}, plain(text))
	var c Cases
	n.Into(&c)
	var errs []error
	if len(c.Cases) == 0 || len(c.Cases) > MaxCases {
		errs = append(errs, read.Bad("cases", "%d cases, want 1 to %d", len(c.Cases), MaxCases))
	}
	for i, each := range c.Cases {
		errs = append(errs, read.Under(fmt.Sprintf("cases[%d]", i), each.Expect.check()))
	}
	if err := n.Done(errs...); err != nil {
		return nil, err
	}
	return &c, nil
}

func (e Expect) check() error {
	for _, word := range []struct {
		key, value string
		known      []string
	}{
		{"verdict", e.Verdict, []string{string(Continue), string(Pause), string(Verify), string(Stop)}},
		{"rule", e.Rule, []string{"deny", "requiresApproval", "autoApprove", "default"}},
		{"tier", e.Tier, []string{"advisory", "confirm", "verify", "danger_zone"}},
	} {
		if word.value != "" && !slices.Contains(word.known, word.value) {
			return read.Bad("expect."+word.key, "%s %.40q: want %s", word.key, word.value, strings.Join(word.known, ", "))
		}
	}
	for _, name := range slices.Concat(e.Factors, e.Not) {
		if !factor(name) {
			return read.Bad("expect", "%.40q is no factor", name)
		}
	}
	if e.Verdict == "" && e.Rule == "" && e.Pattern == "" && e.Tier == "" && e.Vague == nil && len(e.Factors)+len(e.Not) == 0 {
		return read.Bad("expect", "nothing is expected")
	}
	return nil
}

// Outcome of one case. Wrong is empty if it is as expected.
type Outcome struct {
	Hint  string      `json:"hint"`
	Wrong []string    `json:"wrong,omitempty"`
	Got   Explanation `json:"got"`
}

// Test runs the cases against a policy.
func (p *Policy) Test(ctx context.Context, c *Cases) ([]Outcome, error) {
	v := p.For(c.Agent, true).In(c.Workspace)
	var out []Outcome
	for _, each := range c.Cases {
		e, err := v.Explain(ctx, each.Hint)
		if err != nil {
			return out, fmt.Errorf("%.64q: %w", each.Hint, err)
		}
		out = append(out, Outcome{Hint: each.Hint, Wrong: each.Expect.compare(e), Got: e})
	}
	return out, nil
}

func (x Expect) compare(e Explanation) (wrong []string) {
	for _, each := range [...]struct{ what, want, got string }{
		{"verdict", x.Verdict, string(e.Verdict)}, {"rule", x.Rule, e.Rule}, {"pattern", x.Pattern, e.Pattern}, {"tier", x.Tier, e.Tier},
	} {
		if each.want != "" && each.want != each.got {
			wrong = append(wrong, fmt.Sprintf("%s: got %s, want %s", each.what, each.got, each.want))
		}
	}
	if x.Vague != nil && *x.Vague != e.Vague {
		wrong = append(wrong, fmt.Sprintf("vague: got %v, want %v", e.Vague, *x.Vague))
	}
	has := func(name string) bool {
		return slices.ContainsFunc(e.Factors, func(f judge.Factor) bool { return f.Name == name })
	}
	for _, name := range x.Factors {
		if !has(name) {
			wrong = append(wrong, "factor "+name+": missing")
		}
	}
	for _, name := range x.Not {
		if has(name) {
			wrong = append(wrong, "factor "+name+": not wanted")
		}
	}
	return wrong
}

func factor(name string) bool {
	return slices.ContainsFunc(risk.Catalogue(), func(e risk.Entry) bool { return e.Name == name })
}

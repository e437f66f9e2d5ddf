// SPDX-License-Identifier: Apache-2.0

package governance

import (
	"errors"
	"fmt"
	"strings"

	"agentrun/rings"
)

// Estimate is what somebody expects a run to use, told before it starts (M-19). The zero value expects nothing.
type Estimate struct {
	Amounts
	Steps int64
}

var errEstimate = errors.New("want cost=0.01,tokens=20000,steps=10, each once and any of them left out")

// ParseEstimate reads "cost=0.01,tokens=20000,steps=10", in any order.
func ParseEstimate(s string) (e Estimate, err error) {
	seen := map[string]bool{}
	for part := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(part, "=")
		if seen[name] {
			return Estimate{}, errEstimate
		}
		seen[name] = true
		switch name {
		case "cost":
			e.Cost, err = ParseAmount(value)
		case "tokens":
			e.Tokens, err = parseCount(value)
		case "steps":
			e.Steps, err = parseCount(value)
		default:
			err = errEstimate
		}
		if err != nil {
			return Estimate{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	return e, nil
}

// Fits tells whether a run that is expected to use so much has room in its grant, and in what is left of a day of which
// used is booked already. It reserves nothing: what other runs take meanwhile is met by the Ledger.
func (g Grant) Fits(e Estimate, used Amounts) Answer {
	l := g.Limits
	for _, c := range []struct {
		code          rings.Code
		what          string
		expected, has int64
		show          func(int64) string
	}{
		{CodeCost, "may cost", e.Cost, leftOf(l.CostPerRun, 0), FormatAmount},
		{CodeQuota, "may use tokens:", e.Tokens, leftOf(l.TokensPerRun, 0), plain},
		{CodeQuota, "may take steps:", e.Steps, leftOf(l.Steps, 0), plain},
		{CodeCost, "may cost today", e.Cost, leftOf(l.CostPerDay, used.Cost), FormatAmount},
		{CodeQuota, "may use tokens today:", e.Tokens, leftOf(l.TokensPerDay, used.Tokens), plain},
	} {
		if c.expected > c.has {
			return Answer{Code: c.code, Message: fmt.Sprintf("plan %s: the run %s %s, and %s is expected", g.Plan, c.what, c.show(c.has), c.show(c.expected))}
		}
	}
	return Answer{Allowed: true, Code: rings.CodeOK}
}

func plain(n int64) string { return fmt.Sprint(n) }

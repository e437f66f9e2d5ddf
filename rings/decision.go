// SPDX-License-Identifier: Apache-2.0

package rings

// Verdict is what a decision says. The zero value refuses.
type Verdict uint8

const (
	Deny Verdict = iota
	Allow
)

func (v Verdict) String() string {
	if v == Allow {
		return "allow"
	}
	return "deny"
}

// Code is the stable name of why something was decided, in lower_snake_case: what scripts, the audit and
// tests compare. Names are added, never changed.
type Code string

// Decision is a verdict with its grounds.
type Decision struct {
	Verdict Verdict
	Code    Code   // why, for programs; "ok" when allowed
	Reason  string // why, as a sentence for people
	Rule    string // the requirement that decided, for instance "H-9"
}

// Allowed tells whether the verdict is Allow.
func (d Decision) Allowed() bool { return d.Verdict == Allow }

// CodeOK is the code of what is allowed.
const CodeOK Code = "ok"

func allow(rule, reason string) Decision {
	return Decision{Verdict: Allow, Code: CodeOK, Reason: reason, Rule: rule}
}

func deny(rule string, code Code, reason string) Decision {
	return Decision{Code: code, Reason: reason, Rule: rule}
}

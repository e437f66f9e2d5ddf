// SPDX-License-Identifier: Apache-2.0

package pdp

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"agentrun/rings"
)

// The reasons of M-9. CodeOK is rings.CodeOK.
const (
	CodeKeyInvalid        rings.Code = "key_invalid"
	CodeNoRole            rings.Code = "no_role"
	CodeCapabilityMissing rings.Code = "capability_missing"
	CodeRBACDenied        rings.Code = "rbac_denied"
	CodeACLBlock          rings.Code = "acl_block"
	CodeConfidential      rings.Code = "confidential_mode_restriction"
	CodeQuotaExceeded     rings.Code = "quota_exceeded"
	CodeOK                           = rings.CodeOK
)

// Why there was no decision; each of them refuses.
const (
	CodeUnavailable rings.Code = "pdp_unavailable" // not reachable, no policies, given up
	CodeTimeout     rings.Code = "pdp_timeout"     // no answer in time
	CodeMalformed   rings.Code = "pdp_malformed"   // the request or the answer makes no sense
	CodeError       rings.Code = "pdp_error"       // a policy that forbids couldn't be evaluated
)

// order is M-9's: of several reasons the first is the one that is told.
var order = [...]rings.Code{
	CodeKeyInvalid, CodeNoRole, CodeCapabilityMissing, CodeRBACDenied, CodeACLBlock, CodeConfidential, CodeQuotaExceeded,
}

// KnownReason tells whether code is one of M-9's reasons to refuse.
func KnownReason(code rings.Code) bool { return slices.Contains(order[:], code) }

// rank is the place of code in M-9's order; what isn't in it comes last.
func rank(code rings.Code) int {
	if i := slices.Index(order[:], code); i >= 0 {
		return i
	}
	return len(order)
}

// Decision is the reply of M-10 with its grounds. The zero value refuses. It is comparable only by its fields: Cause may hold
// anything.
type Decision struct {
	Verdict  rings.Verdict
	Code     rings.Code // the reason of M-9 or of this package; CodeOK if and only if allowed
	Message  string     // a sentence for people, with nothing of the request's in it
	Policy   string     // id of the policy that decided, for instance "base.capability_missing"; empty if none did
	Where    string     // that policy's file and line
	Revision string     // digest of the set of policies, or the remote PDP's name
	// Critical marks a refusal as a violation for which the run is killed (H-23): a forbid with @severity("critical") matched, or
	// a remote PDP says so. An allowance never is.
	Critical bool
	Cause    error // for the operator's log; never for the agent
}

// Allowed tells whether the action may go ahead. A verdict without its code, or a code without its verdict, doesn't.
func (d Decision) Allowed() bool { return d.Verdict == rings.Allow && d.Code == CodeOK }

// MarshalJSON gives {"allow","reason",…}, the names of M-10, without the cause.
func (d Decision) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Allow    bool       `json:"allow"`
		Reason   rings.Code `json:"reason"`
		Message  string     `json:"message,omitempty"`
		Policy   string     `json:"policy,omitempty"`
		Where    string     `json:"where,omitempty"`
		Revision string     `json:"revision,omitempty"`
		Critical bool       `json:"critical,omitempty"`
	}{d.Allowed(), d.Code, d.Message, d.Policy, d.Where, d.Revision, d.Critical})
}

// Denied returns a refusal.
func Denied(code rings.Code, message string, cause error) Decision {
	return Decision{Code: code, Message: message, Cause: cause}
}

// Gone returns the refusal for an answer that didn't come: CodeTimeout if err says that time was up, else CodeUnavailable.
func Gone(err error) Decision {
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	if errors.Is(err, context.DeadlineExceeded) || ok && timeout.Timeout() {
		return Denied(CodeTimeout, "the policy decision took too long", err)
	}
	return Denied(CodeUnavailable, "no policy decision could be had", err)
}

// Decider answers requests. An implementation never lets an error, a delay or nonsense turn into an allowance.
type Decider interface {
	Decide(ctx context.Context, r Request) Decision
}

// DeciderFunc is a function that decides.
type DeciderFunc func(ctx context.Context, r Request) Decision

// Decide calls f; nil refuses.
func (f DeciderFunc) Decide(ctx context.Context, r Request) Decision {
	if f == nil {
		return Denied(CodeUnavailable, "there is no policy decision point", nil)
	}
	return f(ctx, r)
}

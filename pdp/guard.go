// SPDX-License-Identifier: Apache-2.0

package pdp

import (
	"context"
	"errors"
	"fmt"

	"agentrun/rings"
)

// Guarded asks inner only about requests that are well formed and within the subject's ring, and passes on only answers that
// agree with themselves. So a PDP that says yes to everything, whether broken or bought, still can't lift a ring. A panic of
// inner refuses; the process goes on holding its other sandboxes.
func Guarded(inner Decider) Decider {
	return DeciderFunc(func(ctx context.Context, r Request) (d Decision) {
		if inner == nil {
			return DeciderFunc(nil).Decide(ctx, r)
		}
		defer func() {
			if p := recover(); p != nil {
				d = Denied(CodeError, "the policy decision broke off", fmt.Errorf("decide: panic of type %T", p))
			}
		}()
		if refusal, stop := precheck(ctx, r); stop {
			return refusal
		}
		return consistent(inner.Decide(ctx, r))
	})
}

func precheck(ctx context.Context, r Request) (Decision, bool) {
	if err := ctx.Err(); err != nil {
		return Gone(err), true
	}
	if err := r.Check(); err != nil {
		return Denied(CodeMalformed, "the request for a decision makes no sense", err), true
	}
	return ringRefuses(r)
}

// The rings are the floor under every policy (H-1, H-9). The supervisor compares them too, at the time of the call.
func ringRefuses(r Request) (Decision, bool) {
	have, need := r.Context.Ring, r.Context.RequiredRing
	switch {
	case have == rings.Root && r.Subject.Type == Agent:
		return Denied(rings.CodeRing0Forbidden, "no agent lives in ring 0", nil), true
	case need.MorePrivilegedThan(have):
		return Denied(rings.CodeInsufficientRing, fmt.Sprintf("this needs %v, the subject is in %v", need, have), nil), true
	}
	return Decision{}, false
}

var errInconsistent = errors.New("verdict and code disagree")

// An Allow with the code of a refusal is no answer: one half of it is wrong, and which half is unknown.
func consistent(d Decision) Decision {
	if (d.Verdict == rings.Allow) != (d.Code == CodeOK) || d.Verdict > rings.Allow || d.Code == "" || d.Critical && d.Code == CodeOK {
		return Denied(CodeMalformed, "the policy decision makes no sense", fmt.Errorf("%v with %.64q: %w", d.Verdict, string(d.Code), errInconsistent))
	}
	return d
}

// Every allows what all the deciders allow, and asks in turn until one refuses. So an embedded engine before a remote one
// keeps the guards of M-9 whatever the remote says, and spares it what is refused anyway. Of none it refuses everything.
func Every(deciders ...Decider) Decider {
	return Guarded(DeciderFunc(func(ctx context.Context, r Request) Decision {
		d := Denied(CodeUnavailable, "there is no policy decision point", nil)
		for _, each := range deciders {
			if d = Guarded(each).Decide(ctx, r); !d.Allowed() {
				return d
			}
		}
		return d
	}))
}

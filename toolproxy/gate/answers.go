// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"errors"
	"fmt"

	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// ofVerdict translates the supervisor's answer to the stable codes. What it doesn't know is a denial all the same.
func ofVerdict(v link.Verdict) *Error {
	if v.Allowed && v.Code == rings.CodeOK {
		return nil
	}
	e := &Error{Code: CodeUnavailable, Retry: v.Retry, Rule: string(v.Code)}
	switch v.Code {
	case CodeQuarantined, link.CodeKeyInvalid, CodeConcurrency, CodeRateLimited, CodeRing, CodeToolRestricted, CodeCanceled, CodeSteps, CodeStopped:
		e.Code = v.Code
	case rings.CodeRateLimited, rings.CodeRateTableFull:
		e.Code = CodeRateLimited
	case rings.CodeInsufficientRing, rings.CodeRing0Forbidden, rings.CodeInvalidRing, rings.CodeInvalidScore,
		rings.CodeInvalidAction, rings.CodeInsufficientTrust, rings.CodeNoConsensus, rings.CodeResourceForbidden:
		e.Code = CodeRing
	}
	e.Message = cmp.Or(v.Message, "the supervisor denies this call")
	e.Next = cmp.Or(v.Next, nextOf[e.Code], "try again later")
	return e
}

// nextOf is what an agent may do after a denial whose supervisor didn't say.
var nextOf = map[rings.Code]string{
	CodeQuarantined:    "stop; an operator has to release the agent",
	CodeToolRestricted: "do without this tool; GET /internal/tools lists those you may call",
	CodeRing:           "do without this tool, or ask for a more privileged ring",
	CodeRateLimited:    "wait as long as Retry-After says",
	CodeConcurrency:    "wait until a call of yours has ended",
	CodeCanceled:       "end",
	CodeStopped:        nextStopped,
}

func ofRing(need, ring rings.Ring) *Error {
	return &Error{
		Code: CodeRing, Message: fmt.Sprintf("this needs %v, the run is in %v", need, ring),
		Next: nextOf[CodeRing], Rule: "H-9",
	}
}

func ofReservation(r link.Reservation) *Error {
	e := &Error{
		Code: CodeCost, Message: cmp.Or(r.Message, "the budget has no room for this call"),
		Next: cmp.Or(r.Next, "GET /internal/usage tells what is left; make cheaper calls or end"), Rule: "M-19",
	}
	switch r.Code {
	case CodeQuota, CodeUnavailable, CodeCanceled:
		e.Code = r.Code
	}
	return e
}

func malformed(format string, args ...any) *Error {
	return &Error{
		Code: CodeBadRequest, Message: "the call is not well formed", Next: "correct the request",
		Cause: fmt.Errorf("malformed call: "+format, args...),
	}
}

func unavailable(whom string, err error) *Error {
	return &Error{
		Code: CodeUnavailable, Message: whom + " can't be asked, and without that nothing is allowed", Next: "try again later", Cause: err,
	}
}

func broke(v any) *Error {
	return &Error{Code: CodeUnavailable, Message: "the decision broke off", Next: "try again later", Cause: fmt.Errorf("decide: panic of type %T", v)}
}

var (
	errEnded  = errors.New("permit ended before")
	errNoRing = errors.New("no word of the ring's changes")
)

// lost says why an authority gave no answer: the call may have ended meanwhile, which is then the reason.
func (p *permit) lost(whom string, err error) *Error {
	if e := p.ended(); e != nil {
		return e
	}
	return unavailable(whom, err)
}

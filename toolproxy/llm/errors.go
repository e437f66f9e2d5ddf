// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
)

func refuse(code rings.Code, message, next string) *gate.Error {
	return &gate.Error{Code: code, Message: message, Next: next}
}

// errorBody is M-13's, in the place where OpenAI's clients look for it, and with the type that Anthropic's do.
type errorBody struct {
	OK    bool   `json:"ok"`
	Type  string `json:"type"`
	Error struct {
		*gate.Error
		Type string `json:"type"`
	} `json:"error"`
}

func bodyOf(e *gate.Error) (b errorBody) {
	b.Type, b.Error.Error, b.Error.Type = "error", e, "agentrun_error"
	return b
}

func writeError(w http.ResponseWriter, e *gate.Error) { writeErrorIn(w, dialectOf(dialectChat), e) }

// writeErrorIn writes it in the form of a dialect.
func writeErrorIn(w http.ResponseWriter, d *dialect, e *gate.Error) {
	if e.Retry > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((e.Retry.Seconds())+0.999), 10))
	}
	writeJSON(w, gate.Status(e.Code), d.errorIn(e))
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil { // nothing here holds what JSON can't say
		code, b = http.StatusInternalServerError, []byte(`{"ok":false,"error":{"code":"unavailable","message":"the answer has no form","next":""}}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n')) // an agent that went away
}

// Causes of a call that is given up from here.
var (
	errIdle  = errors.New("upstream was silent")
	errLong  = errors.New("upstream's reply is too long")
	errShort = errors.New("upstream's reply ended early")
	errForm  = errors.New("upstream's reply is malformed")
	errSaid  = errors.New("upstream reported an error in its stream")
	errAgent = errors.New("the agent went away")
)

// failure turns what went wrong upstream into what the agent gets: a class, never the upstream's words, which
// may hold a key, an account, or instructions to the model that reads them.
//
// The order matters. A refusal of ours, by a budget or a lost ring, goes first, since whatever broke after it
// broke because of it. Then the causes that ended the context, for the same reason: a read that was cut off
// by a time limit fails as a broken connection. What is left went wrong by itself.
func failure(ctx context.Context, err error) *gate.Error {
	var known *gate.Error
	if errors.As(err, &known) || errors.As(context.Cause(ctx), &known) {
		return known
	}
	e := refuse(gate.CodeToolFailed, "the provider can't be reached", "try again later, or take another model")
	switch cause := context.Cause(ctx); {
	case errors.Is(err, errAgent):
		e = refuse(gate.CodeCanceled, "the connection was closed", "nobody reads this")
	case errors.Is(cause, errIdle):
		e = refuse(gate.CodeToolTimeout, "the provider sent nothing for too long", "try again, or ask for less")
	case errors.Is(cause, context.DeadlineExceeded):
		e = refuse(gate.CodeToolTimeout, "the provider took too long", "ask for less: a shorter prompt or fewer tokens")
	case cause != nil:
		e = refuse(gate.CodeCanceled, "the call was cancelled: the run ended or may no longer make it", "see GET /internal/usage and the run's ring")
	case errors.Is(err, errLong):
		e = refuse(gate.CodeTooLarge, "the provider's reply is too long", "ask for fewer tokens")
	case errors.Is(err, errShort), errors.Is(err, errForm), errors.Is(err, errSaid):
		e = refuse(gate.CodeToolFailed, "the provider's reply broke off or makes no sense", "try again, or take another model")
	}
	e.Cause = err
	return e
}

// refusedBy maps an upstream's status. Its body isn't looked at. 401, 402 and 403 are the operator's affair:
// the agent can do nothing about them and learns no more than that; other 4xx are about the request, which it
// can correct. A redirect is never followed: it would take the key, and the prompt, to where the operator
// didn't send them.
func refusedBy(code int) *gate.Error {
	said := " (status " + strconv.Itoa(code) + ")"
	switch {
	case code == http.StatusTooManyRequests:
		return refuse(gate.CodeRateLimited, "the provider limits the rate"+said, "wait before the next call")
	case code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusPaymentRequired:
		return refuse(gate.CodeUnavailable, "the provider doesn't accept the operator's account"+said, "take another model, or tell the operator")
	case code >= 400 && code < 500:
		return refuse(gate.CodeBadRequest, "the provider refused the request"+said, "check messages, tools and parameters for this model")
	case code >= 300 && code < 400:
		return refuse(gate.CodeUnavailable, "the provider redirects, which isn't followed"+said, "tell the operator")
	}
	return refuse(gate.CodeUnavailable, "the provider has a fault"+said, "try again later, or take another model")
}

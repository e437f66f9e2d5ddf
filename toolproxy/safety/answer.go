// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

	"agentrun/safetyloop/judge"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/tools"
)

// Codes of MCP-AQL that are given here; the others are the loop's own.
const (
	codeUnknownParam = "VALIDATION_UNKNOWN_PARAM"
	codeMissingParam = "VALIDATION_MISSING_PARAM"
	codeInvalidType  = "VALIDATION_INVALID_TYPE"
	codeTooLarge     = "VALIDATION_PAYLOAD_TOO_LARGE"
	codeNoOperation  = "NOT_FOUND_OPERATION"
	codeDenied       = "PERMISSION_DENIED"
	codeRateLimit    = "RATE_LIMIT_EXCEEDED"
	codeInternal     = "INTERNAL_ERROR"
)

// answer is a reply as it goes to the agent. The zero value is no answer.
type answer struct {
	body  json.RawMessage
	code  string // empty: success
	retry time.Duration
}

func refuse(code, message string, details map[string]any) *answer {
	body, err := json.Marshal(judge.Reply{Error: &judge.Error{Code: code, Message: message, Details: details}})
	if err != nil { // strings and numbers always can be written
		body, code = []byte(`{"success":false,"error":{"code":"INTERNAL_ERROR","message":"the answer can't be written; do not proceed"}}`), codeInternal
	}
	return &answer{body: body, code: code}
}

func internal() answer {
	return *refuse(codeInternal, "the safety loop can't be asked; do not proceed", nil)
}

// ofGate tells the gate's refusal in the words of the loop.
func ofGate(e *gate.Error) answer {
	code := codeDenied
	switch e.Code {
	case gate.CodeRateLimited, gate.CodeConcurrency:
		code = codeRateLimit
	case gate.CodeUnavailable:
		code = codeInternal
	}
	details := map[string]any{"reason": string(e.Code), "next": e.Next}
	if e.Retry > 0 {
		details["retry_after_seconds"] = seconds(e.Retry)
	}
	a := refuse(code, e.Message+"; do not proceed", details)
	a.retry = e.Retry
	return *a
}

// ofLoop passes on what the loop says. It holds nothing that an agent may not know: codes never leave the supervisor.
func ofLoop(reply json.RawMessage) answer {
	var r struct {
		Success bool `json:"success"`
		Error   *struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	switch err := json.Unmarshal(reply, &r); {
	case err != nil || r.Success == (r.Error != nil) || r.Error != nil && r.Error.Code == "":
		return internal()
	case r.Success:
		return answer{body: reply}
	}
	return answer{body: reply, code: r.Error.Code}
}

func seconds(d time.Duration) int64 { return min(max(int64(math.Ceil(d.Seconds())), 1), 86400) }

func (a answer) write(w http.ResponseWriter) {
	if a.retry > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(seconds(a.retry), 10))
	}
	tools.WriteJSON(w, status(a.code), a.body)
}

// status goes with a code. A directive that says stop is an answer, and 200.
func status(code string) int {
	switch code {
	case "":
		return http.StatusOK
	case codeUnknownParam, codeMissingParam, codeInvalidType:
		return http.StatusBadRequest
	case codeTooLarge:
		return http.StatusRequestEntityTooLarge
	case codeNoOperation, "NOT_FOUND_RESOURCE":
		return http.StatusNotFound
	case "CONFLICT_ALREADY_EXISTS":
		return http.StatusConflict
	case codeRateLimit:
		return http.StatusTooManyRequests
	case codeInternal:
		return http.StatusServiceUnavailable
	}
	return http.StatusForbidden
}

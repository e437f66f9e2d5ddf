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

// answer is a reply as it goes to the agent. The zero value is no answer.
type answer struct {
	body  json.RawMessage
	code  string // empty: success
	retry time.Duration
}

func refuse(code, message string, details map[string]any) *answer {
	return refusing(&judge.Error{Code: code, Message: message, Details: details})
}

func refusing(e *judge.Error) *answer {
	code := e.Code
	body, err := json.Marshal(judge.Reply{Error: e})
	if err != nil { // strings and numbers always can be written
		body, code = []byte(`{"success":false,"error":{"code":"INTERNAL_ERROR","message":"the answer can't be written; do not proceed"}}`), judge.CodeInternal
	}
	return &answer{body: body, code: code}
}

func internal() answer {
	return *refuse(judge.CodeInternal, "the safety loop can't be asked; do not proceed", nil)
}

// ofGate tells the gate's refusal in the words of the loop.
func ofGate(e *gate.Error) answer {
	code := judge.CodeDenied
	switch e.Code {
	case gate.CodeRateLimited, gate.CodeConcurrency:
		code = judge.CodeRateLimit
	case gate.CodeUnavailable:
		code = judge.CodeInternal
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
	case judge.CodeUnknownParam, judge.CodeMissingParam, judge.CodeInvalidType:
		return http.StatusBadRequest
	case judge.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case judge.CodeNoOperation, judge.CodeNoResource:
		return http.StatusNotFound
	case judge.CodeExists:
		return http.StatusConflict
	case judge.CodeRateLimit:
		return http.StatusTooManyRequests
	case judge.CodeInternal:
		return http.StatusServiceUnavailable
	}
	return http.StatusForbidden
}

// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
)

type reply struct {
	OK     bool            `json:"ok"`
	Output json.RawMessage `json:"output,omitempty"`
	Error  *gate.Error     `json:"error,omitempty"`
}

// writeTimeout is how long an agent may take to read a reply.
const writeTimeout = 30 * time.Second

// WriteError writes an error as every route of the gateway does (M-13): {"ok":false,"error":{"code","message","next"}}.
func WriteError(w http.ResponseWriter, e *gate.Error) { writeError(w, gate.Status(e.Code), e) }

func writeError(w http.ResponseWriter, status int, e *gate.Error) {
	if e.Retry > 0 {
		seconds := int64(math.Ceil(e.Retry.Seconds()))
		w.Header().Set("Retry-After", strconv.FormatInt(min(max(seconds, 1), 86400), 10))
	}
	WriteJSON(w, status, reply{Error: e})
}

// Problem is the same text for what isn't a reply over HTTP.
func Problem(e *gate.Error) string {
	body, err := json.Marshal(reply{Error: e})
	if err != nil { // strings always can be written
		return `{"ok":false}`
	}
	return string(body)
}

// WriteOutput writes an answer as every route of the gateway does: {"ok":true,"output":…}.
func WriteOutput(w http.ResponseWriter, output json.RawMessage) {
	WriteJSON(w, http.StatusOK, reply{OK: true, Output: output})
}

// WriteJSON writes an answer that has a form of its own.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusBadGateway, []byte(`{"ok":false,"error":{"code":"tool_failed","message":"the answer can't be written","next":"try again later"}}`)
	}
	// An agent that doesn't read must not keep this open; servers without deadlines are tests.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that is gone is told nothing
}

// Refuse returns what an agent is told of a call that came to nothing. The cause is for the operator alone;
// nil: there is none.
func Refuse(code rings.Code, cause error, next, format string, args ...any) *gate.Error {
	return &gate.Error{Code: code, Message: fmt.Sprintf(format, args...), Next: next, Cause: cause}
}

// BadArguments refuses arguments that the schema couldn't.
func BadArguments(format string, args ...any) *gate.Error {
	return Refuse(gate.CodeBadArguments, nil, "correct the arguments; GET /internal/tools has the schema",
		format, args...)
}

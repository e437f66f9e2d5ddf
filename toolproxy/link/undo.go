// SPDX-License-Identifier: Apache-2.0

package link

import (
	"encoding/json"
	"time"

	"agentrun/rings"
)

// UndoAsk is what a supervisor asks a gateway of its own for one undo (H-7), on its standard input: that of the tool, as the
// configuration in Start declares it now, with these arguments. No agent is served by that gateway.
type UndoAsk struct {
	Start Start           `json:"start"`
	Tool  string          `json:"tool"`
	Args  json.RawMessage `json:"args"`
	Made  time.Time       `json:"made"`  // when the call had ended
	Begun time.Time       `json:"begun"` // and its undo began, by the same clock
}

// Undone is the answer, on its standard output. Without Command the gateway has made the call itself, or tried to.
type Undone struct {
	Code    rings.Code    `json:"code"`              // ok, or why it failed
	Message string        `json:"message,omitempty"` // for the operator
	Command *Command      `json:"command,omitempty"` // the program that the supervisor is to run, with the arguments on its standard input
	Limit   time.Duration `json:"limit,omitempty"`   // of that
}

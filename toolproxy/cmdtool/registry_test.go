// SPDX-License-Identifier: Apache-2.0

package cmdtool

import (
	"context"
	"encoding/json"
	"testing"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/tools"
)

type closed struct{}

func (closed) Enter(context.Context, gate.Call) (gate.Permit, *gate.Error) {
	return nil, &gate.Error{Code: gate.CodeUnavailable}
}

// The registry takes the definition as it is.
func TestM11TheRegistryTakesTheCodeExecutor(t *testing.T) {
	_, err := tools.New(tools.Options{
		Builtin: []tools.Definition{CodeExecutor(nil)}, Entrance: closed{},
		Filter: func(string, json.RawMessage) (json.RawMessage, []string, error) { return nil, nil, nil },
	})
	if err != nil {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package cmdtool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/tools"
)

// command is one tool of a `command:` section.
type command struct {
	runner
	entry string
	text  bool
}

// Call runs the command with the arguments on its standard input.
func (t command) Call(ctx context.Context, c tools.Call) (tools.Result, error) {
	args := c.Args.Reveal()
	e, bad := t.start(ctx, t.entry, args, c.Most())
	if bad == nil {
		bad = e.verdict()
	}
	if bad != nil {
		return tools.Result{}, bad
	}
	if e.code != 0 {
		bad = tools.Refuse(gate.CodeToolFailed, fmt.Errorf("exit code %d", e.code), "look at the arguments",
			"the command failed with exit code %d", e.code)
		bad.Asked = true
		return tools.Result{}, bad
	}
	out, err := t.encode(e.output)
	if err != nil {
		return tools.Result{}, tools.Refuse(gate.CodeToolFailed, err, "tell the operator",
			"the command's output is not what it should be")
	}
	if bad := c.Fits(out); bad != nil { // escapes made it longer
		return tools.Result{}, bad
	}
	return tools.Result{Output: out, Sent: int64(len(args)), Received: int64(len(e.output))}, nil
}

func (t command) encode(output []byte) (json.RawMessage, error) {
	if !t.text {
		v := jsontext.Value(bytes.TrimSpace(output))
		if !v.IsValid() { // refuses names given twice, and text that is no UTF-8
			return nil, errors.New("output is not one JSON value")
		}
		return json.RawMessage(v), nil
	}
	if !utf8.Valid(output) {
		return nil, errors.New("output is not UTF-8")
	}
	return jsontext.AppendQuote(nil, output)
}

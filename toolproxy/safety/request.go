// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"agentrun/internal/read"
	"agentrun/toolproxy/link"
)

// stepOperation is the operation with a hint.
const stepOperation = "record_execution_step"

// maxUnknown names that an agent made up are told back to it.
const maxUnknown = 16

// request is {"operation","params"}, read in the one way there is.
type request struct {
	operation string
	params    json.RawMessage // an object; nil: none
}

func (q request) step() bool { return q.operation == stepOperation }

// decode reads a request that has one meaning, so that the loop's own reader finds in params what is found here.
func decode(body []byte) (q request, refused *answer) {
	if len(body) > MaxBody {
		return q, refuse(codeTooLarge, fmt.Sprintf("the request is longer than %d bytes", MaxBody), map[string]any{"limit": MaxBody})
	}
	if len(bytes.TrimSpace(body)) == 0 {
		body = []byte("{}")
	}
	if err := read.OneMeaning(body, read.AnyNumber); err != nil {
		return q, refuse(codeInvalidType, err.Error(), nil)
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil || fields == nil {
		return q, refuse(codeInvalidType, "the request is no JSON object", nil)
	}
	operation, params := fields["operation"], fields["params"]
	delete(fields, "operation")
	delete(fields, "params")
	var unknown []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		unknown = append(unknown, cutTo(name, 64))
	}
	if unknown != nil {
		return q, refuse(codeUnknownParam, "a request has operation and params; the operation's parameters belong into params", map[string]any{
			"unknown_params": unknown[:min(len(unknown), maxUnknown)], "valid_params": []string{"operation", "params"},
		})
	}
	return form(operation, params)
}

// form checks what the link would refuse: the loop knows a better answer to everything else.
func form(operation, params json.RawMessage) (q request, refused *answer) {
	switch {
	case operation == nil:
		return q, refuse(codeMissingParam, "operation is missing", map[string]any{"param_name": "operation"})
	case operation[0] != '"' || json.Unmarshal(operation, &q.operation) != nil:
		return q, refuse(codeInvalidType, "operation: want a string", map[string]any{"param_name": "operation", "expected_type": "string"})
	case q.operation == "" || len(q.operation) > link.MaxSafetyWord:
		return q, refuse(codeNoOperation, fmt.Sprintf("Unknown operation: '%s'", cutTo(q.operation, 64)), nil)
	case params == nil || params[0] == 'n':
		return q, nil
	case params[0] != '{':
		return q, refuse(codeInvalidType, "params: want an object", map[string]any{"param_name": "params", "expected_type": "object"})
	case len(params) > link.MaxSafetyParams:
		return q, refuse(codeTooLarge, fmt.Sprintf("params have %d bytes, at most %d are taken", len(params), link.MaxSafetyParams), map[string]any{"limit": link.MaxSafetyParams, "size": len(params)})
	}
	q.params = params
	return q, nil
}

// hintOf gives the hint as the loop will read it. Under both names, under none, and what is no string, it refuses by itself.
func hintOf(params []byte) (hint string, ok bool) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(params, &fields) != nil {
		return "", false
	}
	raw, camel := fields["nextActionHint"]
	other, snake := fields["next_action_hint"]
	if camel == snake {
		return "", false
	}
	if snake {
		raw = other
	}
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &hint) != nil {
		return "", false
	}
	return hint, true
}

func cut(s string) string { return cutTo(s, maxText) }

func cutTo(s string, most int) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most-len("…")], "") + "…"
	}
	return s
}

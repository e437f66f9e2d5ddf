// SPDX-License-Identifier: Apache-2.0

package mcpaql

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	"agentrun/internal/read"
	"agentrun/safetyloop"
)

// maxEcho of names that a client made up and gets told.
const maxEcho = 64

// split reads {operation, params}. What the loop gets has one meaning.
func split(arguments json.RawMessage) (operation string, params json.RawMessage, refusal *safetyloop.Reply) {
	no := func(code, message string, details map[string]any) (string, json.RawMessage, *safetyloop.Reply) {
		r := refused(code, message, details)
		return "", nil, &r
	}
	if len(arguments) > MaxArguments {
		return no(safetyloop.CodeTooLarge, fmt.Sprintf("arguments have %d bytes, at most %d are taken", len(arguments), MaxArguments), map[string]any{"limit": MaxArguments, "size": len(arguments)})
	}
	if len(bytes.TrimSpace(arguments)) == 0 {
		arguments = json.RawMessage("{}")
	}
	if err := read.OneMeaning(arguments, read.AnyNumber); err != nil {
		return no(safetyloop.CodeInvalidType, "arguments: "+err.Error(), nil)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(arguments, &fields); err != nil || fields == nil {
		return no(safetyloop.CodeInvalidType, "arguments: want an object", nil)
	}
	var unknown []string
	for name := range fields {
		if name != "operation" && name != "params" {
			unknown = append(unknown, clip(name))
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return no(safetyloop.CodeUnknownParam, "the tool takes operation and params; the parameters of an operation belong into params", map[string]any{
			"unknown_params": unknown[:min(len(unknown), maxEcho)], "valid_params": []string{"operation", "params"},
		})
	}
	if fields["operation"] == nil {
		return no(safetyloop.CodeMissingParam, "operation is missing", map[string]any{"param_name": "operation"})
	}
	if fields["operation"][0] != '"' || json.Unmarshal(fields["operation"], &operation) != nil {
		return no(safetyloop.CodeInvalidType, "operation: want a string", map[string]any{"param_name": "operation", "expected_type": "string"})
	}
	if p := fields["params"]; p != nil && p[0] != '{' && p[0] != 'n' {
		return no(safetyloop.CodeInvalidType, "params: want an object", map[string]any{"param_name": "params", "expected_type": "object"})
	}
	return operation, fields["params"], nil
}

// clip keeps what a client made up short.
func clip(s string) string {
	if len(s) <= maxEcho {
		return s
	}
	cut := maxEcho
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// SPDX-License-Identifier: Apache-2.0

package mcpaql

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"agentrun/safetyloop"
)

const (
	// maxDepth of arguments: nothing of ours is nested deeper than three.
	maxDepth = 16
	// maxEcho of names that a client made up and gets told.
	maxEcho = 64
)

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
	if err := oneMeaning(arguments); err != nil {
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
	// Not into a string: null would leave it empty.
	var name any
	if json.Unmarshal(fields["operation"], &name) != nil {
		name = nil
	}
	operation, ok := name.(string)
	if !ok {
		return no(safetyloop.CodeInvalidType, "operation: want a string", map[string]any{"param_name": "operation", "expected_type": "string"})
	}
	params = fields["params"]
	if p := bytes.TrimSpace(params); len(p) > 0 && p[0] != '{' && string(p) != "null" {
		return no(safetyloop.CodeInvalidType, "params: want an object", map[string]any{"param_name": "params", "expected_type": "object"})
	}
	return operation, params, nil
}

// oneMeaning refuses what two readers of JSON may take for different things: a name twice in one object, text that isn't UTF-8,
// something behind the end.
func oneMeaning(text []byte) error {
	if !utf8.Valid(text) {
		return errors.New("not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := value(d, 0); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the object")
	}
	return nil
}

func value(d *json.Decoder, depth int) error {
	t, err := d.Token()
	if err != nil {
		return errors.New("not JSON")
	}
	open, ok := t.(json.Delim)
	if !ok {
		return nil
	}
	if depth >= maxDepth {
		return fmt.Errorf("nested deeper than %d", maxDepth)
	}
	var seen map[string]bool
	for d.More() {
		if open == '{' {
			t, err := d.Token()
			name, ok := t.(string)
			if err != nil || !ok {
				return errors.New("not JSON")
			}
			if seen[name] {
				return fmt.Errorf("%q is given twice", clip(name))
			}
			if seen == nil {
				seen = map[string]bool{}
			}
			seen[name] = true
		}
		if err := value(d, depth+1); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return errors.New("not JSON")
	}
	return nil
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

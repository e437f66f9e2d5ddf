// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"

	"agentrun/internal/read"
	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
)

// decodeRequest reads {"args":{…}} and returns the arguments in canonical form; without "args" they are {}.
//
// The text must have one meaning, since others will read the arguments after they were decided about: no name twice, no
// other member, nothing behind the value, UTF-8 without broken surrogates, no number that a reader would round.
func decodeRequest(body []byte) (gate.Args, *gate.Error) {
	var in *struct {
		Args json.RawMessage `json:"args"`
	}
	if err := jsonv2.Unmarshal(body, &in, jsonv2.RejectUnknownMembers(true)); err != nil || in == nil {
		return gate.Args{}, badRequest(`the body is no JSON object with "args" and nothing else`, err)
	}
	return canonicalArgs(in.Args)
}

func canonicalArgs(args json.RawMessage) (none gate.Args, _ *gate.Error) {
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	if len(args) > MaxArguments {
		return none, Refuse(gate.CodeTooLarge, nil, "send less at once", "arguments are longer than %d bytes",
			MaxArguments)
	}
	out, err := canonical(args)
	if err != nil {
		return none, Refuse(gate.CodeBadArguments, nil, "correct the arguments", "arguments: %v", err)
	}
	if out[0] != '{' {
		return none, Refuse(gate.CodeBadArguments, nil, `send {"args":{…}}`, "arguments are no object")
	}
	return telemetry.NewPlaintext(out), nil
}

// canonical returns a value in the form of RFC 8785. Its errors quote nothing.
func canonical(raw []byte) (json.RawMessage, error) { return read.Canonical(raw, exact) }

// exact refuses integers from 2^53 on, which RFC 8785 would round to their neighbours, and what is no finite number.
func exact(number string) bool {
	f, err := strconv.ParseFloat(number, 64)
	return err == nil && (strings.ContainsAny(number, ".eE") || math.Abs(f) < 1<<53)
}

func badRequest(message string, cause error) *gate.Error {
	return Refuse(gate.CodeBadRequest, cause, `send {"args":{…}} as application/json`, "%s", message)
}

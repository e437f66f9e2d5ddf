// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"agentrun/internal/read"
	"agentrun/toolproxy/gate"
)

// decodeRequest reads {"args":{…}} and returns the arguments in canonical form; without "args" they are {}.
//
// The text must have one meaning, since others will read the arguments after they were decided about: no name twice, no
// other member, nothing behind the value, UTF-8 without broken surrogates, no number that a reader would round.
func decodeRequest(body []byte) (json.RawMessage, *gate.Error) {
	d := jsontext.NewDecoder(bytes.NewReader(body))
	if t, err := d.ReadToken(); err != nil || t.Kind() != '{' {
		return nil, badRequest(`the body is no JSON object`, err)
	}
	args := json.RawMessage("{}")
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, badRequest("the body is no JSON", err)
		}
		if name.String() != "args" {
			return nil, badRequest(`the body has a member that isn't "args"`, nil)
		}
		v, err := d.ReadValue()
		if err != nil {
			return nil, badRequest("the body is no JSON", err)
		}
		args = bytes.Clone(v)
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, badRequest("the body is no JSON", err)
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, badRequest("something follows the body's object", err)
	}
	return canonicalArgs(args)
}

func canonicalArgs(args json.RawMessage) (json.RawMessage, *gate.Error) {
	if len(args) == 0 {
		return json.RawMessage("{}"), nil
	}
	if len(args) > MaxArguments {
		return nil, &gate.Error{Code: gate.CodeTooLarge, Message: fmt.Sprintf("arguments are longer than %d bytes", MaxArguments), Next: "send less at once"}
	}
	out, err := canonical(args)
	if err != nil {
		return nil, &gate.Error{Code: gate.CodeBadArguments, Message: "arguments: " + err.Error(), Next: "correct the arguments"}
	}
	if out[0] != '{' {
		return nil, &gate.Error{Code: gate.CodeBadArguments, Message: "arguments are no object", Next: `send {"args":{…}}`}
	}
	return out, nil
}

// canonical returns a value in the form of RFC 8785. Its errors quote nothing.
func canonical(raw []byte) (json.RawMessage, error) { return read.Canonical(raw, exact) }

// exact refuses integers from 2^53 on, which RFC 8785 would round to their neighbours, and what is no finite number.
func exact(number string) bool {
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsInf(f, 0) {
		return false
	}
	if _, err := strconv.ParseInt(number, 10, 64); err != nil && !isInteger(number) {
		return true
	}
	return math.Abs(f) < 1<<53
}

func isInteger(number string) bool {
	for i := range len(number) {
		if c := number[i]; (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

func badRequest(message string, cause error) *gate.Error {
	return &gate.Error{Code: gate.CodeBadRequest, Message: message, Next: `send {"args":{…}} as application/json`, Cause: cause}
}

// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"agentrun/internal/read"
	"agentrun/telemetry"
)

// values are the parameters of a call by the names of the table, each as its JSON.
type values struct {
	op  *Operation
	raw telemetry.Plaintext[map[string]json.RawMessage]
}

// members reads one JSON object without losing what a map would: a name that comes twice. Two parsers that
// take different ones of the two values are how a hint is shown to one of them only.
func members(raw []byte) (map[string]json.RawMessage, error) {
	if trimmed := bytes.TrimSpace(raw); len(trimmed) == 0 || string(trimmed) == "null" {
		return nil, nil
	}
	var list map[string]json.RawMessage
	n := read.JSON(read.Source{Max: MaxParams, Quiet: true}, raw)
	n.Into(&list)
	if err := n.Done(); err != nil {
		return nil, errors.New(read.Lines(err)[0])
	}
	if len(list) > 64 {
		return nil, errors.New("more than 64 members")
	}
	return list, nil
}

// decode reads the parameters of an operation: nothing unknown, nothing twice under one name or two, each of
// its type and size.
func decode(op *Operation, raw []byte) (values, *Error) {
	given := map[string]json.RawMessage{}
	v := values{op: op, raw: telemetry.NewPlaintext(given)}
	if len(raw) > MaxParams {
		return v, refusal(CodeTooLarge, map[string]any{"limit": MaxParams, "size": len(raw)}, "Parameters of %d bytes, at most %d are taken", len(raw), MaxParams)
	}
	list, err := members(raw)
	if err != nil {
		return v, refusal(CodeInvalidType, map[string]any{"param_name": "params", "expected_type": "object"}, "Parameter 'params' expected 'object': %v", err)
	}
	var unknown []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		p := op.parameter(name)
		if p == nil {
			unknown = append(unknown, shown(name, 64))
			continue
		}
		if _, twice := given[p.Name]; twice {
			return v, refusal(CodeInvalidType, map[string]any{"param_name": p.Name}, "Parameter '%s' is given twice", p.Name)
		}
		given[p.Name] = list[name]
	}
	if unknown != nil {
		unknown = unknown[:min(len(unknown), 16)]
		return v, refusal(CodeUnknownParam, map[string]any{"unknown_params": unknown, "valid_params": op.parameterNames(), "operation": op.Name},
			"Unknown parameters: %s", strings.Join(unknown, ", "))
	}
	return v, v.check()
}

func (o *Operation) parameter(name string) *Parameter {
	for i, p := range o.Parameters {
		if name == p.Name || name == p.Alias && name != "" {
			return &o.Parameters[i]
		}
	}
	return nil
}

func (v values) check() *Error {
	for i := range v.op.Parameters {
		p := &v.op.Parameters[i]
		raw, given := v.raw.Reveal()[p.Name]
		if given {
			if err := p.check(raw); err != nil {
				return err
			}
		}
		if p.Required && (!given || strings.TrimSpace(v.text(p.Name)) == "") {
			return refusal(CodeMissingParam, map[string]any{"param_name": p.Name, "operation": v.op.Name}, "Missing required parameter '%s'", p.Name)
		}
	}
	for _, name := range []string{pElement, pChallenge, pToken} {
		if s := v.text(name); strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return refusal(CodeInvalidType, map[string]any{"param_name": name}, "Parameter '%s' has characters that don't print", name)
		}
	}
	return nil
}

// check says what is wrong without saying what it was: a code in the wrong place must not come back.
func (p *Parameter) check(raw json.RawMessage) *Error {
	actual, size := kindOf(raw), len(raw)
	var number float64
	ok := actual == p.Type || p.Type == "any" && actual != "null"
	switch {
	case p.Type == "string" && ok:
		var s string
		ok = json.Unmarshal(raw, &s) == nil
		size = len(s)
		if ok && len(p.Values) > 0 && !slices.Contains(p.Values, s) {
			return refusal(CodeInvalidType, map[string]any{"param_name": p.Name, "expected_type": "string", "values": p.Values},
				"Parameter '%s' expected one of %s", p.Name, strings.Join(p.Values, ", "))
		}
	case (p.Type == "integer" || p.Type == "number") && actual == "number":
		ok = json.Unmarshal(raw, &number) == nil && (p.Type == "number" || number == math.Trunc(number))
		if ok && p.Max != 0 && (number < p.Min || number > p.Max) {
			return refusal(CodeInvalidType, map[string]any{"param_name": p.Name, "minimum": p.Min, "maximum": p.Max},
				"Parameter '%s' expected a number from %g to %g", p.Name, p.Min, p.Max)
		}
	}
	if !ok {
		return refusal(CodeInvalidType, map[string]any{"param_name": p.Name, "expected_type": p.Type, "actual_type": actual},
			"Parameter '%s' expected '%s', got '%s'", p.Name, p.Type, actual)
	}
	if p.MaxBytes > 0 && size > p.MaxBytes {
		return refusal(CodeTooLarge, map[string]any{"param_name": p.Name, "limit": p.MaxBytes, "size": size},
			"Parameter '%s' of %d bytes, at most %d are taken", p.Name, size, p.MaxBytes)
	}
	return nil
}

func kindOf(raw json.RawMessage) string {
	switch raw[0] {
	case '"':
		return "string"
	case '{':
		return "object"
	case '[':
		return "array"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}

// text gives a string parameter; empty if it isn't there.
func (v values) text(name string) (s string) {
	_ = json.Unmarshal(v.raw.Reveal()[name], &s)
	return s
}

// number gives a number parameter.
func (v values) number(name string) (n int, given bool) {
	raw, given := v.raw.Reveal()[name]
	var f float64
	_ = json.Unmarshal(raw, &f)
	return int(f), given
}

// canonical writes the parameters in the order of the table without the token: what a token is bound to, and
// what an operator reads. Strings are decoded and encoded again, so that two spellings of a text are one. A
// code is left out.
func (v values) canonical() string {
	var b strings.Builder
	b.WriteByte('{')
	for _, p := range v.op.Parameters {
		raw, given := v.raw.Reveal()[p.Name]
		if !given || p.Name == pToken || p.Name == pCode {
			continue
		}
		if p.Type == "string" {
			raw, _ = json.Marshal(v.text(p.Name))
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + p.Name + `":`)
		b.Write(raw)
	}
	b.WriteByte('}')
	return b.String()
}

// shown makes an agent's text fit for an operator's eyes, in at most limit bytes: what doesn't print stands
// there by its number (an escape sequence would move the operator's cursor, a bidi mark turn the text
// round). What is too long loses its middle, never its end, and says so: who is asked to approve a text must
// see that they don't see all of it.
func shown(s string, limit int) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(`\u{` + strconv.FormatInt(int64(r), 16) + `}`)
		}
	}
	out := b.String()
	if len(out) <= limit {
		return out
	}
	mark := " […" + strconv.Itoa(len(out)-limit) + " bytes and more left out…] "
	half := max(limit-len(mark), 0) / 2
	return strings.ToValidUTF8(out[:half], "") + mark + strings.ToValidUTF8(out[len(out)-half:], "")
}

// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"
)

// MaxActionJSON is the longest text of an action, in bytes. The longest valid one, with every character written as two \u
// escapes, has under 53 KiB.
const MaxActionJSON = 64 << 10

// DecodeAction reads one action from JSON and checks it. It returns a valid action, or the zero Action and Problems: one
// for each bad field, with its path, as far as the text can be read.
//
// The text is the agent's, so it may have one meaning only. encoding/json alone would take "NAME" for "name", the last of
// two values of one name, null for anything, and put U+FFFD where a string is broken; another reader of the same text may
// see another action than the one that was decided on. Here names are exact, come once and are known; a bool is true or
// false, a number an integer in its shortest spelling (not 1.0, 1e2, -0); text is UTF-8. undo_api may be left out or null,
// undo_window_seconds may be left out and is 0 then (H-7); every other field must be there: what is not said is not assumed
// to be harmless.
func DecodeAction(text []byte) (Action, error) {
	fields, ps := splitObject(text)
	if fields == nil {
		return Action{}, ps
	}
	d := decoder{fields: fields, problems: ps}
	a := Action{
		ID:         d.text("action_id"),
		Name:       d.text("name"),
		ExecuteAPI: d.text("execute_api"),
	}
	if raw, ok := fields["undo_api"]; ok && string(raw) != "null" {
		undo := d.text("undo_api")
		a.UndoAPI = &undo
	}
	a.Reversibility = Reversibility(d.text("reversibility"))
	a.UndoWindowSeconds = d.integer("undo_window_seconds")
	a.ReadOnly = d.boolean("is_read_only")
	a.Admin = d.boolean("is_admin")
	d.check(a)
	if err := d.problems.err(); err != nil {
		return Action{}, err
	}
	return a, nil
}

// UnmarshalJSON is DecodeAction, so that an action inside another document is read as strictly.
func (a *Action) UnmarshalJSON(text []byte) error {
	decoded, err := DecodeAction(text)
	*a = decoded // on an error the zero Action: whoever ignores the error holds nothing that passes
	return err
}

// maxMembers bounds the work and the problems that one text can make; an action has eight members.
const maxMembers = 32

// splitObject returns the members of a JSON object, or nil and why there are none to look at. With members it returns
// the problems of their names.
func splitObject(text []byte) (map[string]json.RawMessage, Problems) {
	switch {
	case len(text) > MaxActionJSON:
		return nil, whole("has %d bytes, at most %d are allowed", len(text), MaxActionJSON)
	case !utf8.Valid(text):
		return nil, whole("is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, whole("is not a JSON object")
	}
	fields := make(map[string]json.RawMessage, maxMembers)
	var ps Problems
	for dec.More() {
		if len(fields)+len(ps) >= maxMembers {
			return nil, whole("has more than %d members", maxMembers)
		}
		name, value, err := member(dec)
		if err != nil {
			return nil, whole("is not JSON: %v", err)
		}
		switch _, twice := fields[name]; {
		case twice:
			ps.add(name, "is there twice")
		case !actionField(name):
			ps.add(printableName(name), "is not a field of an action")
		default:
			fields[name] = value
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, whole("is not JSON: %v", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, whole("is followed by something")
	}
	return fields, ps
}

func whole(format string, args ...any) Problems {
	return Problems{{Message: "action " + fmt.Sprintf(format, args...)}}
}

func member(dec *json.Decoder) (name string, value json.RawMessage, err error) {
	token, err := dec.Token()
	if err != nil {
		return "", nil, err
	}
	name, _ = token.(string) // within an object the decoder gives nothing else here
	return name, value, dec.Decode(&value)
}

// actionFields are the members of an action, in the order of H-7.
var actionFields = [...]string{
	"action_id", "name", "execute_api", "undo_api", "reversibility", "undo_window_seconds", "is_read_only", "is_admin",
}

func actionField(name string) bool { return slices.Contains(actionFields[:], name) }

// byField orders problems as the fields stand in H-7, those of unknown fields last.
func byField(a, b Problem) int { return cmp.Compare(fieldOrder(a), fieldOrder(b)) }

func fieldOrder(p Problem) int {
	if i := slices.Index(actionFields[:], p.Path); i >= 0 {
		return i
	}
	return len(actionFields)
}

// printableName keeps the agent's invention of a field name from being long or driving a terminal.
func printableName(name string) string { return fmt.Sprintf("%.32q", name) }

// decoder takes values out of members, and notes those of the wrong type.
type decoder struct {
	fields   map[string]json.RawMessage
	problems Problems
}

// value returns a member's text; ok is false if it is missing, which is a problem if it must be there.
func (d *decoder) value(name string, must bool) (raw string, ok bool) {
	v, ok := d.fields[name]
	if !ok && must {
		d.problems.add(name, "is missing")
	}
	return string(v), ok
}

func (d *decoder) wrongType(name, want, raw string) {
	d.problems.add(name, "must be "+want+", not "+kindOf(raw))
}

func (d *decoder) text(name string) (s string) {
	raw, ok := d.value(name, true)
	if ok && (raw[0] != '"' || json.Unmarshal([]byte(raw), &s) != nil) {
		d.wrongType(name, "a string", raw)
	}
	return s
}

func (d *decoder) boolean(name string) bool {
	raw, ok := d.value(name, true)
	if ok && raw != "true" && raw != "false" {
		d.wrongType(name, "true or false", raw)
	}
	return raw == "true"
}

// integer takes the one spelling that strconv writes.
func (d *decoder) integer(name string) int {
	raw, ok := d.value(name, false)
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(raw)
	if err != nil || strconv.Itoa(n) != raw {
		d.wrongType(name, "an integer such as 0 or 60", raw)
		return 0
	}
	return n
}

func kindOf(raw string) string {
	switch raw[0] {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "a list"
	case 't', 'f':
		return "a bool"
	case 'n':
		return "null"
	default:
		return fmt.Sprintf("the number %.32s", raw)
	}
}

// check adds what is wrong with the values, but says nothing more of a field that was already found wrong.
func (d *decoder) check(a Action) {
	known := d.problems
	for _, p := range a.problems() {
		if !slices.ContainsFunc(known, func(k Problem) bool { return k.Path == p.Path }) {
			d.problems = append(d.problems, p)
		}
	}
	slices.SortStableFunc(d.problems, byField)
}

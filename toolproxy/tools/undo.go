// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"agentrun/internal/read"
	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// Undo is the section undo: of a tool: what undoes one of its calls, with which arguments, and for how long (H-7). Which program
// or address that is, is the operator's word alone; what the agent and the upstream said becomes arguments, as data.
type Undo struct {
	Window duration `yaml:"window"` // from the call's end on; required, whole seconds, 24 h at most
	// With are the arguments of the undo, by their names: each a JSON Pointer (RFC 6901) into {"args":…,"result":…} of the call.
	With    map[string]jsontext.Pointer `yaml:"with"`
	HTTP    *read.Node                  `yaml:"http"`    // as a tool's
	Command *read.Node                  `yaml:"command"` // likewise
}

const (
	maxUndoWindow = rings.MaxUndoWindowSeconds * time.Second
	maxUndoWith   = 64
)

// check says what is wrong with the section. A tool that only reads has nothing to undo, and what can be undone isn't irreversible:
// ring 1 would be required of it (H-6).
func (u *Undo) check(s *Spec) error {
	if u == nil {
		return nil
	}
	errs := []error{within("window", "", time.Duration(u.Window), time.Second, maxUndoWindow)}
	if time.Duration(u.Window)%time.Second != 0 {
		errs = append(errs, read.Bad("window", "%v is no number of whole seconds", time.Duration(u.Window)))
	}
	if (u.HTTP == nil) == (u.Command == nil) {
		errs = append(errs, errors.New("needs either http or command: what undoes a call"))
	}
	if s.Kind != "http" && s.Kind != "command" {
		errs = append(errs, fmt.Errorf("a tool of kind %s can't declare one; those of http and command can", s.Kind))
	}
	if r := rings.Reversibility(strings.ToUpper(s.Reversibility)); s.ReadOnly || r != rings.Full && r != rings.Partial {
		errs = append(errs, errors.New("the tool must say reversibility: full or partial, and not read_only"))
	}
	if len(u.With) > maxUndoWith {
		errs = append(errs, read.Bad("with", "%d arguments, at most %d", len(u.With), maxUndoWith))
	}
	for _, name := range slices.Sorted(maps.Keys(u.With)) {
		if from := u.With[name]; !from.IsValid() || !slices.Contains([]string{"args", "result"}, first(from)) {
			errs = append(errs, read.Bad("with."+name, "%.64q is no JSON Pointer that begins with /args or /result", string(from)))
		}
	}
	return read.Under("undo", errors.Join(errs...))
}

// first is the pointer's first name; empty: it has none.
func first(p jsontext.Pointer) string {
	for name := range p.Tokens() {
		return name
	}
	return ""
}

// action completes the tool's action with what the ring's rules and the supervisor go by.
func (u *Undo) action(a *rings.Action) {
	if u != nil {
		api := "tool." + a.Name + ".undo"
		a.UndoAPI, a.UndoWindowSeconds = &api, int(time.Duration(u.Window)/time.Second)
	}
}

// checkWith: a misspelt argument would be found when the first call has been made, and can't be undone.
func (d Definition) checkWith() error {
	if d.Undo == nil {
		return nil
	}
	for name, from := range d.Undo.With {
		var names []string
		for token := range from.Tokens() {
			names = append(names, token)
		}
		if len(names) > 1 && names[0] == "args" && !d.takes(names[1]) {
			return fmt.Errorf("undo.with.%.64s: the tool has no argument %.64q", name, names[1])
		}
	}
	return nil
}

// refuses tells why a call with these arguments could not be undone, as far as that is known before its result: an agent must not choose
// its arguments so that what ring 2 may do, since it can be undone, can't be (H-6).
func (t *tool) refuses(args json.RawMessage) error {
	if t.Undo == nil {
		return nil
	}
	known := Undo{With: map[string]jsontext.Pointer{}}
	for name, from := range t.Undo.With {
		if known.With[name] = from; first(from) == "result" {
			known.With[name] = "/result"
		}
	}
	with, err := known.arguments(args, json.RawMessage(`"x"`))
	if err != nil {
		return err
	}
	if h, ok := t.undo.(interface{ Fits(args []byte) *gate.Error }); ok {
		if e := h.Fits(with.Reveal()); e != nil {
			return e
		}
	}
	return nil
}

// arguments are those of the undo of a call: a JSON object. The error names places and quotes nothing (M-18).
func (u *Undo) arguments(args, result json.RawMessage) (gate.Args, error) {
	with := map[string]json.RawMessage{}
	for name, from := range u.With {
		value := json.RawMessage(nil)
		for token := range from.Tokens() {
			if value == nil { // of the call as a whole
				value = map[string]json.RawMessage{"args": args, "result": result}[token]
			} else {
				value = member(value, token)
			}
			if value == nil || string(value) == "null" {
				return gate.Args{}, fmt.Errorf("undo.with.%s: the call has no %s", name, from)
			}
		}
		with[name] = value
	}
	text, err := json.Marshal(with)
	if err == nil && len(text) > link.MaxUndo {
		err = fmt.Errorf("undo.with: arguments of %d bytes, at most %d", len(text), link.MaxUndo)
	}
	return telemetry.NewPlaintext(json.RawMessage(text)), err
}

// member is one of an object, or of a list by its number; nil: there is none. Nothing is made of the others: a reply may have millions.
func member(value json.RawMessage, token string) json.RawMessage {
	dec := jsontext.NewDecoder(bytes.NewReader(value), jsontext.AllowDuplicateNames(true)) // that was looked at
	begin, err := dec.ReadToken()
	if err != nil {
		return nil
	}
	for i, kind := 0, begin.Kind(); kind == '{' || kind == '['; i++ {
		name := strconv.Itoa(i)
		if kind == '{' {
			t, err := dec.ReadToken()
			if err != nil || t.Kind() != '"' {
				return nil
			}
			name = t.String()
		}
		v, err := dec.ReadValue()
		if err != nil {
			return nil
		}
		if name == token {
			return json.RawMessage(v.Clone())
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// NoTarget in a Definition says that the tool's calls are about nothing but the tool.
const NoTarget = "-"

// usualTargets are the arguments that calls are about where the definition doesn't say; the first that is there counts. What is changed
// comes before what it is changed to.
func usualTargets() []string {
	return []string{
		"target", "destination", "to", "path", "file", "filename", "url", "uri", "host", "address", "table", "database", "repository", "branch", "resource",
		"command", "code", "query", "id", "key", "name",
	}
}

// targets are the arguments that calls may be about, the first that is there. Of the usual ones those that the schema names, if it names
// any: one that the tool doesn't know says nothing of a call, and an agent could send the target of an approved step in it (S-15).
func (d Definition) targets() []string {
	switch d.Target {
	case NoTarget:
		return nil
	case "":
		known := d.known()
		return slices.DeleteFunc(usualTargets(), func(name string) bool { return len(known) > 0 && known[name] == nil })
	}
	return []string{d.Target}
}

// target is what a call is about, for require_intent (S-15): a text as it is, anything else as its JSON. args are canonical. Empty:
// nothing beside the tool, or the argument isn't there.
func (t *tool) target(args json.RawMessage) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(args, &fields) != nil {
		return ""
	}
	for _, name := range t.targets {
		value, there := fields[name]
		if !there || string(value) == "null" {
			continue
		}
		var text string
		if value[0] == '"' && json.Unmarshal(value, &text) == nil {
			if text == "" {
				continue
			}
			return text
		}
		return string(value)
	}
	return ""
}

// checkTarget: a misspelt name would leave a tool's calls bound to nothing.
func (d Definition) checkTarget() error {
	if d.Target == "" || d.Target == NoTarget || d.takes(d.Target) {
		return nil
	}
	return fmt.Errorf("target: the tool has no argument %.64q", d.Target)
}

func (d Definition) takes(name string) bool { return d.known()[name] != nil }

// known are the arguments that the schema names.
func (d Definition) known() map[string]json.RawMessage {
	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	_ = json.Unmarshal(d.Schema, &schema) // what is no schema names none
	return schema.Properties
}

// spelled are the known arguments by their names without case. So lenient readers find them, encoding/json of Go among them, to which
// the sign of Kelvin is a k and the long s an s.
func (d Definition) spelled() map[string]string {
	names := map[string]string{}
	for name := range d.known() {
		names[caseless(name)] = name
	}
	return names
}

func caseless(name string) string { return strings.ToLower(strings.ToUpper(name)) }

// misspelt finds an argument that the schema has in another case. It passes where others are allowed, was none to who decided about the
// call (its target, an operator's eye), and may be the known one to the tool's server.
func (t *tool) misspelt(args json.RawMessage) (name, known string) {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(args, &fields) // an object
	for name := range fields {
		if known := t.spelled[caseless(name)]; known != "" && known != name && !t.takes(name) {
			return name, known
		}
	}
	return "", ""
}

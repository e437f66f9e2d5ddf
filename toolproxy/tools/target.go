// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"encoding/json"
	"fmt"
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

// target is what a call is about, for require_intent (S-15): a text as it is, anything else as its JSON. args are canonical. Empty:
// nothing beside the tool, or the argument isn't there.
func (t *tool) target(args json.RawMessage) string {
	if t.Target == NoTarget {
		return ""
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(args, &fields) != nil {
		return ""
	}
	names := usualTargets()
	if t.Target != "" {
		names = []string{t.Target}
	}
	for _, name := range names {
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

func (d Definition) takes(name string) bool {
	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	return json.Unmarshal(d.Schema, &schema) == nil && schema.Properties[name] != nil
}

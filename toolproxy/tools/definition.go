// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"agentrun/internal/read"
	"agentrun/rings"
	"agentrun/toolproxy/gate"
)

// Definition is one tool with everything that is decided by. The zero value is refused by New.
type Definition struct {
	Name        string          // letters, digits and . _ -, at most 64; what tool.<name>.invoke names
	Description string          // one paragraph for the agent's model; at most 1024 bytes
	Category    gate.Category   // zero is refused (M-11)
	Schema      json.RawMessage // JSON Schema, draft 2020-12, of args; its type must be "object"
	Action      rings.Action    // for the ring's classification; the zero value requires ring 0, which no agent has
	Writes      []string        // values of the argument op that change something, where Action is read-only (H-6); they need ring 2
	Price       int64           // of one call, millionths of the plans' unit; 0: free
	Timeout     time.Duration   // 0: the category's
	MaxReply    int64           // bytes of the output; 0: DefaultMaxReply
	Approve     bool            // needs an operator's approval whatever the category says
	Wait        time.Duration   // for that approval, 1 s to 5 min; 0: gate.DefaultApprovalWait
	Target      string          // the argument that calls are about, for require_intent (S-15); empty: the usual ones; NoTarget: none
	Plaintext   bool            // bears plaintext of people: refused in confidential mode (M-15)
	Undo        *Undo           // what undoes a call; nil: nothing (H-7)
	Tool        Tool            // does the work
}

// Factory makes the tool that a section of the configuration describes. It is given the part of the section that belongs
// to its kind (`http:`, `command:`), nil if there is none, and refuses keys it doesn't know.
type Factory func(name string, n *read.Node) (Tool, error)

// Source brings several tools at once: an MCP server upstream. Their names are without the prefix; the registry adds it.
// Definitions is asked again from time to time. An error leaves the tools it gave before as they are, and says nothing
// about the tools of others.
type Source interface {
	Definitions(ctx context.Context) ([]Definition, error)
}

// SourceFactory makes the source that a section of the configuration describes.
type SourceFactory func(name string, n *read.Node) (Source, error)

// Limits of tools.
const (
	DefaultMaxReply = 1 << 20  // bytes of one output
	MaxReply        = 16 << 20 // bytes that a configuration may allow
	MaxArguments    = 1 << 20  // bytes of one request's body
	MaxTools        = 1024
)

// ReadAction is the action of a tool that changes nothing: a sandboxed agent may do it (ring 3).
func ReadAction(name string) rings.Action { return action(name, rings.Full, true) }

func action(name string, r rings.Reversibility, readOnly bool) rings.Action {
	return rings.Action{ID: "tool." + name + ".invoke", Name: name, ExecuteAPI: name, Reversibility: r, ReadOnly: readOnly}
}

// actionOf is the action of a call. A tool may read by some of its operations and write by others.
func (d *Definition) actionOf(args json.RawMessage) rings.Action {
	var fields map[string]json.RawMessage // by their exact names, as the schema has them
	var op string
	if len(d.Writes) == 0 ||
		json.Unmarshal(args, &fields) == nil && json.Unmarshal(fields["op"], &op) == nil && !slices.Contains(d.Writes, op) {
		return d.Action
	}
	w := d.Action
	w.ReadOnly = false
	return w
}

// Described returns the tools that table describes: JSON, by their names, as a section of gateway.yaml would
// (category, description, args, reversibility, plaintext, read_only, which is true where it isn't said), and writes. A table that can't be
// read is a bug, which a test of its owner finds. Tools that by doesn't have aren't there.
func Described(table []byte, by map[string]Tool) []Definition {
	var list map[string]struct {
		Category      gate.Category       `json:"category"`
		Description   string              `json:"description"`
		Args          json.RawMessage     `json:"args"`
		Reversibility rings.Reversibility `json:"reversibility"`
		ReadOnly      *bool               `json:"read_only"`
		Writes        []string            `json:"writes"`
		Plaintext     bool                `json:"plaintext"`
	}
	if err := json.Unmarshal(table, &list); err != nil {
		panic("tools: table of built-in tools: " + err.Error())
	}
	var all []Definition
	for _, name := range slices.Sorted(maps.Keys(list)) {
		d := list[name]
		if by[name] == nil {
			continue
		}
		all = append(all, Definition{
			Name: name, Description: d.Description, Category: d.Category, Schema: d.Args, Writes: d.Writes, Plaintext: d.Plaintext,
			Action: action(name, cmp.Or(d.Reversibility, rings.Full), d.ReadOnly == nil || *d.ReadOnly), Tool: by[name],
		})
	}
	return all
}

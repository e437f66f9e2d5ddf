// SPDX-License-Identifier: Apache-2.0

package policy

import (
	_ "embed"
	"fmt"
	"os"
	"strings"

	"agentrun/internal/read"
	"agentrun/safetyloop/judge"
)

// Bounds of a file. They are far above what a person writes. A file at all of them takes a hint of 64 KiB some two seconds.
const (
	MaxBytes    = 256 << 10
	MaxPatterns = 512 // of one list
	MaxPattern  = 256 // bytes
	MaxAgents   = 256
	MaxSteps    = 10000
)

//go:embed schema.json
var schema string

// Schema returns the JSON Schema (draft 2020-12) of a policy file.
func Schema() []byte { return []byte(schema) }

// file is a policy as written; pointers tell what was said.
type file struct {
	Mode      *string          `yaml:"mode"`
	Confirm   *string          `yaml:"confirm"`
	Workspace *string          `yaml:"workspace"`
	Agents    map[string]agent `yaml:"agents"`

	Tolerance          *string  `yaml:"tolerance"`
	MaxAutonomousSteps *int     `yaml:"maxAutonomousSteps"`
	Deny               []string `yaml:"deny"`
	RequiresApproval   []string `yaml:"requiresApproval"`
	AutoApprove        []string `yaml:"autoApprove"`
}

// agent is what holds for one agent beside the rest.
type agent struct {
	Tolerance          *string  `yaml:"tolerance"`
	MaxAutonomousSteps *int     `yaml:"maxAutonomousSteps"`
	Deny               []string `yaml:"deny"`
	RequiresApproval   []string `yaml:"requiresApproval"`
	AutoApprove        []string `yaml:"autoApprove"`
}

// Settings are what a policy says beside its patterns. Zero values: it says nothing.
type Settings struct {
	Mode      judge.Mode
	Tolerance judge.Tolerance
	MaxSteps  int
	Confirm   judge.Confirm
	Workspace string // absolute
}

// contents takes a regular file of at most MaxBytes.
func contents(name string) ([]byte, os.FileInfo, error) {
	text, info, err := read.Regular(name, MaxBytes)
	if err != nil {
		return nil, nil, fmt.Errorf("read policy: %w", err)
	}
	return text, info, nil
}

// Parse reads a policy in YAML, or in JSON with // comments; its error is a *read.InvalidError. name is the file's in it.
func Parse(name string, text []byte) (*Policy, error) {
	n := read.YAML(read.Source{File: name, Max: MaxBytes}, plain(text))
	var f file
	n.Into(&f)
	p, faults := compile(f)
	if err := n.Done(faults...); err != nil {
		return nil, err
	}
	return p, nil
}

// plain takes out of JSON what YAML can't read: comments and tabs. Lines stay where they are. A text that doesn't begin with { is
// YAML, and is left alone.
func plain(text []byte) []byte {
	if !strings.HasPrefix(strings.TrimLeft(strings.TrimPrefix(string(text), "\ufeff"), " \t\r\n"), "{") && !commented(text) {
		return text
	}
	out := append([]byte(nil), text...)
	quoted := false
	for i := 0; i < len(out); i++ {
		switch c := out[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && c == '\t':
			out[i] = ' '
		case !quoted && c == '/' && i+1 < len(out) && out[i+1] == '/' && (i == 0 || strings.IndexByte(" \t\n,[]{}\"", out[i-1]) >= 0):
			for ; i < len(out) && out[i] != '\n'; i++ {
				out[i] = ' '
			}
		}
	}
	return out
}

// commented tells JSON that begins with a comment, as the example of the specification does.
func commented(text []byte) bool {
	return strings.HasPrefix(strings.TrimLeft(string(text), " \t\r\n"), "//")
}

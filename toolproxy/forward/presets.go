// SPDX-License-Identifier: Apache-2.0

package forward

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"agentrun/internal/read"
)

// presetPrefix stands before the name of a preset among the entries of --allow (supervisor knows it too). No port is a word.
const presetPrefix = "preset:"

//go:embed presets.yaml
var presetsFile []byte

// presetRule is a Rule of ours, with the reason that each has.
type presetRule struct {
	Why string `yaml:"why"`
	Rule
}

// presets are the rules by their presets' names. The file is read when somebody wants one; that it can be is a test.
var presets = sync.OnceValue(func() map[string][]presetRule {
	var all map[string][]presetRule
	n := read.YAML(read.Source{File: "presets.yaml", Max: 64 << 10}, presetsFile)
	n.Into(&all)
	if err := n.Done(); err != nil {
		panic("forward: " + err.Error())
	}
	return all
})

// addPreset adds the rules of one. The error names those that there are.
func (r *ruleset) addPreset(name string) (entries []string, err error) {
	rules := presets()[name]
	if rules == nil {
		return nil, fmt.Errorf("%.64q is no preset: there are %s", name, strings.Join(slices.Sorted(maps.Keys(presets())), ", "))
	}
	for _, one := range rules {
		lines, err := r.add(one.Rule)
		if err != nil {
			return nil, err
		}
		entries = append(entries, lines...)
	}
	return entries, nil
}

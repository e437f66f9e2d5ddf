// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"

	"agentrun/internal/read"
)

// Injected is a key that is put into a run's requests, outside of its sandbox: into those to a host (M-8), or by the
// model door into those to a provider (M-17).
type Injected struct {
	Variable             string // of the caller's environment, that has the key
	Host, Header, Prefix string
	Provider             map[string]any // behind the door, with base_url and dialects; nil: egress
}

// With returns the text of a gateway.yaml that has these too, before rules of the file's own for the same host. All
// else of the file stays: what a node's says of policies, authorities and limits holds for whoever adds a key.
func (g Gateway) With(keys []Injected) ([]byte, error) {
	all := map[string]any{}
	n := read.YAML(read.Source{File: g.Path, Max: maxGateway}, g.Text)
	n.Into(&all)
	if err := n.Done(); err != nil {
		return nil, err
	}
	egress, secrets, llm := section(all, "egress"), section(all, "secrets"), section(all, "llm")
	var rules []any
	providers, _ := llm["providers"].([]any)
	for _, k := range keys {
		name := "host_" + k.Variable
		secrets[name] = map[string]any{"env": k.Variable}
		if k.Provider != nil {
			k.Provider["name"], k.Provider["secret"] = name, name
			providers = append(providers, k.Provider) // the file's own models have priority by their names
			continue
		}
		header := map[string]any{"secret": name}
		if k.Prefix != "" {
			header["prefix"] = k.Prefix
		}
		rules = append(rules, map[string]any{
			"host": k.Host, "intercept": true, "headers": map[string]any{k.Header: header},
		})
	}
	own, _ := egress["rules"].([]any)
	set(egress, "rules", append(rules, own...))
	set(llm, "providers", providers)
	for name, part := range map[string]map[string]any{"egress": egress, "secrets": secrets, "llm": llm} {
		if len(part) > 0 {
			all[name] = part
		}
	}
	var text bytes.Buffer
	err := read.WriteYAML(&text, all)
	return text.Bytes(), err
}

// section returns one of a file's, an empty one where there is none.
func section(all map[string]any, name string) map[string]any {
	if m, ok := all[name].(map[string]any); ok {
		return m
	}
	return map[string]any{}
}

// set leaves out a list with nothing in it.
func set(section map[string]any, key string, list []any) {
	if len(list) > 0 {
		section[key] = list
	}
}

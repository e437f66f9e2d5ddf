// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"agentrun/internal/read"
	"agentrun/supervisor/outputs"
)

// GatewayPath is where gateway.yaml is looked for when nobody names another. Nobody needs to have one.
const GatewayPath = "/etc/agentrun/gateway.yaml"

// DefaultModelCalls is more than a coding agent makes in a day's work, and ends a loop that costs nothing.
const DefaultModelCalls = 10_000

// maxGateway is its size; the gateway holds to the same.
const maxGateway = 4 << 20

// Gateway is gateway.yaml, and what of it the sandbox is built with. It is not written to: runs share it.
type Gateway struct {
	File
	part
}

type part struct {
	Policy       json.RawMessage // the section; empty: the file names no policy of the operator's
	CapturePorts []uint16
	Intercepts   bool     // TLS; the sandbox needs a CA
	Dialects     []string // of models, beside OpenAI's chat
	ModelCalls   int      // that a run may make; 0: DefaultModelCalls
	Logs         outputs.Policy
	Named        []string // absolute paths, whatever for: the files that it builds upon are among them
	variables    []string // of the environment, that secrets come from
}

// ErrOtherPolicy is a gateway.yaml that would leave out what the node's says about policy.
var ErrOtherPolicy = errors.New("its section policy: is not the node's")

// ReadGateway returns the file of a run: the one that it names, else the first of the node's by config.yaml, else the usual one. Without
// any that is the zero value, and built-in defaults hold. A run may bring tools and egress rules of its own, and no policies: where a
// file of the node, the usual one among them, has a section policy:, the run's must have the same. Else a flag would leave out who is to
// be asked (M-9), and the error is ErrOtherPolicy. inside: this process is in a user namespace.
func ReadGateway(named string, node []string, inside bool) (Gateway, error) {
	chosen := cmp.Or(append([]string{named}, node...)...)
	g, err := readGateway(chosen, inside)
	if err != nil {
		return Gateway{}, err
	}
	for _, name := range append(node[:len(node):len(node)], "") {
		if name == chosen {
			continue
		}
		rules, err := readGateway(name, inside)
		if err != nil {
			return Gateway{}, err
		}
		if rules.Policy != nil && !bytes.Equal(rules.Policy, g.Policy) {
			return Gateway{}, fmt.Errorf("%s: %w, which %s has: copy it", cmp.Or(g.Path, "no file"), ErrOtherPolicy, rules.Path)
		}
	}
	return g, nil
}

// readGateway reads one file; the usual one may be missing. In a user namespace root's files look like anybody's: the usual one lies
// where only root can have put it, and is believed there, or its policies could not be asked.
func readGateway(name string, inside bool) (Gateway, error) {
	f, err := Read(cmp.Or(name, GatewayPath), maxGateway)
	if errors.Is(err, fs.ErrPermission) && name == "" && inside {
		f.Path = GatewayPath
		f.Text, err = os.ReadFile(GatewayPath)
	}
	if errors.Is(err, fs.ErrNotExist) && name == "" {
		return Gateway{}, nil
	}
	if err != nil {
		return Gateway{}, err
	}
	return lately.gateway(f)
}

// Environ are the variables that secrets come from, for the gateway: the operator's others are none of its business, should it
// ever be taken over.
func (g Gateway) Environ(lookup func(name string) (string, bool)) []string {
	var env []string
	for _, name := range g.variables {
		if v, ok := lookup(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// lately is the file of the run before, which mostly is that of the daemon's next: reading 150 lines of YAML takes most of a
// millisecond, a quarter of a warm start.
var lately memo

type memo struct {
	mu   sync.Mutex
	kept Gateway
}

func (m *memo) gateway(f File) (Gateway, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept.Path == f.Path && bytes.Equal(m.kept.Text, f.Text) {
		return m.kept, nil
	}
	p, err := parse(f)
	if err != nil {
		return Gateway{}, err
	}
	m.kept = Gateway{f, p}
	return m.kept, nil
}

func parse(f File) (part, error) {
	var y struct {
		Policy json.RawMessage `yaml:"policy"`
		Egress struct {
			CapturePorts []uint16 `yaml:"capture_ports"`
			Presets      []string `yaml:"presets"`
			Rules        []struct {
				Intercept bool `yaml:"intercept"`
			} `yaml:"rules"`
		} `yaml:"egress"`
		LLM struct {
			Limits struct {
				Calls int `yaml:"calls"`
			} `yaml:"limits"`
			Providers []struct {
				Dialects []string `yaml:"dialects"`
			} `yaml:"providers"`
		} `yaml:"llm"`
		Secrets map[string]struct {
			Env string `yaml:"env"`
		} `yaml:"secrets"`
		Telemetry struct {
			Logs outputs.Policy `yaml:"logs"`
		} `yaml:"telemetry"`
	}
	n := read.YAML(read.Source{File: f.Path, Max: maxGateway, Partial: true}, f.Text)
	n.Into(&y)
	if err := n.Done(); err != nil {
		return part{}, err
	}
	if string(y.Policy) == "{}" {
		y.Policy = nil
	}
	p := part{Policy: y.Policy, ModelCalls: y.LLM.Limits.Calls, CapturePorts: slices.Clip(y.Egress.CapturePorts), Logs: y.Telemetry.Logs}
	p.Intercepts = len(y.Egress.Presets) > 0
	for _, r := range y.Egress.Rules {
		p.Intercepts = p.Intercepts || r.Intercept
	}
	for _, provider := range y.LLM.Providers {
		p.Dialects = append(p.Dialects, provider.Dialects...)
	}
	for _, s := range y.Secrets {
		if s.Env != "" {
			p.variables = append(p.variables, s.Env)
		}
	}
	for text := range n.Texts() {
		if filepath.IsAbs(text) {
			p.Named = append(p.Named, text)
		}
	}
	for _, list := range []*[]string{&p.variables, &p.Named, &p.Dialects} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return p, nil
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"

	"agentrun/internal/read"
	"agentrun/supervisor/outputs"
)

// GatewayPath is where gateway.yaml is looked for when nobody names another. Nobody needs to have one.
const GatewayPath = "/etc/agentrun/gateway.yaml"

// maxGateway is its size; the gateway holds to the same.
const maxGateway = 4 << 20

// Gateway is gateway.yaml, and what of it the sandbox is built with. It is not written to: runs share it.
type Gateway struct {
	File
	part
}

type part struct {
	CapturePorts []uint16
	Intercepts   bool // TLS; the sandbox needs a CA
	Logs         outputs.Policy
	Named        []string // absolute paths, whatever for: the files that it builds upon are among them
	variables    []string // of the environment, that secrets come from
}

// ReadGateway returns the file of that name, or the usual one; without either that is the zero value, and built-in defaults hold.
func ReadGateway(name string) (Gateway, error) {
	f, err := Read(cmp.Or(name, GatewayPath), maxGateway)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && name == "" {
			err = nil
		}
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
		Egress struct {
			CapturePorts []uint16 `yaml:"capture_ports"`
			Rules        []struct {
				Intercept bool `yaml:"intercept"`
			} `yaml:"rules"`
		} `yaml:"egress"`
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
	p := part{CapturePorts: slices.Clip(y.Egress.CapturePorts), Logs: y.Telemetry.Logs}
	for _, r := range y.Egress.Rules {
		p.Intercepts = p.Intercepts || r.Intercept
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
	for _, list := range []*[]string{&p.variables, &p.Named} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return p, nil
}

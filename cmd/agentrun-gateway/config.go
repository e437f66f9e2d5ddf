// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"

	"agentrun/internal/read"
	"agentrun/toolproxy/link"
)

const (
	maxConfig = 4 << 20
	maxSecret = 64 << 10
)

// sections are those of gateway.yaml; each is read by the package it belongs to.
type sections struct {
	Egress    *read.Node `yaml:"egress"`
	Tools     *read.Node `yaml:"tools"`
	Search    *read.Node `yaml:"search"`
	LLM       *read.Node `yaml:"llm"`
	Router    *read.Node `yaml:"router"`
	Policy    *read.Node `yaml:"policy"`
	Safety    *read.Node `yaml:"safety"`
	Breaker   *read.Node `yaml:"breaker"`
	Telemetry *read.Node `yaml:"telemetry"`
	Secrets   *read.Node `yaml:"secrets"`
}

// gatewayConfig is gateway.yaml, divided. The zero value is a file with nothing in it.
type gatewayConfig struct {
	Path string // where the supervisor has read it; empty: nowhere
	sections
	root    *read.Node
	secrets map[string]string
}

// Secret resolves `secret: NAME`.
func (c gatewayConfig) Secret(name string) (string, bool) {
	value, ok := c.secrets[name]
	return value, ok
}

// SecretValues are all of them, for the mask of logs.
func (c gatewayConfig) SecretValues() []string {
	return slices.Sorted(maps.Values(c.secrets))
}

// divide takes the file apart without looking into the sections. What is wrong with it is told when they have been read.
func divide(file link.Config) gatewayConfig {
	c := gatewayConfig{Path: file.Path, root: read.YAML(read.Source{File: file.Path, Max: maxConfig}, file.Text)}
	c.root.Into(&c.sections)
	return c
}

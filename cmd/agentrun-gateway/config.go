// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

const (
	defaultConfig = "/etc/agentrun/gateway.yaml"

	maxConfig = 4 << 20
	maxSecret = 64 << 10
)

// sections of gateway.yaml; each but secrets: is read by its own package.
func sections() []string {
	return []string{"egress", "tools", "llm", "router", "policy", "safety", "breaker", "telemetry", "secrets"}
}

// gatewayConfig is gateway.yaml, divided. The zero value is a file with nothing in it.
type gatewayConfig struct {
	Path     string            // where it was read; empty: nowhere
	sections map[string][]byte // YAML of each section, by name
	secrets  map[string]string
}

// Section is the YAML of a section for its ParseConfig; nil: it isn't there.
func (c gatewayConfig) Section(name string) []byte { return c.sections[name] }

// Secret resolves `secret: NAME`.
func (c gatewayConfig) Secret(name string) (string, bool) {
	value, ok := c.secrets[name]
	return value, ok
}

// SecretValues are all of them, for the mask of logs.
func (c gatewayConfig) SecretValues() []string {
	var values []string
	for _, v := range c.secrets {
		values = append(values, v)
	}
	slices.Sort(values)
	return values
}

// loadConfig reads path as root, before the drop, and the secrets it names. An empty path is the default file, which needn't exist; a file
// that was named must.
func loadConfig(path string, environ func(string) (string, bool)) (gatewayConfig, error) {
	named := path != ""
	if !named {
		path = defaultConfig
	}
	text, err := readTrusted(path, 0o022, maxConfig)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return gatewayConfig{}, nil
	}
	if err != nil {
		return gatewayConfig{}, fmt.Errorf("configuration: %w", err)
	}
	c, err := divide(text)
	if err != nil {
		return gatewayConfig{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	c.Path = path
	if c.secrets, err = readSecrets(c.sections["secrets"], environ); err != nil {
		return gatewayConfig{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// divide takes the file apart without looking into the sections. Anchors could make one section mean another's keys.
func divide(text []byte) (gatewayConfig, error) {
	c := gatewayConfig{sections: map[string][]byte{}}
	var doc yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return c, nil
	} else if err != nil {
		return c, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := d.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return c, errors.New("more than one document")
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return c, nil
	}
	if root.Kind != yaml.MappingNode {
		return c, fmt.Errorf("want sections: %s", strings.Join(sections(), ", "))
	}
	if n := aliased(root); n != nil {
		return c, fmt.Errorf("line %d: anchors and aliases aren't taken", n.Line)
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if err := c.add(root.Content[i], root.Content[i+1]); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c gatewayConfig) add(key, value *yaml.Node) error {
	name := key.Value
	if !slices.Contains(sections(), name) {
		return fmt.Errorf("%.64q: unknown section (line %d), want one of %s", name, key.Line, strings.Join(sections(), ", "))
	}
	if c.sections[name] != nil {
		return fmt.Errorf("%s: given twice (line %d)", name, key.Line)
	}
	raw, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.sections[name] = raw
	return nil
}

func aliased(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return n
	}
	for _, each := range n.Content {
		if found := aliased(each); found != nil {
			return found
		}
	}
	return nil
}

// readTrusted reads a file that only root or this process's user can have written, through the descriptor that was looked
// at. deny are the bits of its mode that must not be set.
func readTrusted(path string, deny uint32, most int64) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%s is no regular file: %w", path, fs.ErrPermission)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to user %d, want root or %d: %w", path, st.Uid, os.Geteuid(), fs.ErrPermission)
	case st.Mode&deny != 0:
		return nil, fmt.Errorf("%s has mode %04o, want at most %04o: %w", path, st.Mode&0o7777, 0o777&^deny, fs.ErrPermission)
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(text)) > most {
		return nil, fmt.Errorf("%s is longer than %d bytes", path, most)
	}
	return text, nil
}

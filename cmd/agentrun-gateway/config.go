// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"agentrun/internal/read"
)

const (
	defaultConfig = "/etc/agentrun/gateway.yaml"

	maxConfig = 4 << 20
	maxSecret = 64 << 10
)

// sections are those of gateway.yaml; each is read by the package it belongs to.
type sections struct {
	Egress    *read.Node `yaml:"egress"`
	Tools     *read.Node `yaml:"tools"`
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
	Path string // where it was read; empty: nowhere
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

// loadConfig reads path as root, before the drop. An empty path is the default file, which needn't exist; a file that was
// named must.
func loadConfig(path string) (gatewayConfig, error) {
	text, err := readTrusted(cmp.Or(path, defaultConfig), 0o022, maxConfig)
	if errors.Is(err, fs.ErrNotExist) && path == "" {
		return gatewayConfig{}, nil
	}
	if err != nil {
		return gatewayConfig{}, fmt.Errorf("configuration: %w", err)
	}
	return divide(cmp.Or(path, defaultConfig), text), nil
}

// divide takes the file apart without looking into the sections. What is wrong with it is told when they have been read.
func divide(path string, text []byte) gatewayConfig {
	c := gatewayConfig{Path: path, root: read.YAML(read.Source{File: path, Max: maxConfig}, text)}
	c.root.Into(&c.sections)
	return c
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

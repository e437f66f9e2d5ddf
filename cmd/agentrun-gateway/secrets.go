// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"agentrun/internal/read"
)

// secretEntry is one of secrets: in gateway.yaml; exactly one field is set.
type secretEntry struct {
	Env  string `yaml:"env"`  // variable of the supervisor's environment
	File string `yaml:"file"` // absolute path, mode 0600, root's or ours; one newline at its end is left out
}

// readSecrets resolves all entries, so that a missing one is seen at the start and not in a call. Errors name entries and
// files, never a value.
func readSecrets(n *read.Node, environ func(string) (string, bool)) (map[string]string, error) {
	var entries map[string]secretEntry
	n.Into(&entries)
	values := map[string]string{}
	var errs []error
	for name, entry := range entries {
		value, err := entry.read(environ)
		errs = append(errs, read.Under(name, err))
		values[name] = value
	}
	return values, n.Done(errs...)
}

func (e secretEntry) read(environ func(string) (string, bool)) (string, error) {
	var value string
	switch {
	case (e.Env == "") == (e.File == ""):
		return "", errors.New("want either env or file")
	case e.Env != "":
		var ok bool
		if value, ok = environ(e.Env); !ok {
			return "", fmt.Errorf("environment variable %s is not set", e.Env)
		}
	default:
		if !filepath.IsAbs(e.File) {
			return "", fmt.Errorf("file %q: want an absolute path", e.File)
		}
		text, err := read.File(e.File, 0o077, maxSecret)
		if err != nil {
			return "", err
		}
		value = strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	}
	switch {
	case value == "":
		return "", errors.New("it is empty")
	case len(value) > maxSecret:
		return "", fmt.Errorf("longer than %d bytes", maxSecret)
	case strings.ContainsRune(value, 0):
		return "", errors.New("it has a NUL")
	}
	return value, nil
}

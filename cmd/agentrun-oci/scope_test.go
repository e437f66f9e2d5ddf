// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A bundle's words for a cgroup become a slice and a scope, and nothing else of systemd's.
func TestScopes(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "systemd-run"), nil, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	for at, want := range map[string]string{
		"system.slice:docker:4f1d": "--slice=system.slice --unit=docker-4f1d.scope", ":docker:4f1d": "--slice=system.slice --unit=docker-4f1d.scope",
		"kubepods-besteffort-pod1_2.slice:cri-containerd:a": "--slice=kubepods-besteffort-pod1_2.slice --unit=cri-containerd-a.scope",
		"-.slice:a:b": "", "system.slice::4f1d": "--slice=system.slice --unit=4f1d.scope",
		"": "", "/docker/4f1d": "", "system.slice:docker": "", "system.slice:docker:4f1d:x": "", "system:docker:4f1d": "", "../x.slice:a:b": "", "x.slice:../a:b": "",
		"x.slice::--property=User=0": "", "x.slice:a:b.slice": "", "x.slice:a:b c": "", "x.slice::": "",
	} {
		words, err := scoped(at, []string{"agentrun", "exec"})
		if (err != nil) != (want == "") || err == nil && (!strings.Contains(strings.Join(words, " "), want) || !slices.Equal(words[len(words)-2:], []string{"agentrun", "exec"})) {
			t.Errorf("%q: %q, %v, want %q", at, words, err, want)
		}
	}
}

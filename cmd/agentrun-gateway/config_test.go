// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentrun/toolproxy/link"
)

func noEnv(string) (string, bool) { return "", false }

// conf is a gateway.yaml as the supervisor gives it.
func conf(text string) link.Config {
	return link.Config{Path: "/etc/agentrun/gateway.yaml", Text: []byte(text)}
}

func TestLoadConfig(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(secret, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := conf("egress:\n  allow: [a.example]\npolicy: {file: /p}\nsecrets:\n  one: {env: ONE}\n  two: {file: " + secret + "}\n")
	c, err := readSettings(file, func(name string) (string, bool) { return "first", name == "ONE" })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a.example"}, c.egress.Allow); diff != "" || c.Path != file.Path {
		t.Errorf("got %q\n%s", c.Path, diff)
	}
	if diff := cmp.Diff([]string{"first", "s3cret"}, c.SecretValues()); diff != "" {
		t.Error(diff)
	}
	if v, ok := c.Secret("two"); !ok || v != "s3cret" {
		t.Errorf("got %q, %v", v, ok)
	}
	if _, ok := c.Secret("three"); ok {
		t.Error("resolved what isn't there")
	}
	for _, text := range []string{"", "# nothing\n", "null\n"} {
		if _, err := readSettings(conf(text), noEnv); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestM12SecretsAreNamedNeverTold(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	env := func(name string) (string, bool) {
		return map[string]string{"NUL": "hunter2\x00", "BIG": strings.Repeat("hunter2", maxSecret)}[name], name != "NONE"
	}
	for entry, want := range map[string]string{
		"{env: NONE}": "NONE is not set", "{env: EMPTY}": "empty", "{env: NUL}": "NUL", "{env: BIG}": "longer", "{}": "either", "{env: A, file: /b}": "either",
		"{file: relative}": "absolute", "{file: " + put("open", "hunter2", 0o644) + "}": "mode 0644", "{file: " + put("group", "hunter2", 0o640) + "}": "mode 0640",
		"{file: " + put("empty", "\n", 0o600) + "}": "empty", "{file: /dev/null}": "no regular file", "{file: " + dir + "}": "no regular file", "{file: " + dir + "/none}": "no such file",
		"hunter2": "secrets.k: want a mapping", "{value: hunter2}": "secrets.k.value: unknown key",
	} {
		_, err := readSettings(conf("secrets: {k: "+entry+"}"), env)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "secrets.k") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%.60s: got %v, want %q, naming the entry and no value", entry, err, want)
		}
	}
}

func TestConfigRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"egres: {}": "gateway.yaml:1: egres: unknown key; did you mean egress?", "egress: {}\negress: {}": "gateway.yaml:2: egress: given twice, first on line 1", "a: [": "gateway.yaml:1: not YAML", "[1]": "want a mapping", "3": "want a mapping",
		"egress: {}\n---\ntools: {}": "more than one document", "egress: &a {}\ntools: *a": "anchors", "? [a]\n: b": "a key is a plain word",
	} {
		if _, err := readSettings(conf(text), noEnv); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	if _, err := readSettings(conf("#"+strings.Repeat("x", maxConfig)), noEnv); err == nil || !strings.Contains(err.Error(), "longer") {
		t.Errorf("too long: got %v", err)
	}
}

func FuzzDivide(f *testing.F) {
	f.Add("egress: {allow: [x]}\nsecrets: {a: {env: B}}")
	f.Fuzz(func(t *testing.T, text string) {
		c := divide(conf(text))
		_, _ = readSecrets(c.Secrets, noEnv)
		_ = c.root.Done()
	})
}

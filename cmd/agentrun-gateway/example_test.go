// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"agentrun/toolproxy/httptool"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/mcptool"
)

// Lines of the example with this mark need something that the reader has to bring.
const optionalMark = "#|"

// exampleText is examples/gateway.yaml as it is, and with all that is marked.
func exampleText(t *testing.T, whole bool) string {
	t.Helper()
	text, err := os.ReadFile("../../examples/gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\n"+optionalMark) {
		t.Fatalf("no line begins with %q", optionalMark)
	}
	if !whole {
		return string(text)
	}
	dir := t.TempDir()
	ca, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("\n"+optionalMark, "\n", "/etc/agentrun/own-ca.pem", ca, "/etc/agentrun/secrets/api_key", key).Replace(string(text))
}

// The example is what people start from: each section must go through its own parser, each tool through that of its kind.
func TestExampleConfiguration(t *testing.T) {
	for name, whole := range map[string]bool{"as it is": false, "with all that is marked": true} {
		t.Run(name, func(t *testing.T) {
			environ := func(name string) (string, bool) { return "0123456789abcdef", whole && name == "LLM_KEY" }
			s, err := readSettings(conf(exampleText(t, whole)), environ)
			if err != nil {
				t.Fatal(err)
			}
			checkExampleTools(t, s)
			if got := len(s.llm.Providers) > 0; got != whole {
				t.Errorf("has providers: got %v, want %v", got, whole)
			}
			all := reflect.ValueOf(s.sections)
			for i := range all.NumField() {
				if whole && all.Field(i).IsNil() {
					t.Errorf("the example has no section %s", all.Type().Field(i).Name)
				}
			}
		})
	}
}

func checkExampleTools(t *testing.T, s settings) {
	t.Helper()
	commands, err := s.commands()
	if err != nil || len(commands) == 0 {
		t.Errorf("commands: got %d, %v", len(commands), err)
	}
	http := httptool.Factory(httptool.Options{Secrets: s.Secret})
	mcp := mcptool.Sources(mcptool.Options{Secrets: s.Secret, Supervisor: noSupervisor{}})
	for name, spec := range s.tools {
		switch spec.Kind {
		case "http":
			if _, err := http(name, spec.Node); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case "mcp":
			if _, err := mcp(name, spec.Node); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// noSupervisor is there, and is never asked.
type noSupervisor struct{ link.Supervisor }

// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentrun/hypervisor"
)

// M-9: of the ways to present a key the nearest to the request counts, and no sandbox is given it.
func TestM9HowAKeyIsPresented(t *testing.T) {
	file := func(text string, mode os.FileMode) string {
		name := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return name
	}
	const env = EnvKey + "=of-the-environment"
	for _, tt := range []struct {
		name string
		r    Request
		env  string
		want string
		bad  string // fields
	}{
		{"nothing", Request{}, "", "", ""},
		{"the environment", Request{}, env, "of-the-environment", ""},
		{"an empty variable", Request{}, EnvKey + "=", "", ""},
		{"a file before it", Request{KeyFile: file("of-the-file\n", 0o600)}, env, "of-the-file", ""},
		{"a request's own before it", Request{Key: hypervisor.NewToken("own")}, env, "own", ""},
		{"an empty file", Request{KeyFile: file("\n", 0o600)}, env, "", "--key-file"},
		{"a file for all to read", Request{KeyFile: file("x", 0o644)}, env, "", "--key-file"},
		{"no file", Request{KeyFile: "/nonexistent/key"}, env, "", "--key-file"},
		{"a folder", Request{KeyFile: "/"}, env, "", "--key-file"},
		{"a file without end", Request{KeyFile: "/dev/zero"}, env, "", "--key-file"},
		{"shown to the agent", Request{Env: []string{"A=x-of-the-environment"}, Command: []string{"p", "of-the-environment"}}, env, "of-the-environment", "--env COMMAND"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &run{by: &Caller{Environ: []string{"A=b", tt.env}}, want: &tt.r}
			s.spec.Env = tt.r.Env
			var bad []string
			for _, p := range s.presented() {
				bad = append(bad, p.Path)
				if strings.Contains(p.Message, "of-the") {
					t.Errorf("the key is in the message: %s", p.Message)
				}
			}
			if got := s.token.Reveal(); got != tt.want || strings.Join(bad, " ") != tt.bad {
				t.Errorf("got %q, %v, want %q, %s", got, bad, tt.want, tt.bad)
			}
			if left := withoutKey(s.by.Environ); slices.Contains(left, env) || !slices.Contains(left, "A=b") {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"strings"
	"testing"

	"agentrun/profiles"
)

func TestGitIdentity(t *testing.T) {
	for _, tt := range []struct {
		git Git
		ok  bool
	}{
		{Git{}, true}, {Git{"The agents", "agents@example.com"}, true}, {Git{"Агенти", "a@b"}, true}, {Git{Name: "x"}, false}, {Git{Email: "x"}, false},
		{Git{"a\nGIT_DIR=/", "a@b"}, false}, {Git{"a", "a@b>"}, false}, {Git{"a\x7f", "a@b"}, false}, {Git{strings.Repeat("a", 257), "a@b"}, false},
	} {
		if err := tt.git.Check(); (err == nil) != tt.ok {
			t.Errorf("%q: got %v", tt.git, err)
		}
	}
	own := []profiles.EnvSet{{Name: "GIT_AUTHOR_NAME", Value: "of the profile"}}
	if got := (Git{}).under(own); len(got) != 1 {
		t.Errorf("without an identity: %v", got)
	}
	env := map[string]string{}
	for _, e := range (Git{"node", "node@example.com"}).under(own) { // as a plan does: the last counts
		if env[e.Name] = e.Value; e.Name == "" {
			t.Errorf("got %v", e)
		}
	}
	if len(env) != 4 || env["GIT_AUTHOR_NAME"] != "of the profile" || env["GIT_COMMITTER_EMAIL"] != "node@example.com" {
		t.Errorf("got %v", env)
	}
}

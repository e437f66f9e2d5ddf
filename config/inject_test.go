// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// M-17: a provider behind the model door comes after the file's own, whose models have priority, and has no rule.
func TestM17ProvidersAreAdded(t *testing.T) {
	key := Injected{Variable: "A_KEY", Host: "api.test", Header: "X-Key", Provider: map[string]any{
		"base_url": "https://api.test/v1", "dialects": []string{"messages"}, "models": []any{map[string]any{"name": "*", "mode": "transparent"}},
	}}
	for text, want := range map[string]string{
		"": "llm:\n  providers:\n    - base_url: https://api.test/v1\n      dialects:\n        - messages\n      models:\n        - mode: transparent\n          name: '*'\n" +
			"      name: host_A_KEY\n      secret: host_A_KEY\nsecrets:\n  host_A_KEY:\n    env: A_KEY\n",
		"llm: {default: m, providers: [{name: own}]}\n": "llm:\n  default: m\n  providers:\n    - name: own\n    - base_url: https://api.test/v1\n",
	} {
		got, err := Gateway{File: File{Text: []byte(text)}}.With([]Injected{key})
		if err != nil || !strings.HasPrefix(string(got), want) || strings.Contains(string(got), "egress") {
			t.Errorf("%v, got\n%s\nwant\n%s", err, got, want)
		}
	}
}

// M-8, M-9: a key adds a rule before those of the file; nothing else of the file changes, its policies least.
func TestM8KeysAreAdded(t *testing.T) {
	key := Injected{Variable: "A_KEY", Host: "api.test", Header: "X-Key", Prefix: "Bearer "}
	for _, tt := range []struct{ name, text string }{
		{"no file", ""},
		{"another's sections", "policy: {dir: /p}\negress: {ca_files: [/ca], private: [10.0.0.1], limits: {run_bytes: 1099511627776}}\nsecrets: {own: {env: B}}\n"},
		{"a rule for the same host", "egress: {rules: [{host: api.test, intercept: true, headers: {X-Key: {secret: own}}}]}\nsecrets: {own: {env: B}}\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before, err := ReadGateway(file(t, tt.text, 0o600), nil, false)
			if err != nil {
				t.Fatal(err)
			}
			text, err := before.With([]Injected{key})
			if err != nil {
				t.Fatal(err)
			}
			after, err := ReadGateway(file(t, string(text), 0o600), nil, false)
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			if !after.Intercepts || string(after.Policy) != string(before.Policy) || !cmp.Equal(after.Named, before.Named) {
				t.Errorf("got %+v of %+v", after.part, before.part)
			}
			lookup := func(name string) (string, bool) { return "v", true }
			if want := append([]string{"A_KEY=v"}, before.Environ(lookup)...); !cmp.Equal(want, after.Environ(lookup)) {
				t.Errorf("variables %v, want %v", after.Environ(lookup), want)
			}
			again, err := after.With(nil)
			if err != nil || string(again) != string(text) {
				t.Errorf("it is another when it is read and written: %v\n%s\n%s", err, text, again)
			}
		})
	}
	if text, err := (Gateway{}).With([]Injected{key}); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"encoding/json"
	"strings"
	"testing"

	"agentrun/internal/read"
)

// What a call is about comes from the call and not from the agent's account of it.
func TestS15TargetOfACall(t *testing.T) {
	for _, c := range []struct{ says, args, want string }{
		{"", `{}`, ""},
		{"", `{"expression":"1"}`, ""},
		{"", `{"path":"/data/a"}`, "/data/a"},
		{"", `{"name":"b","path":"/data/a","query":"c"}`, "/data/a"},
		{"", `{"from":"/data/a","to":"/data/b"}`, "/data/b"},
		{"", `{"path":"","id":"x"}`, "x"},
		{"", `{"path":null,"id":"x"}`, "x"},
		{"", `{"id":7}`, "7"},
		{"", `{"path":["/a","/b"]}`, `["/a","/b"]`},
		{"", `{"path":"caf\u00e9 \"x\""}`, `café "x"`},
		{"place", `{"path":"/data/a","place":"Oslo"}`, "Oslo"},
		{"place", `{"path":"/data/a"}`, ""},
		{NoTarget, `{"path":"/data/a"}`, ""},
	} {
		tool := &tool{Definition: Definition{Target: c.says}}
		if got := tool.target(json.RawMessage(c.args)); got != c.want {
			t.Errorf("%q of %s: got %q, want %q", c.says, c.args, got, c.want)
		}
	}
}

func TestS15TargetsAreArguments(t *testing.T) {
	d := Definition{Schema: json.RawMessage(`{"type":"object","properties":{"place":{"type":"string"}}}`)}
	for target, want := range map[string]bool{"": true, NoTarget: true, "place": true, "plase": false, "type": false} {
		d.Target = target
		if err := d.checkTarget(); (err == nil) != want {
			t.Errorf("%q: got %v, want it taken: %v", target, err, want)
		}
	}
	const spec = "weather: {description: x, category: B, read_only: true, args: {type: object, properties: {place: {type: string}}}, http: {url: https://x.example/}, target: %}\n"
	for target, want := range map[string]bool{"place": true, "'-'": true, strings.Repeat("x", maxTarget+1): false, "[a]": false} {
		c, err := ParseConfig(read.YAML(read.Source{Path: "tools", Max: 1 << 20}, []byte(strings.Replace(spec, "%", target, 1))))
		if (err == nil) != want {
			t.Errorf("%q: got %v, want it taken: %v", target, err, want)
		}
		if err == nil && c["weather"].Target != strings.Trim(target, "'") {
			t.Errorf("%q: got %q", target, c["weather"].Target)
		}
	}
}

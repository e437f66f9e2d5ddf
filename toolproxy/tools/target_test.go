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
	const open, named = `{"type":"object"}`, `{"type":"object","properties":{"path":{},"note":{},"task":{}}}`
	for _, c := range []struct{ says, schema, args, want string }{
		{"", named, `{"path":"/data/a","target":"/data/b","to":"/data/c"}`, "/data/a"},
		{"", named, `{"note":"x","target":"/data/b"}`, ""},
		{"", open, `{}`, ""},
		{"", open, `{"expression":"1"}`, ""},
		{"", open, `{"path":"/data/a"}`, "/data/a"},
		{"", open, `{"name":"b","path":"/data/a","query":"c"}`, "/data/a"},
		{"", open, `{"from":"/data/a","to":"/data/b"}`, "/data/b"},
		{"", open, `{"path":"","id":"x"}`, "x"},
		{"", open, `{"path":null,"id":"x"}`, "x"},
		{"", open, `{"id":7}`, "7"},
		{"", open, `{"path":["/a","/b"]}`, `["/a","/b"]`},
		{"", open, `{"path":"caf\u00e9 \"x\""}`, `café "x"`},
		{"place", open, `{"path":"/data/a","place":"Oslo"}`, "Oslo"},
		{"place", open, `{"path":"/data/a"}`, ""},
		{NoTarget, open, `{"path":"/data/a"}`, ""},
	} {
		d := Definition{Target: c.says, Schema: json.RawMessage(c.schema)}
		tool := &tool{Definition: d, targets: d.targets()}
		if got := tool.target(json.RawMessage(c.args)); got != c.want {
			t.Errorf("%q of %s: got %q, want %q", c.says, c.args, got, c.want)
		}
	}
	d := Definition{Schema: json.RawMessage(named)}
	misspelt := &tool{Definition: d, spelled: d.spelled()}
	for args, want := range map[string]string{`{"path":1,"other":2}`: "", `{"Path":1}`: "path", `{"path":1,"PATH":2}`: "path", `{"ta\u017fk":1}`: "task", `{"tas\u212a":1}`: "task"} {
		if _, got := misspelt.misspelt(json.RawMessage(args)); got != want {
			t.Errorf("%s: got %q, want %q", args, got, want)
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

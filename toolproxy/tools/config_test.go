// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	_ "embed"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v3"

	"agentrun/internal/read"
	"agentrun/rings"
	"agentrun/toolproxy/tools"
)

//go:embed schema.json
var schema []byte

// section is the section tools: with that text.
func section(text string) *read.Node {
	return read.YAML(read.Source{Path: "tools", Max: 1 << 20}, []byte(text))
}

func example(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/tools.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestM11ParseConfig(t *testing.T) {
	config, err := tools.ParseConfig(section(string(example(t))))
	if err != nil {
		t.Fatal(err)
	}
	undo, price := "tool.ticket.undo", int64(500)
	want := tools.Spec{
		Kind: "http", Enabled: true, Description: "Opens a ticket.", Category: "B",
		Schema:  json.RawMessage(`{"additionalProperties":false,"properties":{"title":{"maxLength":200,"type":"string"}},"required":["title"],"type":"object"}`),
		Timeout: 1500e6, MaxReply: 64 << 10, Price: &price, Rate: &tools.Rate{PerSecond: 0.5, Burst: 5},
		Rings: tools.Access[int]{Only: []int{1, 2}}, Plans: tools.Access[string]{Not: []string{"freemium"}}, Roles: tools.Access[string]{Only: []string{"member"}},
		Reversibility: "full", Undo: &tools.Undo{Window: 3600e9, With: map[string]jsontext.Pointer{"id": "/result/id"}},
		Action: &rings.Action{ID: "tool.ticket.invoke", Name: "ticket", ExecuteAPI: "ticket", UndoAPI: &undo, UndoWindowSeconds: 3600, Reversibility: rings.Full},
	}
	if d := cmp.Diff(want, config["ticket"], cmpopts.IgnoreFields(tools.Spec{}, "Node", "HTTP"), cmpopts.IgnoreFields(tools.Undo{}, "HTTP")); d != "" {
		t.Errorf("ticket (-want +got):\n%s", d)
	}
	if config["ticket"].Node == nil || config["embeddings"].Enabled || !config["python"].Approve || config["python"].Wait != 30e9 {
		t.Errorf("got %+v", config)
	}
	if config, err := tools.ParseConfig(nil); err != nil || len(config) != 0 {
		t.Errorf("empty: got %v, %v", config, err)
	}
}

func TestParseConfigNamesTheKey(t *testing.T) {
	const full = "x: {kind: http, description: d, category: A, read_only: true, args: {type: object}, http: {url: u}"
	for config, want := range map[string]string{
		full + ", colour: red}":                        "tools.x.colour: unknown key; known: ",
		full + ", timeout: 0s}":                        "500ms",
		full + ", timeout: 1h}":                        "timeout",
		full + ", timeout: -1s}":                       "500ms",
		full + ", approval_wait: 999ms}":               "approval_wait",
		full + ", approval_wait: 5m1s}":                "approval_wait",
		full + ", approval_wait: 0s}":                  "500ms",
		full + ", max_reply: 17M}":                     "max_reply",
		full + ", max_reply: 1KM}":                     "size",
		full + ", price: -1}":                          "price",
		full + ", rate: {per_second: 0, burst: 1}}":    "rate",
		full + ", rate: {per_second: .nan, burst: 1}}": "rate",
		full + ", rate: {per_second: 1}}":              "rate",
		full + ", rings: {only: [0]}}":                 "rings",
		full + ", rings: {maybe: [1]}}":                "maybe",
		full + ", reversibility: some}":                "reversibility",
		full + ", mcp: {url: u}}":                      "mcp: the tool's kind is http",
		full + ", http: {url: v}}":                     "http",
		full + ", approve: true, approve: false}":      "approve",
		"x: {kind: http}":                              "category: required",
		"x: {http: {url: u}, command: {argv: [/x]}}":   "command: the tool's kind is http",
		"x: {builtin: {}}":                             "builtin",
		"x: {kind: ftp}":                               "kind",
		"x: {category: E}":                             "category",
		"x: 1":                                         "line 1: tools.x: want a mapping",
		"x/y: {}":                                      "tools.x/y",
		"x: &a {}\ny: *a":                              "anchors",
		"x: {}\nx: {}":                                 "x",
		"- x":                                          "tools: ",
		"x: {}\n---\ny: {}":                            "more than one document",
		"x: {args: {type: array}}":                     "args",
		"x: {args: {type: object, properties: {a: {$ref: '#'}}}}": "args",
	} {
		if c, err := tools.ParseConfig(section(config)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, %v, want an error with %q", config, c, err, want)
		}
	}
}

// The published schema takes the example and refuses unknown keys, as the parser does.
func TestSchemaAgreesWithTheParser(t *testing.T) {
	var s jsonschema.Schema
	if err := json.Unmarshal(schema, &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		text string
		want bool
	}{
		"example":     {string(example(t)), true},
		"off":         {"math: {enabled: false}", true},
		"unknown key": {"math: {colour: red}", false},
		"category":    {"math: {category: E}", false},
		"ring 0":      {"math: {rings: {only: [0]}}", false},
		"price":       {"math: {price: -1}", false},
		"name":        {"ma/th: {}", false},
		"rate":        {"math: {rate: {per_second: 0, burst: 1}}", false},
	} {
		var v map[string]any
		if err := yaml.Unmarshal([]byte(tt.text), &v); err != nil {
			t.Fatal(err)
		}
		invalid := resolved.Validate(v)
		_, refused := tools.ParseConfig(section(tt.text))
		if (invalid == nil) != tt.want || (refused == nil) != tt.want {
			t.Errorf("%s: schema says %v, parser %v, want valid %v", name, invalid, refused, tt.want)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte("math: {enabled: false}"))
	f.Add([]byte("x: {kind: http, category: A, description: d, read_only: true, args: {type: object}, http: {}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := tools.ParseConfig(section(string(text)))
		if err != nil && c != nil {
			t.Errorf("got %v beside %v", c, err)
		}
	})
}

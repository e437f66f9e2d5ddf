// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"agentrun/internal/read"
)

// section is the section egress: with that text.
func section(text string) *read.Node {
	return read.YAML(read.Source{Path: "egress", Max: 1 << 20}, []byte(text))
}

const example = `
allow: [pypi.org, "*.pythonhosted.org:443"]
rules:
  - host: api.example.com
    ports: [443]
    methods: [GET, POST]
    paths: [/v1/]
    intercept: true
    headers:
      Authorization: {secret: EXAMPLE_KEY, prefix: "Bearer "}
private: [10.1.2.3, 10.2.0.0/16:8080]
capture_ports: [22]
ca_files: [/etc/ssl/private-ca.pem]
intercept_exclude: ["*.bank.example"]
limits: {connections: 64, idle: 2m, run_bytes: 1073741824}
`

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("egress.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("egress.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestM8Config(t *testing.T) {
	got, err := ParseConfig(section(example))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{Allow: []string{"pypi.org", "*.pythonhosted.org:443"},
		Rules: []Rule{{Host: "api.example.com", Ports: []uint16{443}, Methods: []string{"GET", "POST"}, Paths: []string{"/v1/"}, Intercept: true,
			Headers: map[string]Header{"Authorization": {Secret: "EXAMPLE_KEY", Prefix: "Bearer "}}}},
		Private: []string{"10.1.2.3", "10.2.0.0/16:8080"}, Capture: []uint16{22}, CAFiles: []string{"/etc/ssl/private-ca.pem"},
		Excluded: []string{"*.bank.example"}, Limits: Limits{Connections: 64, Idle: 2 * time.Minute, RunBytes: 1 << 30}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var doc any
	if err := yaml.Unmarshal([]byte(example), &doc); err != nil {
		t.Fatal(err)
	}
	if err := schema(t).Validate(doc); err != nil {
		t.Error(err)
	}
}

func TestM8ConfigRefused(t *testing.T) {
	s := schema(t)
	for text, want := range map[string]string{
		"alow: [x]":                             "line 1: egress.alow: unknown key; did you mean allow?",
		"rules: [{host: a.example, prts: [1]}]": "line 1: egress.rules[0].prts: unknown key; did you mean ports?",
		"limits: {idle: -1s}":                   "negative",
		"allow: x":                              "want a list",
		"allow: [1]":                            "want text",
		"rules: [{host: '*'}]":                  "host: want a name",
		"rules: [{host: a.example, headers: {Authorization: {secret: X}}}]":                            "only with intercept",
		"rules: [{host: a.example, intercept: true, headers: {Host: {secret: X}}}]":                    "not a name that may be set",
		"rules: [{host: a.example, intercept: true, headers: {X: {secret: X, prefix: \"a\\r\\nb\"}}}]": "prefix in ASCII",
		"rules: [{host: a.example, intercept: true, ports: [80]}]":                                     "80 is never TLS",
		"rules: [{host: a.example, intercept: true, headers: {X: {secret: X, user: 'a:b'}}}]":          "without a colon",
		"rules: [{host: a.example, intercept: true, headers: {X: {secret: X, user: a, prefix: b}}}]":   "no prefix beside it",
		"rules: [{host: a.example, max_reply: -1}]":                                                    "not below 0",
		"presets: [npm, nmp]":                                "line 1: egress.presets[1]: \"nmp\" is no preset: there are crates, debian, go, npm, pypi",
		"private: [a.example]":                               "want ADDRESS",
		"private: [198.18.0.0/15]":                           "the sandbox's own network",
		"private: [10.0.0.5/8]":                              "the network is 10.0.0.0/8",
		"private: [GET 10.1.2.3]":                            "want ADDRESS",
		"private: [192.0.0.8]":                               "the sandbox's own network",
		"allow: [a.example, 'https://a.example']":            "line 1: egress.allow[1]: allow list entry \"https://a.example\": URL with scheme",
		"allow: [-a, b.example]\nrules: [{host: 'b..c'}]":    "egress.rules[0]: allow list entry",
		"rules: [{host: 'b..c'}]\nallow: [b.example, 'a:0']": "egress.allow[1]: allow list entry",
		"capture_ports: [0]":                                 "1 to 65535",
		"allow: &a [x]":                                      "anchors",
		"allow: []\n---\nallow: []":                          "more than one document",
	} {
		if _, err := ParseConfig(section(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
		var doc any
		if strings.Contains(want, "unknown key") || strings.Contains(want, "want text") {
			if err := yaml.Unmarshal([]byte(text), &doc); err != nil || s.Validate(doc) == nil {
				t.Errorf("%q: the schema takes it", text)
			}
		}
	}
	for _, text := range []string{"", "{}", "# nothing\n", "null"} {
		if c, err := ParseConfig(section(text)); err != nil || cmp.Diff(Config{}, c) != "" {
			t.Errorf("%q: got %+v, %v", text, c, err)
		}
	}
}

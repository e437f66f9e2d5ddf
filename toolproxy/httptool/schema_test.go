// SPDX-License-Identifier: Apache-2.0

package httptool

import (
	"bytes"
	_ "embed"
	"reflect"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"agentrun/internal/read"
)

//go:embed schema.json
var schema []byte

func parseText(text string) error {
	n := read.YAML(read.Source{Max: 1 << 20}, []byte(text))
	_, err := Factory(Options{Secrets: secrets})("x", n)
	return err
}

// The published schema and the parser take and refuse the same.
func TestSchemaAgreesWithTheParser(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:///s", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("mem:///s")
	if err != nil {
		t.Fatal(err)
	}
	check(t, s, "url: https://h.example/v1/{id}\nmethod: GET\nheaders: {A: b, C: {secret: KEY, prefix: \"Bearer \"}}\nsend: query\nreply: text\nallow_private: true\nfollow: true", true)
	for _, text := range []string{"{}", "url: https://h/\nunknown: 1", "url: https://h/\nsend: form", "url: https://h/\nheaders: {A: {secert: x}}", "url: ftp://h/"} {
		check(t, s, text, false)
	}
	keys := 0
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if f.Anonymous { // its own fields follow
			continue
		}
		keys++
		if key := f.Tag.Get("yaml"); s.Properties[key] == nil {
			t.Errorf("the schema lacks %s", key)
		}
	}
	if len(s.Properties) != keys {
		t.Errorf("the schema has %d keys, want %d", len(s.Properties), keys)
	}
}

func check(t *testing.T, s *jsonschema.Schema, text string, want bool) {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	if got := s.Validate(v) == nil; got != want {
		t.Errorf("schema: %q: got %v, want %v", text, got, want)
	}
	if err := parseText(text); (err == nil) != want {
		t.Errorf("parser: %q: got %v, want %v", text, err, want)
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package strictyaml reads a section of a configuration into a struct and refuses what the struct doesn't know: a misspelt
// key would be a wish ignored.
//
//	err := strictyaml.Decode("telemetry", section, &config) // telemetry.otlp.endpiont: unknown key (line 3)
//
// Guarantees. Keys that are unknown or given twice, values of another type, more than one document, anchors and aliases are errors that name
// the key's path. It does not protect against values that make no sense; their owner looks. It fails by an error, and what
// it was to fill is then undefined.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Max is the longest section, in bytes.
const Max = 1 << 20

// Decode reads text, the section called name, into a pointer to a struct. An empty text leaves it as it is.
func Decode(name string, text []byte, into any) error {
	if len(text) > Max {
		return fmt.Errorf("%s: longer than %d bytes", name, Max)
	}
	var doc yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := d.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: more than one document", name)
	}
	root := doc.Content[0]
	if err := check(name, root, reflect.TypeOf(into)); err != nil {
		return err
	}
	if err := root.Decode(into); err != nil {
		return fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	return nil
}

// check compares the keys with the fields that can hold them, before anything is converted.
func check(path string, n *yaml.Node, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return fmt.Errorf("%s: anchors and aliases aren't taken (line %d)", path, n.Line)
	}
	null := n.Kind == yaml.ScalarNode && n.Tag == "!!null"
	switch {
	case t == reflect.TypeFor[yaml.Node](), null:
		return nil
	case t.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		for i, each := range n.Content {
			if err := check(fmt.Sprintf("%s[%d]", path, i), each, t.Elem()); err != nil {
				return err
			}
		}
		return nil
	case t.Kind() != reflect.Struct && t.Kind() != reflect.Map:
		if n.Kind != yaml.ScalarNode {
			return fmt.Errorf("%s: want a single value (line %d)", path, n.Line)
		}
		return scalar(path, n, t)
	case n.Kind != yaml.MappingNode:
		return fmt.Errorf("%s: want keys and values (line %d)", path, n.Line)
	}
	return mapping(path, n, t)
}

func scalar(path string, n *yaml.Node, t reflect.Type) error {
	if err := n.Decode(reflect.New(t).Interface()); err != nil {
		return fmt.Errorf("%s: %.64q is no %s (line %d)", path, n.Value, t, n.Line)
	}
	return nil
}

func mapping(path string, n *yaml.Node, t reflect.Type) error {
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := path + "." + key.Value
		if seen[key.Value] {
			return fmt.Errorf("%s: given twice (line %d)", at, key.Line)
		}
		seen[key.Value] = true
		inner, known := member(t, key.Value)
		if !known || key.Kind != yaml.ScalarNode {
			return fmt.Errorf("%.128s: unknown key (line %d)", at, key.Line)
		}
		if err := check(at, value, inner); err != nil {
			return err
		}
	}
	return nil
}

// member is the type of what key holds: a field by its yaml tag, or any value of a map.
func member(t reflect.Type, key string) (reflect.Type, bool) {
	if t.Kind() == reflect.Map {
		return t.Elem(), true
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); name == key && name != "" && name != "-" {
			return f.Type, true
		}
	}
	return nil, false
}

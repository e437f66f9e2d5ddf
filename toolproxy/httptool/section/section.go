// SPDX-License-Identifier: Apache-2.0

// Package section reads the part of gateway.yaml that belongs to one tool, strictly: a key that isn't known, given twice, or
// of the wrong type is an error that names its path and line.
//
//	var c Config
//	err := section.Decode("tools.search.http", node, &c)
//	// tools.search.http.headers.X-Key.secert (line 12): unknown key; known are: prefix, secret
//
// Types are structs whose fields have yaml tags, and maps, slices and scalars of them. A type with its own UnmarshalYAML
// reads itself. Aliases are refused: what a section says should stand where it is read.
package section

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ErrMissing is what a section that isn't there gives.
var ErrMissing = errors.New("is missing")

const maxDepth = 32

// Decode fills out, a pointer, from node. path is how errors name it.
func Decode(path string, node *yaml.Node, out any) error {
	if node == nil || node.Kind == 0 {
		return fmt.Errorf("%s: %w", path, ErrMissing)
	}
	if node.Kind == yaml.DocumentNode && len(node.Content) == 1 {
		node = node.Content[0]
	}
	if err := check(path, node, reflect.TypeOf(out).Elem(), 0); err != nil {
		return err
	}
	if err := node.Decode(out); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func check(path string, node *yaml.Node, t reflect.Type, depth int) error {
	switch {
	case depth > maxDepth:
		return at(path, node, "nested too deeply")
	case node.Kind == yaml.AliasNode:
		return at(path, node, "aliases aren't allowed here")
	case reflect.PointerTo(t).Implements(reflect.TypeFor[yaml.Unmarshaler]()):
		return nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return check(path, node, t.Elem(), depth)
	case reflect.Struct:
		return checkMembers(path, node, fieldsOf(t), nil, depth)
	case reflect.Map:
		return checkMembers(path, node, nil, t.Elem(), depth)
	case reflect.Slice:
		return checkItems(path, node, t.Elem(), depth)
	}
	if node.Kind != yaml.ScalarNode {
		return at(path, node, "a single value is wanted")
	}
	return nil
}

func checkItems(path string, node *yaml.Node, item reflect.Type, depth int) error {
	if node.Kind != yaml.SequenceNode {
		return at(path, node, "a list is wanted")
	}
	for i, n := range node.Content {
		if err := check(fmt.Sprintf("%s[%d]", path, i), n, item, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// checkMembers looks at a mapping: of the named fields, or, if there are none, of any names with values of type all.
func checkMembers(path string, node *yaml.Node, fields map[string]reflect.Type, all reflect.Type, depth int) error {
	if node.Kind != yaml.MappingNode {
		return at(path, node, "keys and values are wanted")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		name := path + "." + key.Value
		t, known := fields[key.Value]
		if fields == nil {
			t, known = all, true
		}
		switch {
		case key.Kind != yaml.ScalarNode:
			return at(path, key, "a key is a single word")
		case !known:
			return at(name, key, "unknown key; known are: "+strings.Join(names(fields), ", "))
		case seen[key.Value]:
			return at(name, key, "given twice")
		}
		seen[key.Value] = true
		if err := check(name, value, t, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ","); name != "" && name != "-" {
			fields[name] = t.Field(i).Type
		}
	}
	return fields
}

func names(fields map[string]reflect.Type) []string {
	var all []string
	for name := range fields {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func at(path string, node *yaml.Node, what string) error {
	return fmt.Errorf("%.200s (line %d): %s", path, node.Line, what)
}

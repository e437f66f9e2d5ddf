// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

func onceValue[T any](f func() T) func() T { return sync.OnceValue(f) }

// decodeStrict reads one YAML document onto a struct. The library's own strict mode knows lines but no paths, and takes
// aliases, with which a small file becomes a large one.
func decodeStrict(text []byte, into any, path string) error {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: more than one document", path)
	}
	root := doc.Content[0]
	if root.Tag == "!!null" {
		return nil
	}
	if err := known(root, reflect.TypeOf(into).Elem(), path); err != nil {
		return err
	}
	if err := root.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// known refuses keys that the type doesn't have, at any depth.
func known(n *yaml.Node, t reflect.Type, path string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return fmt.Errorf("line %d: %s: anchors and aliases are not read", n.Line, path)
	case t.Kind() == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return fmt.Errorf("line %d: %s: want a list", n.Line, path)
		}
		for i, item := range n.Content {
			if err := known(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case t.Kind() == reflect.Struct:
		if n.Kind != yaml.MappingNode {
			return fmt.Errorf("line %d: %s: want keys and values", n.Line, path)
		}
		return knownKeys(n, t, path)
	}
	return nil
}

func knownKeys(n *yaml.Node, t reflect.Type, path string) error {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		at := path + "." + key.Value
		field, ok := fieldOf(t, key.Value)
		if !ok {
			return fmt.Errorf("line %d: %.200s: unknown key", key.Line, at)
		}
		if err := known(n.Content[i+1], field, at); err != nil {
			return err
		}
	}
	return nil
}

func fieldOf(t reflect.Type, key string) (reflect.Type, bool) {
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ","); name == key && key != "" {
			return t.Field(i).Type, true
		}
	}
	return nil, false
}

// SPDX-License-Identifier: Apache-2.0

package router

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed schema.json
var schemaJSON []byte

// Schema returns the JSON Schema of the section `router`.
func Schema() []byte { return slices.Clone(schemaJSON) }

// Config is the section `router`. The zero value has no rules: names and words still find tools.
type Config struct {
	Rules []Rule
	Words bool // whether words find tools where neither a rule nor a name does; default true
}

// Rule sends an intent to a tool.
type Rule struct {
	Intent string          // words; * stands for any text. Case and spaces don't count
	Tool   string          // name
	Args   json.RawMessage // template: a string "$name" is replaced by that argument, whatever its type; empty: as they come
}

const (
	maxConfig = 256 << 10
	maxRules  = 1000
)

// ParseConfig reads the section. Unknown keys and wrong types are errors that name the place.
func ParseConfig(section []byte) (Config, error) {
	c := Config{Words: true}
	if len(section) > maxConfig {
		return Config{}, fmt.Errorf("router: larger than %d bytes", maxConfig)
	}
	dec := yaml.NewDecoder(bytes.NewReader(section))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return c, nil
	case err != nil:
		return Config{}, fmt.Errorf("router: %w", err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("router: more than one document")
	}
	if doc.Content[0].Tag == "!!null" {
		return c, nil
	}
	err := each(doc.Content[0], "router", func(key string, v *yaml.Node, at string) error {
		switch key {
		case "rules":
			return c.rules(v, at)
		case "words":
			return scalar(v, at, "!!bool", &c.Words)
		}
		return errUnknown
	})
	if err != nil {
		return Config{}, err
	}
	return c, nil
}

var errUnknown = errors.New("unknown key")

// each calls f for the members of a mapping; errors get the path and the line.
func each(n *yaml.Node, path string, f func(key string, v *yaml.Node, at string) error) error {
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: %s: want keys and values", n.Line, path)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, at := n.Content[i].Value, path+"."+n.Content[i].Value
		if seen[key] {
			return fmt.Errorf("line %d: %.200s: is there twice", n.Content[i].Line, at)
		}
		seen[key] = true
		if err := f(key, n.Content[i+1], at); errors.Is(err, errUnknown) {
			return fmt.Errorf("line %d: %.200s: %w", n.Content[i].Line, at, err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

func scalar(n *yaml.Node, at, tag string, into any) error {
	if n.Kind != yaml.ScalarNode || n.Tag != tag {
		return fmt.Errorf("line %d: %s: want a %s", n.Line, at, strings.TrimPrefix(tag, "!!"))
	}
	if err := n.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	return nil
}

func (c *Config) rules(n *yaml.Node, path string) error {
	if n.Kind != yaml.SequenceNode || len(n.Content) > maxRules {
		return fmt.Errorf("line %d: %s: want a list of at most %d", n.Line, path, maxRules)
	}
	for i, item := range n.Content {
		var r Rule
		at := fmt.Sprintf("%s[%d]", path, i)
		if err := each(item, at, func(key string, v *yaml.Node, at string) error {
			switch key {
			case "intent":
				return scalar(v, at, "!!str", &r.Intent)
			case "tool":
				return scalar(v, at, "!!str", &r.Tool)
			case "args":
				return template(v, at, &r.Args)
			}
			return errUnknown
		}); err != nil {
			return err
		}
		if r.Intent = plain(r.Intent); r.Intent == "" || r.Tool == "" || len(r.Intent) > maxIntent {
			return fmt.Errorf("line %d: %s: want an intent of at most %d bytes and a tool", item.Line, at, maxIntent)
		}
		if strings.Count(r.Intent, "*") > 4 {
			return fmt.Errorf("line %d: %s.intent: more than 4 *", item.Line, at)
		}
		c.Rules = append(c.Rules, r)
	}
	return nil
}

func template(n *yaml.Node, at string, into *json.RawMessage) error {
	var v map[string]any
	if n.Kind != yaml.MappingNode || n.Decode(&v) != nil {
		return fmt.Errorf("line %d: %s: want keys and values", n.Line, at)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("line %d: %s: has no form as JSON", n.Line, at)
	}
	*into = b
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package section

import (
	"errors"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

type example struct {
	Name  string            `yaml:"name"`
	Names []string          `yaml:"names"`
	Map   map[string]string `yaml:"map"`
	Inner *struct {
		N int `yaml:"n"`
	} `yaml:"inner"`
}

func decode(text string) (example, error) {
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(text), &n); err != nil {
		return example{}, err
	}
	var e example
	err := Decode("tools.x", &n, &e)
	return e, err
}

func TestDecode(t *testing.T) {
	e, err := decode("name: a\nnames: [b]\nmap: {k: v}\ninner: {n: 3}")
	if err != nil || e.Name != "a" || e.Names[0] != "b" || e.Map["k"] != "v" || e.Inner.N != 3 {
		t.Errorf("got %+v, %v", e, err)
	}
	for text, want := range map[string]string{
		"nmae: a":                "tools.x.nmae (line 1): unknown key; known are: inner, map, name, names",
		"name: a\nname: b":       "tools.x.name (line 2): given twice",
		"inner: {m: 1}":          "tools.x.inner.m (line 1): unknown key; known are: n",
		"inner: {n: x}":          "tools.x",
		"names: a":               "tools.x.names (line 1): a list is wanted",
		"names: [[a]]":           "tools.x.names[0] (line 1): a single value is wanted",
		"names: &a [b]\nmap: *a": "aliases",
		"[a]":                    "keys and values are wanted",
		"map: {a: b, a: c}":      "given twice",
	} {
		if _, err := decode(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	var out example
	if err := Decode("tools.x", nil, &out); !errors.Is(err, ErrMissing) {
		t.Errorf("nothing: got %v, want %v", err, ErrMissing)
	}
}

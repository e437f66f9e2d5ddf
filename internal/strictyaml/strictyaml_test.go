// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

type config struct {
	Name  string           `yaml:"name"`
	Inner *inner           `yaml:"inner"`
	ByKey map[string]inner `yaml:"by_key"`
	List  []inner          `yaml:"list"`
	Raw   yaml.Node        `yaml:"raw"`
}

type inner struct {
	Wait time.Duration `yaml:"wait"`
	N    int           `yaml:"n"`
}

func TestDecode(t *testing.T) {
	var c config
	if err := Decode("s", []byte("name: x\ninner: {wait: 3s, n: 4}\nby_key: {a: {n: 1}}\nlist: [{n: 2}]\nraw: {whatever: [1]}\n"), &c); err != nil {
		t.Fatal(err)
	}
	if c.Inner.Wait != 3*time.Second || c.ByKey["a"].N != 1 || c.List[0].N != 2 || c.Raw.Kind != yaml.MappingNode {
		t.Errorf("got %+v", c)
	}
	for _, text := range []string{"", "# nothing\n", "null\n", "inner:\n"} {
		if err := Decode("s", []byte(text), &config{}); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		"nmae: x": "s.nmae: unknown key (line 1)", "inner: {wat: 1}": "s.inner.wat: unknown key", "by_key: {a: {m: 1}}": "s.by_key.a.m: unknown key",
		"list: [{n: 1}, {m: 1}]": "s.list[1].m: unknown key", "inner: {n: x}": `s.inner.n: "x" is no int`, "name: [a]": "s.name: want a single value",
		"inner: 3": "s.inner: want keys and values", "name: a\nname: b": "s.name: given twice (line 2)", "name: &a x": "anchors", "inner: {<<: {n: 1}}": "unknown key",
		"name: x\n---\nname: y": "more than one document", "list: [": "s: ", "3": "s: want keys", "name: \"" + strings.Repeat("x", Max) + "\"": "longer than", "Name: x": "unknown key",
		"inner: {wait: 3}": "s.inner.wait",
	} {
		if err := Decode("s", []byte(text), &config{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want %q", text, err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("name: x\ninner: {wait: 3s}")
	f.Add("list: [{n: 1}]")
	f.Fuzz(func(t *testing.T, text string) { _ = Decode("s", []byte(text), &config{}) })
}

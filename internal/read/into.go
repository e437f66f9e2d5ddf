// SPDX-License-Identifier: Apache-2.0

package read

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Reader is a type that reads itself where its form isn't one of Go's: text or a mapping, for instance. What it finds wrong it
// tells by the node's Done, whose error it may leave.
type Reader interface{ ReadNode(n *Node) }

// Into writes the node onto what v points to. Values of which the document says nothing stay as they are. What is wrong is told
// by Done.
func (n *Node) Into(v any) {
	if n != nil && n.yaml != nil {
		n.value(reflect.ValueOf(v).Elem())
	}
}

// Empty tells that there is nothing in the node, and nothing wrong with it.
func (n *Node) Empty() bool { return n == nil || n.yaml == nil && n.Done() == nil }

// Scalar tells whether the node is a single value, for a Reader of several forms.
func (n *Node) Scalar() bool { return n.yaml.Kind == yaml.ScalarNode }

func (n *Node) want(what, got string) { n.doc.report(n.line, n.path, "want %s, got %s", what, got) }

func (n *Node) value(v reflect.Value) {
	if n.yaml.Kind == yaml.AliasNode {
		return // told by shape
	}
	if v.Type() == reflect.TypeFor[*Node]() {
		if n.yaml.Tag == "!!null" {
			n = &Node{n.doc, nil, n.path, n.line} // a part with everything in it commented out is as none
		}
		v.Set(reflect.ValueOf(n))
		return
	}
	switch t := v.Addr().Interface().(type) {
	case Reader:
		t.ReadNode(n)
		return
	case *json.RawMessage:
		n.json(t)
		return
	case encoding.TextUnmarshaler:
		n.text(t)
		return
	case *time.Duration:
		n.duration(t)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		n.value(v.Elem())
	case reflect.Struct:
		n.fields(v)
	case reflect.Map:
		n.entries(v)
	case reflect.Slice:
		n.items(v)
	case reflect.Interface:
		if free, ok := n.any(); ok && free != nil {
			v.Set(reflect.ValueOf(free))
		}
	default:
		n.scalar(v)
	}
}

func (n *Node) mapping() bool {
	if n.yaml.Kind != yaml.MappingNode {
		n.want("a mapping (key: value)", kindOf(n.yaml))
		return false
	}
	return true
}

func (n *Node) fields(v reflect.Value) {
	if !n.mapping() {
		return
	}
	known := fieldsOf(v.Type())
	done := map[string]bool{}
	for key, member := range n.members() {
		field, ok := known[key]
		switch {
		case done[key]: // twice, as shape has told
		case ok:
			done[key] = true
			member.value(v.Field(field))
		case !n.doc.partial:
			n.unknown(key, member, slices.Sorted(maps.Keys(known)))
		}
	}
}

func (n *Node) unknown(key string, member *Node, known []string) {
	if near := nearest(key, known); near != "" {
		n.doc.meant = append(n.doc.meant, join(n.path, near))
		n.doc.report(member.line, member.path, "unknown key; did you mean %s?", near)
		return
	}
	n.doc.report(member.line, member.path, "unknown key; known: %s", strings.Join(known, ", "))
}

// fieldsOf returns the indexes of a struct's fields by their keys.
func fieldsOf(t reflect.Type) map[string]int {
	fields := map[string]int{}
	for i := range t.NumField() {
		tag, ok := t.Field(i).Tag.Lookup("yaml")
		if !ok {
			tag = t.Field(i).Tag.Get("json")
		}
		if name, _, _ := strings.Cut(tag, ","); name != "" && name != "-" {
			fields[name] = i
		}
	}
	return fields
}

func (n *Node) entries(v reflect.Value) {
	if !n.mapping() {
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	for key, member := range n.members() {
		k := reflect.ValueOf(key).Convert(v.Type().Key())
		if v.MapIndex(k).IsValid() {
			continue // twice, as shape has told
		}
		entry := reflect.New(v.Type().Elem()).Elem()
		member.value(entry)
		v.SetMapIndex(k, entry)
	}
}

func (n *Node) items(v reflect.Value) {
	if n.yaml.Kind != yaml.SequenceNode {
		n.want("a list", kindOf(n.yaml))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.yaml.Content), len(n.yaml.Content)))
	i := 0
	for _, item := range n.members() {
		item.value(v.Index(i))
		i++
	}
}

func (n *Node) scalar(v reflect.Value) {
	tag, text := n.yaml.Tag, n.yaml.Value
	if n.yaml.Kind != yaml.ScalarNode {
		tag = ""
	}
	switch v.Kind() {
	case reflect.String:
		switch tag {
		case "!!str":
			v.SetString(text)
		case "!!int", "!!float", "!!bool", "!!timestamp":
			n.want("text", describe(n.yaml)+"; write it in quotes")
		default:
			n.want("text", describe(n.yaml))
		}
	case reflect.Bool:
		if tag != "!!bool" || text != "true" && text != "false" {
			n.want("true or false", describe(n.yaml))
		}
		v.SetBool(text == "true")
	case reflect.Int, reflect.Int64, reflect.Int32:
		i, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if tag != "!!int" || err != nil || strconv.FormatInt(i, 10) != text {
			n.want("a whole number", describe(n.yaml))
			return
		}
		v.SetInt(i)
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		u, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if tag != "!!int" || err != nil || strconv.FormatUint(u, 10) != text {
			n.want(fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64)>>(64-v.Type().Bits())), describe(n.yaml))
			return
		}
		v.SetUint(u)
	case reflect.Float64:
		f, ok := n.number()
		if !ok {
			n.want("a decimal number", describe(n.yaml))
		}
		v.SetFloat(f)
	default:
		panic("read: a field of type " + v.Type().String() + " has no reader") // a test of its owner reads every field
	}
}

// number takes what JSON takes: no octals, underscores, infinities.
func (n *Node) number() (float64, bool) {
	if n.yaml.Kind != yaml.ScalarNode || n.yaml.Tag != "!!int" && n.yaml.Tag != "!!float" || !json.Valid([]byte(n.yaml.Value)) {
		return 0, false
	}
	f, err := strconv.ParseFloat(n.yaml.Value, 64)
	return f, err == nil
}

// text is for types that read themselves. A whole number is taken as it is written: sizes and ids may be one.
func (n *Node) text(t encoding.TextUnmarshaler) {
	if n.yaml.Kind != yaml.ScalarNode || n.yaml.Tag != "!!str" && n.yaml.Tag != "!!int" {
		n.want("text", describe(n.yaml))
	} else if err := t.UnmarshalText([]byte(n.yaml.Value)); err != nil {
		n.doc.report(n.line, n.path, "%v", err)
	}
}

func (n *Node) duration(d *time.Duration) {
	v, err := time.ParseDuration(n.yaml.Value)
	if n.yaml.Kind != yaml.ScalarNode || n.yaml.Tag != "!!str" || err != nil {
		n.want("a duration with a unit, such as 30s", describe(n.yaml))
		return
	}
	*d = v
}

// json keeps a mapping as JSON, for templates and schemas.
func (n *Node) json(into *json.RawMessage) {
	if !n.mapping() {
		return
	}
	if v, ok := n.any(); ok {
		*into, _ = json.Marshal(v) // of what any returns nothing can fail
	}
}

// any returns what JSON has.
func (n *Node) any() (any, bool) {
	switch n.yaml.Kind {
	case yaml.MappingNode:
		m := map[string]any{}
		n.entries(reflect.ValueOf(&m).Elem())
		return m, true
	case yaml.SequenceNode:
		l := []any{}
		n.items(reflect.ValueOf(&l).Elem())
		return l, true
	}
	number, isNumber := n.number()
	switch {
	case n.yaml.Tag == "!!str":
		return n.yaml.Value, true
	case n.yaml.Tag == "!!null":
		return nil, true
	case n.yaml.Tag == "!!bool" && (n.yaml.Value == "true" || n.yaml.Value == "false"):
		return n.yaml.Value == "true", true
	case isNumber && n.yaml.Tag == "!!int":
		return json.Number(n.yaml.Value), true
	case isNumber:
		return number, true
	}
	n.want("what JSON has", describe(n.yaml))
	return nil, false
}

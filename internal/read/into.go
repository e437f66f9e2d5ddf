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
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
)

// Reader is a type that reads itself where its form isn't one of Go's: text or a mapping, for instance. What
// it finds wrong it tells by the node's Done, whose error it may leave.
type Reader interface{ ReadNode(n *Node) }

// Choice is a text that is one of a few.
type Choice interface{ Choices() []string }

// Into writes the node onto what v points to. Values of which the document says nothing stay as they are.
// What is wrong is told by Done.
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
	if n.yaml.Kind == yaml.AliasNode || n.own(v) {
		return // an alias was told by shape
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.SetZero(); n.raw == nil || n.yaml.Tag != "!!null" {
			v.Set(reflect.New(v.Type().Elem()))
			n.value(v.Elem())
		}
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

// own reads onto types that have a form of their own, and tells whether v is of one.
func (n *Node) own(v reflect.Value) bool {
	into := v.Addr().Interface()
	if t, ok := into.(Reader); ok {
		t.ReadNode(n)
		return true
	}
	if t, ok := into.(json.Unmarshaler); ok && n.raw != nil {
		n.add(t.UnmarshalJSON(n.raw))
		return true
	}
	switch t := into.(type) {
	case **Node:
		if *t = n; n.yaml.Tag == "!!null" {
			*t = &Node{doc: n.doc, path: n.path, line: n.line} // a part with everything in it commented out is as none
		}
	case *json.RawMessage:
		n.json(t)
	case encoding.TextUnmarshaler:
		n.text(t)
	case *time.Duration:
		if n.raw != nil {
			return false // nanoseconds, as encoding/json has it
		}
		n.duration(t)
	default:
		return false
	}
	return true
}

func (n *Node) mapping() bool {
	if n.yaml.Kind == yaml.MappingNode {
		return true
	}
	if n.raw != nil {
		n.want("an object", n.kind())
	} else {
		n.want("a mapping (key: value)", n.kind())
	}
	return false
}

func (n *Node) fields(v reflect.Value) {
	if !n.mapping() {
		return
	}
	known := fieldsOf(v.Type())
	done := map[string]bool{}
	for key, member := range n.members() {
		if done[key] {
			continue // twice, as was told
		}
		done[key] = true
		if f, ok := known[key]; ok {
			member.value(v.FieldByIndex(f.at))
		} else if !n.doc.partial {
			n.unknown(key, member, slices.Sorted(maps.Keys(known)))
		}
	}
	for key, f := range known {
		if f.missing == "" || done[key] && !empty(v.FieldByIndex(f.at)) {
			continue
		}
		if path := Join(n.path, key); !n.doc.follows(path) {
			n.doc.report(n.line, path, "%s", f.missing)
		}
	}
}

func (n *Node) unknown(key string, member *Node, known []string) {
	if len(known) == 0 {
		n.doc.report(member.line, member.path, "unknown key; there are none here")
		return
	}
	if len(n.doc.problems) > maxProblems {
		return // looking for the nearest takes time, and this one isn't told
	}
	if near := Nearest(key, known); near != "" {
		n.doc.meant = append(n.doc.meant, Join(n.path, near))
		n.doc.report(member.line, member.path, "unknown key; did you mean %s?", near)
		return
	}
	n.doc.report(member.line, member.path, "unknown key; known: %s", strings.Join(known, ", "))
}

// field is where a field stands in its struct, and what is said if a key must be there and isn't; empty: it
// needs not.
type field struct {
	at      []int
	missing string
}

// types keeps what fieldsOf finds: requests are read by the same few types.
var types sync.Map

// fieldsOf returns a struct's fields, those of embedded structs among them, by their keys.
func fieldsOf(t reflect.Type) map[string]field {
	if fields, ok := types.Load(t); ok {
		return fields.(map[string]field)
	}
	fields := map[string]field{}
	for _, f := range reflect.VisibleFields(t) {
		tag, ok := f.Tag.Lookup("yaml")
		if !ok {
			tag = f.Tag.Get("json")
		}
		if name, _, _ := strings.Cut(tag, ","); name != "" && name != "-" {
			fields[name] = field{f.Index, missing(f.Tag.Get("read"))}
		}
	}
	types.Store(t, fields)
	return fields
}

// empty tells that a text that must be there says nothing.
func empty(v reflect.Value) bool { return v.Kind() == reflect.String && v.Len() == 0 }

// missing is what is said of a key that isn't there, by the tag "read" of its field.
func missing(tag string) string {
	switch tag {
	case "":
		return ""
	case "required":
		return "missing"
	}
	return "missing: " + tag
}

func (n *Node) entries(v reflect.Value) {
	if !n.mapping() {
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	for key, member := range n.members() {
		k := reflect.ValueOf(key).Convert(v.Type().Key())
		if v.MapIndex(k).IsValid() {
			continue // twice, as was told
		}
		entry := reflect.New(v.Type().Elem()).Elem()
		member.value(entry)
		v.SetMapIndex(k, entry)
	}
}

func (n *Node) items(v reflect.Value) {
	if n.yaml.Kind != yaml.SequenceNode {
		n.want("a list", n.kind())
		return
	}
	list := reflect.MakeSlice(v.Type(), 0, len(n.yaml.Content))
	for _, item := range n.members() {
		entry := reflect.New(v.Type().Elem()).Elem()
		item.value(entry)
		list = reflect.Append(list, entry)
	}
	v.Set(list)
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
			if c, ok := v.Interface().(Choice); ok && !slices.Contains(c.Choices(), text) {
				n.doc.report(n.line, n.path, "%.64q is none of %s", text, strings.Join(c.Choices(), ", "))
				return
			}
			v.SetString(text)
		case "!!int", "!!float", "!!bool", "!!timestamp":
			n.want("text", n.describe()+"; write it in quotes")
		default:
			n.want("text", n.describe())
		}
	case reflect.Bool:
		if tag != "!!bool" || text != "true" && text != "false" {
			n.want("true or false", n.describe())
		}
		v.SetBool(text == "true")
	case reflect.Int, reflect.Int64, reflect.Int32:
		i, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if tag != "!!int" || err != nil || strconv.FormatInt(i, 10) != text {
			n.want("a whole number", n.describe())
			return
		}
		v.SetInt(i)
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		u, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if tag != "!!int" || err != nil || strconv.FormatUint(u, 10) != text {
			n.want(fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64)>>(64-v.Type().Bits())), n.describe())
			return
		}
		v.SetUint(u)
	case reflect.Float64:
		f, ok := n.number()
		if !ok {
			n.want("a decimal number", n.describe())
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

// text is for types that read themselves. A number of YAML is taken as it is written: sizes, amounts and ids
// may be one.
func (n *Node) text(t encoding.TextUnmarshaler) {
	number := n.raw == nil && (n.yaml.Tag == "!!int" || n.yaml.Tag == "!!float")
	if n.yaml.Kind != yaml.ScalarNode || n.yaml.Tag != "!!str" && !number {
		n.want("text", n.describe())
	} else if err := t.UnmarshalText([]byte(n.yaml.Value)); err != nil {
		n.doc.report(n.line, n.path, "%v", err)
	}
}

func (n *Node) duration(d *time.Duration) {
	v, err := time.ParseDuration(n.yaml.Value)
	if n.yaml.Kind != yaml.ScalarNode || n.yaml.Tag != "!!str" || err != nil {
		n.want("a duration with a unit, such as 30s", n.describe())
		return
	}
	*d = v
}

// json keeps a mapping of YAML as JSON, for templates and schemas.
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
	case isNumber && (n.yaml.Tag == "!!int" || n.raw != nil):
		return json.Number(n.yaml.Value), true
	case isNumber:
		return number, true
	}
	n.want("what JSON has", n.describe())
	return nil, false
}

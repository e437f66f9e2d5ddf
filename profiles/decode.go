// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const (
	maxFileBytes = 256 << 10 // the largest built-in has 36 KiB; the parser is quadratic in places
	maxWhyBytes  = 1000      // a reason, not a treatise: it is printed beside each refusal
	maxProblems  = 100       // more tell nothing new
)

// decoder writes a YAML document onto a Go value and notes everything it doesn't understand. The library's own strict
// mode stops being strict at types (it reads 0600, yes and ~ as this or that) and knows no field paths.
type decoder struct {
	file     string
	problems []Problem
	lines    map[string]int  // by path
	failed   map[string]bool // paths that have a problem: what follows from it isn't told again
}

func (d *decoder) report(line int, path, format string, args ...any) {
	if d.failed == nil {
		d.failed = map[string]bool{}
	}
	d.failed[path] = true
	switch {
	case len(d.problems) < maxProblems:
		d.problems = append(d.problems, Problem{File: d.file, Line: line, Path: path, Message: fmt.Sprintf(format, args...)})
	case len(d.problems) == maxProblems:
		d.problems = append(d.problems, Problem{File: d.file, Message: "and more problems"})
	}
}

// reportAt finds the line of path, or of the nearest enclosing path that the file has. It is for checks of what was
// decoded, and silent where decoding has already found fault.
func (d *decoder) reportAt(path, format string, args ...any) {
	if d.failed[path] {
		return
	}
	for p := path; p != ""; p = p[:max(0, strings.LastIndexAny(p, ".["))] {
		if line := d.lines[p]; line > 0 {
			d.report(line, path, format, args...)
			return
		}
	}
	d.report(0, path, format, args...)
}

// invalid wraps the problems, the file's own by line first, a parent's after them as the parent told them.
func (d *decoder) invalid(name string) error {
	slices.SortStableFunc(d.problems, func(a, b Problem) int {
		if a.File != d.file || b.File != d.file {
			return cmp.Compare(other(a, d), other(b, d))
		}
		return cmp.Compare(a.Line, b.Line)
	})
	return &InvalidError{name, d.problems}
}

func other(p Problem, d *decoder) int {
	if p.File == d.file {
		return 0
	}
	return 1
}

// document parses data and decodes it onto p. Fields that the document doesn't have keep their values.
func (d *decoder) document(data []byte, p *Profile) {
	d.lines = map[string]int{}
	if len(data) > maxFileBytes {
		d.report(0, "", "larger than %v", Size(maxFileBytes))
		return
	}
	if !utf8.Valid(data) {
		d.report(0, "", "not UTF-8")
		return
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		d.report(0, "", "empty: a profile has at least name, description, extends")
		return
	case err != nil:
		d.syntax(err)
		return
	}
	d.value(doc.Content[0], "", reflect.ValueOf(p).Elem())
	var next yaml.Node
	if err := dec.Decode(&next); err == nil {
		d.report(next.Line, "", "second document: one profile a file")
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
	}
}

// syntax turns "yaml: line 7: did not find …" into a problem with a line.
func (d *decoder) syntax(err error) {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if rest, ok := strings.CutPrefix(msg, "line "); ok {
		if num, after, ok := strings.Cut(rest, ": "); ok {
			if n, err := strconv.Atoi(num); err == nil {
				line, msg = n, after
			}
		}
	}
	d.report(line, "", "not YAML: %s", msg)
}

func (d *decoder) value(n *yaml.Node, path string, v reflect.Value) {
	d.lines[path] = n.Line
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.report(n.Line, path, "anchors and aliases are not part of the format")
		return
	case n.Style&yaml.TaggedStyle != 0:
		d.report(n.Line, path, "tag %s: tags are not part of the format", n.Tag)
		return
	}
	switch v.Addr().Interface().(type) {
	case *Size, *Duration, *Value:
		d.text(n, path, v)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.mapping(n, path, v)
	case reflect.Slice:
		d.sequence(n, path, v)
	default:
		d.scalar(n, path, v)
	}
}

func (d *decoder) mapping(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.report(n.Line, path, "want a mapping (key: value), got %s", describe(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Anchor != "" {
			d.report(key.Line, path, "a key must be a plain word")
			continue
		}
		at := join(path, key.Value)
		if first, dup := seen[key.Value]; dup {
			d.report(key.Line, at, "given twice, first on line %d", first)
			continue
		}
		seen[key.Value] = key.Line
		field, ok := fieldByKey(v, key.Value)
		if !ok {
			d.report(key.Line, at, "unknown key; known: %s", strings.Join(keys(v.Type()), ", "))
			continue
		}
		d.value(val, at, field)
	}
	// A reason that came from the parent explains the parent's choice, so each mapping that sets policy gives its own.
	if _, has := v.Type().FieldByName("Why"); has && seen["why"] == 0 {
		d.report(n.Line, join(path, "why"), "missing: say why, for whoever reviews this")
	}
}

func (d *decoder) sequence(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.report(n.Line, path, "want a list, got %s", describe(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, c := range n.Content {
		d.value(c, fmt.Sprintf("%s[%d]", path, i), v.Index(i))
	}
}

func (d *decoder) scalar(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		d.report(n.Line, path, "want %s, got %s", kindName(v), describe(n))
		return
	}
	switch v.Kind() {
	case reflect.String:
		d.str(n, path, v)
	case reflect.Bool:
		if n.Tag != "!!bool" || n.Value != "true" && n.Value != "false" {
			d.report(n.Line, path, "want true or false, got %s", describe(n))
			return
		}
		v.SetBool(n.Value == "true")
	case reflect.Int:
		i, err := parseUint(n.Value)
		if n.Tag != "!!int" || err != nil || i > 1<<31-1 {
			d.report(n.Line, path, "want a whole number, got %s", describe(n))
			return
		}
		v.SetInt(int64(i))
	case reflect.Float64:
		f, err := ParseCPUs(n.Value)
		if n.Tag != "!!int" && n.Tag != "!!float" || err != nil {
			d.report(n.Line, path, "want a decimal number, got %s", describe(n))
			return
		}
		v.SetFloat(f)
	default:
		panic("profiles: field of kind " + v.Kind().String() + " has no decoder") // a test walks every field
	}
}

func (d *decoder) str(n *yaml.Node, path string, v reflect.Value) {
	if n.Tag != "!!str" {
		d.report(n.Line, path, "want text, got %s", describe(n))
		return
	}
	if c, ok := v.Interface().(interface{ choices() []string }); ok && !slices.Contains(c.choices(), n.Value) {
		d.report(n.Line, path, "%q is none of %s", n.Value, strings.Join(c.choices(), ", "))
		return
	}
	s := n.Value
	if i := strings.IndexFunc(s, unicode.IsControl); i >= 0 && strings.TrimSuffix(s, "\n") != s[:i] {
		d.report(n.Line, path, "contains a control character")
		return
	}
	if strings.HasSuffix(path, "why") || path == "description" {
		s = strings.TrimSpace(s)
		if s == "" {
			d.report(n.Line, path, "empty")
		}
		if len(s) > maxWhyBytes {
			d.report(n.Line, path, "longer than %d bytes", maxWhyBytes)
		}
	}
	v.SetString(s)
}

// text decodes the types that read themselves. A Duration without a unit never gets here as text: YAML calls it a number.
func (d *decoder) text(n *yaml.Node, path string, v reflect.Value) {
	t := v.Addr().Interface().(interface{ UnmarshalText([]byte) error })
	_, isDuration := t.(*Duration)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" && (n.Tag != "!!int" || isDuration) {
		d.report(n.Line, path, "want %s, got %s", kindName(v), describe(n))
		return
	}
	if err := t.UnmarshalText([]byte(n.Value)); err != nil {
		d.report(n.Line, path, "%v", err)
	}
}

func kindName(v reflect.Value) string {
	switch v.Addr().Interface().(type) {
	case *Size:
		return "a size such as 256MiB"
	case *Duration:
		return "a duration with a unit such as 60s"
	case *Value:
		return "a number or a symbol"
	}
	switch v.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a decimal number"
	}
	return "text"
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	val := n.Value
	if len(val) > 40 {
		val = val[:40] + "…"
	}
	switch n.Tag {
	case "!!null":
		return "nothing"
	case "!!str":
		return fmt.Sprintf("text %q", val)
	case "!!timestamp":
		return fmt.Sprintf("the date %q", val)
	}
	return fmt.Sprintf("%s %s", strings.TrimPrefix(n.Tag, "!!"), val)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func keyOf(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return key
}

func keys(t reflect.Type) []string {
	ks := make([]string, t.NumField())
	for i := range ks {
		ks[i] = keyOf(t.Field(i))
	}
	return ks
}

func fieldByKey(v reflect.Value, key string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if keyOf(v.Type().Field(i)) == key {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

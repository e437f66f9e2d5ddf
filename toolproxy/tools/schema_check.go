// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// Bounds of a schema. Upstream servers send them, and the validator follows references by recursion without a bound: a
// circle of them would end the process with a full stack, and a chain that doubles at each link would never end.
const (
	maxSchema         = 64 << 10 // bytes
	maxSchemaExpanded = 20_000   // nodes, when each reference is replaced by what it refers to
)

// arguments is a compiled schema. The zero value refuses.
type arguments struct{ resolved *jsonschema.Resolved }

func compile(raw json.RawMessage) (arguments, error) {
	doc, err := boundedSchema(raw)
	if err != nil {
		return arguments{}, err
	}
	if doc["type"] != "object" {
		return arguments{}, errors.New(`arguments are an object: "type" must be "object"`)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		return arguments{}, fmt.Errorf("read schema: %w", err)
	}
	resolved, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		return arguments{}, fmt.Errorf("resolve schema: %w", err)
	}
	return arguments{resolved}, nil
}

func (a arguments) validate(args json.RawMessage) error {
	if a.resolved == nil {
		return errors.New("no schema")
	}
	var v map[string]any
	if err := json.Unmarshal(args, &v); err != nil {
		return err
	}
	return a.resolved.Validate(v)
}

func boundedSchema(raw json.RawMessage) (map[string]any, error) {
	if len(raw) > maxSchema {
		return nil, fmt.Errorf("schema has %d bytes, at most %d", len(raw), maxSchema)
	}
	if _, err := canonical(raw); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil || doc == nil {
		return nil, errors.New("schema is no object")
	}
	e := expansion{doc: doc, sizes: map[string]int{}}
	if e.size(doc); e.err != nil {
		return nil, e.err
	}
	return doc, nil
}

// expansion counts the nodes of a schema with its references followed.
type expansion struct {
	doc   map[string]any
	sizes map[string]int // of what a reference refers to
	open  []string
	err   error
}

func (e *expansion) size(node any) int {
	n := 1
	switch v := node.(type) {
	case map[string]any:
		for key, child := range v {
			n += e.member(key, child)
		}
	case []any:
		for _, child := range v {
			n += e.size(child)
		}
	}
	if n > maxSchemaExpanded {
		e.fail("schema grows beyond %d nodes when its references are followed", maxSchemaExpanded)
		return maxSchemaExpanded
	}
	return n
}

func (e *expansion) member(key string, child any) int {
	switch key {
	case "$ref":
		if ref, ok := child.(string); ok {
			return e.reference(ref)
		}
	case "$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$anchor", "$id":
		if _, ok := child.(string); ok {
			e.fail("schema: %s isn't supported; refer to #/$defs/NAME", key)
		}
	}
	return e.size(child)
}

func (e *expansion) reference(ref string) int {
	if n, ok := e.sizes[ref]; ok {
		return n
	}
	if slices.Contains(e.open, ref) {
		e.fail("schema: %.64q refers to itself", ref)
		return 1
	}
	target, ok := e.definition(ref)
	if !ok {
		e.fail("schema: %.64q: refer to #/$defs/NAME or #/definitions/NAME", ref)
		return 1
	}
	if e.err != nil {
		return 1
	}
	e.open = append(e.open, ref)
	n := e.size(target)
	e.open = e.open[:len(e.open)-1]
	e.sizes[ref] = n
	return n
}

func (e *expansion) definition(ref string) (any, bool) {
	for _, where := range [...]string{"$defs", "definitions"} {
		name, ok := strings.CutPrefix(ref, "#/"+where+"/")
		if !ok || strings.ContainsAny(name, "/~%") {
			continue
		}
		defs, _ := e.doc[where].(map[string]any)
		target, ok := defs[name]
		return target, ok
	}
	return nil, false
}

func (e *expansion) fail(format string, args ...any) {
	if e.err == nil {
		e.err = fmt.Errorf(format, args...)
	}
}

// SPDX-License-Identifier: Apache-2.0

package mcptool

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"agentrun/toolproxy/boundary"
	"agentrun/toolproxy/tools"
)

// Limits of a schema.
const (
	maxSchema      = 32 << 10 // bytes
	maxSchemaDepth = 32
	maxSchemaText  = 512  // bytes of one title or description
	maxPatternProg = 2000 // instructions of all patterns together: x{1000} in a few bytes each is how they grow
)

// hidden tells of what a reader doesn't see and a model does: control and format characters (direction marks, zero widths, tags that
// spell hidden text), variation selectors, fillers, private use, broken bytes. Line ends and tabs are among them.
func hidden(r rune) bool {
	return r == utf8.RuneError || !unicode.IsGraphic(r) || boundary.Invisible(r)
}

// clean removes what is hidden; runs of blanks become one.
func clean(unsafeText string) string {
	visible := strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case hidden(r):
			return -1
		}
		return r
	}, unsafeText)
	return strings.Join(strings.Fields(visible), " ")
}

// cleanSchema checks and rewrites a server's schema: titles and descriptions are cleaned, comments and examples dropped,
// and what would make a validator fetch, loop or swell is refused. The registry compiles it afterwards.
func cleanSchema(unsafeSchema any) (json.RawMessage, error) {
	raw, err := json.Marshal(unsafeSchema)
	if err != nil || len(raw) > maxSchema {
		return nil, fmt.Errorf("the schema has more than %d bytes", maxSchema)
	}
	var top map[string]any // a copy: the client may keep its own for others
	if err := json.Unmarshal(raw, &top); err != nil || top["type"] != "object" {
		return nil, errors.New("the schema is not of an object")
	}
	c := schemaCleaner{}
	if err := c.value(top, 0); err != nil {
		return nil, err
	}
	delete(top, "$schema") // draft 2020-12, whatever it was written for
	if raw, err = json.Marshal(top); err != nil {
		return nil, errors.New("the schema can't be encoded")
	}
	v := jsontext.Value(raw)
	if len(raw) > maxSchema || v.Canonicalize() != nil {
		return nil, fmt.Errorf("the schema has more than %d bytes, or can't be written in one way", maxSchema)
	}
	return json.RawMessage(v), nil
}

type schemaCleaner struct{ prog int }

func (c *schemaCleaner) value(v any, depth int) error {
	if depth > maxSchemaDepth {
		return fmt.Errorf("the schema is nested more than %d deep", maxSchemaDepth)
	}
	switch v := v.(type) {
	case map[string]any:
		for key, child := range v {
			if err := c.member(v, key, child, depth); err != nil {
				return err
			}
		}
	case []any:
		for _, item := range v {
			if err := c.value(item, depth+1); err != nil {
				return err
			}
		}
	case string:
		if strings.ContainsFunc(v, hidden) {
			return errors.New("the schema has text with invisible characters")
		}
	}
	return nil
}

func (c *schemaCleaner) member(in map[string]any, key string, child any, depth int) error {
	text, isText := child.(string)
	switch {
	case strings.ContainsFunc(key, hidden):
		return errors.New("the schema has a name with invisible characters")
	case (key == "description" || key == "title") && isText:
		in[key] = tools.Cut(clean(text), maxSchemaText)
		return nil
	case key == "$comment" && isText, key == "examples" && isList(child):
		delete(in, key)
		return nil
	case (key == "$ref" || key == "$dynamicRef" || key == "$id") && isText && !strings.HasPrefix(text, "#/"):
		return errors.New("the schema refers to something outside of it")
	case key == "pattern" && isText:
		return c.pattern(text)
	case key == "patternProperties":
		return c.patternNames(child, depth)
	}
	return c.value(child, depth+1)
}

func isList(v any) bool {
	_, ok := v.([]any)
	return ok
}

func (c *schemaCleaner) patternNames(child any, depth int) error {
	named, ok := child.(map[string]any)
	if !ok {
		return errors.New("the schema's patternProperties are no object")
	}
	for pattern := range named {
		if err := c.pattern(pattern); err != nil {
			return err
		}
	}
	return c.value(child, depth+1)
}

func (c *schemaCleaner) pattern(p string) error {
	if strings.ContainsFunc(p, hidden) {
		return errors.New("the schema has a pattern with invisible characters")
	}
	tree, err := syntax.Parse(p, syntax.Perl)
	if err != nil || len(p) > maxSchemaText {
		return errors.New("the schema has a pattern that can't be used")
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return errors.New("the schema has a pattern that can't be used")
	}
	if c.prog += len(prog.Inst); c.prog > maxPatternProg {
		return errors.New("the schema's patterns are too complex")
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Digest returns sha256 in hexadecimal over the profile as JSON: no spaces, keys sorted, zero fields left out, register
// values as hexadecimal numbers (how they were written doesn't count). Reasons and descriptions count: changing why a
// rule stands is a change that a reviewer wants to see.
func (p Profile) Digest() string {
	c := canonicalizer{types: map[reflect.Type][]canonicalField{}, buf: make([]byte, 0, 64<<10)}
	c.value(reflect.ValueOf(p))
	sum := sha256.Sum256(c.buf)
	return hex.EncodeToString(sum[:])
}

// canonicalizer keeps the sorted fields of each type: a profile has some 700 structs of 14 types, and the digest is taken
// at each start.
type canonicalizer struct {
	types map[reflect.Type][]canonicalField
	buf   []byte
}

type canonicalField struct {
	index int
	key   string // quoted, with the colon
}

func (c *canonicalizer) fields(t reflect.Type) []canonicalField {
	if fs, ok := c.types[t]; ok {
		return fs
	}
	fs := make([]canonicalField, t.NumField())
	for i := range fs {
		fs[i] = canonicalField{i, `"` + keyOf(t.Field(i)) + `":`}
	}
	slices.SortFunc(fs, func(a, b canonicalField) int { return strings.Compare(a.key, b.key) })
	c.types[t] = fs
	return fs
}

var (
	sizeType     = reflect.TypeFor[Size]()
	durationType = reflect.TypeFor[Duration]()
	valueType    = reflect.TypeFor[Value]()
)

func (c *canonicalizer) value(v reflect.Value) {
	switch v.Type() {
	case valueType:
		c.buf = append(strconv.AppendUint(append(c.buf, `"0x`...), v.Field(0).Uint(), 16), '"')
		return
	case sizeType:
		c.text(Size(v.Uint()).String())
		return
	case durationType:
		c.text(Duration(v.Int()).String())
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		c.structure(v)
	case reflect.Slice:
		c.buf = append(c.buf, '[')
		for i := range v.Len() {
			if i > 0 {
				c.buf = append(c.buf, ',')
			}
			c.value(v.Index(i))
		}
		c.buf = append(c.buf, ']')
	case reflect.String:
		c.text(v.String())
	case reflect.Bool:
		c.buf = strconv.AppendBool(c.buf, v.Bool())
	case reflect.Int:
		c.buf = strconv.AppendInt(c.buf, v.Int(), 10)
	case reflect.Float64:
		c.buf = strconv.AppendFloat(c.buf, v.Float(), 'f', -1, 64)
	default:
		panic("profiles: field of kind " + v.Kind().String() + " has no canonical form") // TestDigest walks every field
	}
}

func (c *canonicalizer) structure(v reflect.Value) {
	c.buf = append(c.buf, '{')
	first := true
	for _, field := range c.fields(v.Type()) {
		f := v.Field(field.index)
		if f.Kind() == reflect.Slice && f.Len() == 0 || f.IsZero() {
			continue
		}
		if !first {
			c.buf = append(c.buf, ',')
		}
		first = false
		c.buf = append(c.buf, field.key...)
		c.value(f)
	}
	c.buf = append(c.buf, '}')
}

// text quotes s as encoding/json does; the reasons are plain ASCII for the most part and need no look-up of escapes.
func (c *canonicalizer) text(s string) {
	for i := range len(s) {
		if b := s[i]; b < ' ' || b >= 0x7f || b == '"' || b == '\\' || b == '<' || b == '>' || b == '&' {
			quoted, _ := json.Marshal(s) // strings can't fail
			c.buf = append(c.buf, quoted...)
			return
		}
	}
	c.buf = append(append(append(c.buf, '"'), s...), '"')
}

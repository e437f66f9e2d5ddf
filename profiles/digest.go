// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"crypto/sha256"
	"encoding"
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
	var buf []byte
	buf = canonical(buf, reflect.ValueOf(p))
	sum := sha256.Sum256(buf)
	return hex.EncodeToString(sum[:])
}

func canonical(buf []byte, v reflect.Value) []byte {
	switch x := v.Interface().(type) {
	case Value:
		return append(strconv.AppendUint(append(buf, `"0x`...), x.N, 16), '"')
	case encoding.TextMarshaler:
		text, _ := x.MarshalText() // Size and Duration can't fail
		return appendString(buf, string(text))
	}
	switch v.Kind() {
	case reflect.Struct:
		return canonicalStruct(buf, v)
	case reflect.Slice:
		buf = append(buf, '[')
		for i := range v.Len() {
			if i > 0 {
				buf = append(buf, ',')
			}
			buf = canonical(buf, v.Index(i))
		}
		return append(buf, ']')
	case reflect.String:
		return appendString(buf, v.String())
	case reflect.Bool:
		return strconv.AppendBool(buf, v.Bool())
	case reflect.Int:
		return strconv.AppendInt(buf, v.Int(), 10)
	case reflect.Float64:
		return strconv.AppendFloat(buf, v.Float(), 'f', -1, 64)
	}
	panic("profiles: field of kind " + v.Kind().String() + " has no canonical form")
}

func canonicalStruct(buf []byte, v reflect.Value) []byte {
	t := v.Type()
	order := make([]int, t.NumField())
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(keyOf(t.Field(a)), keyOf(t.Field(b))) })
	buf = append(buf, '{')
	first := true
	for _, i := range order {
		f := v.Field(i)
		if f.IsZero() || f.Kind() == reflect.Slice && f.Len() == 0 {
			continue
		}
		if !first {
			buf = append(buf, ',')
		}
		first = false
		buf = append(appendString(buf, keyOf(t.Field(i))), ':')
		buf = canonical(buf, f)
	}
	return append(buf, '}')
}

func appendString(buf []byte, s string) []byte {
	b, _ := json.Marshal(s) // strings can't fail
	return append(buf, b...)
}

// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"agentrun/internal/read"
)

const (
	maxFileBytes = 256 << 10 // the largest built-in has 36 KiB; the parser is quadratic in places
	maxWhyBytes  = 1000      // a reason, not a treatise: it is printed beside each refusal
)

// decode reads a document onto p. Fields that it doesn't have keep their values.
func decode(file string, data []byte, p *Profile) *read.Node {
	n := read.YAML(read.Source{File: file, Max: maxFileBytes}, data)
	n.Into(p)
	return n
}

// trimReasons takes the white space off the reasons, which YAML leaves behind a block of text.
func trimReasons(p *Profile) {
	eachText(reflect.ValueOf(p).Elem(), "", func(path string, v reflect.Value) {
		if isReason(path) {
			v.SetString(strings.TrimSpace(v.String()))
		}
	})
}

// checkTexts checks what is printed beside refusals, and that no text drives a terminal.
func checkTexts(p *Profile, rep report) {
	eachText(reflect.ValueOf(p).Elem(), "", func(path string, v reflect.Value) {
		s := v.String()
		switch i := strings.IndexFunc(s, unicode.IsControl); {
		case i >= 0 && strings.TrimSuffix(s, "\n") != s[:i]:
			rep(path, "contains a control character")
		case isReason(path) && s != "" && strings.TrimSpace(s) == "":
			rep(path, "empty")
		case isReason(path) && len(s) > maxWhyBytes:
			rep(path, "longer than %d bytes", maxWhyBytes)
		}
	})
}

func isReason(path string) bool {
	return path == "description" || path == "why" || strings.HasSuffix(path, ".why")
}

func eachText(v reflect.Value, path string, do func(path string, v reflect.Value)) {
	switch v.Kind() {
	case reflect.String:
		do(path, v)
	case reflect.Slice:
		for i := range v.Len() {
			eachText(v.Index(i), fmt.Sprintf("%s[%d]", path, i), do)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if key := keyOf(v.Type().Field(i)); key != "" {
				eachText(v.Field(i), read.Join(path, key), do)
			}
		}
	}
}

func keyOf(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return key
}

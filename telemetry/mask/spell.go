// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"
)

// Spellings are a text as it is, and as encoders of URLs and JSON write it, each once. One that is looked for in what a server answers may be
// there in any of them.
func Spellings(text string) []string {
	all := []string{text}
	if alphanumeric(text) {
		return all
	}
	add := func(s string) {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	for _, escaped := range []string{url.QueryEscape(text), url.PathEscape(text)} {
		add(escaped)
		add(lowerEscapes(escaped))
	}
	for _, way := range jsonWays {
		add(way.of(text))
	}
	if b, err := json.Marshal(text); err == nil { // which has what isn't ASCII in its own way
		add(string(b[1 : len(b)-1]))
	}
	return all
}

func alphanumeric(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') })
}

// lowerEscapes writes %2F as %2f.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i, c := range b {
		if i > 0 && b[i-1] == '%' || i > 1 && b[i-2] == '%' {
			b[i] = byte(unicode.ToLower(rune(c)))
		}
	}
	return string(b)
}

// jsonWays are how encoders write a string: some escape more than has to be, for HTML's sake.
var jsonWays = []jsonWay{
	{"", ""},
	{"/", `\%c`},           // PHP, Foundation
	{"<>&", `\u%04x`},      // Go, Rails
	{"<>&'", `\u%04x`},     // Django, Flask
	{"<>&'=", `\u%04x`},    // Gson
	{"<>&'+`\"", `\u%04X`}, // .NET
}

type jsonWay struct{ chars, escape string }

func (w jsonWay) of(text string) string {
	var b strings.Builder
	for _, c := range text {
		switch {
		case strings.ContainsRune(w.chars, c):
			fmt.Fprintf(&b, w.escape, c)
		case c == '"', c == '\\':
			b.WriteByte('\\')
			fallthrough
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}

// SPDX-License-Identifier: Apache-2.0

package uhttp

import (
	"strings"
	"unicode/utf8"
)

const maxParameters = 16

// parseTarget takes a path of segments, each neither empty, nor a dot segment, nor with a slash in it however that is
// written: a path that means something else after one more round of decoding or cleaning is no path here.
func parseTarget(raw string) (segments []string, query map[string]string, err error) {
	path, rawQuery, asked := strings.Cut(raw, "?")
	if path == "" || path[0] != '/' {
		return nil, nil, bad("the target isn't an absolute path")
	}
	if path != "/" {
		for part := range strings.SplitSeq(path[1:], "/") {
			s, err := decode(part, pathByte)
			if err != nil {
				return nil, nil, err
			}
			if s == "" || s == "." || s == ".." || strings.ContainsAny(s, "/\\") {
				return nil, nil, bad("the path has an empty, dotted or slashed segment")
			}
			segments = append(segments, s)
		}
	}
	query = map[string]string{}
	if !asked || rawQuery == "" {
		return segments, query, nil
	}
	for pair := range strings.SplitSeq(rawQuery, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if name, err = decode(name, queryByte); err != nil {
			return nil, nil, err
		}
		if value, err = decode(value, queryByte); err != nil {
			return nil, nil, err
		}
		if _, twice := query[name]; twice || name == "" || len(query) >= maxParameters {
			return nil, nil, bad("the query has a parameter twice, without a name, or more than %d", maxParameters)
		}
		query[name] = value
	}
	return segments, query, nil
}

// decode undoes percent-encoding once. The result is text without control characters.
func decode(s string, allowed func(byte) bool) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '%':
			if i+2 >= len(s) {
				return "", bad("a percent sign without two digits")
			}
			high, low := digit(s[i+1]), digit(s[i+2])
			if high < 0 || low < 0 {
				return "", bad("a percent sign without two digits")
			}
			c = byte(high<<4 | low) //nolint:gosec // two of four bits
			i += 2
			if c < ' ' || c == 0x7f {
				return "", bad("a control character in the target")
			}
		case !allowed(c):
			return "", bad("a byte in the target that must be percent-encoded")
		}
		b.WriteByte(c)
	}
	if !utf8.ValidString(b.String()) {
		return "", bad("the target isn't UTF-8")
	}
	return b.String(), nil
}

func digit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// pathByte is RFC 3986's pchar without the percent sign.
func pathByte(c byte) bool { return unreserved(c) || strings.IndexByte("!$&'()*+,;=:@", c) >= 0 }

// queryByte leaves out the plus sign too: for some parsers it is a space.
func queryByte(c byte) bool { return unreserved(c) || strings.IndexByte("!$'()*,;:@/?", c) >= 0 }

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// Escape writes s as one segment of a path or one value of a query.
func Escape(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; unreserved(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}

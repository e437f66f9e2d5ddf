// SPDX-License-Identifier: Apache-2.0

package uhttp

import (
	"net/url"
	"strings"
	"unicode/utf8"
)

const maxParameters = 16

// parseTarget takes a path of segments, each neither empty, nor a dot segment, nor with a slash in it however
// that is written: a path that means something else after one more round of decoding or cleaning is no path
// here.
func parseTarget(raw string) (segments []string, query map[string]string, err error) {
	path, rawQuery, asked := strings.Cut(raw, "?")
	if path == "" || path[0] != '/' {
		return nil, nil, bad("the target isn't an absolute path")
	}
	if path != "/" {
		for part := range strings.SplitSeq(path[1:], "/") {
			s, err := decode(part, inPath)
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
		if name, err = decode(name, inQuery); err != nil {
			return nil, nil, err
		}
		if value, err = decode(value, inQuery); err != nil {
			return nil, nil, err
		}
		if _, twice := query[name]; twice || name == "" || len(query) >= maxParameters {
			return nil, nil, bad("the query has a parameter twice, without a name, or more than %d", maxParameters)
		}
		query[name] = value
	}
	return segments, query, nil
}

// What may stand in a path and in a query as it is (RFC 3986, 3.3 and 3.4), and a percent sign. The plus sign
// is left out of queries: for some parsers it is a space.
const (
	inAll   = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$'()*,;:@%"
	inPath  = inAll + "&+="
	inQuery = inAll + "/?"
)

// decode undoes percent-encoding once. The result is text without control characters.
func decode(s, allowed string) (string, error) {
	text, err := url.PathUnescape(s)
	switch {
	case err != nil:
		return "", bad("a percent sign without two digits")
	case strings.Trim(s, allowed) != "":
		return "", bad("a byte in the target that must be percent-encoded")
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "", bad("a control character in the target")
	case !utf8.ValidString(text):
		return "", bad("the target isn't UTF-8")
	}
	return text, nil
}

// Escape writes s as one segment of a path or one value of a query.
func Escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

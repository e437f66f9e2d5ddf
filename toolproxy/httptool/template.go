// SPDX-License-Identifier: Apache-2.0

package httptool

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"agentrun/internal/read"
)

// template is the URL of a tool: fixed parts of the path and placeholders between them, in turn.
type template struct {
	base  url.URL  // without path
	fixed []string // one more than names; escaped
	names []string
}

const (
	maxURL       = 2048
	maxPathValue = 1024 // bytes of an argument in the path, before encoding
)

// parseTemplate reads a URL with {name} placeholders in its path, and only there: a host that an agent completes would be
// the agent's choice.
func parseTemplate(text string) (template, error) {
	var t template
	if len(text) > maxURL {
		return t, read.Bad("url", "longer than %d bytes", maxURL)
	}
	scheme, rest, _ := strings.Cut(text, "://")
	if scheme != "http" && scheme != "https" {
		return t, read.Bad("url", "begins with http:// or https://")
	}
	slash := strings.IndexAny(rest, "/?#")
	if slash < 0 || rest[slash] != '/' {
		return t, read.Bad("url", "has no path; write a / after the host")
	}
	path, query, _ := strings.Cut(rest[slash:], "?")
	base, err := url.Parse(scheme + "://" + rest[:slash] + "/?" + query)
	switch {
	case err != nil:
		return t, read.Bad("url", "is malformed")
	case base.Host == "" || strings.ContainsAny(base.Host+query, "{}") || base.User != nil || strings.Contains(text, "#"):
		return t, read.Bad("url", "placeholders stand in the path only; no user, password or fragment (secrets go into headers)")
	}
	if _, err := url.ParseQuery(query); err != nil {
		return t, read.Bad("url", "the query is malformed")
	}
	t.base = *base
	return t, t.setPath(path)
}

func (t *template) setPath(path string) error {
	for {
		before, rest, open := strings.Cut(path, "{")
		if strings.Contains(before, "}") {
			return read.Bad("url", "} without {")
		}
		if p, err := url.PathUnescape(before); err != nil || strings.ContainsFunc(before, notInPath) || !utf8.ValidString(p) {
			return read.Bad("url", "the path is not percent-encoded as it should be")
		}
		t.fixed = append(t.fixed, before)
		if !open {
			return t.checkSegments()
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed || !field.MatchString(name) || slices.Contains(t.names, name) {
			return read.Bad("url", "a placeholder is {name}, each once, of letters, digits and _")
		}
		t.names = append(t.names, name)
		path = after
	}
}

// notInPath is what RFC 3986, 3.3, has no place for in a path: a client would encode it, and send another path than is
// written.
func notInPath(r rune) bool {
	return r >= 0x7f || !field.MatchString(string(r)) && !strings.ContainsRune("/-.~!$&'()*+,;=:@%", r)
}

// checkSegments refuses dot segments in what the operator wrote: clients and servers don't agree who removes them.
func (t *template) checkSegments() error {
	for segment := range strings.SplitSeq(strings.Join(t.fixed, "x"), "/") {
		if plain, _ := url.PathUnescape(segment); plain == "." || plain == ".." {
			return read.Bad("url", "the path has dot segments")
		}
	}
	return nil
}

// field is what a placeholder may be named.
var field = regexp.MustCompile(`^[A-Za-z0-9_]{1,64}$`)

// expand fills the placeholders in. The result has as many segments as the template, whatever the values are.
func (t *template) expand(value func(name string) (string, bool)) (string, error) {
	var b strings.Builder
	b.WriteString(t.fixed[0])
	for i, name := range t.names {
		v, ok := value(name)
		if !ok {
			return "", fmt.Errorf("%s is missing", name)
		}
		if err := checkPathValue(v); err != nil {
			return "", fmt.Errorf("%s %w", name, err)
		}
		b.WriteString(escape(v))
		b.WriteString(t.fixed[i+1])
	}
	path := b.String()
	// A value next to fixed dots, as in /.{x}: the whole segment counts.
	for segment := range strings.SplitSeq(path, "/") {
		if plain, err := url.PathUnescape(segment); err != nil || plain == "." || plain == ".." {
			return "", fmt.Errorf("the arguments make a dot segment of the path")
		}
	}
	return path, nil
}

// checkPathValue refuses dot segments also behind an encoded slash: there are servers that decode %2F before they remove
// dots (and backslashes are slashes to some).
func checkPathValue(v string) error {
	switch {
	case v == "" || len(v) > maxPathValue:
		return fmt.Errorf("is empty or longer than %d bytes", maxPathValue)
	case !utf8.ValidString(v) || strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("has control characters or is no text")
	}
	// What such a server decodes twice has to be harmless too.
	for range 3 {
		for _, part := range strings.FieldsFunc(v, func(r rune) bool { return r == '/' || r == '\\' || r == ';' }) {
			if part == "." || part == ".." {
				return fmt.Errorf("has dot segments")
			}
		}
		plain := unescape(v)
		if plain == v {
			break
		}
		v = plain
	}
	return nil
}

// escaped is one escape, as lenient servers take it.
var escaped = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

// unescape decodes the escapes there are and leaves what is none as it is, as lenient servers do: one that gives up at the
// first broken escape would never see dots behind which somebody has put one.
func unescape(s string) string {
	return escaped.ReplaceAllStringFunc(s, func(e string) string {
		plain, _ := url.PathUnescape(e) //nolint:errcheck // it is one
		return plain
	})
}

// escape keeps the unreserved characters of RFC 3986, 2.3, and encodes all others, also those a path may have.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

const maxRequestTarget = 8192 // bytes; RFC 9112, 3 asks for 8000

// Path is a request path in its one canonical spelling: absolute, each escape that needs none decoded, all
// others in capitals, no dot segments. The zero value is no path and is refused.
type Path struct{ s string }

// String returns the path as it goes on the wire, empty for the zero value.
func (p Path) String() string { return p.s }

// IsZero tells whether p is no path.
func (p Path) IsZero() bool { return p.s == "" }

// ParsePath makes one canonical path of what a client sent, without query, or refuses it. The error is a
// *Refusal, bad_path.
//
// A rule about a prefix holds only if every server reads the path as this function does, whatever that server
// decodes, merges or strips. So what makes servers differ is refused: dot segments, also encoded, with
// parameters ("..;") or behind an encoded slash; backslashes; control characters; a second layer of escapes;
// bytes that aren't UTF-8 (overlong slashes); characters that Unicode normalisation turns into a slash or
// dot. Encoded slashes without dot segments, empty segments and parameters stay as they are: they can lead
// only deeper below a prefix, never out of it. A path that begins with two slashes is refused, because half
// of all parsers take what follows for a host.
func ParsePath(unsafePath string) (Path, error) {
	if len(unsafePath) > maxRequestTarget {
		return Path{}, refuse(BadPath, "path %.64q…: %d bytes, at most %d", unsafePath, len(unsafePath), maxRequestTarget)
	}
	if !strings.HasPrefix(unsafePath, "/") {
		return Path{}, refuse(BadPath, "path %.64q: doesn't begin with a slash", unsafePath)
	}
	if plainPath(unsafePath) {
		return Path{unsafePath}, nil
	}
	why := unfitRaw(unsafePath)
	decoded, err := url.PathUnescape(unsafePath)
	switch {
	case why != "":
	case err != nil:
		why = "broken escape"
	default:
		why = misleading(decoded)
	}
	if why != "" {
		return Path{}, refuse(BadPath, "path %.64q: %s", unsafePath, why)
	}
	return Path{canonical(unsafePath)}, nil
}

// plainPath tells whether a path is canonical already and has nothing in it that needs a closer look.
func plainPath(s string) bool {
	for i := 1; i < len(s); i++ {
		c := s[i]
		if c == '.' || c == '/' {
			if s[i-1] == '/' {
				return false
			}
			continue
		}
		if !alphanumeric(c) && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// canonical returns the one spelling of a path whose escapes are whole: escapes of what needs none are
// decoded, and what RFC 3986 doesn't let stand in a path, though clients send it, is escaped.
func canonical(path string) string {
	const digits = "0123456789ABCDEF"
	var c strings.Builder
	c.Grow(len(path))
	for i := 0; i < len(path); i++ {
		b, stands := path[i], "/!$&'()*+,;=:@"
		if b == '%' {
			n, _ := strconv.ParseUint(path[i+1:i+3], 16, 8) // two digits, as PathUnescape has seen
			b, stands = byte(n), ""
			i += 2
		}
		if alphanumeric(b) || strings.IndexByte("-._~", b) >= 0 || strings.IndexByte(stands, b) >= 0 {
			c.WriteByte(b)
		} else {
			c.Write([]byte{'%', digits[b>>4], digits[b&15]})
		}
	}
	return c.String()
}

func unfitRaw(path string) string {
	for _, b := range []byte(path) {
		switch {
		case b <= ' ' || b == 0x7f:
			return "space or control character"
		case b >= utf8.RuneSelf:
			return "byte that isn't ASCII and isn't escaped"
		case b == '\\':
			return "backslash"
		case b == '#':
			return "fragment"
		case b == '?':
			return "query where only a path may stand"
		}
	}
	return ""
}

// misleading looks at the decoded path as the most eager server would.
func misleading(decoded string) string {
	switch {
	case strings.ContainsFunc(decoded, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "encoded control character"
	case strings.Contains(decoded, `\`):
		return "encoded backslash"
	case !utf8.ValidString(decoded):
		return "escapes that aren't UTF-8"
	case strings.HasPrefix(decoded, "//"):
		return "begins with two slashes, which reads as a host"
	}
	for _, r := range decoded {
		if r >= utf8.RuneSelf && looksLikeSyntax(r) {
			return "character that normalises to a slash, dot or percent sign"
		}
	}
	// A "%" that is still there would need another layer.
	for _, rest, found := strings.Cut(decoded, "%"); found; _, rest, found = strings.Cut(rest, "%") {
		if _, err := strconv.ParseUint(rest[:min(2, len(rest))], 16, 8); err == nil && len(rest) > 1 {
			return "encoded twice"
		}
	}
	for segment := range strings.SplitSeq(decoded, "/") {
		bare, _, _ := strings.Cut(segment, ";") // Java servers strip parameters first: "..;" is ".."
		if bare == "." || bare == ".." {
			return "dot segment"
		}
	}
	return ""
}

// looksLikeSyntax has the characters that NFKC or Windows' best-fit tables turn into one of . / \ %.
func looksLikeSyntax(r rune) bool {
	switch r {
	case '\u2024', '\u2025', '\u2026', '\ufe19', '\ufe30', '\ufe52', '\uff0e', '\uff61', '\u3002', // dots
		'\u2044', '\u2215', '\u29f8', '\uff0f', '\u2100', '\u2101', '\u2105', '\u2106', // slashes
		'\u2216', '\u29f5', '\u29f9', '\ufe68', '\uff3c', // backslashes
		'\uff05', '\ufe6a': // percent signs
		return true
	}
	return r >= '\u2488' && r <= '\u249b' // digits with a full stop
}

// within tells whether p is prefix or lies below it. Segments count, so /pub has /pub/a but not /public.
func (p Path) within(prefix Path) bool {
	rest, found := strings.CutPrefix(p.s, prefix.s)
	return found && (rest == "" || rest[0] == '/' || strings.HasSuffix(prefix.s, "/"))
}

// SPDX-License-Identifier: Apache-2.0

package egress

import "strings"

// Form is how a request line names what it wants (RFC 9112, 3.2).
type Form uint8

const (
	NoForm        Form = iota
	OriginForm         // /path?query: to the proxy itself, or captured
	AbsoluteForm       // http://host/path?query: through the proxy
	AuthorityForm      // host:port: CONNECT
	AsteriskForm       // *: OPTIONS
)

// RequestTarget is what a request line asked for, in one spelling.
type RequestTarget struct {
	Form   Form
	Target Target // absolute and authority form
	Path   Path   // origin and absolute form
	query  string // with its "?", empty if there is none
}

// URI returns the target in origin form, as it goes to the server: whatever else the client wrote is not sent on.
// Empty for authority form.
func (r RequestTarget) URI() string {
	if r.Form == AsteriskForm {
		return "*"
	}
	return r.Path.s + r.query
}

// Query returns what follows the "?", as written, and whether there was one.
func (r RequestTarget) Query() (string, bool) { return strings.CutPrefix(r.query, "?") }

// ParseMethod accepts the token of a method in capitals, as all that are registered are written; method names are
// case-sensitive, but not every server thinks so.
func ParseMethod(unsafeMethod string) (string, error) {
	if unsafeMethod == "" || len(unsafeMethod) > 32 {
		return "", refuse(BadMethod, "method %.40q: empty or longer than 32 bytes", unsafeMethod)
	}
	for i := range len(unsafeMethod) {
		if c := unsafeMethod[i]; (c < 'A' || c > 'Z') && (c != '-' || i == 0) {
			return "", refuse(BadMethod, "method %.40q: not capital letters", unsafeMethod)
		}
	}
	return unsafeMethod, nil
}

// ParseRequestTarget reads the middle of a request line. CONNECT has authority form and nothing else has; "*" is for
// OPTIONS; absolute form is http only, since https through a proxy is CONNECT. The error is a *Refusal.
func ParseRequestTarget(unsafeMethod, unsafeTarget string) (RequestTarget, error) {
	method, err := ParseMethod(unsafeMethod)
	if err != nil {
		return RequestTarget{}, err
	}
	if len(unsafeTarget) > maxRequestTarget {
		return RequestTarget{}, refuse(BadRequestTarget, "request target %.64q…: %d bytes, at most %d", unsafeTarget, len(unsafeTarget), maxRequestTarget)
	}
	switch {
	case method == "CONNECT":
		target, err := ParseAuthority(unsafeTarget, NoScheme)
		if err != nil {
			return RequestTarget{}, err
		}
		return RequestTarget{Form: AuthorityForm, Target: target}, nil
	case unsafeTarget == "*" && method == "OPTIONS":
		return RequestTarget{Form: AsteriskForm}, nil
	case strings.HasPrefix(unsafeTarget, "/"):
		return withPath(RequestTarget{Form: OriginForm}, unsafeTarget)
	}
	return parseAbsolute(unsafeTarget)
}

func parseAbsolute(unsafeTarget string) (RequestTarget, error) {
	scheme, rest, ok := strings.Cut(unsafeTarget, "://")
	if !ok || !strings.EqualFold(scheme, "http") || !isASCII(scheme) {
		return RequestTarget{}, refuse(BadRequestTarget, "request target %.64q: neither a path nor http://…; https goes by CONNECT", unsafeTarget)
	}
	authority, path := rest, "/"
	if end := strings.IndexAny(rest, `/?#\`); end >= 0 {
		authority, path = rest[:end], rest[end:]
		if path[0] == '?' {
			path = "/" + path
		}
	}
	target, err := ParseAuthority(authority, HTTP)
	if err != nil {
		return RequestTarget{}, err
	}
	return withPath(RequestTarget{Form: AbsoluteForm, Target: target}, path)
}

func withPath(r RequestTarget, unsafePathAndQuery string) (RequestTarget, error) {
	unsafePath, query, hasQuery := strings.Cut(unsafePathAndQuery, "?")
	for i := range len(query) {
		// No server decides by these where a request goes, but a line must be read as one line of one request.
		if c := query[i]; c <= ' ' || c >= 0x7f || c == '#' {
			return RequestTarget{}, refuse(BadRequestTarget, "query %.64q: space, control character, fragment or no ASCII", query)
		}
	}
	path, err := ParsePath(unsafePath)
	if err != nil {
		return RequestTarget{}, err
	}
	r.Path = path
	if hasQuery {
		r.query = "?" + query
	}
	return r, nil
}

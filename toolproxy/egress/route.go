// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/url"
	"slices"
	"strings"
)

// Family is a group of routes of the proxy itself that an agent may reach (M-7). The zero value is none.
type Family string

const (
	LLMChat       Family = "llm_chat"       // /internal/llm/chat; the APIs of models at /v1/… and /v1beta/models
	LLMEmbeddings Family = "llm_embeddings" // /internal/llm/embeddings, also as /v1/embeddings
	Router        Family = "router"         // /internal/router and below
	Tools         Family = "tools"          // /internal/tools and below
	Usage         Family = "usage"          // /internal/usage and below
	MCP           Family = "mcp"            // /mcp, the tools as an MCP server
	Elevation     Family = "elevation"      // /internal/elevation, asking for a ring on loan (H-13)
	Safety        Family = "safety"         // /internal/safety/create, read and execute: the safety loop's endpoints (S-1)
)

// Route is a route that was allowed. The zero value is none.
type Route struct {
	Family Family
	Rest   string // what follows the family's own path, without the slash between; for instance a tool's name
}

// RouteAllowed says which of the proxy's own routes a path is. The families of Family are all there is: no
// configuration adds to them, and the forbidden ones of M-7 are refused even below an allowed one, since a
// router that passes the rest of a path on would otherwise lead there. No route here has an escape, an empty
// segment, a parameter or a trailing slash, so none has a second spelling.
func RouteAllowed(path Path) (Route, Decision) {
	switch {
	case path.IsZero():
		return Route{}, denyRoute(BadPath, "no path")
	case ForbiddenRoute(path):
		return Route{}, denyRoute(RouteForbidden, "%.64q: never open to an agent", path.s)
	case !plainRoute(path.s):
		return Route{}, denyRoute(UnknownRoute, "%.64q: routes have letters, digits and . _ : - between single slashes", path.s)
	}
	route, ok := familyOf(path.s)
	if !ok {
		return Route{}, denyRoute(UnknownRoute, "%.64q: no such route; there are /internal/llm/chat, /internal/llm/embeddings, /internal/router, /internal/tools, /internal/usage, /internal/elevation, /internal/safety and /mcp", path.s)
	}
	return route, allow("M-7", "route of the tool proxy")
}

// ParseRoute is ParseRequestTarget and RouteAllowed for a request to the proxy itself. Only origin form is
// one.
func ParseRoute(unsafeMethod, unsafeTarget string) (Route, RequestTarget, Decision) {
	target, err := ParseRequestTarget(unsafeMethod, unsafeTarget)
	if err != nil {
		d := Denied(err)
		d.Code, d.Rule = CodeRouteForbidden, "M-7"
		return Route{}, RequestTarget{}, d
	}
	if target.Form != OriginForm {
		return Route{}, RequestTarget{}, denyRoute(BadRequestTarget, "%.64q: the tool gateway takes paths only", unsafeTarget)
	}
	route, d := RouteAllowed(target.Path)
	if !d.Allowed() {
		return Route{}, RequestTarget{}, d
	}
	return route, target, d
}

func familyOf(path string) (Route, bool) {
	switch path {
	case "/internal/llm/chat", "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses":
		return Route{Family: LLMChat}, true
	case "/internal/llm/embeddings", "/v1/embeddings":
		return Route{Family: LLMEmbeddings}, true
	case "/v1/models", "/v1beta/models":
		return Route{Family: LLMChat}, true
	case "/mcp":
		return Route{Family: MCP}, true
	case "/internal/elevation":
		return Route{Family: Elevation}, true
	case "/internal/safety/create", "/internal/safety/read", "/internal/safety/execute":
		return Route{Safety, strings.TrimPrefix(path, "/internal/safety/")}, true
	}
	for _, list := range []string{"/v1/models/", "/v1beta/models/"} {
		if model, ok := strings.CutPrefix(path, list); ok && !strings.Contains(model, "/") {
			return Route{Family: LLMChat}, true
		}
	}
	rest, ok := strings.CutPrefix(path, "/internal/")
	if !ok {
		return Route{}, false
	}
	name, rest, _ := strings.Cut(rest, "/")
	switch family := Family(name); family {
	case Router, Tools, Usage:
		return Route{family, rest}, true
	}
	return Route{}, false
}

func plainRoute(path string) bool {
	for i := range len(path) {
		c := path[i]
		switch {
		case c == '/':
			if i+1 == len(path) || path[i+1] == '/' || path[i+1] == '.' {
				return false
			}
		case !alphanumeric(c) && strings.IndexByte("._:-", c) < 0:
			return false
		}
	}
	return path != ""
}

// ForbiddenRoute tells whether a path names one of the families that M-7 forbids, in any spelling and at any
// depth. It is asked about requests to other hosts too, and about the prefixes of allow lists: the internal
// gateway may be reachable under a name that somebody allowed by mistake.
func ForbiddenRoute(path Path) bool {
	after := false
	for segment := range strings.SplitSeq(unescape(path.s), "/") {
		segment, _, _ = strings.Cut(segment, ";")
		segment = strings.TrimRight(segment, ". ") // Windows drops them
		if segment == "" {
			continue // merged with its neighbour by many servers
		}
		if after && forbiddenFamily(segment) {
			return true
		}
		after = strings.EqualFold(segment, "internal")
	}
	return false
}

var forbiddenFamilies = [...]string{
	"wallet", "embassy", "rwa", "projects", "messages", "governance", "dao",
	"db", "database", "databases", "sql", "postgres", "postgresql", "mysql", "redis", "mongodb", "neo4j", "qdrant",
}

func forbiddenFamily(segment string) bool {
	return slices.ContainsFunc(forbiddenFamilies[:], func(f string) bool { return strings.EqualFold(segment, f) })
}

// unescape decodes the escapes of a canonical path, which are all well-formed and one layer deep.
func unescape(s string) string {
	decoded, _ := url.PathUnescape(s)
	return decoded
}

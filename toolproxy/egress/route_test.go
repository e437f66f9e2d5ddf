// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/url"
	"strings"
	"testing"

	"agentrun/rings"

	"pgregory.net/rapid"
)

func TestM7RoutesAllowed(t *testing.T) {
	for unsafe, want := range map[string]Route{
		"/internal/llm/chat":        {LLMChat, ""},
		"/v1/chat/completions":      {LLMChat, ""},
		"/internal/llm/embeddings":  {LLMEmbeddings, ""},
		"/v1/embeddings":            {LLMEmbeddings, ""},
		"/internal/router":          {Router, ""},
		"/internal/router/a/b":      {Router, "a/b"},
		"/internal/tools":           {Tools, ""},
		"/internal/tools/math":      {Tools, "math"},
		"/internal/tools/m%61th?x":  {Tools, "math"},
		"/internal/tools/a.b:c-d":   {Tools, "a.b:c-d"},
		"/internal/usage/today":     {Usage, "today"},
		"/mcp":                      {MCP, ""},
		"/v1/models":                {LLMChat, ""},
		"/v1/models/small":          {LLMChat, ""},
		"/v1/messages":              {LLMChat, ""},
		"/v1/messages/count_tokens": {LLMChat, ""},
		"/v1/responses":             {LLMChat, ""},
		"/v1beta/models":            {LLMChat, ""},
		"/v1beta/models/m:streamGenerateContent?alt=sse": {LLMChat, ""},
		"/internal/elevation":                            {Elevation, ""},
		"/internal/safety/create":                        {Safety, "create"},
		"/internal/safety/read":                          {Safety, "read"},
		"/internal/safety/execute":                       {Safety, "execute"},
	} {
		route, target, d := ParseRoute("POST", unsafe)
		if !d.Allowed() || route != want || d.Rule != "M-7" || target.Form != OriginForm {
			t.Errorf("ParseRoute(%q) = %+v, %+v, want %+v", unsafe, route, d, want)
		}
	}
}

func TestM7RoutesForbidden(t *testing.T) {
	var never []string
	for _, family := range []string{"wallet", "embassy", "rwa", "projects", "messages", "governance", "dao", "db", "database", "databases", "sql", "postgres", "redis"} {
		for _, spelling := range []string{
			"/internal/F", "/internal/F/", "/internal/F/x", "/INTERNAL/F/x", "/internal/f%20/x", "/internal/F./x", "/internal/F;a=b/x", "/internal;a/F/x", "/internal//F/x",
			"//internal/F", "/internal/./F/x", "/internal/tools/../F/x", "/internal/tools/%2e%2e/F/x", "/internal/tools/..%2fF", "/internal%2fF/x", "/internal%2FF", "/internal/tools%2f..%2fF",
			"/internal/tools/..;/F/x", `/internal\F`, "/internal%5cF", "/internal/%252e%252e/F", "/internal/router/internal/F/x", "/internal/tools/internal/F", "/./internal/F", "/x/../internal/F",
			"/%69nternal/F", "http://127.0.0.1/internal/F/x", "/internal/F%00", "/internal/F%0a", "/internal/F#", "/internal/%EF%BC%8FF", "/v1/internal/F", "/mcp/../internal/F", "internal/F", "/internal/\u017fql", "/internal/F?x",
		} {
			never = append(never, strings.ReplaceAll(spelling, "F", family), strings.ReplaceAll(spelling, "F", strings.ToUpper(family)),
				strings.ReplaceAll(spelling, "F", "%"+hex(family[0])+family[1:]))
		}
	}
	never = append(never, "/", "", "*", "/internal", "/internal/", "/internal/llm", "/internal/llm/", "/internal/llm/chat/", "/internal/llm/chat/x", "/internal/llm/Chat", "/internal/LLM/chat", "/Internal/tools/a",
		"/internal/toolsx", "/internal/tools/", "/internal/tools//a", "/internal/tools/a/", "/internal/tools/.a", "/internal/tools/a%2fb", "/internal/tools/a;b", "/internal/tools/%C3%A9", "/internal/tools/a b", "/internal/tools/a@b",
		"/internal/routers", "/internal/usage%20", "/mcp/", "/mcp/x", "/MCP", "/v1", "/v1/models/", "/v1/models/a/b", "/v1beta/models/a/b", "/v1beta", "/v1/messages/", "/v1/messages/batches", "/v1/responses/x", "/v1/files", "/v1/models/../x", "/v1/chat", "/v1/chat/completions/", "/metrics", "/debug/pprof", "/admin", "/internal/admin", "/internal/safety", "/internal/safety/", "/internal/safety/delete", "/internal/safety/create/x", "/internal/safety/create/", "/internal/Safety/create", "/.well-known/x", "https://a/internal/tools")
	for _, unsafe := range never {
		if route, _, d := ParseRoute("GET", unsafe); d.Allowed() || route != (Route{}) || d.Sub == "" || d.Code != CodeRouteForbidden {
			t.Errorf("ParseRoute(%q) = %+v, %+v, want it refused", unsafe, route, d)
		}
	}
	if _, d := RouteAllowed(Path{}); d.Allowed() {
		t.Error("the zero path is allowed")
	}
	if _, _, d := ParseRoute("CONNECT", "/internal/tools"); d.Allowed() {
		t.Error("CONNECT is allowed")
	}
}

func hex(b byte) string { return string("0123456789abcdef"[b>>4]) + string("0123456789abcdef"[b&15]) }

// A list that names a forbidden route by mistake opens nothing, on whatever host.
func TestM7ForbiddenEvenIfListed(t *testing.T) {
	for _, entry := range []string{"gw.example/internal/wallet", "*/internal/rwa/x", "GET gw.example:8080/internal/projects/", "gw.example/internal/%6dessages", "gw.example/INTERNAL/Embassy", "gw.example/api/internal/governance"} {
		if _, err := ParseEntry(entry); err == nil {
			t.Errorf("ParseEntry(%q): want it refused", entry)
		}
	}
	list := mustList(t, "gw.example", "*", "10.0.0.0/8", "gw.example/internal")
	for _, unsafe := range []string{"/internal/wallet", "/internal/wallet/x", "/INTERNAL/Wallet/x", "/internal//wallet", "/internal/wallet;a/x", "/internal%2fwallet", "/internal/%77allet", "/x/internal/wallet", "/internal/wallet%20"} {
		path, err := ParsePath(unsafe)
		if err != nil {
			t.Fatal(err)
		}
		for _, ring := range []rings.Ring{rings.Privileged, rings.Standard} {
			for _, place := range []string{"gw.example:80", "10.1.2.3:80", "8.8.8.8:80"} {
				a := ask(t, ring, place)
				a.Method, a.Path = "GET", path
				if d := list.Decide(a); d.Allowed() || d.Sub != RouteForbidden {
					t.Errorf("%v %s%s: %+v, want %s", ring, place, unsafe, d, RouteForbidden)
				}
			}
		}
	}
	for _, entry := range []string{"db.example:5432", "db.example:3306", "10.0.0.5:6379", "*:27017", "[fd00::1]:11211"} {
		if _, err := ParseEntry(entry); err == nil || !strings.Contains(err.Error(), "M-7") {
			t.Errorf("ParseEntry(%q): %v, want it refused for M-7", entry, err)
		}
	}
	open := mustList(t, "db.example:*", "*:*", "10.0.0.5:*")
	for _, place := range []string{"db.example:5432", "8.8.8.8:6379", "10.0.0.5:3306"} {
		for _, ring := range []rings.Ring{rings.Privileged, rings.Standard} {
			if d := open.Decide(ask(t, ring, place)); d.Sub != DatabasePort {
				t.Errorf("%v %s: %+v, want %s", ring, place, d, DatabasePort)
			}
		}
	}
}

// checkRoute: what is allowed looks it in every decoding.
func checkRoute(t failer, method, unsafe string) {
	route, target, d := ParseRoute(method, unsafe)
	if d.Allowed() == (route == Route{}) {
		t.Fatalf("ParseRoute(%q) = %+v, %+v", unsafe, route, d)
	}
	if !d.Allowed() {
		return
	}
	p := target.Path.String()
	unescaped, err := url.PathUnescape(p)
	if err != nil || unescaped != p || strings.Contains(p, "//") || strings.Contains(p, "/.") {
		t.Fatalf("ParseRoute(%q) allows %q", unsafe, p)
	}
	segments := strings.Split(strings.ToLower(p), "/")
	for i := range segments[:len(segments)-1] {
		if segments[i] == "internal" && forbiddenFamily(segments[i+1]) {
			t.Fatalf("ParseRoute(%q) allows %q", unsafe, p)
		}
	}
	if !strings.HasPrefix(p, "/internal/llm/") && !strings.HasPrefix(p, "/internal/router") && !strings.HasPrefix(p, "/internal/tools") && !strings.HasPrefix(p, "/internal/usage") && p != "/mcp" && !strings.HasPrefix(p, "/v1/") {
		t.Fatalf("ParseRoute(%q) allows %q", unsafe, p)
	}
}

// Re-encoding any byte of a forbidden route, once or twice, never opens it.
func TestM7ReencodingOpensNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		family := rapid.SampledFrom([]string{"wallet", "embassy", "rwa", "projects", "messages", "governance", "database"}).Draw(t, "family")
		prefix := rapid.SampledFrom([]string{"/internal/", "//internal/", "/internal/tools/../", "/internal/router/internal/", "/internal/./", "/Internal//"}).Draw(t, "prefix")
		var b strings.Builder
		for _, c := range []byte(prefix + family + "/x") {
			switch rapid.IntRange(0, 9).Draw(t, "how") {
			case 0:
				b.WriteString("%" + hex(c))
			case 1:
				b.WriteString("%25" + hex(c))
			case 2:
				b.WriteString(strings.ToUpper(string(c)))
			default:
				b.WriteByte(c)
			}
		}
		unsafe := b.String()
		if _, _, d := ParseRoute("GET", unsafe); d.Allowed() {
			t.Fatalf("%q is allowed", unsafe)
		}
		path, err := ParsePath(unsafe)
		if err == nil && !ForbiddenRoute(path) {
			t.Fatalf("%q isn't seen as forbidden (%q)", unsafe, path)
		}
	})
}

func BenchmarkParseRoute(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, _, d := ParseRoute("POST", "/internal/tools/math"); !d.Allowed() {
			b.Fatal(d)
		}
	}
}

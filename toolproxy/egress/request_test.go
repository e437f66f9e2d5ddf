// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/url"
	"path"
	"strings"
	"testing"
)

func TestM7PathOneSpelling(t *testing.T) {
	for unsafe, want := range map[string]string{
		"/": "/", "/a/b": "/a/b", "/a/b/": "/a/b/", "/A": "/A", "/...": "/...", "/.well-known/x": "/.well-known/x", "/a..b": "/a..b",
		"/%61%2d": "/a-", "/%7Ea": "/~a", "/~a": "/~a", "/a%20b": "/a%20b", "/%e4%bd%a0": "/%E4%BD%A0",
		"/@scope%2fname": "/@scope%2Fname", "/a|b": "/a%7Cb", `/a"b`: "/a%22b", "/{x}": "/%7Bx%7D",
		"/a//b": "/a//b", "/a;x=1": "/a;x=1", "/100%25": "/100%25", "/a%25zz": "/a%25zz", "/a%3Bb": "/a%3Bb", "/a%3Fb": "/a%3Fb", "/a%23b": "/a%23b",
	} {
		got, err := ParsePath(unsafe)
		if err != nil || got.String() != want {
			t.Errorf("ParsePath(%q) = %q, %v, want %q", unsafe, got, err, want)
		}
	}
}

// attackedPaths are spellings that some server reads as another path than some proxy does.
var attackedPaths = map[string][]string{
	"dot segments":      {"/..", "/.", "/a/../b", "/a/./b", "/a/..", "/../../etc/passwd", "/a/.", "/./"},
	"encoded dots":      {"/%2e%2e/b", "/a/%2E%2e/b", "/a/.%2e/b", "/a/%2e./b", "/a/%2e/b", "/%2e"},
	"encoded slash":     {"/a%2f..%2fb", "/a/..%2fb", "/a%2f../b", "/a/x%2f.%2fb", "/a%2F%2e%2e%2Fb", "/%2f%2fevil.example", "/%2fevil.example"},
	"double encoding":   {"/%252e%252e/b", "/a%252fb", "/%25%32%65", "/a%2525%32%66", "/%255c", "/%25252e"},
	"backslash":         {`/a\b`, `/..\b`, "/a%5cb", "/..%5c..%5cb", `/\evil.example`, `/a/..\../b`},
	"parameters":        {"/..;/b", "/..;x=1/b", "/a/.;/b", "/%2e%2e;/b", "/..%3b/b", "/..%3B%2Fb"},
	"two slashes first": {"//evil.example/a", "///a", "//"},
	"control":           {"/\x00", "/a\r\nX: y", "/a\nb", "/a b", "/a\tb", "/a\x7f", "/%00", "/a%00.html", "/%0d%0aX:y", "/%0A", "/%7f"},
	"broken escapes":    {"/%", "/%2", "/%zz", "/%u002e", "/a%2", "/%-1", "/%%32e"},
	"not UTF-8":         {"/%c0%ae%c0%ae/b", "/%c0%af", "/%e0%80%af", "/%ff", "/caf%e9", "/%ed%a0%80"},
	"raw bytes":         {"/é", "/\xff", "/\u2024"},
	"look-alikes":       {"/%ef%bc%8f", "/%EF%BC%8E%EF%BC%8E/b", "/%e2%88%95a", "/%e2%81%84", "/%ef%bc%bc", "/%e2%80%a5/b", "/%ef%bc%852e", "/%e2%92%88"},
	"fragment, query":   {"/a#b", "/a?b", "/#"},
	"no path":           {"", "a", "a/b", ".", "..", "*", "http://a/", " /a", "%2fa"},
	"too long":          {"/" + strings.Repeat("a", maxRequestTarget)},
}

func TestM7PathRefused(t *testing.T) {
	for class, paths := range attackedPaths {
		for _, unsafe := range paths {
			p, err := ParsePath(unsafe)
			if err == nil {
				t.Errorf("%s: ParsePath(%q) = %q, want it refused", class, unsafe, p)
				continue
			}
			if r := refusal(t, err); r.Sub != BadPath || !p.IsZero() {
				t.Errorf("%s: ParsePath(%q): %s, want %s", class, unsafe, r.Sub, BadPath)
			}
		}
	}
}

func TestM8RequestTarget(t *testing.T) {
	for _, c := range []struct {
		method, unsafe string
		form           Form
		target, uri    string
	}{
		{"GET", "/a?b=c", OriginForm, "", "/a?b=c"},
		{"GET", "/a?", OriginForm, "", "/a?"},
		{"GET", "/a?x=/../%2e%2e//&y=@:?", OriginForm, "", "/a?x=/../%2e%2e//&y=@:?"},
		{"GET", "http://Example.COM", AbsoluteForm, "example.com:80", "/"},
		{"GET", "HTTP://example.com:8080/%61?q", AbsoluteForm, "example.com:8080", "/a?q"},
		{"GET", "http://example.com?q=http://b/", AbsoluteForm, "example.com:80", "/?q=http://b/"},
		{"GET", "http://[2606:4700::1]/", AbsoluteForm, "[2606:4700::1]:80", "/"},
		{"CONNECT", "example.com:443", AuthorityForm, "example.com:443", ""},
		{"OPTIONS", "*", AsteriskForm, "", "*"},
	} {
		got, err := ParseRequestTarget(c.method, c.unsafe)
		if err != nil || got.Form != c.form || got.Target.String() != c.target || got.URI() != c.uri {
			t.Errorf("ParseRequestTarget(%s, %q) = %+v, %v", c.method, c.unsafe, got, err)
		}
	}
}

func TestM8RequestTargetRefused(t *testing.T) {
	for _, c := range []struct{ method, unsafe string }{
		{"GET", ""}, {"GET", "*"}, {"GET", "example.com:443"}, {"GET", "example.com/a"}, {"GET", "https://example.com/"}, {"GET", "ftp://example.com/"},
		{"GET", "http:/example.com/"}, {"GET", "http:example.com"}, {"GET", "http:///a"}, {"GET", "http://"}, {"GET", "http:// example.com/"}, {"GET", "http://a@b/"},
		{"GET", "http://example.com:80:80/"}, {"GET", `http://example.com\@evil.com/`}, {"GET", `http://example.com\.evil.com/`}, {"GET", "http://example.com#@evil.com/"},
		{"GET", "http://evil.com%2f@example.com/"}, {"GET", "http://example.com%00.evil.com/"}, {"GET", "http://0x7f.1/"}, {"GET", "http://2130706433/"}, {"GET", "http://[::1%25lo]/"},
		{"GET", "http://example.com//evil.com/"}, {"GET", "http://example.com/../a"}, {"GET", "//evil.com/a"}, {"GET", "/a b"}, {"GET", "/a?b c"}, {"GET", "/a?b#c"}, {"GET", "/a?\xff"}, {"GET", "/a?\r\nHost: b"},
		{"GET", " http://example.com/"}, {"GET", "http\x00://example.com/"}, {"GET", "file:///etc/passwd"}, {"GET", "http://http://example.com/"}, {"GET", "/" + strings.Repeat("a", 9000)},
		{"CONNECT", "/a"}, {"CONNECT", "http://example.com:443"}, {"CONNECT", "example.com"}, {"CONNECT", "*"}, {"CONNECT", "CONNECT a:443"}, {"CONNECT", "a:443 HTTP/1.1\r\n"},
		{"connect", "example.com:443"}, {"", "/"}, {"GET ", "/"}, {"G\x00T", "/"}, {"get", "/"}, {"-GET", "/"}, {strings.Repeat("A", 33), "/"}, {"ＧET", "/"},
	} {
		if got, err := ParseRequestTarget(c.method, c.unsafe); err == nil {
			t.Errorf("ParseRequestTarget(%q, %q) = %+v, want it refused", c.method, c.unsafe, got)
		} else {
			refusal(t, err)
		}
	}
}

// checkPath holds each path to what prefixes rely on.
func checkPath(t failer, unsafe string) {
	p, err := ParsePath(unsafe)
	if (err == nil) == p.IsZero() {
		t.Fatalf("ParsePath(%q) = %q, %v: want exactly one", unsafe, p, err)
	}
	if err != nil {
		return
	}
	if again, err := ParsePath(p.String()); err != nil || again != p {
		t.Fatalf("ParsePath(%q) = %q, which gives %q, %v", unsafe, p, again, err)
	}
	u, err := url.ParseRequestURI(p.String())
	if err != nil {
		t.Fatalf("ParsePath(%q) = %q: %v", unsafe, p, err)
	}
	before, err := url.PathUnescape(unsafe)
	if err != nil || u.Path != before {
		t.Fatalf("ParsePath(%q) = %q: decoded %q before and %q after, %v", unsafe, p, before, u.Path, err)
	}
	if u.EscapedPath() != p.String() && u.Path != unescape(p.String()) {
		t.Fatalf("ParsePath(%q) = %q, which net/url decodes to %q", unsafe, p, u.Path)
	}
	// Cleaning may merge slashes but never goes up: the prefix stays.
	merged := u.Path
	for strings.Contains(merged, "//") {
		merged = strings.ReplaceAll(merged, "//", "/")
	}
	if clean := path.Clean(merged); clean != merged && clean != strings.TrimSuffix(merged, "/") {
		t.Fatalf("ParsePath(%q) = %q, which cleans to %q", unsafe, p, clean)
	}
	if again, err := url.PathUnescape(u.Path); err == nil && again != u.Path {
		t.Fatalf("ParsePath(%q) = %q: a second decoding gives %q", unsafe, p, again)
	}
	if strings.ContainsAny(u.Path, "\\\x00\r\n") {
		t.Fatalf("ParsePath(%q) = %q", unsafe, p)
	}
}

func FuzzRequestTarget(f *testing.F) {
	for _, paths := range attackedPaths {
		for _, p := range paths {
			if len(p) < 1000 {
				f.Add("GET", p)
			}
		}
	}
	for _, s := range []string{"http://example.com/a?b", "http://[::1]:80/", "/internal/tools/math", "/internal/%77allet", "*", "/@a%2fb", "http://a?b"} {
		f.Add("GET", s)
	}
	f.Add("CONNECT", "example.com:443")
	f.Add("OPTIONS", "*")
	f.Fuzz(func(t *testing.T, method, unsafe string) {
		checkPath(t, unsafe)
		r, err := ParseRequestTarget(method, unsafe)
		if (err == nil) == (r.Form == NoForm) {
			t.Fatalf("ParseRequestTarget(%q, %q) = %+v, %v", method, unsafe, r, err)
		}
		checkRoute(t, method, unsafe)
		if err != nil || r.Form != AbsoluteForm {
			return
		}
		u, err := url.Parse(unsafe)
		if err != nil {
			// net/url is stricter than us in nothing that is not bytes of the host or query.
			return
		}
		if u.Host == "" || u.User != nil {
			t.Fatalf("%q: net/url reads host %q, user %v; we read %v", unsafe, u.Host, u.User, r.Target)
		}
		if target, err := ParseAuthority(u.Host, HTTP); err != nil || target != r.Target {
			t.Fatalf("%q: net/url reads host %q; we read %v", unsafe, u.Host, r.Target)
		}
	})
}

func BenchmarkParseRequestTarget(b *testing.B) {
	for name, target := range map[string]string{"absolute": "http://packages.example.com/pkg/name-1.2.3.tgz?x=1", "origin": "/internal/tools/math", "escaped": "/@scope%2fname/%e4%bd%a0"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ParseRequestTarget("GET", target); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

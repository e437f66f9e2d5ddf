// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentrun/rings"
	"agentrun/toolproxy/forward/intercept"
	"agentrun/toolproxy/forward/runca"
)

const secret = "sk-0123456789abcdef"

// interceptWorld has example.com, which is what httptest's certificate is for, behind a rule with a secret.
func interceptWorld(t *testing.T, handler http.HandlerFunc) (*world, *x509.CertPool) {
	t.Helper()
	ca, pem, err := runca.NewCA("run_1", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	w := newWorld(t, rings.Standard, Options{CA: ca, Roots: roots,
		Secret: func(name string) (string, bool) { return secret, name == "KEY" },
		Config: Config{Rules: []Rule{{Host: "example.com", Methods: []string{"GET"}, Paths: []string{"/v1/"}, Intercept: true,
			Headers: map[string]Header{"Authorization": {Secret: "KEY", Prefix: "Bearer "}}}}}})
	w.names.addrs["example.com"] = w.names.addrs["allowed.example"]
	w.site(443, server.URL)
	own := x509.NewCertPool()
	if !own.AppendCertsFromPEM(pem) {
		t.Fatal("the CA's PEM holds no certificate")
	}
	return w, own
}

func TestM12SecretsAreInjectedAndHidden(t *testing.T) {
	seen := make(chan http.Header, 10)
	w, roots := interceptWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		rw.Header().Set("X-Echo", r.Header.Get("Authorization"))
		fmt.Fprintf(rw, "you sent %s", r.Header.Get("Authorization")[:12])
		rw.(http.Flusher).Flush()
		fmt.Fprintf(rw, "%s, or %s", r.Header.Get("Authorization")[12:], base64.StdEncoding.EncodeToString([]byte(secret)))
	})
	tc, err := clientTLS(t, w.connect(t, "example.com:443"), "example.com", roots)
	if err != nil {
		t.Fatal(err)
	}
	if got := tc.ConnectionState().NegotiatedProtocol; got != "http/1.1" {
		t.Errorf("got protocol %q", got)
	}
	br := bufio.NewReader(tc)
	if _, err := io.WriteString(tc, "GET /v1/x HTTP/1.1\r\nHost: example.com\r\nAuthorization: Bearer mine\r\nauthorization: again\r\nRange: bytes=0-3\r\nAccept-Encoding: gzip\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, body := response(t, br, "GET")
	if all := fmt.Sprint(resp.Header, body); resp.StatusCode != 200 || strings.Contains(all, "0123456789") || strings.Contains(all, base64.StdEncoding.EncodeToString([]byte(secret))[:20]) {
		t.Errorf("got %d %s", resp.StatusCode, all)
	}
	if want := "you sent Bearer " + strings.Repeat("*", len(secret)) + ", or "; !strings.HasPrefix(body, want) {
		t.Errorf("got %q, want %q…", body, want)
	}
	if h := <-seen; h.Get("Authorization") != "Bearer "+secret || len(h["Authorization"]) != 1 || h.Get("Range") != "" || h.Get("Accept-Encoding") != "identity" {
		t.Errorf("got %v up", h)
	}
	for request, want := range map[string]string{
		"GET /v2/ HTTP/1.1\r\nHost: example.com\r\n\r\n":                    "path_not_listed",
		"DELETE /v1/x HTTP/1.1\r\nHost: example.com\r\n\r\n":                "method_not_listed",
		"GET /v1/..%2fv2 HTTP/1.1\r\nHost: example.com\r\nX: 1\r\n\r\n":     "bad_path",
		"GET /v1/x HTTP/1.1\r\nHost: evil.example\r\n\r\n":                  "name_mismatch",
		"GET http://example.com/v1/x HTTP/1.1\r\nHost: example.com\r\n\r\n": "name_mismatch",
	} {
		if _, err := io.WriteString(tc, request); err != nil {
			t.Fatal(err)
		}
		resp, body := response(t, br, "GET")
		wantDenied(t, resp, body, 403, want)
	}
	if len(seen) > 0 {
		t.Errorf("a refused request went up")
	}
}

// What an agent says beside the header that is put in doesn't count for servers that take one name for another, and nothing
// comes back in a form that can't be searched for the secret.
func TestM12NothingStandsBesideAnInjectedHeader(t *testing.T) {
	seen := make(chan http.Header, 1)
	w, roots := interceptWorld(t, func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header })
	tc, err := clientTLS(t, w.connect(t, "example.com:443"), "example.com", roots)
	if err != nil {
		t.Fatal(err)
	}
	say(t, tc, "GET /v1/x HTTP/1.1\r\nHost: example.com\r\nAuthorization: mine\r\nAUTHORIZATION: mine\r\nAccept_Encoding: gzip\r\nAccept-Encoding: br\r\nA-IM: gzip\r\n"+
		"Sec-WebSocket-Extensions: permessage-deflate\r\nSec_WebSocket_Extensions: permessage-deflate\r\nRange: bytes=0-1\r\nX-Kept: yes\r\n\r\n")
	if resp, body := response(t, bufio.NewReader(tc), "GET"); resp.StatusCode != 200 {
		t.Fatalf("got %d %s", resp.StatusCode, body)
	}
	want := http.Header{"Authorization": {"Bearer " + secret}, "Accept-Encoding": {"identity"}, "X-Kept": {"yes"}}
	if got := <-seen; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v up, want %v", got, want)
	}
}

func TestM8InterceptedUpstreamIsVerified(t *testing.T) {
	w, roots := interceptWorld(t, hello)
	w.roots = x509.NewCertPool()
	tc, err := clientTLS(t, w.connect(t, "example.com:443"), "example.com", roots)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(tc, "GET /v1/x HTTP/1.1\r\nHost: example.com\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, body := response(t, bufio.NewReader(tc), "GET")
	wantDenied(t, resp, body, 502, "upstream_tls")
}

func TestM8InterceptionNeedsNamesThatAgree(t *testing.T) {
	w, roots := interceptWorld(t, hello)
	if _, err := clientTLS(t, w.connect(t, "example.com:443"), "evil.example", roots); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("got %v, want an alert", err)
	}
	w.minter = (*intercept.Minter)(nil)
	resp, body := w.raw(t, "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n")
	wantDenied(t, resp, body, 403, "tunnel_not_listed")
}

// What a server's encoder of JSON or URLs makes of a secret is found too, and of basic credentials.
func TestM12SpellingsOfEncoders(t *testing.T) {
	const secret = `a/b+c=d<e>f&g'h"i\~~~j~?>`
	basic := base64.StdEncoding.EncodeToString([]byte("x-access-token:" + secret))
	if !strings.ContainsAny(basic, "/") || !strings.ContainsAny(basic, "+") {
		t.Fatalf("%s has nothing to escape", basic)
	}
	h := &hidden{words: spellings(secret, "x-access-token:")}
	for name, echoed := range map[string]string{
		"as it is":        secret,
		"PHP":             `a\/b+c=d<e>f&g'h\"i\\~~~j~?>`,
		"Go":              `a/b+c=d\u003ce\u003ef\u0026g'h\"i\\~~~j~?\u003e`,
		"Django":          `a/b+c=d\u003ce\u003ef\u0026g\u0027h\"i\\~~~j~?\u003e`,
		"Gson":            `a/b+c\u003dd\u003ce\u003ef\u0026g\u0027h\"i\\~~~j~?\u003e`,
		".NET":            `a/b\u002Bc=d\u003Ce\u003Ef\u0026g\u0027h\u0022i\\~~~j~?\u003E`,
		"a URL":           url.QueryEscape(secret),
		"a URL in .NET":   `a%2fb%2bc%3dd%3ce%3ef%26g%27h%22i%5c~~~j~%3f%3e`,
		"basic":           basic,
		"basic in PHP":    strings.ReplaceAll(basic, "/", `\/`),
		"basic in .NET":   strings.ReplaceAll(basic, "+", `\u002B`),
		"basic in a URL":  url.QueryEscape(basic),
		"basic, 2f in it": strings.ReplaceAll(strings.ReplaceAll(basic, "/", "%2f"), "+", "%2b"),
	} {
		b := []byte(`{"Authorization":"` + echoed + `"}`)
		h.cover(b)
		// Left are the user's name, and the last group of base64, which depends on what follows it.
		left := strings.TrimPrefix(string(b[len(`{"Authorization":"`):len(b)-len(`"}`)]), basic[:20])
		if left = strings.TrimRight(strings.Trim(left, "*"), "=%3D"); len(left) > 2 {
			t.Errorf("%s: %q of %q is left", name, left, echoed)
		}
	}
}

// What may begin a secret is told after a pause, as anything else is, and what goes on behind the pause is covered.
func TestM12APauseTellsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hidden{words: spellings(secret, "Bearer ")}
		for _, guess := range []string{secret[:10], secret[:9] + "!"} {
			from, to := io.Pipe()
			r, b, began := h.reader(from), make([]byte, 1<<10), time.Now()
			go func() { _, _ = to.Write([]byte(guess)) }()
			if n, err := io.ReadFull(r, b[:len(guess)]); err != nil || string(b[:n]) != guess || time.Since(began) != quietTime {
				t.Errorf("%s: got %q, %v after %v", guess, b[:n], err, time.Since(began))
			}
			go func() { _, _ = to.Write([]byte(secret[10:] + ".")); to.Close() }()
			rest, err := io.ReadAll(r)
			if want := secret[10:] + "."; guess == secret[:10] {
				if want = strings.Repeat("*", len(want)-1) + "."; string(rest) != want || err != nil {
					t.Errorf("behind the pause: got %q, %v, want %q", rest, err, want)
				}
			} else if string(rest) != want {
				t.Errorf("got %q, want %q", rest, want)
			}
		}
	})
}

func FuzzHidden(f *testing.F) {
	f.Add("a"+secret+"b", 3)
	f.Add(secret[:10]+secret, 11)
	f.Fuzz(func(t *testing.T, text string, size int) {
		h := &hidden{words: spellings(secret, "Bearer ")}
		if size < 1 || size > 1<<12 {
			size = 1
		}
		got, err := io.ReadAll(h.reader(&pieces{text, size}))
		if err != nil || len(got) != len(text) || strings.Contains(string(got), secret) {
			t.Fatalf("got %q, %v of %q", got, err, text)
		}
		whole := []byte(text)
		if h.cover(whole); !strings.Contains(text, secret[:6]) && string(got) != string(whole) {
			t.Fatalf("got %q in pieces, %q as a whole", got, whole)
		}
	})
}

type pieces struct {
	text string
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(b, p.text[:min(p.size, len(p.text))])
	p.text = p.text[n:]
	return n, nil
}

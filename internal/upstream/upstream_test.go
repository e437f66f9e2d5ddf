// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a name resolves to is looked at, each time, and one bad address is enough.
func TestM8UpstreamAddresses(t *testing.T) {
	for _, row := range []struct {
		address         string
		public, private bool // allowed without and with AllowPrivate
	}{
		{"127.0.0.1", false, true},
		{"10.1.2.3", false, true},
		{"::ffff:10.0.0.1", false, true},
		{"fd00::1", false, true},
		{"fe80::1", false, true},
		{"fe80::1%lo", false, true},
		{"2002:7f00:1::1", false, true},
		{"169.254.169.254", false, false},
		{"::ffff:169.254.169.254", false, false},
		{"64:ff9b::a9fe:a9fe", false, false},
		{"fd00:ec2::254", false, false},
		{"0.0.0.0", false, false},
		{"224.0.0.1", false, false},
		{"8.8.8.8", true, true},
		{"64:ff9b::808:808", true, true},
	} {
		t.Run(row.address, func(t *testing.T) {
			answer := func(context.Context, string, string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr(row.address)}, nil
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // nothing is really dialled
			for private, want := range map[bool]bool{false: row.public, true: row.private} {
				dial := New(Options{AllowPrivate: private, lookup: answer}).DialContext
				for _, host := range []string{"name.example:443", net.JoinHostPort(row.address, "443")} {
					if _, err := dial(ctx, "tcp", host); errors.Is(err, ErrAddress) == want {
						t.Errorf("%s, private %v: got %v, want allowed %v", host, private, err, want)
					}
				}
			}
		})
	}
}

func TestM8UpstreamAnswers(t *testing.T) {
	for _, row := range []struct {
		name  string
		count int
	}{{"none", 0}, {"too many", maxAddresses + 1}} {
		t.Run(row.name, func(t *testing.T) {
			o := Options{lookup: func(context.Context, string, string) ([]netip.Addr, error) {
				return make([]netip.Addr, row.count), nil
			}}
			if _, err := New(o).DialContext(t.Context(), "tcp", "name.example:443"); !errors.Is(err, ErrAddress) {
				t.Errorf("got %v, want %v", err, ErrAddress)
			}
		})
	}
}

// An address that doesn't answer isn't the end: the next one is tried.
func TestUpstreamTriesEachAddress(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	o := Options{AllowPrivate: true, lookup: func(context.Context, string, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1")}, nil
	}}
	conn, err := New(o).DialContext(t.Context(), "tcp", net.JoinHostPort("name.example", port))
	if err != nil {
		t.Fatalf("got %v, want the second address", err)
	}
	conn.Close()
}

func TestUpstreamTakesNoProxyAndNoRedirect(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, "http://127.0.0.1:1")
	}
	server := httptest.NewServer(http.RedirectHandler("/elsewhere", http.StatusFound))
	defer server.Close()
	client := Client(Options{AllowPrivate: true})
	defer client.CloseIdleConnections()
	resp, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusFound {
		t.Errorf("got %s, want the redirect itself", resp.Status)
	}
}

func TestEndpoint(t *testing.T) {
	const path = "/v1/x"
	for _, row := range []struct{ in, want, wrong string }{
		{"https://h", "https://h/v1/x", ""},
		{"https://h:8443/a/", "https://h:8443/a/v1/x", ""},
		{"https://h/v1/x", "https://h/v1/x", ""},
		{"http://[::1]:80", "http://[::1]:80/v1/x", ""},
		{"http://[::ffff:127.0.0.1]", "http://[::ffff:127.0.0.1]/v1/x", ""},
		{"", "", "without user"},
		{"h", "", "without user"},
		{"https:h", "", "without user"},
		{"https://user:hunter2@h", "", "without user"},
		{"https://h?k=hunter2", "", "without user"},
		{"https://user:hunter2@%zz", "", "can't be parsed"},
		{"ftp://127.0.0.1", "", "scheme"},
		{"http://h", "", "only https"},
		{"http://localhost", "", "only https"},
		{"http://10.0.0.1", "", "only https"},
		{"http://127.0.0.1.example.org", "", "only https"},
	} {
		t.Run(row.in, func(t *testing.T) {
			u, err := Endpoint(row.in, path)
			switch {
			case row.wrong == "" && (err != nil || u.String() != row.want):
				t.Errorf("got %v, %v, want %s", u, err, row.want)
			case row.wrong != "" && (err == nil || !strings.Contains(err.Error(), row.wrong) || strings.Contains(err.Error(), "hunter2")):
				t.Errorf("got %v, %v, want an error with %q and no password", u, err, row.wrong)
			}
		})
	}
}

func TestRoots(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{empty, "/nonexistent", "upstream_test.go"} {
		if pool, err := Roots(name); err == nil || pool != nil || !strings.Contains(err.Error(), "ca_file") {
			t.Errorf("%s: got %v, %v, want an error that names ca_file", name, pool, err)
		}
	}
	if pool, err := Roots(""); pool != nil || err != nil {
		t.Errorf("no name: got %v, %v, want the system's", pool, err)
	}
}

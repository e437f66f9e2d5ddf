// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

func TestM8Authority(t *testing.T) {
	for _, c := range []struct {
		unsafe string
		scheme Scheme
		want   string
	}{
		{"example.com:443", NoScheme, "example.com:443"},
		{"Example.COM.:443", NoScheme, "example.com:443"},
		{"example.com", HTTP, "example.com:80"},
		{"example.com", HTTPS, "example.com:443"},
		{"example.com:8080", HTTP, "example.com:8080"},
		{"8.8.8.8:53", NoScheme, "8.8.8.8:53"},
		{"[2606:4700::1111]:443", NoScheme, "[2606:4700::1111]:443"},
		{"[2606:4700:0:0:0:0:0:1111]", HTTPS, "[2606:4700::1111]:443"},
		{"[::FFFE:1]:1", NoScheme, "[::fffe:1]:1"},
		{"127.0.0.1", HTTP, "127.0.0.1:80"}, // an address, which Decide refuses
		{"bücher.example:65535", NoScheme, "xn--bcher-kva.example:65535"},
	} {
		got, err := ParseAuthority(c.unsafe, c.scheme)
		if err != nil || got.String() != c.want {
			t.Errorf("ParseAuthority(%q, %d) = %q, %v, want %q", c.unsafe, c.scheme, got, err, c.want)
		}
	}
}

func TestM8AuthorityRefused(t *testing.T) {
	for sub, all := range map[Reason][]string{
		BadPort: {
			"", "example.com", "example.com:", "example.com:0", "example.com:00443", "example.com:+443", "example.com:-1", "example.com:65536",
			"example.com:443 ", "example.com:4 43", "example.com:443\x00", "example.com:0x1bb", "example.com:４４３", "example.com:http", "[::1]:", "[::1]", "example.com:443/", "example.com:443/x", "example.com:443#",
		},
		BadAuthority: {
			"user@example.com:443", "user:pw@example.com:443", "example.com:443@evil.com:443", "@example.com:443", "::1:443", "::1]:443", "fe80::1", "a:b:c",
			"[::1", "[::1]443", "[::1]x:443", "[::1].evil.com:443", "[[::1]]:443", strings.Repeat("a", 3000) + ":443",
		},
		BadName: {
			":443", "[]:443", "[example.com]:443", "[127.0.0.1]:443", "[::1%lo]:443", "[fe80::1%25eth0]:443", "[v1.x]:443", "[::ffff:127.0.0.1]:443", "[::ffff:7f00:1]:443",
			"[::ffff:8.8.8.8]:443", "0x7f.1:443", "2130706433:443", "0177.0.0.1:443", "127.1:443", "127.0.0.1.:443", "127.0.0.01:443", "1.2.3:443",
			"example.com\x00:443", "exam\r\nple.com:443", "example.com :443", "example%2ecom:443", "a/b:443", `a\b:443`, "http//a:443", "*:443", "*.example.com:443",
		},
	} {
		for _, unsafe := range all {
			target, err := ParseAuthority(unsafe, NoScheme)
			if err == nil {
				t.Errorf("ParseAuthority(%q) = %q, want %s", unsafe, target, sub)
				continue
			}
			if r := refusal(t, err); r.Sub != sub || !target.IsZero() {
				t.Errorf("ParseAuthority(%q): %s (%v), want %s", unsafe, r.Sub, err, sub)
			}
		}
	}
}

func TestM8TargetsOfSOCKS(t *testing.T) {
	for unsafe, want := range map[string]string{"example.com": "example.com:80", "8.8.8.8": "8.8.8.8:80", "2606:4700::1": "[2606:4700::1]:80"} {
		if got, err := ParseTarget(unsafe, 80); err != nil || got.String() != want {
			t.Errorf("ParseTarget(%q) = %q, %v, want %q", unsafe, got, err, want)
		}
	}
	for _, unsafe := range []string{"", "[::1]", "::ffff:1.2.3.4", "fe80::1%lo", "example.com:80", "0x7f.1", "a b"} {
		if got, err := ParseTarget(unsafe, 80); err == nil {
			t.Errorf("ParseTarget(%q) = %q, want it refused", unsafe, got)
		}
	}
	mapped, err := TargetOfAddr(netip.MustParseAddr("::ffff:127.0.0.1"), 80)
	if err != nil || mapped.Addr() != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("mapped: %v, %v", mapped, err)
	}
	for _, addr := range []netip.Addr{{}, netip.MustParseAddr("fe80::1%lo")} {
		if got, err := TargetOfAddr(addr, 80); err == nil {
			t.Errorf("TargetOfAddr(%v) = %v", addr, got)
		}
	}
	if _, err := ParseTarget("example.com", 0); err == nil {
		t.Error("port 0")
	}
	if _, err := TargetOfAddr(netip.MustParseAddr("8.8.8.8"), 0); err == nil {
		t.Error("port 0 of an address")
	}
	if _, err := TargetOfName(Host{}, 1); err == nil {
		t.Error("zero name")
	}
}

// checkAuthority: what is accepted has one spelling, which net/url and net read in the same way.
func checkAuthority(t failer, unsafe string, scheme Scheme) {
	target, err := ParseAuthority(unsafe, scheme)
	if (err == nil) == target.IsZero() {
		t.Fatalf("ParseAuthority(%q) = %q, %v: want exactly one", unsafe, target, err)
	}
	if err != nil {
		return
	}
	if again, err := ParseAuthority(target.String(), NoScheme); err != nil || again != target {
		t.Fatalf("ParseAuthority(%q) = %q, which gives %q, %v", unsafe, target, again, err)
	}
	host, port, err := net.SplitHostPort(target.String())
	if err != nil {
		t.Fatalf("ParseAuthority(%q) = %q: %v", unsafe, target, err)
	}
	u, err := url.Parse("http://" + target.String() + "/")
	if err != nil || u.Hostname() != host || u.Port() != port || u.User != nil || u.Path != "/" {
		t.Fatalf("ParseAuthority(%q) = %q, which net/url reads as %q %q, %v", unsafe, target, u.Hostname(), u.Port(), err)
	}
	if !target.Host().IsZero() {
		checkHost(t, target.Host().String())
	}
}

func FuzzAuthority(f *testing.F) {
	for _, s := range []string{"example.com:443", "[::1]:443", "user@a:1", "[::ffff:1.2.3.4]:1", "1.2.3.4", "a:b:c", "[fe80::1%25lo]:1", "A.:1", "0x7f.1:80", "]:1"} {
		f.Add(s, uint8(0))
		f.Add(s, uint8(1))
	}
	f.Fuzz(func(t *testing.T, unsafe string, scheme uint8) {
		checkAuthority(t, unsafe, Scheme(scheme%3))
		if target, err := ParseTarget(unsafe, 80); err == nil {
			checkAuthority(t, target.String(), NoScheme)
		}
	})
}

func BenchmarkParseAuthority(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseAuthority("packages.example.com:443", NoScheme); err != nil {
			b.Fatal(err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// refusal fails the test unless err is a *Refusal.
func refusal(t *testing.T, err error) *Refusal {
	t.Helper()
	var r *Refusal
	if !errors.As(err, &r) {
		t.Fatalf("got error %v, want a *Refusal", err)
	}
	return r
}

func TestM8HostOneSpelling(t *testing.T) {
	long := strings.Repeat("a", 63)
	for unsafe, want := range map[string]string{
		"example.com":                      "example.com",
		"EXAMPLE.Com":                      "example.com",
		"example.com.":                     "example.com",
		"a":                                "a",
		"3com.com":                         "3com.com",
		"1.2.3.4.example":                  "1.2.3.4.example",
		"0x7f.example":                     "0x7f.example",
		"r3---sn-4g5e.googlevideo.example": "r3---sn-4g5e.googlevideo.example",
		"my_host._tcp.example":             "my_host._tcp.example",
		"bücher.example":                   "xn--bcher-kva.example",
		"BÜCHER.example":                   "xn--bcher-kva.example",
		"bu\u0308cher.example":             "xn--bcher-kva.example",
		"xn--bcher-kva.example":            "xn--bcher-kva.example",
		"XN--BCHER-KVA.EXAMPLE":            "xn--bcher-kva.example",
		"faß.example":                      "xn--fa-hia.example",
		"例え.テスト":                           "xn--r8jz45g.xn--zckzah",
		long + "." + long + "." + long + "." + strings.Repeat("a", 61): long + "." + long + "." + long + "." + strings.Repeat("a", 61),
	} {
		got, err := ParseHost(unsafe)
		if err != nil || got.String() != want {
			t.Errorf("ParseHost(%q) = %q, %v, want %q", unsafe, got, err, want)
		}
	}
}

func TestM8HostRefused(t *testing.T) {
	long := strings.Repeat("a", 63)
	for class, names := range map[string][]string{
		"NUL":                {"\x00", "example.com\x00", "example.com\x00.evil.example", "exa\x00mple.com"},
		"CRLF":               {"example.com\r\n", "example.com\n", "example.com\rX: y", "a\r\nHost: b"},
		"space":              {" example.com", "example.com ", "exam ple.com", "\texample.com", "example.com\u00a0", "example.com\u2003"},
		"control":            {"\x01a", "a\x7f.com", "a\u0085.com", "a\u200b.com", "a\u2028b.com", "\ufeffa.com", "a\u202e.com"},
		"percent":            {"example%2ecom", "%65xample.com", "127.0.0.1%00", "fe80::1%eth0"},
		"user information":   {"user@example.com", "good.com@evil.com", "good.com:80@evil.com"},
		"delimiters":         {"a/b", `a\b`, "a?b", "a#b", "a:80", "a;b", "a,b", "a*b", "*.a", "a&b", "a'b", `a"b`, "a<b", "a|b", "a^b", "a`b", "a{b}", "(a)", "a=b", "a+b", "a~b", "a!b", "a$b"},
		"brackets and IPv6":  {"[::1]", "::1", "[fe80::1%25eth0]", "[::ffff:127.0.0.1]", "[v1.a]", "[", "]", "[example.com]"},
		"empty labels":       {"", ".", "..", ".a", "a..b", "a..", "...a"},
		"hyphens":            {"-a.com", "a-.com", "-oProxyCommand=x", "a.-b", "-"},
		"length":             {long + "a.com", strings.Repeat("a.", 127) + "a", strings.Repeat("a", 5000), strings.Repeat("ü", 600)},
		"decimal address":    {"2130706433", "2130706433.", "2852039166", "0", "4294967296", "99999999999999999999"},
		"octal address":      {"0177.0.0.1", "0251.0376.0251.0376", "017700000001", "127.0.0.01"},
		"hex address":        {"0x7f.1", "0x7f000001", "0xa9fea9fe", "0X7F.0.0.1", "0x", "1.0x"},
		"short address":      {"127.1", "127.0.1", "10.1", "1.2.3"},
		"address":            {"127.0.0.1", "8.8.8.8", "1.2.3.4.", "1.2.3.4.5", "256.256.256.256", "example.1", "a.09"},
		"disguised dots":     {"example。com", "example．com", "example｡com", "127。0。0。1", "bücher。example"},
		"disguised letters":  {"ｅｘａｍｐｌｅ.com", "example.ⓒom", "\u212aube.example", "ﬁle.example", "exam\u00adple.com", "１２７.0.0.1", "①27.0.0.1", "１２７．０．０．１"},
		"mapping to syntax":  {"℀.example", "℀é.example", "a\u2048é.example", "a％2eé.com", "evilé.com／.good.com", "≠.example", "é@b.com"},
		"bad A-labels":       {"xn--.example", "xn--a.example", "xn--example-.com", "xn--bcher-kvA-.example", "xn--1234567890", "xn--99999999.example", "xn--0.example", "a.xn--127-.0.0.1", "xn--xn--bcher-kva-.com", "xn--BCHER-kva\u00fc.example"},
		"forbidden by IDNA":  {"a\u0300\u200d.example", "\u0300a.example", "\u200db.example", "אa1.example", "a\U000e0001.example", "\ue000.example", "�.example"},
		"neither ASCII, UTF": {"\xff.example", "a\xc0\xaeb.com", "caf\xe9.example", "\xed\xa0\x80.com"},
	} {
		for _, unsafe := range names {
			host, err := ParseHost(unsafe)
			if err == nil {
				t.Errorf("%s: ParseHost(%q) = %q, want it refused", class, unsafe, host)
				continue
			}
			if r := refusal(t, err); r.Sub != BadName || !host.IsZero() {
				t.Errorf("%s: ParseHost(%q) = %q, %s, want the zero value and %s", class, unsafe, host, r.Sub, BadName)
			}
			if strings.ContainsAny(err.Error(), "\x00\r\n\x7f") || len(err.Error()) > 600 {
				t.Errorf("%s: message %q isn't fit for a log", class, err)
			}
		}
	}
}

func TestM8HostRefusalTellsTheAddress(t *testing.T) {
	for unsafe, want := range map[string]string{
		"2130706433": "127.0.0.1", "0x7f.1": "127.0.0.1", "0177.0.0.1": "127.0.0.1", "127.1": "127.0.0.1", "0x7f000001.": "127.0.0.1",
		"0xa9fea9fe": "169.254.169.254", "2852039166": "169.254.169.254", "0251.0376.0251.0376": "169.254.169.254", "169.254.43518": "169.254.169.254",
		"0": "0.0.0.0", "10.1": "10.0.0.1", "4294967295": "255.255.255.255", "192.168.257": "192.168.1.1",
	} {
		_, err := ParseHost(unsafe)
		r := refusal(t, err)
		if r.Addr != netip.MustParseAddr(want) {
			t.Errorf("ParseHost(%q): address %v, want %v", unsafe, r.Addr, want)
		}
		if d := Denied(err); d.Allowed() || d.Addr != r.Addr || d.Code != CodeEgressDenied {
			t.Errorf("Denied(%v) = %+v", err, d)
		}
	}
	for _, unsafe := range []string{"", ".", "4294967296", "1.2.3.4.5", "256.1", "256.0.0.1", "1.2.3.256", "1.256.3", "08.0.0.1", "0xg", "a", "1..2", "+1", "-1", "1_0", "0x1_0", "1.2.65536"} {
		if addr, ok := LooseIPv4(unsafe); ok {
			t.Errorf("LooseIPv4(%q) = %v, want none", unsafe, addr)
		}
	}
}

func TestM8HostUnder(t *testing.T) {
	suffix := mustHost(t, "example.com")
	for name, want := range map[string]bool{
		"a.example.com": true, "a.b.example.com": true,
		"example.com": false, "notexample.com": false, "example.com.evil.org": false, "com": false, "a.example.co": false,
	} {
		if got := mustHost(t, name).Under(suffix); got != want {
			t.Errorf("%s under %s: %v, want %v", name, suffix, got, want)
		}
	}
	if mustHost(t, "a.b").Under(Host{}) || (Host{}).Under(suffix) || (Host{}).Under(Host{}) {
		t.Error("the zero value takes part")
	}
}

func mustHost(t testing.TB, s string) Host {
	t.Helper()
	h, err := ParseHost(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// nameText generates names, near-names and junk, with all the spellings of dots and digits.
func nameText() *rapid.Generator[string] {
	piece := rapid.SampledFrom([]string{
		"a", "example", "com", "EXAMPLE", "bücher", "xn--bcher-kva", "xn--", "-", "_", ".", ".", ".", "。", "1", "127", "0x7f", "0177", "ß", "\u200d",
		"ｅ", "\x00", " ", "%2e", "@", ":", "[", "\r\n", "é", "א", "\u00ad", "İ", "ı", "K", "💩", "\xff",
	})
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(piece, 1, 8).Draw(t, "pieces"), "")
	})
}

func TestM8HostNormalisingIsIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkHost(t, nameText().Draw(t, "name")) })
}

type failer interface {
	Fatalf(format string, args ...any)
}

// checkHost holds a name to what must be true of each.
func checkHost(t failer, unsafe string) {
	h, err := ParseHost(unsafe)
	if (err == nil) == h.IsZero() {
		t.Fatalf("ParseHost(%q) = %q, %v: want exactly one", unsafe, h, err)
	}
	if err != nil {
		return
	}
	for _, spelling := range []string{h.String(), h.String() + ".", strings.ToUpper(h.String())} {
		if again, err := ParseHost(spelling); err != nil || again != h {
			t.Fatalf("ParseHost(%q) = %q, but %q gives %q, %v", unsafe, h, spelling, again, err)
		}
	}
	if _, err := netip.ParseAddr(h.String()); err == nil || len(h.String()) > maxName || strings.Trim(h.String(), "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		t.Fatalf("ParseHost(%q) = %q: no name", unsafe, h)
	}
	if addr, ok := LooseIPv4(h.String()); ok {
		t.Fatalf("ParseHost(%q) = %q, which inet_aton reads as %v", unsafe, h, addr)
	}
}

// Nothing that is refused may become allowed by writing it in another way.
func TestM8ReencodingGainsNothing(t *testing.T) {
	list, err := NewList([]string{"example.com", "*.example.org"})
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		unsafe := nameText().Draw(t, "name")
		_, err := ParseHost(unsafe)
		if err == nil {
			return
		}
		for _, again := range []string{unsafe + ".", strings.ToUpper(unsafe), strings.ToLower(unsafe), " " + unsafe, "." + unsafe, unsafe + "\x00"} {
			h, err := ParseHost(again)
			if err != nil {
				continue
			}
			// Capitals can turn letters of Unicode into ASCII (ı, ſ): then it is another name, judged as such.
			if !isASCII(unsafe) && isASCII(again) {
				continue
			}
			d := list.Decide(ask2(Target{host: h, port: 443}))
			if d.Allowed() {
				t.Fatalf("%q is refused, %q is allowed", unsafe, again)
			}
		}
	})
}

func FuzzHost(f *testing.F) {
	for _, s := range []string{"example.com", "EXAMPLE.com.", "bücher.example", "xn--bcher-kva.example", "xn--example-.com", "0x7f.1", "a\x00b", "例え。jp", "xn--a-ecp.ru", "１.1", "a.b.", strings.Repeat("a.", 126) + "b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, unsafe string) {
		checkHost(t, unsafe)
		LooseIPv4(unsafe)
	})
}

func BenchmarkParseHost(b *testing.B) {
	for name, host := range map[string]string{"ascii": "packages.example.com", "capitals": "Packages.Example.COM.", "a-label": "xn--bcher-kva.example", "unicode": "bücher.example"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ParseHost(host); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

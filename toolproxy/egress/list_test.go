// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"agentrun/rings"

	"pgregory.net/rapid"
)

func mustList(t testing.TB, entries ...string) *List {
	t.Helper()
	l, err := NewList(entries)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustTarget(t testing.TB, authority string) Target {
	t.Helper()
	target, err := ParseAuthority(authority, NoScheme)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func ask(t testing.TB, ring rings.Ring, authority string) Ask {
	t.Helper()
	return Ask{Ring: ring, Target: mustTarget(t, authority)}
}

func ask2(target Target) Ask { return Ask{Ring: rings.Standard, Target: target} }

func TestM8EntriesRefused(t *testing.T) {
	for entry, wayOut := range map[string]string{
		"":                            "example.com",
		"https://example.com/":        `"example.com"`,
		"http://example.com:8080/a/b": `"example.com:8080"`,
		"example.com ":                "before the host",
		" example.com":                "before the host",
		"GET  example.com":            "*.NAME",
		"get example.com":             "GET,HEAD",
		"GET, example.com":            "GET,HEAD",
		"CONNECT example.com":         "GET,HEAD",
		"example.com:":                "HOST:443",
		"example.com:0":               "HOST:443",
		"example.com:65536":           "HOST:443",
		"example.com:https":           "HOST:443",
		"example.com:443:443":         "*.NAME",
		"user@example.com":            "*.NAME",
		"exa*mple.com":                "*.NAME",
		"*example.com":                "*.NAME",
		"a.*.com":                     "*.NAME",
		"*.*.com":                     "*.NAME",
		"*.":                          "*.NAME",
		"**":                          "*.NAME",
		"*.10.0.0.1":                  "*.NAME",
		"0x7f.1":                      "127.0.0.1",
		"2130706433":                  "127.0.0.1",
		"10.0.0.1/8":                  "10.0.0.0/8",
		"0.0.0.0/0":                   "all that is public",
		"::/0":                        "all that is public",
		"128.0.0.0/1":                 "all that is public",
		"10.0.0.0/33":                 "ADDRESS/BITS",
		"[::ffff:10.0.0.1]":           "10.0.0.1",
		"::ffff:10.0.0.0/104":         "10.0.0.0",
		"[fe80::1%lo]":                "ADDRESS/BITS",
		"[::1":                        "ADDRESS/BITS",
		"[10.0.0.1]":                  "ADDRESS/BITS",
		"[::1]x":                      "HOST:443",
		"example.com/a?b":             "without query",
		"example.com/../a":            "without query",
		"example.com/a%2fb":           "escaped slashes",
		"example.com/a//b":            "empty segments",
		"example.com/a;b":             "empty segments",
		"example.com\x00":             "*.NAME",
		"exam\r\nple.com":             "*.NAME",
		strings.Repeat("a", 2000):     "example.com",
	} {
		e, err := ParseEntry(entry)
		if err == nil {
			t.Errorf("ParseEntry(%q) = %+v, want it refused", entry, e)
			continue
		}
		r := refusal(t, err)
		shown := fmt.Sprintf("%.80q", entry)
		if r.Sub != BadEntry || !strings.Contains(r.Text, shown) || !strings.Contains(r.Text, wayOut) {
			t.Errorf("ParseEntry(%q): %s: %v, want %s, the entry and %q in it", entry, r.Sub, err, BadEntry, wayOut)
		}
	}
	if _, err := NewList(make([]string, maxEntries+1)); err == nil {
		t.Error("a list without end is read")
	}
	_, err := NewList([]string{"a.example", "b_:", "https://c.example"})
	if err == nil || !strings.Contains(err.Error(), "b_:") || !strings.Contains(err.Error(), "c.example") {
		t.Errorf("got %v, want both bad entries named", err)
	}
}

func TestM8EgressTable(t *testing.T) {
	list := mustList(t,
		"example.com", "*.example.org", "git.example:22", "any.example:*", "GET,HEAD files.example/pub", "POST files.example/in/",
		"BÜCHER.example", "10.1.2.3:8080", "172.16.0.0/12", "[fd12::5]:443", "fd34::/48", "localhost:3000", "127.0.0.1:3000", "169.254.0.0/16", "corp.internal")
	for _, c := range []struct {
		place, method, path string
		want                Reason // in ring 2; empty: allowed
		entry               string
	}{
		{"example.com:443", "", "", "", "example.com"},
		{"EXAMPLE.COM.:80", "", "", "", "example.com"},
		{"example.com:80", "DELETE", "/x", "", "example.com"},
		{"example.com:8443", "", "", PortNotListed, "example.com"},
		{"www.example.com:443", "", "", NotListed, ""},
		{"example.com.evil.net:443", "", "", NotListed, ""},
		{"evil-example.com:443", "", "", NotListed, ""},
		{"example.org:443", "", "", NotListed, ""}, // *.suffix isn't the suffix
		{"a.example.org:443", "", "", "", "*.example.org"},
		{"a.b.example.org:443", "", "", "", "*.example.org"},
		{"notexample.org:443", "", "", NotListed, ""},
		{"git.example:22", "", "", "", "git.example:22"},
		{"git.example:443", "", "", PortNotListed, "git.example:22"},
		{"any.example:9999", "", "", "", "any.example:*"},
		{"any.example:5432", "", "", DatabasePort, ""},
		{"files.example:80", "GET", "/pub/a", "", "GET,HEAD files.example/pub"},
		{"files.example:80", "GET", "/pub", "", "GET,HEAD files.example/pub"},
		{"files.example:80", "GET", "/public", PathNotListed, "GET,HEAD files.example/pub"},
		{"files.example:80", "GET", "/PUB/a", PathNotListed, "GET,HEAD files.example/pub"},
		{"files.example:80", "GET", "/pub%2fa", PathNotListed, "GET,HEAD files.example/pub"},
		{"files.example:80", "GET", "/pub;x/a", PathNotListed, "GET,HEAD files.example/pub"},
		{"files.example:80", "PUT", "/pub/a", MethodNotListed, "GET,HEAD files.example/pub"},
		{"files.example:80", "POST", "/pub/a", PathNotListed, "POST files.example/in/"},
		{"files.example:80", "POST", "/in/a", "", "POST files.example/in/"},
		{"files.example:80", "POST", "/in", PathNotListed, "POST files.example/in/"},
		{"files.example:443", "", "", TunnelNotListed, "GET,HEAD files.example/pub"},
		{"example.com:80", "get", "/", BadMethod, ""},
		{"example.com:80", "CONNECT", "/", BadMethod, ""}, // CONNECT inside CONNECT
		{"example.com:80", "GET", "", BadPath, ""},
		{"example.com:80", "", "/x", BadMethod, ""},
		{"xn--bcher-kva.example:443", "", "", "", "BÜCHER.example"},
		{"10.1.2.3:8080", "", "", "", "10.1.2.3:8080"},
		{"10.1.2.3:80", "", "", PrivateAddress, ""},
		{"10.1.2.4:8080", "", "", PrivateAddress, ""},
		{"172.20.1.1:443", "", "", "", "172.16.0.0/12"},
		{"[fd12::5]:443", "", "", "", "[fd12::5]:443"},
		{"[fd34::9]:80", "", "", "", "fd34::/48"},
		{"[fd35::9]:80", "", "", PrivateAddress, ""},
		{"127.0.0.1:80", "", "", PrivateAddress, ""},
		{"127.0.0.1:3000", "", "", "", "127.0.0.1:3000"},
		{"localhost:3000", "", "", "", "localhost:3000"},
		{"169.254.1.1:80", "", "", "", "169.254.0.0/16"},
		{"169.254.169.254:80", "", "", MetadataAddress, ""}, // a network doesn't name it
		{"[fd00:ec2::254]:80", "", "", MetadataAddress, ""},
		{"[64:ff9b::a9fe:a9fe]:80", "", "", MetadataAddress, ""},
		{"[64:ff9b::7f00:1]:3000", "", "", PrivateAddress, ""},
		{"[2002:7f00:1::]:3000", "", "", PrivateAddress, ""},
		{"[::7f00:1]:3000", "", "", PrivateAddress, ""},
		{"0.0.0.0:80", "", "", PrivateAddress, ""},
		{"8.8.8.8:443", "", "", NotListed, ""},
	} {
		a := ask(t, rings.Standard, c.place)
		a.Method = c.method
		if c.path != "" {
			var err error
			if a.Path, err = ParsePath(c.path); err != nil {
				t.Fatal(err)
			}
		}
		d := list.Decide(a)
		if d.Allowed() != (c.want == "") || d.Sub != c.want || d.Entry != c.entry {
			t.Errorf("%s %s%s: %v %s by %q (%s), want %q by %q", c.method, c.place, c.path, d.Verdict, d.Sub, d.Entry, d.Reason, c.want, c.entry)
		}
		if want := map[bool]rings.Code{true: rings.CodeOK, false: CodeEgressDenied}[d.Allowed()]; d.Code != want || d.Reason == "" || d.Rule != "M-8" {
			t.Errorf("%s: decision %+v, want code %s", c.place, d, want)
		}
		for _, ring := range []rings.Ring{rings.Sandbox, rings.Root, rings.NoRing, 200} {
			a.Ring = ring
			if d := list.Decide(a); d.Allowed() || d.Sub != RingHasNoEgress {
				t.Errorf("%v %s: %+v, want %s", ring, c.place, d, RingHasNoEgress)
			}
		}
	}
}

func TestM8RingOneReachesThePublicOnly(t *testing.T) {
	list := mustList(t, "intranet.corp", "10.0.0.5", "*:*")
	for _, l := range []*List{nil, {}, mustList(t), list} {
		for place, want := range map[string]Reason{
			"example.com:443": "", "example.com:22": "", "8.8.8.8:53": "", "[2606:4700::1111]:443": "", "[64:ff9b::808:808]:443": "",
			"example.com:5432": DatabasePort, "127.0.0.1:80": PrivateAddress, "169.254.169.254:80": MetadataAddress, "[::1]:80": PrivateAddress,
			"100.64.0.1:80": PrivateAddress, "[fe80::1]:80": PrivateAddress, "224.0.0.1:80": PrivateAddress, "168.63.129.16:80": MetadataAddress,
			"localhost:80": SpecialName, "x.localhost:80": SpecialName, "metadata:80": SpecialName, "metadata.google.internal:80": SpecialName, "printer.local:80": SpecialName, "nas.home.arpa:80": SpecialName,
		} {
			d := l.Decide(ask(t, rings.Privileged, place))
			if d.Allowed() != (want == "") || d.Sub != want {
				t.Errorf("%s: %v %s (%s), want %q", place, d.Verdict, d.Sub, d.Reason, want)
			}
			if d.Allowed() != d.Everything {
				t.Errorf("%s: Everything is %v", place, d.Everything)
			}
		}
	}
	for _, place := range []string{"intranet.corp:443", "10.0.0.5:80"} {
		if d := list.Decide(ask(t, rings.Privileged, place)); !d.Allowed() || d.Entry == "" || d.Everything {
			t.Errorf("%s: %+v, want it allowed by its entry", place, d)
		}
	}
}

func TestM8EmptyListAllowsNothing(t *testing.T) {
	for _, l := range []*List{nil, {}, mustList(t)} {
		for _, place := range []string{"example.com:443", "8.8.8.8:443"} {
			if d := l.Decide(ask(t, rings.Standard, place)); d.Sub != NotListed {
				t.Errorf("%s: %+v", place, d)
			}
		}
		if d := l.Decide(Ask{Ring: rings.Standard}); d.Sub != BadName {
			t.Errorf("zero target: %+v", d)
		}
	}
	star := mustList(t, "*")
	for place, want := range map[string]Reason{"example.com:443": "", "8.8.8.8:80": "", "example.com:22": PortNotListed, "10.0.0.1:80": PrivateAddress, "db:80": SpecialName, "169.254.169.254:80": MetadataAddress} {
		if d := star.Decide(ask(t, rings.Standard, place)); d.Sub != want || d.Everything != (want == "") {
			t.Errorf("* and %s: %+v, want %q", place, d, want)
		}
	}
	if (&Entry{}).names(netip.MustParseAddr("10.0.0.1")) || (Decision{}).Allowed() || Denied(nil).Allowed() || Denied(errors.New("x")).Allowed() {
		t.Error("a zero value allows")
	}
}

// Rebinding and mixed answers: all that would be dialled is looked at, and only that can be dialled.
func TestM8CheckResolved(t *testing.T) {
	list := mustList(t, "example.com", "inside.example", "10.9.9.9", "meta.example", "10.0.0.0/16:22").Refusing([]netip.Addr{netip.MustParseAddr("198.41.0.4"), netip.MustParseAddr("::ffff:198.41.0.5")})
	addrs := func(s ...string) (all []netip.Addr) {
		for _, a := range s {
			all = append(all, netip.MustParseAddr(a))
		}
		return all
	}
	many := make([]netip.Addr, maxResolved+1)
	for i := range many {
		many[i] = netip.AddrFrom4([4]byte{8, 8, 8, byte(i)})
	}
	for _, c := range []struct {
		place    string
		resolved []netip.Addr
		want     Reason
		dial     string
	}{
		{"example.com:443", addrs("93.184.215.14", "2606:2800:21f::1"), "", "[93.184.215.14:443 [2606:2800:21f::1]:443]"},
		{"example.com:443", addrs("::ffff:93.184.215.14", "93.184.215.14"), "", "[93.184.215.14:443]"},
		{"example.com:443", nil, NoAddress, "[]"},
		{"example.com:443", many, TooManyAddresses, "[]"},
		{"example.com:443", []netip.Addr{{}}, PrivateAddress, "[]"},
		{"example.com:443", addrs("2606:2800:21f::1%eth0"), PrivateAddress, "[]"},
		{"example.com:443", addrs("127.0.0.1"), PrivateAddress, "[]"},
		{"example.com:443", addrs("93.184.215.14", "10.0.0.1"), PrivateAddress, "[]"},
		{"example.com:443", addrs("93.184.215.14", "169.254.169.254"), MetadataAddress, "[]"},
		{"example.com:443", addrs("::ffff:169.254.169.254"), MetadataAddress, "[]"},
		{"example.com:443", addrs("64:ff9b::a00:1"), PrivateAddress, "[]"},
		{"example.com:443", addrs("2001:0:4136:e378:8000:63bf:80ff:fffe"), PrivateAddress, "[]"},
		{"example.com:443", addrs("198.41.0.4"), OwnAddress, "[]"},
		{"example.com:443", addrs("198.41.0.5"), OwnAddress, "[]"},
		{"example.com:443", addrs("64:ff9b::c629:4"), OwnAddress, "[]"},
		{"example.com:22", addrs("93.184.215.14"), PortNotListed, "[]"},
		{"other.example:443", addrs("93.184.215.14"), NotListed, "[]"},
		{"inside.example:443", addrs("10.9.9.9"), "", "[10.9.9.9:443]"},
		{"inside.example:443", addrs("10.0.9.9"), PrivateAddress, "[]"}, // named for port 22 only
		{"10.9.9.9:443", nil, "", "[10.9.9.9:443]"},
		{"10.9.9.9:443", addrs("10.9.9.9"), NameMismatch, "[]"},
		{"10.0.9.9:22", nil, "", "[10.0.9.9:22]"},
	} {
		p, d := list.CheckResolved(ask(t, rings.Standard, c.place), c.resolved)
		if d.Sub != c.want || d.Allowed() != (c.want == "") || fmt.Sprint(p.AddrPorts()) != c.dial {
			t.Errorf("%s %v: %v by %s (%s), want %s by %q", c.place, c.resolved, p.AddrPorts(), d.Sub, d.Reason, c.dial, c.want)
		}
		if d.Allowed() && p.target.String() != c.place {
			t.Errorf("pinned %v, want %s", p.target, c.place)
		}
	}
	single := mustList(t, "a.example", "169.254.169.254", "198.41.0.4").Refusing(addrs("198.41.0.4"))
	for _, a := range []string{"169.254.169.254", "198.41.0.4"} { // named singly
		if _, d := single.CheckResolved(ask(t, rings.Standard, "a.example:80"), addrs(a)); !d.Allowed() {
			t.Errorf("%s: %+v, want it allowed", a, d)
		}
	}
	if _, d := (*List)(nil).CheckResolved(ask(t, rings.Privileged, "a.example:80"), addrs("8.8.8.8")); !d.Allowed() {
		t.Errorf("nil list in ring 1: %+v", d)
	}
	p, _ := list.CheckResolved(ask(t, rings.Standard, "example.com:443"), addrs("93.184.215.14"))
	p.AddrPorts()[0] = netip.MustParseAddrPort("127.0.0.1:1")
	if p.AddrPorts()[0].Addr() != netip.MustParseAddr("93.184.215.14") {
		t.Error("a caller can change what is pinned")
	}
	if (Pinned{}).AddrPorts() != nil {
		t.Error("the zero value has addresses")
	}
}

// A name that is listed isn't any more with a label before it, unless by a star.
func TestM8AddingALabel(t *testing.T) {
	label := rapid.StringMatching(`[a-z]([a-z0-9-]{0,5}[a-z0-9])?`).Filter(func(s string) bool { return !strings.HasPrefix(s, "xn--") })
	rapid.Check(t, func(t *rapid.T) {
		name := strings.Join(rapid.SliceOfN(label, 1, 4).Draw(t, "labels"), ".")
		other := label.Draw(t, "label")
		exact, err := NewList([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		star, err := NewList([]string{"*." + name})
		if err != nil {
			t.Fatal(err)
		}
		decide := func(l *List, unsafe string) bool {
			target, err := ParseAuthority(unsafe, HTTPS)
			if err != nil {
				t.Fatal(err)
			}
			return l.Decide(ask2(target)).Allowed()
		}
		if !decide(exact, name) || decide(star, name) {
			t.Fatalf("%q itself", name)
		}
		longer := other + "." + name
		if decide(exact, longer) || !decide(star, longer) {
			t.Fatalf("%q below %q", longer, name)
		}
		after := name + "." + other
		if decide(exact, after) || decide(star, after) && !strings.HasSuffix(after, "."+name) {
			t.Fatalf("%q after %q", after, name)
		}
		if glued := other + name; decide(star, glued) && !strings.HasSuffix(glued, "."+name) || decide(exact, glued) {
			t.Fatalf("%q glued to %q", glued, name)
		}
	})
}

func FuzzEntry(f *testing.F) {
	for _, s := range []string{"example.com", "*.example.com:443", "*", "*:*", "GET,POST a.example:8080/pub", "10.0.0.0/8:8080", "[fd00::/8]:443", "[fd00::]/8:1", "fd00::/8", "[::1]:80/x", "10.0.0.1/x", "https://a", "1.2.3.4/24", "a:/b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, unsafe string) {
		e, err := ParseEntry(unsafe)
		if (err == nil) == (e.kind == noKind) {
			t.Fatalf("ParseEntry(%q) = %+v, %v", unsafe, e, err)
		}
		if err != nil {
			refusal(t, err)
			return
		}
		l := mustList(t, unsafe)
		for _, never := range []string{"169.254.169.254:80", "127.0.0.1:443", "[::1]:443", "example.com:5432"} {
			a := ask(t, rings.Standard, never)
			if d := l.Decide(a); d.Allowed() && e.kind != network {
				t.Fatalf("%q allows %s", unsafe, never)
			}
			a.Ring = rings.Sandbox
			if l.Decide(a).Allowed() {
				t.Fatalf("%q allows ring 3", unsafe)
			}
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	entries := []string{"*.example.org", "GET files.example/pub"}
	for i := range 1000 {
		entries = append(entries, fmt.Sprintf("host%d.example.com", i))
	}
	list := mustList(b, entries...)
	for name, place := range map[string]string{"exact": "host999.example.com:443", "suffix": "a.b.example.org:443", "denied": "evil.example.net:443"} {
		a := ask(b, rings.Standard, place)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				list.Decide(a)
			}
		})
	}
	b.Run("resolved", func(b *testing.B) {
		a := ask(b, rings.Standard, "host999.example.com:443")
		addrs := []netip.Addr{netip.MustParseAddr("93.184.215.14"), netip.MustParseAddr("2606:2800:21f::1")}
		b.ReportAllocs()
		for b.Loop() {
			if _, d := list.CheckResolved(a, addrs); !d.Allowed() {
				b.Fatal(d)
			}
		}
	})
}

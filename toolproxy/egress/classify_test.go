// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Each row of the table says what it is and why, and none hides one that comes after it.
func TestM8BlocksAreSound(t *testing.T) {
	rows := 0
	for row := range strings.Lines(addresses) {
		if row != "\n" && !strings.HasPrefix(row, "#") {
			rows++
		}
	}
	if len(blocks()) != rows {
		t.Errorf("%d blocks are read of %d rows", len(blocks()), rows)
	}
	for i, b := range blocks() {
		if b.prefix != b.prefix.Masked() || b.source == "" || b.class == NoClass {
			t.Errorf("%v: class %v by %q", b.prefix, b.class, b.source)
		}
		if len(b.inner) != 0 && (len(b.inner) != 4 || slices.Max(b.inner) > 15 || slices.Min(b.inner)*8 < b.prefix.Bits()) {
			t.Errorf("%v: carries an IPv4 address at %v", b.prefix, b.inner)
		}
		for _, before := range blocks()[:i] {
			if before.prefix.Bits() <= b.prefix.Bits() && before.prefix.Contains(b.prefix.Addr()) {
				t.Errorf("%v: never reached, %v stands before it", b.prefix, before.prefix)
			}
		}
	}
}

func TestM8Classify(t *testing.T) {
	for want, addrs := range map[Class][]string{
		Public:        {"8.8.8.8", "1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "2606:4700::1111", "2a00::1", "2001:200::1", "2001:4860::1", "64:ff9b::808:808", "2003::1"},
		Private:       {"10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.0", "192.168.255.255", "::ffff:10.0.0.1", "::10.0.0.1", "64:ff9b::192.168.0.1", "2002:0a00:0001::", "64:ff9b:1:c0a8:0:100::", "2001:0:1:2:3:4:f5ff:fffe", "::ffff:0:10.0.0.1"},
		Loopback:      {"127.0.0.0", "127.0.0.1", "127.255.255.255", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1", "::ffff:0:127.0.0.1", "64:ff9b:1:7f00:0:100::"},
		LinkLocal:     {"169.254.0.0", "169.254.255.255", "fe80::1", "febf::1", "::ffff:169.254.1.1"},
		CGNAT:         {"100.64.0.0", "100.127.255.255", "::ffff:100.64.0.1"},
		Metadata:      {"169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "fe80::a9fe:a9fe", "::ffff:169.254.169.254", "::a9fe:a9fe", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "64:ff9b:1:a9fe:a9:fe00::", "2001::5601:5601"},
		UniqueLocal:   {"fc00::", "fdff:ffff::1", "fd00:ec2::255"},
		SiteLocal:     {"fec0::1", "feff::1"},
		Unspecified:   {"0.0.0.0", "::", "::ffff:0.0.0.0"},
		ThisNetwork:   {"0.0.0.1", "0.255.255.255", "::2", "::ffff:0.1.2.3"},
		Multicast:     {"224.0.0.1", "239.255.255.255", "ff02::1", "ffff::1", "::ffff:224.0.0.1"},
		Broadcast:     {"255.255.255.255", "::ffff:255.255.255.255"},
		Documentation: {"192.0.2.1", "198.51.100.1", "203.0.113.255", "2001:db8::1", "3fff::1", "3fff:fff::1"},
		Benchmarking:  {"198.18.0.0", "198.19.255.255", "2001:2::1"},
		Reserved:      {"192.0.0.1", "192.88.99.1", "240.0.0.0", "255.255.255.254", "100::1", "100:0:0:1::1", "2001:1::1", "2001:20::1", "5f00::1", "4000::1", "1::", "200::1", "8000::1", "fe00::1", "64:ff9b:2::1"},
		Mapped:        {"::ffff:8.8.8.8"},
		Compatible:    {"::8.8.8.8", "::ffff:0:8.8.8.8"},
		SixToFour:     {"2002:808:808::1"},
		Teredo:        {"2001:0:1:2:3:4:f7f7:f7f7"},
		NAT64:         {"64:ff9b:1:808:8:800::"},
	} {
		for _, s := range addrs {
			addr := netip.MustParseAddr(s)
			if got := Classify(addr); got != want {
				t.Errorf("Classify(%s) = %v, want %v", s, got, want)
			}
		}
	}
	if got := Classify(netip.Addr{}); got != NoClass {
		t.Errorf("no address: %v", got)
	}
	if got := Classify(netip.MustParseAddr("fe80::a9fe:a9fe%eth0")); got != Metadata {
		t.Errorf("with a zone: %v", got)
	}
	for c := NoClass; c <= NAT64; c++ {
		if c.String() == "" || c != NoClass && c.String() == classNames[NoClass] {
			t.Errorf("class %d has no name", c)
		}
	}
	if Class(200).String() != "no class" {
		t.Error("unknown class has a name")
	}
}

// What the standard library knows as not global unicast is never public, in any form that carries it.
func TestM8ClassifyAgreesWithNetip(t *testing.T) {
	check := func(t *rapid.T, addr netip.Addr) {
		known := addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified()
		if known && Classify(addr) == Public {
			t.Fatalf("%v is public", addr)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		ip := rapid.Uint32().Draw(t, "ip")
		v4 := [4]byte(binary.BigEndian.AppendUint32(nil, ip))
		addr := netip.AddrFrom4(v4)
		check(t, addr)
		class := Classify(addr)
		for _, b := range blocks() {
			if len(b.inner) == 0 {
				continue
			}
			outer := b.prefix.Addr().As16()
			for i, at := range b.inner {
				if outer[at] = v4[i]; b.inverted {
					outer[at] = ^v4[i]
				}
			}
			form := netip.AddrFrom16(outer)
			if form.IsUnspecified() || form.IsLoopback() {
				continue // :: and ::1 themselves
			}
			if got := Classify(form); class != Public && got != class || class == Public && got != b.class {
				t.Fatalf("%v (%v) in %v: %v", addr, class, form, got)
			}
			if inner, ok := b.carried(form); !ok || inner != addr {
				t.Fatalf("%v: carries %v", form, inner)
			}
		}
		check(t, netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "ip6"))))
	})
}

func BenchmarkClassify(b *testing.B) {
	for _, s := range []string{"8.8.8.8", "2606:4700::1111"} {
		addr := netip.MustParseAddr(s)
		b.Run(s, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Classify(addr)
			}
		})
	}
}

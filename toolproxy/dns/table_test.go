// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"
	"pgregory.net/rapid"
)

// M-8: an address is its name's for the whole run, in whatever order names come, and nobody else's.
func TestM8AddressesAreStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		max := rapid.IntRange(1, 20).Draw(t, "max")
		names := table{max: max}
		numbers := map[string]int{}
		for range rapid.IntRange(0, 60).Draw(t, "lookups") {
			name := fmt.Sprintf("n%d", rapid.IntRange(0, 30).Draw(t, "name"))
			n, ok := names.number(name)
			before, known := numbers[name]
			if ok != (known || len(numbers) < max) {
				t.Fatalf("%s: given %v, with %d of %d names used, known %v", name, ok, len(numbers), max, known)
			}
			if !ok {
				continue
			}
			if known && n != before {
				t.Fatalf("%s: number %d, before %d", name, n, before)
			}
			numbers[name] = n
		}
		for name, n := range numbers {
			for _, addr := range []netip.Addr{
				netip.AddrFrom4(addr4(n)), netip.AddrFrom16(addr6(n)), netip.AddrFrom16(netip.AddrFrom4(addr4(n)).As16()),
			} {
				back, ok := numberOf(addr)
				if got, _ := names.name(back); !ok || got != name || !Synthetic(addr) {
					t.Fatalf("%s is %v, which is %q", name, addr, got)
				}
			}
		}
	})
}

// The last name still has an address in both pools, and no address beyond names anything.
func TestM8PoolEdges(t *testing.T) {
	last := maxNames - 1
	if got := netip.AddrFrom4(addr4(last)).String(); got != "198.19.255.255" {
		t.Errorf("last address: got %s, want 198.19.255.255", got)
	}
	for _, tt := range []struct {
		addr      string
		synthetic bool
		number    int
		ok        bool
	}{
		{"198.18.0.0", true, 0, false},
		{"198.18.0.255", true, 0, false},
		{"198.18.1.0", true, 0, true},
		{"198.19.255.255", true, last, true},
		{"198.17.255.255", false, 0, false},
		{"198.20.0.0", false, 0, false},
		{"fd61:6772:756e::", true, 0, false},
		{"fd61:6772:756e::ff", true, 0, false},
		{"fd61:6772:756e::100", true, 0, true},
		{"fd61:6772:756e::1:ffff:ffff", true, 0, false},
		{"fd61:6772:756e::1:0:100", true, 0, false},
		{"fd61:6772:756e:0:ffff:ffff:ffff:ffff", true, 0, false},
		{"fd61:6772:756e::1:ffff", true, last, true},
		{"fd61:6772:756e::2:0", true, 0, false},
		{"fd61:6772:756e:1::100", false, 0, false},
		{"::ffff:198.18.1.0", true, 0, true},
		{"10.0.0.1", false, 0, false},
	} {
		addr := netip.MustParseAddr(tt.addr)
		n, ok := numberOf(addr)
		if ok != tt.ok || ok && n != tt.number || Synthetic(addr) != tt.synthetic {
			t.Errorf("%s: got %d %v, synthetic %v; want %d %v %v", addr, n, ok, Synthetic(addr), tt.number, tt.ok, tt.synthetic)
		}
	}
	if Synthetic(netip.Addr{}) {
		t.Error("no address is synthetic")
	}
}

// A full table refuses further names and keeps those it has; a name refused costs no number.
func TestM8TableFull(t *testing.T) {
	r := responder(t, Config{Allow: func(n string) bool { return n != "never.test" }})
	r.names.max = 2
	for _, tt := range []struct {
		name string
		code dnsmessage.RCode
		want string
	}{
		{"never.test.", dnsmessage.RCodeNameError, ""},
		{"a.test.", dnsmessage.RCodeSuccess, "198.18.1.0"},
		{"b.test.", dnsmessage.RCodeSuccess, "198.18.1.1"},
		{"c.test.", dnsmessage.RCodeServerFailure, ""},
		{"a.test.", dnsmessage.RCodeSuccess, "198.18.1.0"},
	} {
		m := unpack(t, r.reply(nil, query(t, tt.name, dnsmessage.TypeA)))
		if m.RCode != tt.code || addresses(m) != tt.want {
			t.Errorf("%s: got %v %q, want %v %q", tt.name, m.RCode, addresses(m), tt.code, tt.want)
		}
	}
	if name, ok := r.Name(netip.MustParseAddr("198.18.1.2")); ok {
		t.Errorf("198.18.1.2 stands for %q, want nothing", name)
	}
	if n := r.refused.sum(); n != 2 {
		t.Errorf("refused %d times, want 2", n)
	}
}

// The observer hears of each refused name, of repetitions at powers of two, and of a flood of names as one.
func TestM8RefusalsAreToldAndBounded(t *testing.T) {
	var told []Refusal
	var r *Responder
	r = responder(t, Config{Observe: func(one Refusal) { told = append(told, one); r.refused.sum() }})
	for range 9 {
		r.reply(nil, query(t, "Secret.evil.test.", dnsmessage.TypeTXT))
	}
	r.reply(nil, query(t, "a b\\\x00\xff.test.", dnsmessage.TypeA))
	r.reply(nil, []byte("?"))
	var want []Refusal
	for _, count := range []uint64{1, 2, 4, 8} {
		want = append(want, Refusal{Name: "Secret.evil.test", Type: 16, Reason: NameNotAllowed, Count: count})
	}
	want = append(want, Refusal{Name: `a\032b\092\000\255.test`, Type: 1, Reason: NameInvalid, Count: 1}, Refusal{Reason: Malformed, Count: 1})
	if diff := cmp.Diff(want, told); diff != "" {
		t.Error(diff)
	}
	const flood = 100_000
	for n := range flood {
		r.reply(nil, query(t, fmt.Sprintf("%d.test.", n), dnsmessage.TypeA))
	}
	if got, most := len(told), len(want)+maxRefused+17; got > most {
		t.Errorf("told %d times, want at most %d", got, most)
	}
	if len(r.refused.known) > maxRefused+1 {
		t.Errorf("%d refusals remembered, want at most %d", len(r.refused.known), maxRefused+1)
	}
	if last := told[len(told)-1]; last.Reason != OtherNames || last.Count != 65536 {
		t.Errorf("the flood ends with %+v", last)
	}
	if got, want := r.refused.sum(), uint64(flood+11); got != want {
		t.Errorf("refused: got %d, want %d", got, want)
	}
}

func TestReportedNamesAreShort(t *testing.T) {
	for _, raw := range []string{
		strings.Repeat("x", 253), strings.Repeat("\x00", 253), strings.Repeat("x", 250) + "\x00yz", strings.Repeat("x", 249) + "\x00yz",
	} {
		got := printable([]byte(raw))
		if len(got) > 253 || strings.HasSuffix(got, `\`) || strings.HasSuffix(got, `\0`) || strings.HasSuffix(got, `\00`) {
			t.Errorf("%q: %d bytes", got, len(got))
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package egress

import (
	_ "embed"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Class is what an address is for. The zero value is none; only Public may be dialled without an operator's
// word.
type Class uint8

const (
	NoClass Class = iota
	Public
	Private       // RFC 1918
	Loopback      // 127.0.0.0/8, ::1
	LinkLocal     // 169.254.0.0/16, fe80::/10
	CGNAT         // 100.64.0.0/10: shared between a carrier and its customers
	Metadata      // where a cloud hands out credentials to whoever can connect
	UniqueLocal   // fc00::/7
	SiteLocal     // fec0::/10
	Unspecified   // 0.0.0.0, :: (Linux connects to itself)
	ThisNetwork   // 0.0.0.0/8
	Multicast     // 224.0.0.0/4, ff00::/8
	Broadcast     // 255.255.255.255
	Documentation // never anybody's
	Benchmarking  // laboratories
	Reserved      // not handed out, or for protocols and not hosts
	Mapped        // ::ffff:0:0/96: IPv4 by another name
	Compatible    // ::/96 and ::ffff:0:0:0/96, as Mapped, of older standards
	SixToFour     // 2002::/16: a tunnel to the IPv4 address within
	Teredo        // 2001::/32: as 6to4
	NAT64         // 64:ff9b:1::/48: a translator of one's own network
)

var classNames = [...]string{
	"no class", "public", "private", "loopback", "link-local", "shared (CGNAT)", "metadata", "unique local", "site-local",
	"unspecified", "this network", "multicast", "broadcast", "documentation", "benchmarking", "reserved", "IPv4-mapped",
	"IPv4-compatible", "6to4", "Teredo", "NAT64",
}

func (c Class) String() string {
	if int(c) >= len(classNames) {
		return classNames[NoClass]
	}
	return classNames[c]
}

// Classify says what an address is for, by the special-purpose registries of IANA and addresses.tsv; a zone
// is ignored. Of an address that carries an IPv4 address, the class of that one is given if it isn't public:
// such a form hides it from whoever looks at the outside only. A well-known NAT64 address (RFC 6052) of a
// public one is public, each other form never.
func Classify(addr netip.Addr) Class {
	b := blockOf(addr)
	if inner, ok := b.carried(addr); ok {
		if inside := Classify(inner); inside != Public {
			return inside
		}
	}
	return b.class
}

//go:embed addresses.tsv
var addresses string

// block is a row of addresses.tsv. The zero value has no class.
type block struct {
	prefix   netip.Prefix
	class    Class
	inner    []int // bytes of an IPv6 address that carry one of IPv4; none: it carries none
	inverted bool
	source   string
}

// blocks reads the table at the first address: nothing is built before main.
var blocks = sync.OnceValue(func() (all []block) {
	for row := range strings.Lines(addresses) {
		cells := strings.Split(strings.TrimSpace(row), "\t")
		if len(cells) != 4 {
			continue // a remark or an empty line
		}
		b := block{prefix: netip.MustParsePrefix(cells[0]), source: cells[3]}
		b.class = Class(max(0, slices.Index(classNames[:], cells[1]))) //nolint:gosec // there are few
		bytes := strings.ReplaceAll(cells[2], "~", "")
		b.inverted = bytes != cells[2]
		for at := range strings.FieldsSeq(strings.Trim(bytes, "-")) {
			n, _ := strconv.Atoi(at) // TestM8BlocksAreSound reads all of them
			b.inner = append(b.inner, n)
		}
		all = append(all, b)
	}
	return all
})

// blockOf returns the first block that has the address.
func blockOf(addr netip.Addr) *block {
	addr = addr.WithZone("")
	all := blocks()
	for i := range all {
		if all[i].prefix.Contains(addr) {
			return &all[i]
		}
	}
	return &block{} // of what is no address
}

// carried returns the IPv4 address that an IPv6 address of this block carries.
func (b *block) carried(addr netip.Addr) (netip.Addr, bool) {
	if len(b.inner) == 0 {
		return netip.Addr{}, false
	}
	outer, ip := addr.As16(), [4]byte{}
	for i, at := range b.inner {
		if ip[i] = outer[at]; b.inverted { // Teredo (RFC 4380, 4)
			ip[i] = ^ip[i]
		}
	}
	return netip.AddrFrom4(ip), true
}

// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"encoding/binary"
	"net/netip"
)

// Class is what an address is for. The zero value is none; only Public may be dialled without an operator's word.
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

// Classify says what an address is for, by the special-purpose registries of IANA and the tables here; a zone is
// ignored. Of an address that carries an IPv4 address, the class of that one is given if it isn't public: such a form
// hides it from whoever looks at the outside only. A well-known NAT64 address (RFC 6052) of a public one is public,
// each other form never.
func Classify(addr netip.Addr) Class {
	switch {
	case addr.Is4():
		return classify4(binary.BigEndian.Uint32(addr.AsSlice()))
	case addr.Is6():
		b := addr.As16()
		return classify6(binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:]))
	}
	return NoClass
}

func classify4(ip uint32) Class {
	for i := range blocks4 {
		b := &blocks4[i]
		if ip>>(32-b.bits) == b.base>>(32-b.bits) {
			return b.class
		}
	}
	return Public
}

func classify6(hi, lo uint64) Class {
	for i := range blocks6 {
		b := &blocks6[i]
		if !b.has(hi, lo) {
			continue
		}
		if b.inner == nowhere {
			return b.class
		}
		if inside := classify4(b.inner.of(hi, lo)); inside != Public {
			return inside
		}
		return b.class
	}
	if hi>>61 == 1 { // 2000::/3, all that has been handed out as global unicast (RFC 4291, 2.4)
		return Public
	}
	return Reserved
}

// where says at which bits an IPv6 address carries an IPv4 address.
type where uint8

const (
	nowhere  where = iota
	atEnd          // the last 32 bits
	after16        // 6to4: bits 16 to 47
	obscured       // Teredo: the last 32 bits, inverted (RFC 4380, 4)
	after48        // NAT64 with a /48 prefix: bits 48 to 63 and 72 to 87 (RFC 6052, 2.2)
)

func (w where) of(hi, lo uint64) uint32 {
	switch w {
	case after16:
		return uint32(hi >> 16)
	case obscured:
		return ^uint32(lo)
	case after48:
		return uint32(hi&0xffff)<<16 | uint32(lo>>40)&0xffff
	}
	return uint32(lo)
}

func (b *block6) has(hi, lo uint64) bool {
	if b.bits <= 64 {
		return hi>>(64-b.bits) == b.hi>>(64-b.bits)
	}
	return hi == b.hi && lo>>(128-b.bits) == b.lo>>(128-b.bits)
}

// embedded returns the IPv4 address that an IPv6 address carries.
func embedded(addr netip.Addr) (netip.Addr, bool) {
	if !addr.Is6() {
		return netip.Addr{}, false
	}
	b := addr.As16()
	hi, lo := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	for i := range blocks6 {
		if blocks6[i].has(hi, lo) {
			ip := blocks6[i].inner.of(hi, lo)
			return netip.AddrFrom4([4]byte{byte(ip >> 24), byte(ip >> 16), byte(ip >> 8), byte(ip)}), blocks6[i].inner != nowhere
		}
	}
	return netip.Addr{}, false
}

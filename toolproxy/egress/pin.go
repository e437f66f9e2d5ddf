// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"slices"
)

const maxResolved = 64

// Pinned is where a connection may be opened: addresses that were checked, nothing left to resolve. A dialer that takes
// only this can't be led elsewhere by a second answer of the DNS (rebinding). Only CheckResolved makes one; the zero
// value has no address. It holds for one connection: the ring and the list may change, so ask again for the next.
type Pinned struct {
	target Target
	addrs  []netip.AddrPort
}

// AddrPorts returns the addresses to try, in the resolver's order, as a copy.
func (p Pinned) AddrPorts() []netip.AddrPort { return slices.Clone(p.addrs) }

// CheckResolved is Decide with the addresses that the name was resolved to, none for a target that is an address. If a
// single one of them may not be dialled, the whole answer is refused: a name that points inside and outside is an attack
// or a mistake, and trying "the other one" would make it a matter of luck.
func (l *List) CheckResolved(a Ask, resolved []netip.Addr) (Pinned, Decision) {
	if l == nil {
		l = &List{}
	}
	d := l.Decide(a)
	if !d.Allowed() {
		return Pinned{}, d
	}
	if addr := a.Target.addr; addr.IsValid() {
		if len(resolved) > 0 {
			return Pinned{}, deny(NameMismatch, "%s: an address isn't resolved", a.Target)
		}
		return Pinned{a.Target, []netip.AddrPort{netip.AddrPortFrom(addr, a.Target.port)}}, d
	}
	switch {
	case len(resolved) == 0:
		return Pinned{}, deny(NoAddress, "%s: the name has no address", a.Target)
	case len(resolved) > maxResolved:
		return Pinned{}, deny(TooManyAddresses, "%s: %d addresses, at most %d", a.Target, len(resolved), maxResolved)
	}
	p := Pinned{a.Target, make([]netip.AddrPort, 0, len(resolved))}
	for _, addr := range resolved {
		if !addr.IsValid() || addr.Zone() != "" {
			return Pinned{}, deny(PrivateAddress, "%s: %v is no address, or one with a zone", a.Target, addr)
		}
		// Resolvers hand IPv4 out in either length; it is the same address.
		addr = addr.Unmap()
		if why, fine := l.checkAddr(&a, addr); !fine {
			why.Entry = d.Entry
			return Pinned{}, why
		}
		if ap := netip.AddrPortFrom(addr, a.Target.port); !slices.Contains(p.addrs, ap) {
			p.addrs = append(p.addrs, ap)
		}
	}
	return p, d
}

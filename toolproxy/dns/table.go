// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"encoding/binary"
	"net/netip"
	"sync"
)

var (
	pool4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18}), 15)
	pool6 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x61, 0x67, 0x72, 0x75, 0x6e}), 64)
)

// firstNumber leaves 198.18.0.0/24 to services that want a fixed address.
const firstNumber = 256

// maxNames is how many names the addresses of 198.18.0.0/15 suffice for.
const maxNames = 1<<17 - firstNumber

// Synthetic tells whether addr belongs to the pools, whether or not it stands for a name. An IPv4
// address mapped into IPv6 counts as what it is.
func Synthetic(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return pool4.Contains(addr) || pool6.Contains(addr)
}

// table numbers names. Entries are never removed: an address that came to mean another name would
// lead a connection past the decision that was made for the first.
type table struct {
	mu      sync.Mutex
	max     int
	numbers map[string]int
	names   []string
}

// number is the name's own, given now if it has none; false if none is left.
func (t *table) number(name string) (int, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, ok := t.numbers[name]; ok {
		return n, true
	}
	n := len(t.names)
	if n >= t.max {
		return 0, false
	}
	if t.numbers == nil {
		t.numbers = map[string]int{}
	}
	t.numbers[name] = n
	t.names = append(t.names, name)
	return n, true
}

func (t *table) name(number int) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if number < 0 || number >= len(t.names) {
		return "", false
	}
	return t.names[number], true
}

func addr4(number int) [4]byte {
	a := pool4.Addr().As4()
	first := binary.BigEndian.Uint32(a[:])
	binary.BigEndian.PutUint32(a[:], first+uint32(number+firstNumber)) //nolint:gosec // below maxNames
	return a
}

func addr6(number int) [16]byte {
	a := pool6.Addr().As16()
	binary.BigEndian.PutUint32(a[12:], uint32(number+firstNumber)) //nolint:gosec // below maxNames
	return a
}

// numberOf is the inverse of addr4 and addr6; false for any address they don't give.
func numberOf(addr netip.Addr) (int, bool) {
	addr = addr.Unmap().WithZone("")
	var n int
	switch {
	case pool4.Contains(addr):
		a, first := addr.As4(), pool4.Addr().As4()
		n = int(binary.BigEndian.Uint32(a[:])-binary.BigEndian.Uint32(first[:])) - firstNumber
	case pool6.Contains(addr):
		a := addr.As16()
		n = int(min(binary.BigEndian.Uint64(a[8:]), firstNumber+maxNames)) //nolint:gosec // bounded just here
		n -= firstNumber
	default:
		return 0, false
	}
	return n, n >= 0 && n < maxNames
}

// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"strconv"
	"strings"
)

// endsInNumber tells whether a client would try to read the name as an IPv4 address (WHATWG URL, "ends in a number";
// inet_aton(3)): no top-level domain is a number, so nothing is lost by refusing all of these.
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if digits, hex := strings.CutPrefix(last, "0x"); hex {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

func numericName(name string) *Refusal {
	addr, ok := LooseIPv4(name)
	if !ok {
		return refuse(BadName, "host name %.64q: ends in a number, as only addresses do", name)
	}
	r := refuse(BadName, "host name %.64q: a spelling of the address %v (%v)", name, addr, Classify(addr))
	r.Addr = addr
	return r
}

// LooseIPv4 reads an IPv4 address in every spelling that inet_aton(3) knows: one to four parts, each decimal, octal
// with 0 or hexadecimal with 0x, the last one filling what is left; a trailing dot is ignored, as browsers do. It is for
// recognising what a refused name was meant to reach, never for choosing what to dial.
func LooseIPv4(unsafeHost string) (netip.Addr, bool) {
	if len(unsafeHost) > maxUnsafeHost {
		return netip.Addr{}, false
	}
	parts := strings.Split(strings.TrimSuffix(unsafeHost, "."), ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var ip uint64
	for i, part := range parts {
		n, ok := looseNumber(part)
		last := i == len(parts)-1
		if !ok || !last && n > 0xff || last && n >= 1<<(8*(5-len(parts))) {
			return netip.Addr{}, false
		}
		if last {
			ip |= n
		} else {
			ip |= n << (8 * (3 - i))
		}
	}
	return netip.AddrFrom4([4]byte{byte(ip >> 24), byte(ip >> 16), byte(ip >> 8), byte(ip)}), true
}

func looseNumber(s string) (uint64, bool) {
	base := 10
	switch {
	case strings.HasPrefix(s, "0x"), strings.HasPrefix(s, "0X"):
		if s = s[2:]; s == "" {
			return 0, true // what inet_aton of glibc makes of a lone 0x
		}
		base = 16
	case len(s) > 1 && s[0] == '0':
		base = 8
	}
	if s == "" || s[0] == '+' || s[0] == '-' || strings.Contains(s, "_") {
		return 0, false
	}
	n, err := strconv.ParseUint(s, base, 64)
	return n, err == nil && n <= 0xffffffff
}

// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"strconv"
	"strings"
)

// Scheme gives an authority without a port its default, and is that port.
type Scheme uint16

const (
	NoScheme Scheme = 0 // CONNECT, SOCKS: the port must be there
	HTTP     Scheme = 80
	HTTPS    Scheme = 443
)

// Target is where a connection is to go: a name or an address, and a port. It is comparable, and its zero
// value is refused. An address in it has no zone and is not IPv4-mapped.
type Target struct {
	host Host
	addr netip.Addr
	port uint16
}

// Host returns the name, zero if the target is an address.
func (t Target) Host() Host { return t.host }

// Addr returns the address, invalid if the target is a name.
func (t Target) Addr() netip.Addr { return t.addr }

// Port returns the port, 1 to 65535, and 0 for the zero value.
func (t Target) Port() uint16 { return t.port }

// IsZero tells whether t is no target.
func (t Target) IsZero() bool { return t.port == 0 || t.host.IsZero() && !t.addr.IsValid() }

// String returns the authority in its one spelling, always with the port; empty for the zero value.
func (t Target) String() string {
	switch {
	case t.IsZero():
		return ""
	case t.addr.IsValid():
		return netip.AddrPortFrom(t.addr, t.port).String()
	}
	return t.host.name + ":" + strconv.Itoa(int(t.port))
}

// MarshalText returns String.
func (t Target) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// TargetOfName is the target of a name that was normalised before.
func TargetOfName(host Host, port uint16) (Target, error) {
	if host.IsZero() {
		return Target{}, refuse(BadName, "target: no name")
	}
	if port == 0 {
		return Target{}, refuse(BadPort, "target %s: port 0", host)
	}
	return Target{host: host, port: port}, nil
}

// TargetOfAddr is the target of an address in binary: SOCKS5 types 1 and 4, the original destination of a
// captured connection. An IPv4-mapped one is taken for the IPv4 address: that is how the kernel spells it on
// a dual-stack socket.
func TargetOfAddr(addr netip.Addr, port uint16) (Target, error) {
	if !addr.IsValid() || addr.Zone() != "" {
		return Target{}, refuse(BadName, "target %v: no address, or one with a zone", addr)
	}
	if port == 0 {
		return Target{}, refuse(BadPort, "target %v: port 0", addr)
	}
	return Target{addr: addr.Unmap(), port: port}, nil
}

// ParseTarget reads a name or address that has a field of its own, and a port: SOCKS5 type 3, in which
// clients send addresses in text too. IPv6 stands there without brackets.
func ParseTarget(unsafeHost string, port uint16) (Target, error) {
	if strings.Contains(unsafeHost, ":") {
		addr, err := parseIPv6(unsafeHost)
		if err != nil {
			return Target{}, err
		}
		return TargetOfAddr(addr, port)
	}
	return parseHostPort(unsafeHost, port)
}

// ParseAuthority reads HOST[:PORT] of a CONNECT line, an absolute URI or a Host header. Without a port the
// scheme's is taken; an empty port is refused. IPv6 stands in brackets, without zone, and not IPv4-mapped.
// The error is a *Refusal.
func ParseAuthority(unsafeAuthority string, scheme Scheme) (Target, error) {
	if len(unsafeAuthority) > maxUnsafeHost+len(":65535") {
		return Target{}, refuse(BadAuthority, "authority %.64q…: %d bytes", unsafeAuthority, len(unsafeAuthority))
	}
	if strings.Contains(unsafeAuthority, "@") {
		return Target{}, refuse(BadAuthority, "authority %.64q: user information", unsafeAuthority)
	}
	host, unsafePort, hasPort, err := splitAuthority(unsafeAuthority)
	if err != nil {
		return Target{}, err
	}
	port := uint16(scheme)
	if hasPort {
		if port, err = parsePort(unsafePort); err != nil {
			return Target{}, err
		}
	}
	if port == 0 {
		return Target{}, refuse(BadPort, "authority %.64q: no port", unsafeAuthority)
	}
	if inner, v6 := strings.CutPrefix(host, "["); v6 {
		addr, err := parseIPv6(strings.TrimSuffix(inner, "]"))
		if err != nil {
			return Target{}, err
		}
		return TargetOfAddr(addr, port)
	}
	return parseHostPort(host, port)
}

// splitAuthority cuts at the only colon outside brackets. A second one is refused: ::1:80 is two things.
func splitAuthority(unsafe string) (host, port string, hasPort bool, err error) {
	if strings.HasPrefix(unsafe, "[") {
		end := strings.IndexByte(unsafe, ']')
		if end < 0 {
			return "", "", false, refuse(BadAuthority, "authority %.64q: bracket without its end", unsafe)
		}
		host, rest := unsafe[:end+1], unsafe[end+1:]
		if rest == "" {
			return host, "", false, nil
		}
		port, ok := strings.CutPrefix(rest, ":")
		if !ok {
			return "", "", false, refuse(BadAuthority, "authority %.64q: text after the bracket", unsafe)
		}
		return host, port, true, nil
	}
	host, port, hasPort = strings.Cut(unsafe, ":")
	if strings.Contains(port, ":") {
		return "", "", false, refuse(BadAuthority, "authority %.64q: more than one colon; IPv6 stands in brackets", unsafe)
	}
	return host, port, hasPort, nil
}

func parsePort(unsafePort string) (uint16, error) {
	n, err := strconv.ParseUint(unsafePort, 10, 16)
	if err != nil || unsafePort[0] == '0' {
		return 0, refuse(BadPort, "port %.16q: not a number from 1 to 65535 in plain digits", unsafePort)
	}
	return uint16(n), nil
}

// parseHostPort takes the one canonical spelling of an IPv4 address for the address, and all else for a name:
// what is another spelling of an address is refused there.
func parseHostPort(unsafeHost string, port uint16) (Target, error) {
	if endsInNumber(unsafeHost) {
		if addr, err := netip.ParseAddr(unsafeHost); err == nil && addr.Is4() {
			return TargetOfAddr(addr, port)
		}
	}
	host, err := ParseHost(unsafeHost)
	if err != nil {
		return Target{}, err
	}
	return TargetOfName(host, port)
}

func parseIPv6(unsafe string) (netip.Addr, error) {
	if strings.Contains(unsafe, "%") {
		return netip.Addr{}, refuse(BadName, "address %.64q: zones are the host's own business", unsafe)
	}
	addr, err := netip.ParseAddr(unsafe)
	if err != nil || !addr.Is6() {
		return netip.Addr{}, refuse(BadName, "address %.64q: not IPv6", unsafe)
	}
	if addr.Is4In6() {
		r := refuse(BadName, "address %.64q: IPv4 in IPv6; write %v (%v)", unsafe, addr.Unmap(), Classify(addr.Unmap()))
		r.Addr = addr.Unmap()
		return netip.Addr{}, r
	}
	return addr, nil
}

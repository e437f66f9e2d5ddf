// SPDX-License-Identifier: Apache-2.0

package egress

// Claims are the names that one connection or request gave for the same place. Zero fields were not given.
type Claims struct {
	Authority Target // CONNECT, absolute URI, SOCKS; of a captured connection the name its address was handed out for
	SNI       Host
	Host      Target // Host header, or :authority
	Hidden    bool   // Hello.Hidden
	// Everything is Decision.Everything: with it a name hidden in an encrypted hello gains nothing and is let pass.
	Everything bool
}

// Agree allows if all names that were given are the same, ports included. A list checks the first; whoever could send
// another afterwards would reach a different site behind the same address (domain fronting). It tells nothing about what
// follows inside TLS that isn't intercepted.
func Agree(c Claims) Decision {
	switch {
	case c.Authority.IsZero() && c.SNI.IsZero() && c.Host.IsZero():
		return deny(BadName, "no host was named")
	case !c.Authority.IsZero() && !c.Host.IsZero() && c.Authority != c.Host:
		return deny(NameMismatch, "asked for %s, but the Host header says %s", c.Authority, c.Host)
	case !c.Authority.IsZero() && !c.SNI.IsZero() && c.Authority.host != c.SNI:
		return deny(NameMismatch, "asked for %s, but TLS names %s", c.Authority, c.SNI)
	case !c.Host.IsZero() && !c.SNI.IsZero() && c.Host.host != c.SNI:
		return deny(NameMismatch, "TLS names %s, but the Host header says %s", c.SNI, c.Host)
	case c.Hidden && !c.Everything:
		return deny(HiddenName, "TLS hides the name it is for (encrypted client hello); turn that off in the client")
	}
	return allow("M-8", "all names agree")
}

// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"agentrun/rings"
)

const maxEntries = 4096

// Ask is one question: may a run in this ring go there? For a tunnel Method and Path are zero; for a request that the
// proxy can read both must be there.
type Ask struct {
	Ring   rings.Ring // the live one, at this moment
	Target Target
	Method string
	Path   Path
}

// List is an allow list. It doesn't change, so any number of goroutines may use it. The zero value and nil are the empty
// list, which allows nothing in ring 2.
type List struct {
	entries []Entry
	exact   map[Host][]int // by name, in the order of entries
	below   map[Host][]int
	wide    []int        // "*"
	nets    []int        // addresses and networks
	own     []netip.Addr // of the host
}

// NewList reads the entries of an allow list, each as ParseEntry has it. The error joins those of all bad entries; with
// an error there is no list.
func NewList(unsafeEntries []string) (*List, error) {
	if len(unsafeEntries) > maxEntries {
		return nil, refuse(BadEntry, "allow list: %d entries, at most %d; use *.NAME", len(unsafeEntries), maxEntries)
	}
	l := &List{exact: map[Host][]int{}, below: map[Host][]int{}}
	var errs []error
	for i, unsafe := range unsafeEntries {
		e, err := ParseEntry(unsafe)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.entries = append(l.entries, e)
		switch e.kind {
		case exactName:
			l.exact[e.host] = append(l.exact[e.host], i)
		case belowName:
			l.below[e.host] = append(l.below[e.host], i)
		case everything:
			l.wide = append(l.wide, i)
		case network:
			l.nets = append(l.nets, i)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return l, nil
}

// Refusing returns a list that also refuses the addresses of the host itself, unless an entry names one singly: what
// listens on all interfaces is reached by the host's public address as well as by 127.0.0.1, past its firewall. The
// caller looks them up, and again when they change.
func (l *List) Refusing(own []netip.Addr) *List {
	c := List{}
	if l != nil {
		c = *l
	}
	c.own = make([]netip.Addr, 0, len(own))
	for _, addr := range own {
		c.own = append(c.own, addr.WithZone("").Unmap())
	}
	return &c
}

// Decide answers an Ask (M-8): ring 3 goes nowhere, ring 2 where the list says, ring 1 to all that is public and where
// the list says. That a name is allowed says nothing about its addresses: dial only what CheckResolved returns.
func (l *List) Decide(a Ask) Decision {
	if l == nil {
		l = &List{}
	}
	if a.Ring != rings.Standard && a.Ring != rings.Privileged {
		return deny(RingHasNoEgress, "%v has no egress; tools are at /internal/tools", a.Ring)
	}
	if d, ok := wellFormed(&a); !ok {
		return d
	}
	if a.Target.addr.IsValid() {
		return l.decideAddr(&a, a.Target.addr)
	}
	return l.decideName(&a)
}

// wellFormed refuses what no list can allow.
func wellFormed(a *Ask) (Decision, bool) {
	if a.Target.IsZero() {
		return deny(BadName, "no host was named"), false
	}
	if database := databaseAt(a.Target.port); database != "" {
		return deny(DatabasePort, "%s: port of %s; agents reach databases through tools only", a.Target, database), false
	}
	if a.Method == "" && a.Path.IsZero() {
		return Decision{}, true
	}
	if _, err := ParseMethod(a.Method); err != nil {
		return Denied(err), false
	}
	switch {
	case a.Method == "CONNECT":
		return deny(BadMethod, "%s: CONNECT inside a request that was read", a.Target), false
	case a.Path.IsZero():
		return deny(BadPath, "%s: request without a path", a.Target), false
	case ForbiddenRoute(a.Path):
		return deny(RouteForbidden, "%s%.64s: never open to an agent, whatever a list says", a.Target, a.Path.s), false
	}
	return Decision{}, true
}

// search keeps the first entry that allows and the one that came closest.
type search struct {
	first int // -1: none
	near  int
	stage stage
}

func (l *List) try(s *search, a *Ask, candidates []int) {
	for _, i := range candidates {
		got := l.entries[i].compare(a)
		if got == allows {
			if s.first < 0 || i < s.first {
				s.first = i
			}
			return // candidates are in order
		}
		if got > s.stage {
			s.stage, s.near = got, i
		}
	}
}

func (l *List) decideName(a *Ask) Decision {
	s := search{first: -1}
	h := a.Target.host
	l.try(&s, a, l.exact[h])
	for _, rest, more := strings.Cut(h.name, "."); more && len(l.below) > 0; _, rest, more = strings.Cut(rest, ".") {
		l.try(&s, a, l.below[Host{rest}])
	}
	wide := search{first: -1}
	l.try(&wide, a, l.wide)
	special := specialUse(h)
	if wide.first >= 0 && !special && (s.first < 0 || wide.first < s.first) {
		s.first = wide.first
	} else if s.first < 0 && !special && wide.stage > s.stage {
		s.stage, s.near = wide.stage, wide.near
	}
	everything := !special && (a.Ring == rings.Privileged || wide.first >= 0)
	switch {
	case s.first >= 0:
		return l.allowed(s.first, everything)
	case special && (a.Ring == rings.Privileged || wide.first >= 0):
		return deny(SpecialName, "%s: not a public name; an entry must name it", h)
	case a.Ring == rings.Privileged:
		return everythingPublic()
	}
	return l.missed(a, s)
}

func everythingPublic() Decision {
	d := allow("M-8", "ring 1 reaches all that is public")
	d.Everything = true
	return d
}

func (l *List) allowed(i int, everything bool) Decision {
	d := allow("M-8", "on the allow list")
	d.Entry, d.Everything = l.entries[i].text, everything
	return d
}

func (l *List) missed(a *Ask, s search) Decision {
	var d Decision
	switch s.stage {
	case otherPlace:
		return deny(NotListed, "%s: not on the allow list; the operator can add it with --allow", a.Target)
	case otherPort:
		d = deny(PortNotListed, "%s: the allow list has the host, not the port", a.Target)
	case hiddenByTunnel:
		d = deny(TunnelNotListed, "%s: allowed for some methods or paths only, which a tunnel hides", a.Target)
	case otherMethod:
		d = deny(MethodNotListed, "%s: method %s is not allowed there", a.Target, a.Method)
	default:
		d = deny(PathNotListed, "%s%.64s: the allow list has other paths of this host", a.Target, a.Path.s)
	}
	d.Entry = l.entries[s.near].text
	return d
}

// decideAddr is about an address that was asked for in place of a name.
func (l *List) decideAddr(a *Ask, addr netip.Addr) Decision {
	if d, fine := l.checkAddr(a, addr); !fine || d.Allowed() {
		return d
	}
	s := search{first: -1}
	l.try(&s, a, l.wide)
	switch {
	case s.first >= 0:
		return l.allowed(s.first, true)
	case a.Ring == rings.Privileged:
		return everythingPublic()
	}
	for _, i := range l.nets { // for the reason only: none of them allows
		if e := &l.entries[i]; e.names(addr) {
			if got := e.compare(a); got > s.stage {
				s.stage, s.near = got, i
			}
		}
	}
	return l.missed(a, s)
}

// checkAddr looks at one address: fine if it is public or an entry names it for just this request, in which case the
// decision allows. Otherwise the decision says why it must not be dialled.
func (l *List) checkAddr(a *Ask, addr netip.Addr) (d Decision, fine bool) {
	entry, single := -1, false
	for _, i := range l.nets {
		if e := &l.entries[i]; e.names(addr) && e.compare(a) == allows {
			if entry < 0 {
				entry = i
			}
			single = single || e.network.IsSingleIP()
		}
	}
	class := Classify(addr)
	switch {
	case l.isOwn(addr) && !single:
		d = deny(OwnAddress, "%s: %v is an address of this host", a.Target, addr)
	case entry >= 0:
		d, fine = l.allowed(entry, false), true
	case class == Public:
		return Decision{}, true
	case class == Metadata:
		d = deny(MetadataAddress, "%s: %v is a cloud's metadata service", a.Target, addr)
	default:
		d = deny(PrivateAddress, "%s: %v is %v, not public; an operator can name the address", a.Target, addr, class)
	}
	d.Addr = addr
	return d, fine
}

func (l *List) isOwn(addr netip.Addr) bool {
	if len(l.own) == 0 {
		return false
	}
	inner, ok := blockOf(addr).carried(addr)
	return slices.Contains(l.own, addr) || ok && slices.Contains(l.own, inner)
}

// specialUse tells whether a name is one that the public DNS doesn't answer: without a dot (a search domain would be
// tried), or below what is reserved for local use (RFC 6761, 6762, 7686, 8375, 9476; ICANN resolution 2024.07.29.06 on
// .internal; 2018.02.04.12 on .corp, .home, .mail). The rest are habits of home routers and offices.
func specialUse(h Host) bool {
	if !strings.Contains(h.name, ".") || strings.HasSuffix(h.name, ".home.arpa") || h.name == "home.arpa" {
		return true
	}
	switch h.name[strings.LastIndexByte(h.name, '.')+1:] {
	case "localhost", "local", "test", "invalid", "onion", "alt", "internal", "corp", "home", "mail",
		"lan", "intranet", "private", "localdomain":
		return true
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"fmt"
	"net/netip"

	"agentrun/rings"
)

// The codes of what this package refuses (M-13). What exactly was wrong is the decision's Sub.
const (
	CodeEgressDenied   rings.Code = "egress_denied"   // a connection to somewhere else (M-8)
	CodeRouteForbidden rings.Code = "route_forbidden" // a route of the proxy itself (M-7)
)

// Reason says which rule refused, in a word that never changes its meaning. Words are added, never changed. The zero
// value is no reason and accompanies only what is allowed.
type Reason string

// What was asked for is not permitted.
const (
	RingHasNoEgress  Reason = "ring_has_no_egress"
	NotListed        Reason = "not_listed"
	PortNotListed    Reason = "port_not_listed"
	MethodNotListed  Reason = "method_not_listed"
	PathNotListed    Reason = "path_not_listed"
	TunnelNotListed  Reason = "tunnel_not_listed" // the entry restricts methods or paths, which a tunnel hides
	SpecialName      Reason = "special_name"      // "*" and ring 1 cover public names only
	DatabasePort     Reason = "database_port"
	PrivateAddress   Reason = "private_address"
	MetadataAddress  Reason = "metadata_address"
	OwnAddress       Reason = "own_address" // of the host that the proxy runs on
	NoAddress        Reason = "no_address"
	TooManyAddresses Reason = "too_many_addresses"
	NameMismatch     Reason = "name_mismatch"
	HiddenName       Reason = "hidden_name" // encrypted client hello
	RouteForbidden   Reason = "forbidden_route"
	UnknownRoute     Reason = "unknown_route"
)

// What was asked for can't be read in exactly one way.
const (
	BadName          Reason = "bad_name"
	BadAuthority     Reason = "bad_authority"
	BadPort          Reason = "bad_port"
	BadMethod        Reason = "bad_method"
	BadPath          Reason = "bad_path"
	BadRequestTarget Reason = "bad_request_target"
	BadClientHello   Reason = "bad_client_hello"
	BadEntry         Reason = "bad_entry" // of an allow list: the operator's mistake, never the agent's
)

// Decision is a verdict with its grounds. The zero value refuses.
type Decision struct {
	rings.Decision
	Sub   Reason     // which rule refused; empty when allowed
	Entry string     // the entry of the allow list that decided, as written; empty if none did
	Addr  netip.Addr // the address that decided, if one did
	// Everything tells that the ring or an entry allows each public name: what a hello names is then of no consequence.
	Everything bool
}

// Refusal is the error of every parser here: input that is refused because it could be read in two ways, or in none.
type Refusal struct {
	Sub  Reason
	Text string // names the offending input, quoted and cut
	// Addr is the address that a client would have dialled for a name that is refused as another spelling of one;
	// for the audit. Otherwise invalid.
	Addr netip.Addr
}

func (r *Refusal) Error() string { return r.Text }

func refuse(sub Reason, format string, args ...any) *Refusal {
	return &Refusal{Sub: sub, Text: fmt.Sprintf(format, args...)}
}

// Denied makes the decision of a parser's error: egress_denied for each, with the sub-reason of a Refusal or bad_name.
// It never allows, not even without an error.
func Denied(err error) Decision {
	var r *Refusal
	if errors.As(err, &r) && r != nil {
		d := deny(r.Sub, "%s", r.Text)
		d.Addr = r.Addr
		return d
	}
	if err == nil {
		return deny(BadName, "nothing was asked for")
	}
	return deny(BadName, "%v", err)
}

func deny(sub Reason, format string, args ...any) Decision {
	return Decision{Decision: rings.Decision{Code: CodeEgressDenied, Reason: fmt.Sprintf(format, args...), Rule: "M-8"}, Sub: sub}
}

func denyRoute(sub Reason, format string, args ...any) Decision {
	return Decision{Decision: rings.Decision{Code: CodeRouteForbidden, Reason: fmt.Sprintf(format, args...), Rule: "M-7"}, Sub: sub}
}

func allow(rule, reason string) Decision {
	return Decision{Decision: rings.Decision{Verdict: rings.Allow, Code: rings.CodeOK, Reason: reason, Rule: rule}}
}

// SPDX-License-Identifier: Apache-2.0

// Package egress decides where a run may connect to (M-8) and which routes of the tool proxy it may reach (M-7). It is
// pure: it reads bytes and answers; it opens no socket, resolves no name, reads no clock, keeps nothing.
//
// What it guarantees:
//
//   - One reading. A name, authority, path or hello has one canonical value or is refused, and all sources of names go
//     through ParseHost. What is used afterwards is the value, never the text: Host, Target, Path and Pinned can be made
//     only by checking, and their zero values are refused everywhere.
//   - Ring 3, ring 0 and no ring go nowhere. Ring 2 goes where a List has an entry. Ring 1 goes to all that is public.
//   - No address is dialled that isn't public or named by an operator: CheckResolved looks at each one, the decision about
//     the name included, and what it returns holds addresses only.
//   - Databases' ports and the forbidden routes of M-7 stay closed whatever a list says.
//
// A connection through the proxy:
//
//	target, err := egress.ParseAuthority(unsafeAuthority, egress.NoScheme)
//	if err != nil {
//		return egress.Denied(err)
//	}
//	ask := egress.Ask{Ring: live, Target: target}
//	if d := list.Decide(ask); !d.Allowed() { // before any lookup: a question to the DNS is a message too
//		return d
//	}
//	pinned, d := list.CheckResolved(ask, resolve(target.Host()))
//	// record d; dial pinned.AddrPorts() only; then ParseClientHello and Agree before the first byte goes up
//
// # Answers and errors
//
// A refusal is a Decision: Code is egress_denied or route_forbidden, Sub the rule that refused, Entry the line of the list
// that came closest. Parsers return a *Refusal, of which Denied makes the Decision. Texts quote what was sent, cut and
// escaped, so they can go to a log. Both name hosts and paths, never queries that were accepted, headers or bodies.
//
// # What it does not protect against
//
// What happens inside a tunnel that isn't intercepted: after an agreed hello, the Host header in it is seen by the server
// alone. A listed server that is itself a proxy or mirrors other sites. Servers that take the method from a header
// (X-HTTP-Method-Override) or the path from the query. Translators from IPv6 to IPv4 with a prefix of their own, which
// can't be told from public addresses, and a router that sends public addresses to private places. A database on a port
// that isn't its own. Data sent to an allowed place.
//
// # How it fails
//
// Closed: unknown, malformed, ambiguous, too long and too much are refused. All work is linear in inputs that are bounded
// (names 1 KiB, targets 8 KiB, hellos 16 KiB, 4096 entries), and nothing is built before main.
package egress

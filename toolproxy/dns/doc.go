// SPDX-License-Identifier: Apache-2.0

// Package dns answers the sandbox's name lookups without ever making one (M-8).
//
// An allowed name gets a synthetic address, of IPv4 and of IPv6, that stands for it during the run and
// for no other name ever; the proxy, to which connections to such addresses come, asks Name for it and
// resolves it on the host only then, under its own rules. Every other name does not exist. So a
// lookup gives nothing out: no server is asked, and the answer to a name depends on the policy alone.
//
//	r := dns.New(dns.Config{Allow: policy.Allows, Observe: refused})
//	go r.Serve(ctx, udp)     // from netns: ns.Sockets, with PacketConn
//	go r.ServeTCP(ctx, tcp)  // and with net.FileListener
//	name, ok := r.Name(conn.LocalAddr()…)
//
// The addresses are 198.18.0.0/15 (RFC 2544: for benchmarks, routed nowhere, used by no service, and
// not private: programs that distrust answers with private addresses take them) and
// fd61:6772:756e::/64 (RFC 4193, chosen by us). The egress policy must refuse both as the real address
// of a name. Both families of a name carry the same number, given in the order of first use.
//
// What is answered with what:
//
//	A, AAAA of an allowed name                 its address, 60 s; no real server's data is ever in an answer
//	other types of an allowed name             NOERROR, empty: HTTPS, SVCB, TXT, MX … of names that "exist"
//	localhost and names below it, unless       127.0.0.1, ::1; other types NOERROR, empty
//	they are allowed
//	any type of another name, or of one with   NXDOMAIN; without SOA, so that no client keeps it: the policy
//	bytes outside a-z 0-9 _ - . in it          may change at any moment
//	types 0, 128–255 (ANY, AXFR, TSIG …)       NOTIMP, whatever the name
//	class other than IN                        REFUSED
//	operation other than QUERY                 NOTIMP
//	EDNS version other than 0                  BADVERS
//	malformed, several questions, any record   FORMERR: cut off, too long, bytes left over, a compressed
//	but one OPT                                name in the question, reserved label types
//	a response, less than a header             nothing: two responders can't be made to talk to each other
//	the table of names is full                 SERVFAIL for further names
//
// Answers are at most 28 bytes longer than their question, 310 in all; they are never truncated.
//
// Bounds: names and refused names remembered (4096, 1024), queries per second (500, beyond that they
// wait unread), message size (1232), TCP connections (16), time for a message (5 s), and time and
// queries of a connection (60 s, 256). One goroutine for Serve, one for ServeTCP and each of its
// connections; all have ended when those return.
//
// Errors: Serve and ServeTCP return what their socket says, and nil when ctx ends. Allow that is nil
// allows nothing.
//
// It does not decide: names come to Allow in lower case and without the final dot, but are otherwise as
// the agent wrote them. It does not protect from an agent that knows an address without asking: the
// proxy must decide about each connection anew, and refuse synthetic addresses that stand for nothing.
package dns

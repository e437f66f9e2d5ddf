// SPDX-License-Identifier: Apache-2.0

// Package forward is the way of a run's connections to the world (M-8): a forward proxy for HTTP and SOCKS5,
// the capture of connections that know of no proxy, and the answers to name lookups.
//
// What it guarantees:
//
//   - Nothing is looked up, connected or sent that egress.List doesn't allow for the ring of that very
//     moment. The decision comes before the lookup; what is dialled are addresses that were checked, never a
//     name.
//   - All names of a connection agree: CONNECT or SOCKS target, or the name an address was handed out for;
//     TLS server name; Host header.
//   - When the ring changes, everything open is decided anew, and what isn't allowed is cut (M-22),
//     websockets and tunnels too.
//   - Each decision is in one record. Like denials of one second share one, like requests of one connection
//     too; while records aren't taken nothing new is granted.
//   - HTTP that goes up is written anew (package wire): one Host, one framing, nothing of the hop before.
//   - A secret that a rule puts into requests goes only to the servers of that rule, over TLS that was
//     verified, and is covered in their replies.
//
// An example, with sockets made inside the run's namespace:
//
//	p, err := forward.New(forward.Options{Config: config, Allow: start.Allow, Supervisor: supervisor, CA: start.CA, Secret: secret})
//	go p.ServeProxy(proxy)      // 127.0.0.1:7601
//	go p.ServeCapture(capture)  // any address, 80 and 443
//	go p.ServeDNS(udp)
//	defer p.Close()
//
// # What an agent sees
//
// HTTP: status 403 (or 400, 413, 431 …; 502 when the server is at fault), X-Agentrun-Denied with the code,
// X-Agentrun-Reason with the rule, and a JSON body (M-13). SOCKS: reply 2, or 4 if there is no connection. A
// captured TLS connection: a fatal alert. A name: NXDOMAIN. Requests to port 80 are always read as HTTP,
// those of 443 are TLS; on other ports bytes pass, but for TLS, whose name must agree, and for places that
// rules about methods or paths name, which are read as HTTP.
//
// # What it does not protect against
//
// What is inside TLS that isn't intercepted, renegotiation that names another server included; names that a
// protocol other than TLS and HTTP has in it, on ports that allow it (STARTTLS, for one, isn't seen); data
// sent to an allowed place; servers that encode a secret in a way of their own. It sends no Via. HTTP/2 isn't
// spoken where requests are read: clients fall back by ALPN; h2c upgrades are not passed on.
//
// # How it fails
//
// Closed. A supervisor without an answer, a ring that isn't one, a message that can be read in two ways, a
// list that has no entry: refused. Limits bound connections, bytes, heads, bodies, idle and total time;
// records that can't be brought stop what is new. New returns every mistake of the configuration; the Serve
// functions what their sockets say, and nil after Close; Close an error if records were lost.
package forward

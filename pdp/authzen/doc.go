// SPDX-License-Identifier: Apache-2.0

// Package authzen asks a remote policy decision point by the access evaluation endpoint of the OpenID AuthZEN Authorization API
// 1.0 (M-10): a POST of subject, action, resource and context to /access/v1/evaluation, answered by {"decision":true|false}.
//
//	remote, err := authzen.New(authzen.Options{URL: "https://pdp.example.org"})
//	if err != nil {
//		return err
//	}
//	decider := pdp.Every(engine, remote) // the guards of M-9 hold whatever the remote says
//
// # What it guarantees
//
// An allowance is only what says so in a whole, well-formed answer with status 200, in time: no redirect is followed, no proxy
// variable used, no more than 64 KiB read. Anything else refuses, with pdp_unavailable, pdp_timeout or pdp_malformed. A denial's
// reason is context.reason if that is one of M-9's, else rbac_denied. Requests beyond MaxInFlight are refused at once, so that
// a PDP that hangs can't gather goroutines. The ring is compared here, before the remote is asked.
//
// # Cache
//
// An answer may be used again for exactly the same request, every field of it: denials for a second, allowances not at all
// unless the operator says for how long a withdrawn permission may go on. What went wrong is never kept.
//
// # What it does not protect against
//
// A remote that decides badly, within the ring and the guards of the decider before it. It learns who calls which tool on
// what; arguments and messages are no part of a request.
package authzen

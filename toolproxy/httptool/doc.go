// SPDX-License-Identifier: Apache-2.0

// Package httptool makes tools of HTTP services (M-12). The operator writes where a call goes and with which credentials; the
// agent gives arguments, and gets a result or an error in the gateway's own words.
//
//	tools:
//	  search:
//	    http:
//	      url: https://api.example.com/v1/items/{id}
//	      method: GET
//	      headers:
//	        Accept: application/json
//	        Authorization: {secret: SEARCH_KEY, prefix: "Bearer "}
//
// Guarantees. The agent chooses neither scheme, host, port nor headers. A path argument stays in its segment: it is
// percent-encoded but for unreserved characters, and can't be or contain a dot segment. A query argument can't replace one
// that the operator wrote. Secrets are never in an error, and are masked in replies, as they are and in the forms that
// URLs, JSON and base64 give them. Nothing of a reply that isn't 2xx reaches the agent but its status. Redirects aren't
// followed unless `follow` says so, and then only to the same scheme, host and port. Addresses are looked at after
// resolution and the connection goes to those: private ones only with `allow_private`, a cloud's metadata never. Proxy
// variables of the environment have no effect. Replies are bounded, before and after decompression.
//
// Errors are *gate.Error: bad_arguments, tool_timeout, too_large, tool_failed (status, reply cut short or malformed),
// unavailable (no connection; 429, 502, 503, 504). Their Cause is for the operator's log.
//
// What it does not protect against. An upstream that has the secret can hand it out in a form that isn't looked for
// (encrypted, reversed, in pieces over several calls). What arguments mean to the upstream: a tool is as safe as the
// service behind it. A public address of this host is public.
//
// It fails closed: a secret that is missing or too short to be masked, a header that can't be sent, http:// with a secret
// to a public place refuse when the configuration is read; what can't be read in one way fails the call.
package httptool

// SPDX-License-Identifier: Apache-2.0

// Package elevation is the route by which an agent asks for a more privileged ring on loan (H-13): /internal/elevation.
//
// What it guarantees. It grants nothing: gate (quarantine, rate, policy) decides whether the agent may ask, the supervisor whether
// it gets the ring. Of a request only target, time, reason and patience are read; who asks, trust, consensus and the ring
// it is in now are the supervisor's own knowledge. One request of a run is under way at a time. A success is told when the ring
// holds in this gateway, or 100 ms later.
//
//	mounts[egress.Elevation] = elevation.New(elevation.Options{Gate: gate, Controls: supervisor})
//
//	POST {"target_ring":2,"ttl_seconds":60,"reason":"push the branch","wait_seconds":30}
//	 200 {"ok":true,"output":{"elevation_id":"…","target_ring":2,"expires_at":"2026-01-02T03:04:05Z","ttl_seconds":60}}
//	 409 {"ok":false,"error":{"code":"duplicate_elevation","message":"…","next":"…"}}
//	GET  {"ok":true,"output":{"ring":2,"elevation":{…}}}
//
// Errors: H-13's codes, with 403; duplicate_elevation with 409; rate_limited and concurrency_limit with 429;
// bad_request with 400; unavailable with 503.
//
// What it does not protect against. A reason is an agent's words: secrets it recognises are masked and it is one line, but who reads
// it may be told things by it. GET knows the elevation that this agent asked for here; of one that an operator gave it shows the
// ring alone.
//
// How it fails. Closed: no answer, half an answer and a panic are refusals. It must stand behind a tools.Mux.
package elevation

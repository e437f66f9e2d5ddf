// SPDX-License-Identifier: Apache-2.0

// Package tools is the registry of what an agent may call, and the tool gateway's HTTP interface (M-7, M-11 to M-13):
//
//	GET  /internal/tools         the tools this agent may call, with the schemas of their arguments
//	POST /internal/tools/{name}  {"args":{…}} → {"ok":true,"output":…} or {"ok":false,"error":{"code","message","next"}}
//
// Tools are built in, or come from the configuration by kind (http, command), or from servers that bring several (mcp).
//
//	config, err := tools.ParseConfig(section)
//	registry, err := tools.New(tools.Options{Config: config, Entrance: gate, Caller: start.Caller, Filter: boundary, …})
//	mux := tools.NewMux(tools.MuxOptions{Mounts: map[egress.Family]http.Handler{egress.Tools: registry.Handler()}, …})
//	server := tools.NewServer(mux)
//
// What it guarantees. Every call, whichever way it comes, passes gate.Entrance with arguments in canonical form (RFC 8785)
// and is checked against the tool's schema; its reply is bounded, valid JSON, and passes the filter before the agent sees
// it. A call that passed is ended exactly once, also when the tool panics or doesn't end in time. Who calls is known from
// the link alone: no header, cookie or argument says so. Mux reads the request target as it was sent and admits only the
// routes of egress.RouteAllowed, so a forbidden route has no spelling that leads to it.
//
// Errors. ParseConfig and New return every fault with its key path. What an agent gets is a gate.Error; the text of any
// other error is the operator's alone, since upstreams repeat secrets in theirs.
//
// What it does not protect against. A tool that does something else than its description says; an upstream that lies in
// what it answers, within the schema of nothing. net/http itself answers requests that aren't HTTP in plain text.
//
// How it fails. Closed: no filter, no entrance, an unknown kind, a schema that can't be compiled or has no bound refuse. A source
// of tools that can't be reached leaves the other tools as they are.
package tools

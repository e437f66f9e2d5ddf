// SPDX-License-Identifier: Apache-2.0

// Package mcptool brings the tools of MCP servers upstream (M-12) into the registry, over streamable HTTP or over the
// standard streams of a command in a sandbox.
//
//	tools:
//	  tracker:
//	    kind: mcp
//	    category: C
//	    reversibility: partial
//	    mcp:
//	      url: https://mcp.example.com/
//	      headers: {Authorization: {secret: TRACKER_KEY, prefix: "Bearer "}}
//	      only: [list_issues, get_issue]
//	  local:
//	    kind: mcp
//	    category: C
//	    read_only: true
//	    mcp:
//	      command: {argv: [/usr/bin/node, /opt/server.js]}
//
// Guarantees. A server's word counts for nothing: its annotations (readOnlyHint and the like) are ignored, every tool has the
// category and action of the server's entry. Names that could be taken for each other are not offered; descriptions lose
// what can't be seen, are cut, and say that they are the server's words; schemas are bounded and refer to nothing outside.
// Only tools of the last list are called, and only those in `only` if it is there. What a server asks for (sampling, roots,
// elicitation, input for another round) is refused, and no capability for it is announced. Replies are bounded and secrets in
// them masked; of a call that the server calls an error nothing is passed on unless `errors: pass` says so. Connections
// begin with the first use, and again after a failure, with growing pauses. What package httptool guarantees for
// connections and secrets holds here too.
//
//	sources := mcptool.Sources(mcptool.Options{Secrets: secrets, Supervisor: supervisor, Context: run})
//	commands, err := mcptool.Commands(name, node)   // announce to the supervisor
//
// Errors are *gate.Error: tool_timeout, too_large, tool_failed, tool_unknown, unavailable (no connection, or in a pause).
//
// What it does not protect against. What a tool does upstream, and what it answers: text for the model, written by whoever
// runs the server. Look-alikes among different servers' tools: each stands under its server's name. A server that changes
// what a tool does without changing its description.
//
// It fails closed: a tool that can't be offered safely is left out and reported, a server that can't be understood has none.
package mcptool

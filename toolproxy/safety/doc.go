// SPDX-License-Identifier: Apache-2.0

// Package safety is how an agent in a sandbox reaches the safety loop of its run (S-1, S-15): /internal/safety/create, read and
// execute, and the tools mcp_aql_create, mcp_aql_read and mcp_aql_execute beside its own at /mcp.
//
//	h, err := safety.New(safety.Options{Gate: gate, Loop: supervisor, Judge: policy, Mode: judge.Enforcing})
//	mounts[egress.Safety] = h
//	mounts[egress.MCP] = mcpserver.New(mcpserver.Options{Tools: registry, Beside: h})
//
//	POST /internal/safety/create {"operation":"record_execution_step","params":{"element_name":"planner","nextActionHint":"using the math tool to compute 6*7"}}
//	 200 {"success":true,"data":{"continue":true,"factors":["score 5: advisory",…],…}}
//	 403 {"success":false,"error":{"code":"PERMISSION_DENIED","message":"…","details":{…}}}
//
// What it guarantees. It decides nothing: the gate says whether there is a run to speak for, the loop, which is the supervisor's,
// answers, and bounds how often. Of a step it adds what the operator's policy and the score say of the hint, and nothing an agent sends can
// stand in for that. A request has one meaning: names given twice, at any depth, unknown names and text that isn't UTF-8 are refused
// here, so that the hint that is judged is the hint that is decided about. Who asks is known from the link. Once a request has passed
// the gate, hanging up doesn't take it back.
//
// Errors are those of MCP-AQL, {"success":false,"error":{"code","message","details"}}, with a status that goes with the code; details
// of what the gate refuses have its code as reason, and what to do next. Routes' own errors (method, type, size) have the gateway's form.
//
// What it does not protect against. A hint is the agent's word. The judgement is this process's: a gateway that was taken over judges
// as it likes, and the loop holds it to its form only; ring, history, blocks, codes and confirmations are out of its reach.
//
// How it fails. Closed: a hint that can't be judged pauses, a loop that doesn't answer is INTERNAL_ERROR, and a panic ends that call. It
// must stand behind a tools.Mux.
package safety

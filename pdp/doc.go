// SPDX-License-Identifier: Apache-2.0

// Package pdp decides whether a subject may take an action: every tool call (tool.<name>.invoke) and every run
// (agent.run.invoke) is asked about before it happens (M-9, M-10). A Decider answers; Engine is the one inside the process,
// with policies in the Cedar language; the sub-package authzen asks a remote one.
//
//	engine, err := pdp.NewEngine(pdp.Options{Path: "/etc/agentrun/policies", Clock: time.Now})
//	if err != nil {
//		return err // *read.InvalidError: file, line and what is wrong there
//	}
//	d := engine.Decide(ctx, request)
//	record(d) // then act on it
//	if !d.Allowed() { … d.Code … }
//
// # What it guarantees
//
// Everything is denied unless the request is well formed, the ring that the subject lives in reaches the one that is needed,
// no built-in guard forbids, no policy of the operator's forbids, and a policy permits. The guards (base.cedar) can't be
// switched off, and no policy can lift the ring: it is compared in Go, before policies are asked. Of several reasons to
// refuse, the first in the order of M-9 is given. Policies are checked against the schema (schema.cedarschema) before they
// count. Deciders are safe for concurrent use; one decision sees one set of policies, the old or the new, never a mixture.
//
// # Answers and errors
//
// Decide returns no error that could be dropped: what goes wrong is a refusal with a code (pdp_unavailable, pdp_timeout,
// pdp_malformed, pdp_error) and its Cause, which is for the operator and not for the agent. Loading policies and decoding
// requests return a *read.InvalidError.
//
// # How it fails
//
// Closed. Zero values refuse: of Request, Decision, Engine, and an empty Every. In Cedar a forbid whose condition can't be
// evaluated is passed over, which lets the permits decide; here it refuses. A set of policies that can't be read, is empty
// or has a fault replaces nothing: the last valid one goes on deciding, and Status and Options.Notify say so.
//
// # What it does not protect against
//
// Callers that state untrue things: ring, role, capabilities, validity of the key and quota are believed as given; they must
// come from the supervisor, never from the agent. An operator who permits too much. A policy file that is replaced by a
// shorter one that is valid: write a new file and rename it. It writes no audit record; its caller does.
package pdp

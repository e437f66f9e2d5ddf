// SPDX-License-Identifier: Apache-2.0

// Package control is how operators reach live runs (M-23): the types of the control API, its server on a unix socket for each
// supervisor, and the client that the command line uses.
//
// Guarantees: nobody is answered whose credentials, as the kernel has them, don't allow the request; a request is small,
// whole and of known fields before a Controller sees it; the socket lies in the run folder of the host, which no sandbox
// sees. Every answer is JSON, every refusal an *Error with a stable code.
//
//	l, err := control.Listen(runDir, plan.ID, control.Access{})
//	srv := &control.Server{Controller: c, Access: control.Access{}}
//	go srv.Serve(ctx, l)
//
//	found, err := control.Find(ctx, runDir, "planner-1") // id, name, or unique prefix of an id
//	elevation, err := found.Client.Elevate(ctx, found.ID, control.ElevateRequest{Target: rings.Standard, TTL: time.Minute, Reason: "deploy"}, "")
//
// It does not protect against root, nor against members of the groups an operator gave access. It decides nothing about rings:
// a Controller does.
package control

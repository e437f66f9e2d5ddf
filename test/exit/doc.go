// SPDX-License-Identifier: Apache-2.0

// Package exittest is the outside that test/integration lets agents talk to: hosts with names and certificates, a git
// server, model and MCP upstreams, a PDP, a collector, a resolver; well-behaved ones and hostile ones.
//
//	w, err := exittest.New(dir)                    // a CA of its own
//	repo, err := w.Host("repo.test", exittest.Site(files))
//	defer w.Close()
//	… w.Hosts(), w.Private(), w.CAFile             // what gateway.yaml needs to know
//	… repo.Visits()                                // what has reached it, which is the point
//
// Every host has a loopback address of its own and listens there on ports 80 and 443, since programs that are not modified
// ask for no other. Each keeps what has reached it, connections that never became a request among them: "nothing
// got out" is only shown where something would have seen it.
//
// Errors are those of the standard library, with the name of the host. Nothing here is safe against anybody: private keys lie
// in a temporary folder, and any local user may connect. It needs root for the two ports.
package exittest

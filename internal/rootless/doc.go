// SPDX-License-Identifier: Apache-2.0

// Package rootless brings agentrun, started by an ordinary user, into a user namespace of its own, where it is uid 0 and has the user's
// subordinate ids to give to agents (docs/rootless.md).
//
//	if err := rootless.Arrived(); err != nil { … }  // first thing in main: ends what Enter began
//	…
//	err := rootless.Enter(nil)                          // comes back only with an error; else main begins again inside
//	ids, err := rootless.Inside()                    // who we are, as the kernel has it
//
// It guarantees that Inside tells what /proc/self/uid_map and gid_map say and nothing that an environment variable does: a variable only
// makes the start of this program call unshare(2), which gives nobody more than the kernel gives to everybody. After Arrived the process is
// uid 0 of its own namespaces with at least MinIDs ids beside that, or it ends.
//
// Errors of Enter name what is missing (MissingError): user namespaces, an account, subordinate ids, newuidmap and newgidmap.
//
// It does not protect against the user: whoever is the same user on the host can trace, kill and rewrite all of it. It fails closed: an
// id that can't be mapped is an error, never a run under the user's own id.
package rootless

// SPDX-License-Identifier: Apache-2.0

// Command bench measures what agentrun costs and prints one table from one run. docs/benchmarks.md says
// what each row means and what is not compared.
//
//	go run ./test/bench --agentrun bin/agentrun --out test/out/bench   # also bench.md and bench.json
//	go run ./test/bench --quick                                        # n=3: does everything still run?
//	go run ./test/bench --only proxy                                   # one part of the table
//
// It promises that the figures of a row and of those it is set against come from the same minutes of the
// same machine: every round runs each contender once, in an order drawn anew (from a fixed seed) so that
// none always runs in the wake of the same other, and ratios are taken within rounds before their median
// is. The table carries machine, kernel, versions, commit, load and command.
//
// It never judges a figure. The exit code is 0 when everything could be run, 1 when something could not
// (the table then says what and why), 2 for a wrong flag. crun, podman and docker alone may be missing or
// unable: they are rows that say so.
//
// It needs root, gcc with a static libc, the go command, bwrap, runc, squid and tinyproxy, and to be started in the root of the
// sources. What it puts on the host (one
// folder under /run, the cgroups agentrun-bench-* of the peers) it removes at the end; agentrun itself
// keeps its empty folders in /run/agentrun. Whether the machine was quiet it can't know; it writes the
// load averages down.
package main

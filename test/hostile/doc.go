// SPDX-License-Identifier: Apache-2.0

// Command hostile lets twenty hostile ring 3 runs at one machine, each doing one harm as fast as it can (fork storms, floods of
// refused calls, tool names, connections, sockets, locks, output …: harms in test/probe/hostile.h), beside one quiet run and a quiet
// program of the host's. It says how much longer the quiet ones' work takes than alone, how the audit grows, and how near any
// limit of the host came:
//
//	go run ./test/hostile -time 1h
//
// It ends with 1 when a bound of issue "Attacks" isn't kept: p99 at most 1.5 times of alone, less than 1 MB of audit a minute, no
// limit of the host above 80 % of its maximum, inotify and pending signals of root unaffected.
//
// It needs root, an otherwise idle machine, and bin/ as `make build probe` leaves it.
package main

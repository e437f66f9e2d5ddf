// SPDX-License-Identifier: Apache-2.0

// Package compat measures what a sandbox costs ordinary programs: which run, and
// which of CPython's own tests pass on this machine and do not in ring 2.
//
//	AGENTRUN_BIN=bin/agentrun go test ./test/compat
//
// TestPrograms runs the small programs of testdata/programs and testdata/goprogram
// in the rings they are meant for. TestCPython runs `python3 -m test` module by
// module, once as an unprivileged user of the host and once in ring 2, and holds
// the difference against testdata/differences.yaml: a difference that is not
// listed fails, and so does a listed one that is none any more. So
// docs/compatibility.md, which TestDocument holds to the same file, can't go stale.
//
// Settings, all optional:
//
//	AGENTRUN_BIN                the program under test, default ../../bin/agentrun
//	AGENTRUN_TEST_MUST_RUN=1    a need that is not met fails the test instead of skipping it
//	AGENTRUN_TEST_SLOW=N        multiplies every deadline
//
// A skip always starts with "need: ". Needs root, Debian's libpython3.11-testsuite,
// node, git, bash, and the Go toolchain for the Go program. `go test -short` leaves
// CPython's tests out; everything takes about four minutes on two processors.
//
// What it does not show: that a program not listed works, or that one that works
// is as fast. It proves nothing about containment either: that is test/integration.
package compat

// SPDX-License-Identifier: Apache-2.0

// Package integration tests the real agentrun binary on a real kernel: what it
// promises to the agent, to the operator, and above all against the agent.
//
//	AGENTRUN_BIN=bin/agentrun AGENTRUN_PROBE=bin/probe go test ./test/integration
//
// It builds nothing. The two programs are found through the environment, so
// that a compiled copy of the tests (go test -c) runs in a virtual machine with
// neither Go nor the sources. Settings, all optional:
//
//	AGENTRUN_BIN, AGENTRUN_PROBE  the programs, default ../../bin/…
//	AGENTRUN_TEST_MUST_RUN=1      a need that is not met fails the test instead of skipping it,
//	AGENTRUN_TEST_ELSEWHERE=1     … unless this says that another run covers it
//	AGENTRUN_TEST_SLOW=N          multiplies every deadline (a virtual machine without KVM)
//	AGENTRUN_TEST_SEQUENCE=N      how many runs in sequence, default 1000
//	AGENTRUN_TEST_CROWD=N         how many runs at once, default 100
//	AGENTRUN_TEST_SOAK=10m        how long operators and faults act at random, on 50 agents; default 6 s (18 s where slow) on 8
//	TMPDIR                        must be on a file system with idmapped mounts (ext4; tmpfs from Linux 6.3)
//
// A skip always starts with "need: " and the probe that was not satisfied, so
// that the table of a run can show it; there is no other reason to skip.
//
// What these tests do not show: that there is no attack nobody has thought of.
// docs/requirements/threats.md is the list they are held against.
package integration

// SPDX-License-Identifier: Apache-2.0

package witness_test

// Made by another implementation (Python's cryptography), from the description in docs/witness.md.
const (
	goldenHash = "864b2861"
	golden     = "agentrun-witness-v1/release-quarantine/agent:planner-1/2026-11-21T04:02:51Z/666978656420666f7220612074657374/golden+864b2861/nKjMeL9qpUjg35uO5LNTX3GTEmiTTq7ZbhJReWA89C0Yh__MP8cE3TCCHUGQ9fOheCV8dgt8Qw_agm-099xIAQ"
)

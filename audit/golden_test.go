// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Two entries, byte for byte and member by member; testdata/golden.jsonl has the rest. What changes here changes
// every chain there is.
func TestGoldenMembers(t *testing.T) {
	m := memoryOf(t,
		&Elevation{AgentID: "did:example:ä\n1", CurrentRing: Sandbox, Reason: "insufficient_trust", TargetRing: RingOf(7), TrustScore: NumberOf(1e-7)},
		&Kill{AgentID: "a1", CallbacksExecuted: 2, KilledAt: at, DurationNS: MaxInteger, Reason: "manual"})
	want := []string{
		`{"chain":"node",` + // name of the chain
			`"data":{` + // the record
			`"agent_id":"did:example:ä\n1",` + // UTF-8 as it is, only what JSON must escape is escaped
			`"current_ring":3,` +
			// elevation_id and expires_at: optional, nothing was granted
			`"granted":false,` +
			`"has_consensus":false,` + // false is written, absence would be another thing
			`"reason":"insufficient_trust",` + // a word of ours
			// run_id: optional
			`"target_ring":null,` + // there is no ring 7
			`"trust_score":1e-7},` + // ECMAScript's spelling
			`"hash":"041bf9e04892d4884f4d837a769485ae1bb5d7c7d50cd679421928a67ad4a5c4",` + // SHA-256 of all but this member
			`"kind":"elevation",` +
			`"prev_hash":"0000000000000000000000000000000000000000000000000000000000000000",` + // genesis
			`"seq":0,` + // from 0
			`"time":"2026-11-21T07:02:51.012345670Z"}`, // nine digits, also when the last is 0
		`{"chain":"node",` +
			`"data":{` +
			`"action":null,` + // no action led to it
			`"agent_id":"a1",` +
			`"callbacks_executed":2,` +
			`"compensations_executed":0,` +
			`"duration_ns":9007199254740991,` + // the largest integer
			`"handoff_agent_id":null,` + // no substitute
			`"killed_at":"2026-11-21T07:02:51.012345670Z",` +
			`"processes_killed":0,` +
			`"reason":"manual"},` +
			`"hash":"9d508b23559e6ca2df45da1773c96c8593034fd57cd9956836ae53089e827797",` +
			`"kind":"kill",` +
			`"prev_hash":"041bf9e04892d4884f4d837a769485ae1bb5d7c7d50cd679421928a67ad4a5c4",` + // hash of the entry before
			`"seq":1,` +
			`"time":"2026-11-21T07:02:51.012345670Z"}`,
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSuffix(string(m.Lines()), "\n"), "\n")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

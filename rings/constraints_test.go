// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestH11Constraints(t *testing.T) {
	sandbox := `{"network_allowed":false,"network_allowlist":[],"filesystem_writable":false,"filesystem_scope":"none","subprocess_allowed":false,"max_concurrent_tools":4}`
	for ring, want := range map[Ring]string{
		Root:       `{"network_allowed":true,"network_allowlist":["*"],"filesystem_writable":true,"filesystem_scope":"full","subprocess_allowed":true,"max_concurrent_tools":32}`,
		Privileged: `{"network_allowed":true,"network_allowlist":["*"],"filesystem_writable":true,"filesystem_scope":"full","subprocess_allowed":true,"max_concurrent_tools":16}`,
		Standard:   `{"network_allowed":true,"network_allowlist":[],"filesystem_writable":true,"filesystem_scope":"scoped","subprocess_allowed":true,"max_concurrent_tools":8}`,
		Sandbox:    sandbox, NoRing: sandbox, 5: sandbox, 255: sandbox,
	} {
		got, err := json.Marshal(ConstraintsOf(ring))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", ring, diff)
		}
	}
}

// One caller's change must not be another's permission.
func TestH11ConstraintsAreTheCallersOwn(t *testing.T) {
	for _, ring := range allRings {
		c := ConstraintsOf(ring)
		c.NetworkAllowlist = append(c.NetworkAllowlist, "evil.example")
		c.NetworkAllowlist[0] = "evil.example"
		for _, host := range ConstraintsOf(ring).NetworkAllowlist {
			if host == "evil.example" {
				t.Errorf("%v: the change of one caller's list is in the next one's", ring)
			}
		}
	}
}

func TestH11Resources(t *testing.T) {
	for resource, lowest := range map[Resource]Ring{
		Network: Standard, Filesystem: Standard, FilesystemWrite: Standard, Subprocess: Standard, Tool: Sandbox, ToolExecution: Sandbox,
	} {
		for _, ring := range allRings {
			got := ResourceAllowed(ring, resource)
			if want := ring.Value() <= lowest.Value(); got.Allowed() != want {
				t.Errorf("%v %s: got %+v", ring, resource, got)
			}
		}
	}
	for _, unknown := range []Resource{"", "Network", "network ", "gpu", "network\n", "*"} {
		for _, ring := range allRings {
			if got := ResourceAllowed(ring, unknown); got.Code != CodeUnknownResource || got.Allowed() {
				t.Errorf("%v %q: got %+v", ring, unknown, got)
			}
		}
		if (Constraints{true, nil, true, ScopeFull, true, 32}).Allows(unknown) {
			t.Errorf("constraints allow %q", unknown)
		}
	}
	for _, r := range []Resource{Network, Filesystem, FilesystemWrite, Subprocess, Tool} {
		if (Constraints{}).Allows(r) {
			t.Errorf("the zero constraints allow %s", r)
		}
	}
	if (Constraints{FilesystemScope: "everything", FilesystemWritable: true}).Allows(FilesystemWrite) {
		t.Error("an unknown scope allows writing")
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"agentrun/rings"
	"agentrun/toolproxy/gate/gatetest"
)

// M-8: a profile may let a run out less far than its ring would, and never farther.
func TestM8ProfileNarrowsTheRing(t *testing.T) {
	for _, tt := range []struct {
		ring    rings.Ring
		network string
		want    rings.Ring
	}{
		{rings.Privileged, "", rings.Privileged}, {rings.Privileged, "allowlist", rings.Standard}, {rings.Privileged, "none", rings.Sandbox},
		{rings.Standard, "", rings.Standard}, {rings.Standard, "none", rings.Sandbox},
		{rings.Sandbox, "", rings.Sandbox}, {rings.Sandbox, "allowlist", rings.Sandbox}, {rings.Sandbox, "public", rings.Sandbox},
		{rings.NoRing, "allowlist", rings.NoRing},
	} {
		s := gatetest.New(rings.Sandbox)
		s.SetRing(tt.ring)
		if got, _ := limitedTo(s, tt.network).Ring(); got != tt.want {
			t.Errorf("%v in a profile with network %q: got %v, want %v", tt.ring, tt.network, got, tt.want)
		}
	}
}

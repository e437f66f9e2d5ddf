// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/profiles"
)

// Limits that nobody asked for stay the profile's, and a zero that somebody asked for is no wish to keep them.
func TestLimitsOver(t *testing.T) {
	profile := profiles.Limits{CPU: 1, Memory: 1 << 30, PIDs: 64, ScratchSize: 512 << 20, Timeout: profiles.Duration(time.Minute)}
	changed := func(change func(*profiles.Limits)) profiles.Limits {
		l := profile
		change(&l)
		return l
	}
	for _, tt := range []struct {
		name  string
		asked Limits
		want  profiles.Limits
	}{
		{"nothing", Limits{}, profile},
		{"all", Limits{
			CPU: new(0.5), Memory: new(profiles.Size(2 << 30)), ScratchSize: new(profiles.Size(1 << 20)), MaxOutput: new(profiles.Size(3)),
			PIDs: new(7), Timeout: new(profiles.Duration(1)), CPUTime: new(profiles.Duration(2)),
		}, profiles.Limits{CPU: 0.5, Memory: 2 << 30, ScratchSize: 1 << 20, MaxOutput: 3, PIDs: 7, Timeout: 1, CPUTime: 2}},
		{"zero", Limits{Timeout: new(profiles.Duration(0))}, changed(func(l *profiles.Limits) { l.Timeout = 0 })},
		{"small memory bounds the scratch", Limits{Memory: new(profiles.Size(256 << 20))},
			changed(func(l *profiles.Limits) { l.Memory, l.ScratchSize = 256<<20, 256<<20 })},
		{"but not the one asked for", Limits{Memory: new(profiles.Size(256 << 20)), ScratchSize: new(profiles.Size(300 << 20))},
			changed(func(l *profiles.Limits) { l.Memory, l.ScratchSize = 256<<20, 300<<20 })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := profile
			tt.asked.Over(&got)
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestRingOr3(t *testing.T) {
	for _, tt := range []struct {
		name string
		ring *int
		want int
	}{{"none", nil, 3}, {"zero is a wish", new(0), 0}, {"two", new(2), 2}} {
		t.Run(tt.name, func(t *testing.T) {
			if got := (&Request{Ring: tt.ring}).RingOr3(); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"testing"
	"testing/synctest"
	"time"
)

// S-10: a run that stands still for a human's word ends neither before that word is worthless, nor never.
func TestS10WallClockStandsStill(t *testing.T) {
	for name, tt := range map[string]struct {
		at, pauses time.Duration // when the pause begins, and how long it may be
		on         time.Duration // when the run goes on; 0: never
		want       time.Duration
	}{
		"never paused":            {want: 60 * time.Second},
		"nobody answers":          {at: 59 * time.Second, pauses: 5 * time.Minute, want: 360 * time.Second},
		"answered":                {at: 59 * time.Second, pauses: 5 * time.Minute, on: 100 * time.Second, want: 101 * time.Second},
		"answered after its time": {at: 10 * time.Second, pauses: 20 * time.Second, on: 40 * time.Second, want: 80 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				c := newWallClock(time.Minute, time.Now)
				defer c.Stop()
				if tt.pauses > 0 {
					time.Sleep(tt.at)
					c.pause(tt.pauses)
					c.pause(time.Hour) // a second stop of the same run gives no more
				}
				if tt.on > 0 {
					time.Sleep(tt.on - tt.at)
					c.pause(0)
					c.pause(0)
				}
				<-c.C
				if got := time.Since(began); got != tt.want {
					t.Errorf("the run ends after %v, want %v", got, tt.want)
				}
			})
		})
	}
}

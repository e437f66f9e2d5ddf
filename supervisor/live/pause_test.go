// SPDX-License-Identifier: Apache-2.0

package live

import (
	"testing"
	"time"
)

// M-3: a run is idle when it has used next to nothing for the whole of the time, and made no call.
func TestIdleRule(t *testing.T) {
	const after = 10 * time.Minute // 0.5 % of it are 3 s
	type looked struct {
		at, used time.Duration
		made     int64
		busy     bool
	}
	for name, tt := range map[string]struct {
		looks []looked // the first begins the time
		want  bool     // after the last, and after no other
	}{
		"it did nothing":             {[]looked{{}, {at: after / 2}, {at: after - 1}, {at: after}}, true},
		"not long enough":            {[]looked{{}, {at: after - 1}}, false},
		"it did next to nothing":     {[]looked{{}, {at: after / 2, used: time.Second}, {at: after, used: 3 * time.Second}}, true},
		"it worked a little":         {[]looked{{}, {at: after / 2, used: time.Second}, {at: after, used: 3*time.Second + 1}}, false},
		"it worked, then it didn't":  {[]looked{{}, {at: after / 2, used: time.Minute}, {at: after, used: time.Minute}, {at: after * 3 / 2, used: time.Minute}}, true},
		"much before, nothing since": {[]looked{{used: time.Hour}, {at: after, used: time.Hour}}, true},
		"a call":                     {[]looked{{}, {at: after / 2, made: 1}, {at: after, made: 1}}, false},
		"a call, then none":          {[]looked{{}, {at: after / 2, made: 1}, {at: after * 3 / 2, made: 1}}, true},
		"somebody needs it":          {[]looked{{}, {at: after - 1, busy: true}, {at: after}}, false},
		"nobody needs it any more":   {[]looked{{}, {at: after / 2, busy: true}, {at: after * 3 / 2}}, true},
		"a clock that stood":         {[]looked{{}, {at: 100 * after}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, begin := idleRule{after: after}, time.Unix(1, 0)
			for i, l := range tt.looks {
				want := tt.want && i == len(tt.looks)-1
				if got := r.look(begin.Add(l.at), l.used, l.made, l.busy); got != want {
					t.Errorf("look %d: got %v, want %v", i, got, want)
				}
			}
		})
	}
}

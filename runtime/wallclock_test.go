// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentrun/profiles"
	"agentrun/rings"
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

// M-3: a lease is put off as often as an operator says so, and each end is warned of a minute before, once; one that stands still warns
// of nothing.
func TestM3WallClockIsExtended(t *testing.T) {
	for name, tt := range map[string]struct {
		limit  time.Duration
		do     map[time.Duration]func(*wallClock) // at these times
		warned []time.Duration
		want   time.Duration
	}{
		"short": {limit: time.Minute, want: time.Minute},
		"long":  {limit: time.Hour, warned: []time.Duration{59 * time.Minute}, want: time.Hour},
		"extended before": {limit: 5 * time.Minute, do: map[time.Duration]func(*wallClock){time.Second: func(c *wallClock) { c.extend(time.Hour) }},
			warned: []time.Duration{64 * time.Minute}, want: 65 * time.Minute},
		"extended after the warning": {limit: 5 * time.Minute, do: map[time.Duration]func(*wallClock){270 * time.Second: func(c *wallClock) { c.extend(time.Hour) }},
			warned: []time.Duration{4 * time.Minute, 64 * time.Minute}, want: 65 * time.Minute},
		"extended by less than a minute": {limit: 5 * time.Minute, do: map[time.Duration]func(*wallClock){270 * time.Second: func(c *wallClock) { c.extend(10 * time.Second) }},
			warned: []time.Duration{4 * time.Minute}, want: 310 * time.Second},
		"extended while it stands still": {limit: 5 * time.Minute, do: map[time.Duration]func(*wallClock){
			250 * time.Second: func(c *wallClock) { c.pause(time.Hour) },
			600 * time.Second: func(c *wallClock) { c.extend(5 * time.Minute) },
			700 * time.Second: func(c *wallClock) { c.pause(0) },
		}, warned: []time.Duration{4 * time.Minute, 990 * time.Second}, want: 1050 * time.Second},
		"stands still over the warning": {limit: 5 * time.Minute, do: map[time.Duration]func(*wallClock){
			200 * time.Second: func(c *wallClock) { c.pause(time.Hour) },
			500 * time.Second: func(c *wallClock) { c.pause(0) },
		}, warned: []time.Duration{540 * time.Second}, want: 600 * time.Second},
		"for 292 years": {limit: time.Duration(profiles.NoLimit), do: map[time.Duration]func(*wallClock){time.Second: func(c *wallClock) { c.extend(time.Hour) }},
			want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				c := newWallClock(tt.limit, time.Now)
				defer c.Stop()
				var warned []time.Duration
				for over := tt.want == 0; !over; {
					next := time.Duration(math.MaxInt64)
					for at := range tt.do {
						next = min(next, at)
					}
					select {
					case <-c.C:
						if over = !c.soon(); !over {
							warned = append(warned, time.Since(began))
						}
					case <-time.After(next - time.Since(began)):
						tt.do[next](c)
						delete(tt.do, next)
					}
				}
				if tt.want == 0 {
					select {
					case <-c.C:
						t.Error("it has ended")
					case <-time.After(24 * 365 * time.Hour):
					}
					return
				}
				if got := time.Since(began); got != tt.want || !slices.Equal(warned, tt.warned) {
					t.Errorf("ends after %v, warned %v; want %v, %v", got, warned, tt.want, tt.warned)
				}
			})
		})
	}
}

// M-3: what isn't in the ranges of the ring that holds, or in the agent's plan, isn't added.
func TestM3LeaseKeepsToItsRanges(t *testing.T) {
	p := &Plan{Ring: 2, mostTime: profiles.NoLimit, ranges: profiles.NodeRanges{File: "/c.yaml", Rules: profiles.RangeRules{{Ring: 2, Timeout: profiles.Duration(time.Hour)}}}}
	was := Lease{Timeout: profiles.Duration(2 * time.Minute), CPUTime: profiles.Duration(time.Minute)}
	for _, tt := range []struct {
		ring rings.Ring
		by   More
		most profiles.Duration // of the plan; 0: none
		was  Lease
		want string // "": it is given
	}{
		{rings.Standard, More{Timeout: 58 * time.Minute}, 0, was, ""},
		{rings.Standard, More{CPUTime: 59 * time.Minute}, 0, was, ""},
		{rings.Standard, More{}, 0, was, "want a time above zero"},
		{rings.Standard, More{Timeout: -1}, 0, was, "want a time above zero"},
		{rings.Standard, More{Timeout: time.Second, CPUTime: -1}, 0, was, "want a time above zero"},
		{rings.Standard, More{Timeout: 58*time.Minute + 1}, 0, was, "in /c.yaml add to ranges: - {ring: 2, timeout: 1h0m0.000000001s}"},
		{rings.Standard, More{Timeout: math.MaxInt64}, 0, was, "none is outside the range"},
		{rings.Standard, More{CPUTime: time.Hour}, 0, was, "--cpu-time: 3660s is outside the range 1ms to 3600s"},
		{rings.Sandbox, More{Timeout: 4 * time.Minute}, 0, was, "{ring: 3, timeout: 360s}"}, // demoted since
		{rings.Standard, More{Timeout: 4 * time.Minute}, profiles.Duration(300 * time.Second), was, "the agent's plan gives a run 300s at most"},
		{rings.Standard, More{Timeout: 1}, 0, Lease{Timeout: profiles.NoLimit}, "has none already"},
	} {
		p.mostTime = cmp.Or(tt.most, profiles.NoLimit)
		err := p.checkLease(tt.ring, tt.was, tt.by)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v in %v: got %v, want %q", tt.by, tt.ring, err, tt.want)
		}
	}
}

// M-3: who is ended by a limit reads which flag gives more, and where more than that comes from.
func TestM3EndedRunsAreToldWhatHelps(t *testing.T) {
	p := &Plan{Ring: 2, Agent: "a", mostTime: profiles.NoLimit, ranges: profiles.NodeRanges{File: "/c.yaml"}}
	had := Lease{Timeout: profiles.Duration(2 * time.Minute), CPUTime: profiles.Duration(200 * time.Second)}
	for _, tt := range []struct {
		state  State
		reason string
		memory int64
		want   string
	}{
		{OOM, "over", 512 << 20, "--memory 1GiB, up to 1GiB; more by ranges: in /c.yaml"},
		{OOM, "over", 1 << 30, "--memory 1GiB is the most here; to allow 2GiB, in /c.yaml write ranges: [{ring: 2, memory: 2GiB}]"},
		{TimedOut, overTime + "120s", 0, "--timeout 240s, up to 300s; more by ranges: in /c.yaml; agentrun extend gives a live run more"},
		{TimedOut, overCompute + "200s", 0, "--cpu-time 300s is the most here; to allow 400s, in /c.yaml write ranges: [{ring: 2, cpu_time: 400s}]"},
		{TimedOut, "quarantine", 0, ""},
		{Exited, "", 0, ""},
		{Killed, overTime, 0, ""},
		{Policy, "output over the limit", 0, ""},
	} {
		if got := p.moreFor(&Status{State: tt.state, Reason: tt.reason}, had, tt.memory); got != tt.want {
			t.Errorf("%s %s: got %q, want %q", tt.state, tt.reason, got, tt.want)
		}
	}
	p.mostTime = had.Timeout
	p.Limits.ScratchSize = 64 << 20
	if got := p.moreFor(&Status{State: Exited, ScratchFull: true}, had, 0); got != "--scratch-size 128MiB, up to 1GiB; more by ranges: in /c.yaml" {
		t.Errorf("a full scratch: %q", got)
	}
	if got := p.moreFor(&Status{State: TimedOut, Reason: overTime}, had, 0); got != "the agent's plan gives a run 120s at most: agentrun agent set a --plan PLAN" {
		t.Errorf("at the plan's end: %q", got)
	}
}

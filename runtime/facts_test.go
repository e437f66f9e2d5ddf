// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"agentrun/cgroups"
)

// The facts follow from the limits and the account: never more is told than there is, and never less than nothing.
func TestM2Facts(t *testing.T) {
	limits := cgroups.Limits{CPU: 0.5, Memory: 100 << 20, PIDs: 64}
	for name, tt := range map[string]struct {
		used        cgroups.Stats
		reclaimable int64
		up          time.Duration
		want        []string
	}{
		"new": {want: []string{"MemTotal:         102400 kB\n", "MemFree:          102400 kB\n", "MemAvailable:     102400 kB\n", "cpu  0 0 0 0 ", "0.00 0.00\n"}},
		"some": {cgroups.Stats{CPU: 1500 * time.Millisecond, MemoryCurrent: 40 << 20, PIDs: 3}, 30 << 20, 10 * time.Second, []string{
			"MemFree:           61440 kB\n", "MemAvailable:      92160 kB\n", "Cached:            30720 kB\n", "cpu  150 0 0 850 ", "cpu0 150 0 0 850 ", "processes 3\n", "10.00 8.50\n"}},
		"over the limit": {cgroups.Stats{CPU: time.Minute, MemoryCurrent: 200 << 20}, 300 << 20, time.Second, []string{
			"MemFree:               0 kB\n", "MemAvailable:     102400 kB\n", "cpu  6000 0 0 0 ", "1.00 0.00\n"}},
	} {
		files := runFacts(limits, tt.used, tt.reclaimable, tt.up)
		all := files["/proc/meminfo"] + files["/proc/stat"] + files["/proc/uptime"]
		for _, want := range tt.want {
			if !strings.Contains(all, want) {
				t.Errorf("%s: no %q in\n%s", name, want, all)
			}
		}
		if strings.Contains(all, "-") || len(files) != 3 {
			t.Errorf("%s: got %d files\n%s", name, len(files), all)
		}
	}
	limits.CPU = 1 + float64(goruntime.NumCPU())
	if got, want := strings.Count(machineFacts(limits)["/proc/cpuinfo"], "processor\t: "), goruntime.NumCPU(); got != want {
		t.Errorf("%d processors, want the %d that there are", got, want)
	}
}

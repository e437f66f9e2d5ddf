// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"path/filepath"
	"time"
)

// Yield has the group's processes step back behind those of other groups in the same folder, or ends that (cpu.idle, Linux 5.15, on both
// versions): one that doesn't yield gets the processor the moment it wakes up, and as good as all of it while it wants it.
// The groups that yield share what is left in equal parts, so each goes on at full speed on a host that has nothing else to do.
// A kernel that has no cpu.idle is no error: there all groups have the same weight. As long as one group yields, all together step back
// behind the host's own (behindHost).
func (g *Group) Yield(on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	if err := writeFile(g.idle(), value); err != nil && !gone(err) {
		return err
	}
	g.weighAll(on)
	return nil
}

func (g *Group) idle() string { return g.file("cpu", "cpu.idle") }

// stopYielding is for a group that is to be stopped: a weight can't be set on one that yields, and its last thread would wait for all others.
func (g *Group) stopYielding() {
	if now, err := readFile(g.idle()); err == nil && now == "1" {
		_ = g.Yield(false)
	}
}

// CPUTime is what the group's processes have used, of one file.
func (g *Group) CPUTime() (time.Duration, error) {
	if u, ok := g.unified(); ok {
		k, err := readKeys(filepath.Join(u.dir, "cpu.stat"), "usage_usec")
		if err != nil {
			return 0, err
		}
		return time.Duration(k[0]) * time.Microsecond, nil
	}
	n, err := readInt(g.file("cpuacct", "cpuacct.usage"))
	return time.Duration(n), err
}

// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// cpuPeriod is the CFS bandwidth period in µs. 100 ms is the kernel's default for both versions; shorter ones cost more timer work,
// longer ones let a small quota stall for longer.
const cpuPeriod = 100_000

// Limits of one run. Every field must be set: zero refuses. Only sanity is checked here (finite, positive, representable in the kernel's
// file); the ranges that a profile or ring allows are policy and checked before a plan is made (M-3).
type Limits struct {
	// CPU is in cores, 0.01 (the kernel's smallest quota, 1 ms) to 8192.
	CPU float64
	// Memory is in bytes, from 1 MiB; the kernel rounds down to pages. It covers swap too: none is granted beyond it.
	Memory int64
	// PIDs counts threads as well as processes, 1 to 4194304 (PID_MAX_LIMIT).
	PIDs int64
}

// Validate says what is wrong with the limits, all of it.
func (l Limits) Validate() error {
	var errs []error
	if !(l.CPU >= 0.01 && l.CPU <= 8192) { // written so that NaN fails
		errs = append(errs, fmt.Errorf("cpu limit %v cores: not within 0.01 to 8192", l.CPU))
	}
	if l.Memory < 1<<20 || l.Memory > 1<<50 {
		errs = append(errs, fmt.Errorf("memory limit %d bytes: not within 1 MiB to 1 PiB", l.Memory))
	}
	if l.PIDs < 1 || l.PIDs > 4194304 {
		errs = append(errs, fmt.Errorf("pids limit %d: not within 1 to 4194304", l.PIDs))
	}
	return errors.Join(errs...)
}

func (l Limits) quota() int64 { return int64(math.Round(l.CPU * cpuPeriod)) }

// setting is a file of the group, and what is written to it.
type setting struct{ controller, name, value string }

func (g *Group) set(list ...setting) error {
	for _, s := range list {
		if err := writeFile(g.file(s.controller, s.name), s.value); err != nil {
			return fmt.Errorf("controller %s: %w", s.controller, err)
		}
	}
	return nil
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// applyLocked writes the limits. Memory last: it is the write that can be refused or slow (reclaim); where the group has that limit
// already, it isn't written.
func (g *Group) applyLocked(new, have Limits) error {
	if err := g.setQuota(new, have.CPU > 0); err != nil {
		return err
	}
	if err := g.set(setting{"pids", "pids.max", number(new.PIDs)}); err != nil {
		return err
	}
	if new.Memory == have.Memory {
		return nil
	}
	if err := g.setSoft(new); err != nil {
		return err
	}
	if g.mode == V2 {
		return g.applyMemoryV2(new)
	}
	if err := g.limitSockets(new); err != nil {
		return err
	}
	return g.applyMemoryV1(new)
}

// quotaOf is the quota that limits give the group. On v1 it is never more than that of a group above, which the kernel refuses
// (tg_cfs_schedulable_down, EINVAL); v2 takes both as they are and holds to the smaller.
func (g *Group) quotaOf(l Limits) int64 {
	q := l.quota()
	if g.mode == V2 || !g.nested() && !g.guest() {
		return q
	}
	for dir := filepath.Dir(g.dir("cpu")); ; dir = filepath.Dir(dir) {
		above, err := readInt(filepath.Join(dir, g.files().quota))
		if err != nil { // the hierarchy's root has none
			return q
		}
		if period, err := readInt(filepath.Join(dir, "cpu.cfs_period_us")); err == nil && above > 0 && period > 0 {
			q = min(q, above*cpuPeriod/period)
		}
	}
}

// setQuota writes the CPU quota. On v1 those within the group that have more are lowered first, for the same reason; one that is just
// being made may need another look. The period of a group that had a quota is ours.
func (g *Group) setQuota(l Limits, again bool) (err error) {
	q := g.quotaOf(l)
	list := []setting{{"cpu", "cpu.cfs_period_us", number(cpuPeriod)}, {"cpu", "cpu.cfs_quota_us", number(q)}}
	if again {
		list = list[1:]
	}
	if g.mode == V2 {
		list = []setting{{"cpu", "cpu.max", fmt.Sprint(q, cpuPeriod)}}
	}
	for range 8 {
		if err = g.set(list...); g.mode == V2 || !errors.Is(err, unix.EINVAL) {
			return err
		}
		within, lerr := subgroups(g.dir("cpu"))
		if lerr != nil {
			return errors.Join(err, lerr)
		}
		for _, dir := range within[:max(len(within)-1, 0)] {
			at := filepath.Join(dir, g.files().quota)
			if now, rerr := readInt(at); rerr == nil && now > q {
				_ = writeFile(at, strconv.FormatInt(q, 10))
			}
		}
	}
	return err
}

// applyMemoryV2 has the kernel kill the processes of a group as one for memory, where the group itself or one above it is at its limit;
// those of a group within it are another one's.
func (g *Group) applyMemoryV2(new Limits) error {
	if err := writeFile(filepath.Join(g.dir("memory"), homeName, "memory.oom.group"), "1"); err != nil {
		return fmt.Errorf("controller memory: %w", err)
	}
	limit := setting{"memory", "memory.max", number(new.Memory)}
	if _, err := os.Stat(g.file("memory", "memory.swap.max")); err == nil {
		g.swap = "memory.swap.max=0"
		return g.set(setting{"memory", "memory.swap.max", "0"}, limit)
	} else if swapless() {
		g.swap = "the kernel has no swap accounting and the host no swap"
	} else {
		// The limit would then bound resident memory only, and secrets could reach the disk.
		return fmt.Errorf("controller memory: memory.swap.max: %w (swap is on; boot with swapaccount=1)", err)
	}
	return g.set(limit)
}

// softMemory is where the kernel begins to take back what it can, and on v2 to slow down who asks for more, before the limit ends the
// group: a 32nd below it. A run that grows from there to the limit is held up for some 60 ms for each quarter mebibyte in the end (memcg,
// calculate_high_delay): enough that its pressure is seen, and no run that has to end hangs there.
func softMemory(memory int64) int64 {
	page := int64(os.Getpagesize())
	return (memory - memory/32) / page * page
}

// setSoft leaves alone a kernel that has no soft limit on v1 (none on PREEMPT_RT): it bounds nothing by itself.
func (g *Group) setSoft(l Limits) error {
	err := writeFile(g.file("memory", g.files().soft), strconv.FormatInt(softMemory(l.Memory), 10))
	if err == nil || g.mode != V2 && (gone(err) || errors.Is(err, unix.EOPNOTSUPP)) {
		return nil
	}
	return fmt.Errorf("controller memory: %w", err)
}

func swapless() bool {
	b, err := os.ReadFile("/proc/swaps")
	return errors.Is(err, os.ErrNotExist) || err == nil && strings.Count(string(b), "\n") <= 1
}

// applyMemoryV1 keeps memory.limit_in_bytes <= memory.memsw.limit_in_bytes at every moment, which the kernel demands (EINVAL, see
// mem_cgroup_resize_max): memsw goes first when raising, last when lowering. memsw == limit grants no swap beyond the limit, but pages
// may still be swapped within it, so swappiness 0 as well.
func (g *Group) applyMemoryV1(new Limits) error {
	memory := number(new.Memory)
	limit, swap := setting{"memory", "memory.limit_in_bytes", memory}, setting{"memory", "memory.memsw.limit_in_bytes", memory}
	if err := g.set(setting{"memory", "memory.swappiness", "0"}); err != nil {
		return err
	}
	if _, err := os.Stat(g.file("memory", "memory.memsw.limit_in_bytes")); err != nil {
		g.swap = "memory.swappiness=0 (the kernel has no memory.memsw files)"
		return g.set(limit)
	}
	g.swap = "memory.memsw.limit_in_bytes=limit, memory.swappiness=0"
	cur, err := readInt(g.file("memory", "memory.memsw.limit_in_bytes"))
	if err != nil {
		return fmt.Errorf("controller memory: %w", err)
	}
	if new.Memory > cur {
		limit, swap = swap, limit
	}
	return g.set(limit, swap)
}

// Socket buffers on v1 are outside of memory.limit_in_bytes, and in no limit as long as memory.kmem.tcp.limit_in_bytes isn't set
// (Documentation/admin-guide/cgroup-v1/memory.rst, 2.7.1): 44 connections of a run with 256 MiB held 353 beside it. The name says TCP; it
// counts all that has a protocol's own accounting, UDP too (mem_cgroup_charge_skmem). v2 charges them to memory.max.
const socketsFile = "memory.kmem.tcp.limit_in_bytes"

// mostSocketMemory is plenty for programs that talk over loopback.
const mostSocketMemory = 64 << 20

// socketMemory is a quarter of the run's memory, and no more than a 32nd of where the host's TCP comes under pressure, so that 32 runs
// don't bring it there. A network namespace that doesn't show the host's tcp_mem gets the least.
func socketMemory(memory int64) int64 {
	page := int64(os.Getpagesize())
	return max(min(memory/4, mostSocketMemory, tcpPressure()/32), 4<<20) / page * page
}

var tcpPressure = sync.OnceValue(func() int64 {
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_mem")
	if f := strings.Fields(string(b)); err == nil && len(f) == 3 {
		if pages, err := strconv.ParseInt(f[1], 10, 64); err == nil {
			return pages * int64(os.Getpagesize())
		}
	}
	return 0
})

// limitSockets leaves a kernel without the file alone: hostcaps.SocketMemory has told, and the operator has accepted it.
func (g *Group) limitSockets(l Limits) error {
	f := g.file("memory", socketsFile)
	if unix.Access(f, unix.F_OK) != nil {
		return nil
	}
	if err := writeFile(f, strconv.FormatInt(socketMemory(l.Memory), 10)); err != nil {
		return fmt.Errorf("controller memory: %w", err)
	}
	return nil
}

// Update changes the limits of a live group. When a write is refused, the former limits are put back and the error says which file. Memory
// below current use: v1 refuses with EBUSY if it cannot reclaim; v2 takes it and OOM-kills the whole group. Update also reopens a group
// that Kill closed to forks.
func (g *Group) Update(l Limits) error {
	if err := l.Validate(); err != nil {
		return fmt.Errorf("update cgroup %s: %w", g.name, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.limits
	err := g.applyLocked(l, old)
	if err == nil {
		err = g.verifyLocked(l, old)
	}
	if err != nil {
		if old != (Limits{}) {
			err = errors.Join(err, g.applyLocked(old, Limits{}))
		}
		return fmt.Errorf("update cgroup %s: %w", g.name, err)
	}
	g.limits = l
	return nil
}

// Limits are the ones last set by this Group.
func (g *Group) Limits() Limits {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits
}

// Verify reads the limits back from the kernel and names every file that differs from what was set.
func (g *Group) Verify() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.limits == (Limits{}) {
		return fmt.Errorf("verify cgroup %s: no limits were set", g.name)
	}
	if err := g.verifyLocked(g.limits, Limits{}); err != nil {
		return fmt.Errorf("verify cgroup %s: %w", g.name, err)
	}
	return nil
}

// verifyLocked reads back what applyLocked writes of the same two.
func (g *Group) verifyLocked(l, have Limits) error {
	mem := strconv.FormatInt(l.Memory/int64(os.Getpagesize())*int64(os.Getpagesize()), 10)
	q, p := strconv.FormatInt(g.quotaOf(l), 10), strconv.Itoa(cpuPeriod)
	type file struct{ controller, name, want string }
	files := []file{{"pids", "pids.max", strconv.FormatInt(l.PIDs, 10)}}
	if g.mode == V2 {
		files = append(files, file{"cpu", "cpu.max", q + " " + p}, file{"memory", "memory.max", mem}, file{"memory", homeName + "/memory.oom.group", "1"},
			file{"memory", "memory.high", strconv.FormatInt(softMemory(l.Memory), 10)})
		if strings.HasPrefix(g.swap, "memory.swap.max") {
			files = append(files, file{"memory", "memory.swap.max", "0"})
		}
	} else {
		files = append(files, file{"cpu", "cpu.cfs_quota_us", q}, file{"cpu", "cpu.cfs_period_us", p},
			file{"memory", "memory.limit_in_bytes", mem}, file{"memory", "memory.swappiness", "0"})
		if strings.HasPrefix(g.swap, "memory.memsw") {
			files = append(files, file{"memory", "memory.memsw.limit_in_bytes", mem})
		}
		if unix.Access(g.file("memory", socketsFile), unix.F_OK) == nil {
			files = append(files, file{"memory", socketsFile, strconv.FormatInt(socketMemory(l.Memory), 10)})
		}
	}
	if l.Memory == have.Memory {
		files = slices.DeleteFunc(files, func(f file) bool { return f.controller == "memory" })
	}
	var errs []error
	for _, f := range files {
		got, err := readFile(g.file(f.controller, f.name))
		if err != nil {
			errs = append(errs, fmt.Errorf("controller %s: %w", f.controller, err))
		} else if got != f.want {
			errs = append(errs, fmt.Errorf("controller %s: %s is %q, set %q", f.controller, f.name, got, f.want))
		}
	}
	return errors.Join(errs...)
}

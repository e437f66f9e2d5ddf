// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/cgroups"
	"agentrun/fsjail"
	"agentrun/internal/read"
)

// factPlaces are where programs look for facts of the machine they are on. They are told the run's: its limits in place of the machine's
// memory and processors, its own time, and nothing of what else the machine does.
var factPlaces = []fsjail.Entry{
	{Target: "/proc/cpuinfo", Why: "as many processors as the cpu limit has; what one is, CPUID tells every program"},
	{Target: "/proc/loadavg", Why: "for uptime, top, make -l: always 0, the host's load is none of the run's"},
	{Target: "/proc/meminfo", Why: "the memory limit, and what is left of it: for free, and for runtimes that size their heap by it"},
	{Target: "/proc/stat", Why: "processor time of the run since its sandbox was made: for ps, top, Node's os.cpus"},
	{Target: "/proc/sys", Why: "a few constants of the kernel that libraries read"},
	{Target: "/proc/uptime", Why: "since the sandbox was made, as its clocks have it: for uptime, ps"},
	{Target: "/proc/version", Why: "what uname(2) says; LibreOffice takes it that there is no /proc without"},
	{Target: "/sys", Why: "how many processors there are: for lscpu, sysconf(3)"},
}

// kernelConstants are shown as the host has them: they are no secret of the host's, and a program that guessed them would guess wrong.
var kernelConstants = map[string]string{
	"kernel/cap_last_cap":  "which capabilities there are: bubblewrap, libcap-ng",
	"kernel/ngroups_max":   "sysconf(3)",
	"kernel/osrelease":     "as uname(2) says it: procps, shell scripts",
	"kernel/ostype":        "likewise",
	"kernel/overflowgid":   "who files of groups without a name belong to: bubblewrap, which coding agents have as their own sandbox",
	"kernel/overflowuid":   "likewise of users",
	"kernel/pid_max":       "how wide a column of process ids is: procps, htop",
	"net/core/somaxconn":   "the longest queue of a listening socket: Go's net, nginx",
	"vm/max_map_count":     "how many mappings a process may have: JVMs",
	"vm/overcommit_memory": "whether memory can be had that isn't there: jemalloc, in Rust programs and Redis",
}

func planFacts() []fsjail.Entry {
	list := []fsjail.Entry{{Kind: fsjail.Dir, Target: "/sys", Mode: 0o555}}
	for _, e := range factPlaces {
		e.Kind = fsjail.Fact
		list = append(list, e)
	}
	return list
}

// facts are those of one run. Their users come one after the other: the launch, then watch.
type facts struct {
	*fsjail.Facts
	since  time.Time // when the sandbox's clocks began
	limits cgroups.Limits
	cpu    time.Duration // used, when they were told last
}

// makeFacts makes them with the limits as they are now; tell has them follow.
func (l *launch) makeFacts() (err error) {
	if l.plan.ProcOptions == "" {
		return nil // the kernel's own /proc is shown, whole
	}
	l.facts = &facts{since: time.Now(), limits: l.limits()}
	files := machineFacts(l.facts.limits)
	maps.Copy(files, runFacts(l.facts.limits, cgroups.Stats{}, 0, 0))
	maps.Copy(files, constants.now())
	var at []string
	for _, e := range factPlaces {
		at = append(at, e.Target)
	}
	l.facts.Facts, err = fsjail.MakeFacts(l.root, at, files, "/proc/sys", l.stages)
	return err
}

// constantMemo has kernelConstants as they were within the last second.
type constantMemo struct {
	mu    sync.Mutex
	files map[string]string
	since time.Time
}

var constants constantMemo

// now are files, not to be written to.
func (c *constantMemo) now() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); c.files == nil || now.Sub(c.since) > time.Second {
		c.files, c.since = map[string]string{}, now
		for name := range kernelConstants {
			if value, err := read.Kernel("/proc/sys/" + name); err == nil { // one that the kernel hasn't isn't there either
				c.files["/proc/sys/"+name] = value
			}
		}
	}
	return c.files
}

func (l *launch) showFacts() error {
	if l.facts == nil {
		return nil
	}
	return l.facts.Show(l.initPID, l.plan.ProcOptions)
}

// tellFacts brings the facts up to date. They are nobody's limits: what can't be written stays as it was.
func (l *launch) tellFacts(used cgroups.Stats) {
	f := l.facts
	if f == nil {
		return
	}
	limits, up := l.group.Limits(), time.Since(f.since)
	files := map[string]string{"/proc/uptime": uptime(up, idle(limits, used, up))}
	if limits != f.limits || used.CPU != f.cpu { // what a run that sleeps has of files isn't read again: it costs as much as all the rest
		reclaimable, _ := l.group.Reclaimable()
		files = runFacts(limits, used, reclaimable, up)
	}
	if limits != f.limits {
		maps.Copy(files, machineFacts(limits))
	}
	f.limits, f.cpu = limits, used.CPU
	_ = f.Write(files)
}

// processors are as many as a cpu limit needs, and as the host has at most.
func processors(l cgroups.Limits) int {
	return min(max(1, int(math.Ceil(l.CPU))), goruntime.NumCPU())
}

// machineFacts follow from the limits alone.
func machineFacts(l cgroups.Limits) map[string]string {
	n := processors(l)
	list := "0\n"
	if n > 1 {
		list = fmt.Sprintf("0-%d\n", n-1)
	}
	return map[string]string{
		"/proc/cpuinfo": cpuinfo(hostProcessor(), n), "/proc/loadavg": "0.00 0.00 0.00 1/1 1\n",
		"/proc/version": version(), "/sys/devices/system/cpu/online": list, "/sys/devices/system/cpu/possible": list, "/sys/devices/system/cpu/present": list,
	}
}

// version has no names of who built the kernel, and where.
func version() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // there is no error but of a pointer
	return fmt.Sprintf("%s version %s %s\n", unix.ByteSliceToString(u.Sysname[:]), unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Version[:]))
}

// runFacts change while it runs. reclaimable is what of the used memory holds copies of files.
func runFacts(l cgroups.Limits, used cgroups.Stats, reclaimable int64, up time.Duration) map[string]string {
	free := max(0, l.Memory-used.MemoryCurrent)
	reclaimable = min(reclaimable, l.Memory-free)
	var mem strings.Builder
	for _, line := range []struct {
		name  string
		bytes int64
	}{
		{"MemTotal", l.Memory}, {"MemFree", free}, {"MemAvailable", free + reclaimable}, {"Buffers", 0}, {"Cached", reclaimable},
		{"SwapCached", 0}, {"Active", l.Memory - free - reclaimable}, {"Inactive", reclaimable}, {"SwapTotal", 0}, {"SwapFree", 0},
		{"Dirty", 0}, {"Writeback", 0}, {"AnonPages", l.Memory - free - reclaimable}, {"Mapped", 0}, {"Shmem", 0}, {"Slab", 0},
		{"SReclaimable", 0}, {"SUnreclaim", 0}, {"CommitLimit", l.Memory}, {"Committed_AS", l.Memory - free},
	} {
		fmt.Fprintf(&mem, "%-15s %8d kB\n", line.name+":", line.bytes>>10)
	}
	n, rest := processors(l), idle(l, used, up)
	var stat strings.Builder
	fmt.Fprintf(&stat, "cpu  %d 0 0 %d 0 0 0 0 0 0\n", ticks(used.CPU), ticks(rest))
	for i := range n {
		fmt.Fprintf(&stat, "cpu%d %d 0 0 %d 0 0 0 0 0 0\n", i, ticks(used.CPU/time.Duration(n)), ticks(rest/time.Duration(n)))
	}
	fmt.Fprintf(&stat, "intr 0\nctxt 0\nbtime %d\nprocesses %d\nprocs_running 1\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n",
		time.Now().Add(-up).Unix(), max(1, used.PIDs))
	return map[string]string{"/proc/meminfo": mem.String(), "/proc/stat": stat.String(), "/proc/uptime": uptime(up, rest)}
}

func idle(l cgroups.Limits, used cgroups.Stats, up time.Duration) time.Duration {
	return max(0, up*time.Duration(processors(l))-used.CPU)
}

func ticks(d time.Duration) int64 { return int64(d / (time.Second / userHZ)) }

func uptime(up, idle time.Duration) string {
	return fmt.Sprintf("%.2f %.2f\n", up.Seconds(), idle.Seconds())
}

// cpuFields of /proc/cpuinfo are what a program can ask the processor itself. Not those of the machine it is in: which microcode it runs
// and which bugs the kernel knows of it tell what it isn't patched against, its frequency what others do.
var cpuFields = []string{
	"vendor_id", "cpu family", "model", "model name", "stepping", "cache size", "fpu", "fpu_exception", "cpuid level", "wp", "flags",
	"clflush size", "cache_alignment", "address sizes",
	"Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", // of arm64
	"isa", "mmu", "uarch", // of RISC-V
}

// hostProcessor is the host's first processor, of cpuFields. A heterogeneous machine shows one kind.
var hostProcessor = sync.OnceValue(func() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, 8<<10)) // the kernel makes as many processors' lines as are read
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(head), "\n\n")
	var b strings.Builder
	for line := range strings.Lines(first) {
		name, _, _ := strings.Cut(line, ":")
		if slices.Contains(cpuFields, strings.TrimSpace(name)) {
			b.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	return b.String()
})

func cpuinfo(processor string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "processor\t: %d\n%sphysical id\t: 0\nsiblings\t: %d\ncore id\t\t: %d\ncpu cores\t: %d\n\n", i, processor, n, i, n)
	}
	return b.String()
}

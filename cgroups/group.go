// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

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

var (
	errBadName  = errors.New("not a cgroup name of agentrun's")
	errNoInside = errors.New("this process is inside the group")
)

// isComponent: letters and digits, then also _ and -. No dots: "." and ".." cannot occur, nor names of the kernel's own files
// (cgroup.procs, memory.max). By hand: the two regular expressions took 0.7 ms to compile at every start.
func isComponent(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '_' && c != '-') {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

func isFirst(s string) bool {
	rest, ok := strings.CutPrefix(s, "agentrun")
	return ok && (rest == "" || len(rest) > 1 && rest[0] == '-' && isComponent("x"+rest))
}

// checkName accepts "agentrun/<id>" and deeper, or "agentrun-<suffix>/<id>". A group within another one's is a child's. The name becomes a path that is created, killed and removed
// by root, so everything that is not plainly ours is refused. Groups of others' may stand before it ("docker/agentrun/<id>"), in which ours
// then is; they are only looked for, and split off as above.
func checkName(name string, minDepth int) (above, own string, err error) {
	parts := strings.Split(name, "/")
	first := max(slices.IndexFunc(parts, isFirst), 0)
	ours := parts[first:]
	if len(ours) < minDepth || len(ours) > 8 || first > 16 || !isFirst(ours[0]) {
		return "", "", fmt.Errorf("%w: %q", errBadName, name)
	}
	for _, p := range parts[:first] {
		if p == "" || p == "." || p == ".." || len(p) > 255 || strings.IndexByte(p, 0) >= 0 {
			return "", "", fmt.Errorf("%w: %q (component %q)", errBadName, name, p)
		}
	}
	for _, p := range ours[1:] {
		if !isComponent(p) {
			return "", "", fmt.Errorf("%w: %q (component %q)", errBadName, name, p)
		}
	}
	return strings.Join(parts[:first], "/"), strings.Join(ours, "/"), nil
}

// Within is the name of a group of ours in what the path of another's group leads to, as engines say where a container's is to be; where there
// is nothing of that path, it is the name itself. A path into one of ours is refused: that belongs to another run.
func Within(at, name string) (string, error) {
	above := strings.TrimPrefix(path.Clean("/"+at), "/")
	if above == "" {
		return name, nil
	}
	if slices.ContainsFunc(strings.Split(above, "/"), isFirst) {
		return "", fmt.Errorf("cgroup %.200q is agentrun's own", at)
	}
	g, err := find(above+"/"+name, 1)
	if err != nil || !slices.ContainsFunc(g.hiers, func(h hier) bool { return h.used && h.above != "" }) {
		return name, err
	}
	return g.name, nil
}

// hier is the group's place in one mounted hierarchy. Controllers mounted together (cpu,cpuacct) share one.
type hier struct {
	controllers []string // "" is the v2 tree
	mount       string
	above       string // another's group that ours are in; empty: none
	dir         string
	v2          bool
	used        bool // we create and fill it; the others are only looked at for leftovers
}

func (h hier) label() string {
	if h.v2 {
		return "unified"
	}
	return strings.Join(h.controllers, ",")
}

// Group is one sandbox's cgroup in every hierarchy. Methods may be called from any goroutine.
type Group struct {
	name  string
	own   string // part of it: see checkName
	mode  Mode
	hiers []hier

	noKillFile bool // tests only: kill as on a kernel without cgroup.kill

	killing chan struct{}        // holds one while somebody kills
	killed  int                  // the most that one of them saw; whoever kills has it
	frozen  atomic.Pointer[list] // who was there when it was frozen; nil: not known any more

	mu     sync.Mutex // guards limits and the order of limit writes
	limits Limits
	swap   string
}

func newGroup(h Host, above, own string) *Group {
	g := &Group{name: path.Join(above, own), own: own, mode: h.Mode, killing: make(chan struct{}, 1)}
	byMount := map[string]int{}
	for _, c := range slices.Sorted(maps.Keys(h.V1)) {
		m := h.V1[c] // as mountinfo has it: never a symlink such as cpu -> cpu,cpuacct
		used := h.Mode != V2 && slices.Contains(neededV1, c)
		if i, ok := byMount[m]; ok {
			g.hiers[i].controllers = append(g.hiers[i].controllers, c)
			g.hiers[i].used = g.hiers[i].used || used
			continue
		}
		byMount[m] = len(g.hiers)
		at := begin(m, above, own)
		g.hiers = append(g.hiers, hier{controllers: []string{c}, mount: m, above: at, dir: filepath.Join(m, at, own), used: used})
	}
	if h.Unified != "" {
		// First in order: a process that is in anything of ours is then reached by cgroup.kill.
		at := begin(h.Unified, above, own)
		g.hiers = slices.Insert(g.hiers, 0, hier{controllers: []string{""}, mount: h.Unified, above: at, dir: filepath.Join(h.Unified, at, own), v2: true, used: true})
	}
	return g
}

// begin is where ours begin in a hierarchy: where the group is already, and else as near to above as there are groups. On v1 each has its own,
// and what isn't there limits nothing. Nothing is made of it: it would be left behind, since nobody knows whose it is.
func begin(mount, above, own string) string {
	parts := strings.Split(own, "/")
	own = path.Join(parts[:min(2, len(parts))]...) // a group within it is where it is
	isDir := func(dir string) bool { info, err := os.Lstat(dir); return err == nil && info.IsDir() }
	nearest := ""
	for at := above; at != "" && at != "."; at = path.Dir(at) {
		if isDir(filepath.Join(mount, at, own)) {
			return at
		}
		if nearest == "" && isDir(filepath.Join(mount, at)) {
			nearest = at
		}
	}
	return nearest
}

// Create makes the group in every hierarchy and sets its limits, read back as proof. The name must be free in all of them: a leftover or
// a collision is an error (errors.Is fs.ErrExist), never joined. On any error everything made is removed again.
func Create(name string, l Limits) (_ *Group, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("create cgroup %s: %w", name, err)
		}
	}()
	above, own, err := checkName(name, 2)
	if err != nil {
		return nil, err
	}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	h, err := host()
	if err != nil {
		return nil, err
	}
	g := newGroup(h, above, own)
	var made []string
	defer func() {
		if err == nil {
			return
		}
		for _, d := range slices.Backward(made) {
			_ = unix.Rmdir(d)
		}
		if !g.nested() {
			_, _ = RemoveParentIfEmpty(path.Dir(name))
		}
	}()
	if err := g.withinParent(); err != nil {
		return nil, fmt.Errorf("controller memory: %w", err)
	}
	for _, hi := range g.hiers {
		if !hi.used {
			continue
		}
		if err := mkdirGroup(hi, own); err != nil {
			return nil, fmt.Errorf("controller %s: %w", hi.label(), err)
		}
		made = append(made, hi.dir)
		if err := checkFS(hi.dir, hi.v2); err != nil {
			return nil, fmt.Errorf("controller %s: %w", hi.label(), err)
		}
	}
	if g.mode == V2 {
		home := g.home(g.hiers[0])
		if err := os.Mkdir(home, 0o755); err != nil {
			return nil, err
		}
		made = append(made, home)
		for _, c := range neededV2 {
			if err := enable(h.Unified, g.Place("")[1:], c); err != nil {
				return nil, fmt.Errorf("controller %s: %w", c, err)
			}
		}
	}
	if err := g.limitDevices(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.applyLocked(l, Limits{}); err != nil {
		return nil, err
	}
	if err := g.verifyLocked(l, Limits{}); err != nil {
		return nil, err
	}
	g.limits = l
	return g, nil
}

// mkdirGroup makes the group exclusively. The folder of all groups may vanish in between: the end of another run removes it when it is
// empty. A group above that is gone is not made again: it would be one without limits.
func mkdirGroup(hi hier, own string) error {
	first, within, _ := strings.Cut(own, "/")
	var err error
	for range 16 {
		if err = os.Mkdir(hi.dir, 0o755); !errors.Is(err, os.ErrNotExist) || strings.Contains(within, "/") {
			return err
		}
		if err := os.Mkdir(filepath.Join(hi.mount, hi.above, first), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return err
}

// homeName is the folder of a group in which its processes are, on v2: there a group that has others in it can have none itself
// (cgroup-v2.rst, "No Internal Process Constraint").
const homeName = "agent"

// Place is where the processes are in a hierarchy, as /proc/PID/cgroup has it of who is in none: on v2 in a leaf of this group, which has the limits.
func (g *Group) Place(controller string) string {
	for _, h := range g.hiers {
		if slices.Contains(h.controllers, controller) {
			return strings.TrimPrefix(g.home(h), h.mount)
		}
	}
	return ""
}

// home is the folder of its processes in a hierarchy.
func (g *Group) home(h hier) string {
	if g.mode == V2 && h.v2 {
		return filepath.Join(h.dir, homeName)
	}
	return h.dir
}

// withinParent has what the group above limits hold for this one too. Kernels before 5.11 count a v1 group's memory in those above it
// only where each of them says so, which one without groups in it may still begin to (memory.rst, 6.1).
func (g *Group) withinParent() error {
	if g.mode == V2 || !g.nested() && !g.guest() {
		return nil
	}
	above := filepath.Dir(g.dir("memory"))
	if !g.nested() {
		above = filepath.Dir(above) // another's
	}
	f := filepath.Join(above, "memory.use_hierarchy")
	if on, err := readFile(f); err != nil || on != "0" {
		return nil // newer ones always do, and may have no such file
	}
	if !g.nested() {
		return fmt.Errorf("%s is 0: its limit would not hold for groups in it", f)
	}
	return writeFile(f, "1")
}

// nested tells whether the group is in another one that has limits.
func (g *Group) nested() bool { return strings.Count(g.own, "/") > 1 }

// guest tells whether it is in a group of another's, which may have limits.
func (g *Group) guest() bool { return g.own != g.name }

// enable makes one v2 controller available in the group, looking first: writing subtree_control takes the global cgroup lock even when
// nothing changes, and every run after the first finds it enabled. It looks for the controller's file: cgroup.controllers names a
// controller as soon as another process begins to enable it, and the files come later, under that lock.
func enable(mount, name, controller string) error {
	has := func() (bool, error) {
		_, err := os.Lstat(filepath.Join(mount, name, controller+".max"))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
	if ok, err := has(); ok || err != nil {
		return err
	}
	werr := enableAbove(mount, name, controller)
	if ok, err := has(); ok || err != nil {
		return err
	}
	if werr == nil {
		werr = fmt.Errorf("enabled in cgroup.subtree_control of %s but absent below it", filepath.Join(mount, path.Dir(name)))
	}
	return werr
}

// enableAbove enables it in every group above, one at a time: the kernel refuses a whole write for one unknown name in it
// (cgroup_subtree_control_write: "+nosuch +memory" is EINVAL and memory stays off). Of a delegated tree's groups the upper ones are
// another's, and have it enabled; the last error counts.
func enableAbove(mount, name, controller string) (err error) {
	at := mount
	for _, part := range strings.Split(name, "/") {
		err = writeFile(filepath.Join(at, "cgroup.subtree_control"), "+"+controller)
		at = filepath.Join(at, part)
	}
	return err
}

// Open takes hold of a group by name, as it may have been left by another process. It need not exist in every hierarchy, nor in any:
// Pids is then empty and Remove a no-op. Limits are unknown until Update.
func Open(name string) (*Group, error) {
	g, err := find(name, 2)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	return g, nil
}

// find gives the group of a name that may be ours, also on a host that lacks a controller.
func find(name string, minDepth int) (*Group, error) {
	above, own, err := checkName(name, minDepth)
	if err != nil {
		return nil, err
	}
	h, err := host()
	if err != nil && h.Mode == Invalid {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return newGroup(h, above, own), nil
}

// Name is the relative name given to Create.
func (g *Group) Name() string { return g.name }

// Paths maps each hierarchy that Create made the group in to the directory that its processes are in: v1 controllers by name, the
// cgroup2 tree as "".
func (g *Group) Paths() map[string]string {
	m := map[string]string{}
	for _, h := range g.hiers {
		for _, c := range h.controllers {
			if h.v2 || slices.Contains(neededV1, c) && h.used {
				m[c] = g.home(h)
			}
		}
	}
	return m
}

// files are the names of those files that the versions have under different ones.
type files struct {
	quota, unlimited string // of the processor
	weight           string
	usual            int // weight
	used, peak, oom  string
	soft             string    // limit of memory
	cached           [2]string // keys of memory.stat
}

var (
	filesV1 = files{
		"cpu.cfs_quota_us", "-1", "cpu.shares", 1024,
		"memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control",
		"memory.soft_limit_in_bytes", [2]string{"total_active_file", "total_inactive_file"},
	}
	filesV2 = files{
		"cpu.max", "max", "cpu.weight", 100, "memory.current", "memory.peak", "memory.events",
		"memory.high", [2]string{"active_file", "inactive_file"},
	}
)

func (g *Group) files() *files {
	if g.mode == V2 {
		return &filesV2
	}
	return &filesV1
}

func (g *Group) file(controller, name string) string { return filepath.Join(g.dir(controller), name) }

func (g *Group) unified() (hier, bool) {
	for _, h := range g.hiers {
		if h.v2 {
			return h, true
		}
	}
	return hier{}, false
}

func (g *Group) dir(controller string) string {
	for _, h := range g.hiers {
		if g.mode == V2 && h.v2 || g.mode != V2 && slices.Contains(h.controllers, controller) {
			return h.dir
		}
	}
	return ""
}

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

// Birth is the way into a group that waits for no grace period, as Add does, and keeps nobody else from changing cgroups meanwhile: a
// process with one thread moves itself by a "0" to each of Tasks, and has a child born in Folder, which is then in all of them.
type Birth struct {
	Tasks  []*os.File // of the v1 hierarchies; whoever moves only itself is spared the lock (cgroup_procs_write_start, since Linux 5.3)
	Folder *os.File   // of the cgroup2 tree, for CLONE_INTO_CGROUP (clone(2)); nil: there is none
}

// Close closes them.
func (b Birth) Close() {
	for _, f := range append(b.Tasks, b.Folder) {
		f.Close() // a nil one says so
	}
}

// Birth opens it.
func (g *Group) Birth() (b Birth, err error) {
	for _, h := range g.hiers {
		if !h.used {
			continue
		}
		path, flags := filepath.Join(g.home(h), "tasks"), unix.O_WRONLY
		if h.v2 {
			path, flags = g.home(h), unix.O_PATH|unix.O_DIRECTORY
		}
		fd, err := unix.Open(path, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			b.Close()
			return Birth{}, &os.PathError{Op: "open", Path: path, Err: err}
		}
		if f := os.NewFile(uintptr(fd), path); h.v2 {
			b.Folder = f
		} else {
			b.Tasks = append(b.Tasks, f)
		}
	}
	return b, nil
}

// Add moves a process (all its threads) into every hierarchy, the cgroup2 tree first. After an error it may be in some of them: the
// caller kills it. Each move may wait for an RCU grace period; see docs/cgroups.md for the figures.
func (g *Group) Add(pid int) error {
	if pid <= 0 { // "0" written to cgroup.procs moves the writer itself
		return fmt.Errorf("add to cgroup %s: pid %d: %w", g.name, pid, unix.EINVAL)
	}
	for _, h := range g.hiers {
		if !h.used {
			continue
		}
		if err := writeFile(filepath.Join(g.home(h), "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("add pid %d to cgroup %s: controller %s: %w", pid, g.name, h.label(), err)
		}
	}
	return nil
}

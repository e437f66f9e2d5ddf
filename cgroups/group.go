// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

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
	root        string // what the mount shows of the hierarchy; empty: all
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

	removed atomic.Bool // by this Group; its name is never used again

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
		used := h.Mode != V2 && slices.Contains(neededV1, c) && !(h.Mode == Hybrid && ofTheTree(c))
		if i, ok := byMount[m]; ok {
			g.hiers[i].controllers = append(g.hiers[i].controllers, c)
			g.hiers[i].used = g.hiers[i].used || used
			continue
		}
		byMount[m] = len(g.hiers)
		at := begin(m, above, own)
		g.hiers = append(g.hiers, hier{controllers: []string{c}, mount: m, root: h.Roots[m], above: at, dir: filepath.Join(m, at, own), used: used})
	}
	if h.Unified != "" {
		// First in order: a process that is in anything of ours is then reached by cgroup.kill.
		at := begin(h.Unified, above, own)
		g.hiers = slices.Insert(g.hiers, 0, hier{controllers: []string{""}, mount: h.Unified, root: h.Roots[h.Unified], above: at, dir: filepath.Join(h.Unified, at, own), v2: true, used: true})
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
func Create(name string, l Limits) (*Group, error) {
	g, err := Make(name, l)
	if err != nil {
		return nil, err
	}
	if err := g.Verify(); err != nil {
		err = fmt.Errorf("create cgroup %s: %w", name, errors.Join(err, g.Remove(context.Background())))
		if !g.nested() {
			_, _ = RemoveParentIfEmpty(path.Dir(name))
		}
		return nil, err
	}
	return g, nil
}

// Make is Create for who calls Verify before anybody lives in the group.
func Make(name string, l Limits) (_ *Group, err error) {
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
			if err := enable(h.Unified, strings.TrimPrefix(home, h.Unified)[1:], c); err != nil {
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
			return h.root + strings.TrimPrefix(g.home(h), h.mount)
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

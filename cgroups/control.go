// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// unifiedFile is a file of the group in the cgroup2 tree, "" where there is none (no tree, or a kernel before the file: cgroup.freeze came
// with 5.2, cgroup.kill with 5.14).
func (g *Group) unifiedFile(name string) string {
	if u, ok := g.unified(); ok {
		p := filepath.Join(u.dir, name)
		if unix.Access(p, unix.F_OK) == nil {
			return p
		}
	}
	return ""
}

// v1Freezer is the freezer.state file, "" where the group is not in that hierarchy.
func (g *Group) v1Freezer() string {
	for _, h := range g.hiers {
		if slices.Contains(h.controllers, "freezer") {
			p := filepath.Join(h.dir, "freezer.state")
			if unix.Access(p, unix.F_OK) == nil {
				return p
			}
		}
	}
	return ""
}

// Freeze stops every process and returns when the kernel says that all are stopped. If ctx ends first the group is thawed again: half
// frozen is no state to leave, and the caller that must have it stopped kills it instead (M-22). A process can hold off a freeze for as
// long as it likes (a page fault served by userfaultfd or FUSE), hence the bound; it cannot hold off Kill.
func (g *Group) Freeze(ctx context.Context) error {
	defer g.hurry()()
	err := g.freeze(ctx)
	if err != nil {
		err = fmt.Errorf("freeze cgroup %s: %w", g.name, errors.Join(err, g.unfreeze()))
	}
	return err
}

func (g *Group) freeze(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	f := g.unifiedFile("cgroup.freeze")
	if f == "" {
		return g.freezeV1(ctx)
	}
	u, _ := g.unified()
	if err := writeFile(f, "1"); err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, birthTime)
	defer cancel()
	for b := (backoff{}); ; {
		// cgroup.freeze only echoes the request; "frozen" in cgroup.events is the fact (cgroup_update_frozen).
		if err := g.awaitEvents(ctx, 1); err != nil || g.mode == V2 {
			return err
		}
		// On hybrid somebody may have moved a process out of the cgroup2 tree, which no agent can: then the group isn't frozen. One that is
		// about to have a child born in the group (Birth) isn't in that tree either, and ends when it has; an agent has such ones as often as
		// it likes, by commands of tools. What is frozen can't fork, so this check is not racy for what it finds.
		now, err := g.census()
		if err != nil {
			return err
		}
		if len(now.outside) == 0 {
			g.frozen.Store(&now)
			return nil
		}
		if b.wait(soon) != nil {
			return fmt.Errorf("processes %v were moved out of the cgroup2 tree: kill the run, or write them back to %s", now.outside, filepath.Join(u.dir, "cgroup.procs"))
		}
	}
}

// birthTime is more than it takes from one's entry into the v1 hierarchies to the birth of its child.
const birthTime = 250 * time.Millisecond

// freezeV1 asks and reads back. A FREEZING that does not become FROZEN may be processes that wait for each other in an order that the v1
// freezer cannot resolve, so now and then it lets them run (the kernel's advice in freezer-subsystem.rst: retry or thaw).
func (g *Group) freezeV1(ctx context.Context) error {
	f := g.v1Freezer()
	if f == "" {
		return fmt.Errorf("controller freezer: %w", os.ErrNotExist)
	}
	var b backoff
	for i := 1; ; i++ {
		if err := writeFile(f, "FROZEN"); err != nil {
			return err
		}
		s, err := readFile(f)
		if err != nil {
			return err
		}
		if s == "FROZEN" {
			return nil
		}
		if i%16 == 0 {
			if err := writeFile(f, "THAWED"); err != nil {
				return err
			}
		}
		if err := b.wait(ctx); err != nil {
			return fmt.Errorf("controller freezer is %s: %w", s, err)
		}
	}
}

func (g *Group) awaitEvents(ctx context.Context, frozen int64) error {
	u, _ := g.unified()
	return await(ctx, "cgroup.events frozen", frozen, func() (int64, error) {
		k, err := readKeys(filepath.Join(u.dir, "cgroup.events"), "frozen")
		if err != nil {
			return 0, err
		}
		return k[0], nil
	})
}

// await reads until it reads what is wanted. At the end of ctx the error says what it read last.
func await[T comparable](ctx context.Context, what string, want T, read func() (T, error)) error {
	var b backoff
	for {
		now, err := read()
		if err != nil || now == want {
			return err
		}
		if err := b.wait(ctx); err != nil {
			return fmt.Errorf("%s is %v: %w", what, now, err)
		}
	}
}

// unfreeze requests a thaw everywhere without waiting for it. A group that is gone is thawed.
func (g *Group) unfreeze() error {
	g.frozen.Store(nil)
	var errs []error
	if f := g.unifiedFile("cgroup.freeze"); f != "" {
		if err := writeFile(f, "0"); err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}
	if f := g.v1Freezer(); f != "" {
		if err := writeFile(f, "THAWED"); err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Frozen tells whether its processes stand still, or are about to. A group that can't be read doesn't.
func (g *Group) Frozen() bool {
	file, want := g.unifiedFile("cgroup.freeze"), "1"
	if file == "" {
		file, want = g.v1Freezer(), "FR" // FREEZING, FROZEN
	}
	if file == "" {
		return false
	}
	text, err := readFile(file)
	return err == nil && strings.HasPrefix(text, want)
}

// Thaw lets the processes run again and returns when the kernel says that they do.
func (g *Group) Thaw(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("thaw cgroup %s: %w", g.name, err)
		}
	}()
	if err := g.unfreeze(); err != nil {
		return err
	}
	if g.unifiedFile("cgroup.freeze") != "" {
		if err := g.awaitEvents(ctx, 0); err != nil {
			return err
		}
	}
	if f := g.v1Freezer(); f != "" {
		return await(ctx, "controller freezer", "THAWED", func() (string, error) { return readFile(f) })
	}
	return nil
}

// freezeForKill bounds the freeze inside Kill. It is a courtesy (no process sees another die and reacts), not needed for the outcome.
const freezeForKill = 50 * time.Millisecond

// Kill ends every process in the group and its children, and returns once cgroup.procs is empty in every hierarchy. killed is the number
// of distinct processes it saw; one born and dead between two looks is not counted. It ends with an error that lists who is left when
// ctx does: a process in uninterruptible sleep dies when the kernel lets it. Who comes while another kills waits for that, and looks;
// killed is then what one of them saw, and so it is for who comes later and finds nothing.
//
// The group stays closed afterwards: its pids limit is 0, so what is moved into it later cannot fork. Update opens it again.
func (g *Group) Kill(ctx context.Context) (killed int, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("kill cgroup %s: %w", g.name, err)
		}
	}()
	select {
	case g.killing <- struct{}{}: // also with a ctx that has ended: a first round is always made
	default:
		select {
		case g.killing <- struct{}{}:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	defer func() { <-g.killing }()
	n, err := g.kill(ctx)
	g.killed = max(g.killed, n)
	return g.killed, err
}

func (g *Group) kill(ctx context.Context) (int, error) {
	seen := map[int]struct{}{}
	killFile := g.unifiedFile("cgroup.kill")
	if g.noKillFile {
		killFile = ""
	}
	var b backoff
	signalled := false
	// Looked up before the kill: a scan takes locks that the dying need. One that this misses is in the next round's list.
	now, err := g.firstList(killFile != "")
	for first := true; ; first = false {
		if err != nil {
			return len(seen), err
		}
		pids := now.pids
		if len(pids) == 0 && now.hidden == 0 {
			// Nothing is left to stay frozen, but a frozen empty group would stop what joins it next.
			return len(seen), g.unfreeze()
		}
		if slices.Contains(pids, os.Getpid()) {
			return len(seen), errNoInside
		}
		for _, p := range pids {
			seen[p] = struct{}{}
		}
		if first {
			defer g.hurry()()
			// A fork bomb loses here: no new process after this line, whatever the scheduler does. The library would take 0 for "unset".
			if g.dir("pids") != "" {
				if err := writeFile(g.file("pids", "pids.max"), "0"); err != nil && !gone(err) {
					return len(seen), err
				}
			}
		}
		if killFile != "" {
			pids = now.outside
			// The kernel signals all of them under its own lock, forks in flight included (kernel/cgroup/cgroup.c, cgroup_kill; 5.14).
			if err := writeFile(killFile, "1"); err != nil && !gone(err) {
				return len(seen), err
			}
		}
		if len(pids) > 0 {
			if err := g.signalAll(ctx, pids, !signalled); err != nil {
				return len(seen), err
			}
			signalled = true
		}
		// A task in the v1 freezer does not act on SIGKILL before it is thawed. Also covers one that somebody else froze.
		if err := g.unfreeze(); err != nil {
			return len(seen), err
		}
		werr := b.wait(ctx)
		if werr == nil && killFile != "" && len(pids) == 0 {
			werr = g.awaitUnpopulated(ctx, &b)
		}
		if werr != nil {
			pids, hidden, err := g.allProcs()
			if err == nil && len(pids) == 0 && hidden == 0 {
				return len(seen), nil
			}
			return len(seen), fmt.Errorf("processes left: %v and %d of another PID namespace: %w", pids, hidden, errors.Join(werr, err))
		}
		now, err = g.census()
	}
}

// firstList is who is there before anybody was killed: of a group that stands still since, who was there when it was frozen, and of one
// that is killed by the cgroup2 tree, who is there; who isn't is in the next round's list. An empty list is the proof, and is a whole one.
func (g *Group) firstList(byTree bool) (list, error) {
	if was := g.frozen.Swap(nil); was != nil && len(was.pids) > 0 && g.Frozen() {
		return *was, nil
	}
	if byTree {
		u, _ := g.unified()
		if pids, hidden, err := procs(u.dir); err != nil || len(pids)+hidden > 0 {
			return list{pids: pids, hidden: hidden}, err
		}
	}
	return g.census()
}

// unpopulatedLooks bounds what one round of Kill waits without the whole list, to some 100 ms.
const unpopulatedLooks = 32

// awaitUnpopulated waits until the cgroup2 tree says that nothing lives in the group; it proves nothing about the other hierarchies
// and gives up after a while. Listing every hierarchy each time instead, with a thousand processes in each, took as long as their dying.
func (g *Group) awaitUnpopulated(ctx context.Context, b *backoff) error {
	u, _ := g.unified()
	for range unpopulatedLooks {
		k, err := readKeys(filepath.Join(u.dir, "cgroup.events"), "populated")
		if err != nil || k[0] != 1 {
			return nil // the list decides
		}
		if err := b.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// signalAll freezes what it can, signals every pid and leaves the thaw to the caller.
func (g *Group) signalAll(ctx context.Context, pids []int, freeze bool) error {
	if freeze {
		fctx, cancel := context.WithTimeout(ctx, freezeForKill)
		defer cancel()
		_ = g.freeze(fctx) // not needed for the outcome, see freezeForKill
		more, _, err := g.allProcs()
		if err != nil {
			return err
		}
		pids = slices.Compact(slices.Sorted(slices.Values(append(pids, more...))))
	}
	return g.signal(pids)
}

// signal kills by pid, some at a time: open descriptors are bounded.
func (g *Group) signal(pids []int) error {
	for batch := range slices.Chunk(pids, 128) {
		if err := g.signalBatch(batch); err != nil {
			return err
		}
	}
	return nil
}

// signalBatch cannot hit a stranger: a pid read from cgroup.procs may have died and been given to another process since. So: take a pidfd,
// which pins the process, then look again whether that number is in the group, and only then signal through the pidfd.
func (g *Group) signalBatch(pids []int) error {
	g.frozen.Store(nil) // they die although it is
	fds := map[int]int{}
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for _, p := range pids {
		fd, err := unix.PidfdOpen(p, 0)
		if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
			continue // gone, or its number is a thread's now
		}
		if err != nil {
			return fmt.Errorf("pidfd_open %d: %w", p, err)
		}
		fds[p] = fd
	}
	still, _, err := g.allProcs()
	if err != nil {
		return err
	}
	for p, fd := range fds {
		if _, ok := slices.BinarySearch(still, p); !ok {
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("pidfd_send_signal %d: %w", p, err)
		}
	}
	return nil
}

// KillOthers ends every process of the group itself, not of those in it, except those named, which must be alive and pinned by the caller (its children, or by
// pidfd), and returns how many it saw. settled false: they have their SIGKILL and die before they run another instruction, but are
// still there, because the group is in the v1 freezer, which holds them until it is thawed. Otherwise it returns once none but those
// named is listed. The group must be frozen or its processes unable to fork: unlike Kill it leaves the pids limit as it is.
func (g *Group) KillOthers(ctx context.Context, keep ...int) (killed int, settled bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("kill in cgroup %s: %w", g.name, err)
		}
	}()
	seen := map[int]struct{}{}
	var b backoff
	for first := true; ; first = false {
		pids, err := g.ownProcs()
		if err != nil {
			return len(seen), false, err
		}
		pids = slices.DeleteFunc(pids, func(p int) bool { return slices.Contains(keep, p) })
		if len(pids) == 0 {
			return len(seen), true, nil
		}
		if first {
			defer g.hurry()()
		}
		for _, p := range pids {
			seen[p] = struct{}{}
		}
		if err := g.signal(pids); err != nil {
			return len(seen), false, err
		}
		if held, err := g.inV1Freezer(); held || err != nil {
			return len(seen), false, err
		}
		if err := b.wait(ctx); err != nil {
			return len(seen), false, fmt.Errorf("processes left: %v: %w", pids, err)
		}
	}
}

func (g *Group) inV1Freezer() (bool, error) {
	f := g.v1Freezer()
	if f == "" {
		return false, nil
	}
	s, err := readFile(f)
	return s != "THAWED", err
}

// Unthrottle lifts the CPU quota until Throttle or Update sets it again, so that processes that have used theirs up run to where they
// can be frozen or die: a throttled one acts on no signal before the next period, up to 100 ms later.
func (g *Group) Unthrottle() error {
	f := g.files()
	if err := writeFile(g.file("cpu", f.quota), f.unlimited); err != nil {
		return fmt.Errorf("lift the cpu quota of cgroup %s: %w", g.name, err)
	}
	return nil
}

// Throttle sets the CPU quota of the limits in force again.
func (g *Group) Throttle() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.limits == (Limits{}) {
		return fmt.Errorf("set the cpu quota of cgroup %s: no limits were set", g.name)
	}
	if err := g.setQuota(g.limits, true); err != nil {
		return fmt.Errorf("set the cpu quota of cgroup %s: %w", g.name, err)
	}
	return nil
}

// OOMEvents gives, on v1, a file that becomes readable (8 bytes, eventfd(2)) when the group hits its memory limit and the kernel looks for
// somebody to kill, and when the group is removed (Documentation/admin-guide/cgroup-v1/memory.rst, 10). On v2 it is nil: there the kernel
// kills the whole group (memory.oom.group). The caller closes it.
func (g *Group) OOMEvents() (*os.File, error) {
	if g.mode == V2 {
		return nil, nil
	}
	fail := func(err error) (*os.File, error) { return nil, fmt.Errorf("oom events of cgroup %s: %w", g.name, err) }
	control, err := os.Open(g.file("memory", g.files().oom))
	if err != nil {
		return fail(err)
	}
	defer control.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fail(os.NewSyscallError("eventfd2", err))
	}
	events := os.NewFile(uintptr(fd), "oom-events")
	ask := fmt.Sprintf("%d %d", fd, control.Fd())
	if err := writeFile(g.file("memory", "cgroup.event_control"), ask); err != nil {
		events.Close()
		return fail(err)
	}
	return events, nil
}

// removeBound ends the retries of Remove when ctx has no nearer deadline.
const removeBound = 2 * time.Second

// Remove removes the group and its children from every mounted hierarchy, those included where somebody else made it (cpuset,
// blkio, name=systemd, …). It does not kill: EBUSY is retried until ctx ends or two seconds pass, for processes that are just going. A
// group that is not there is success. The parent stays; see RemoveParentIfEmpty.
func (g *Group) Remove(ctx context.Context) error {
	if g.removed.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, removeBound)
	defer cancel()
	if g.mode != V2 && (g.nested() || g.guest()) {
		// The kernel goes by the quota of a removed group until it has forgotten it, some grace periods later (sched_release_group), and
		// meanwhile refuses the one above a smaller one (EINVAL).
		_ = g.Unthrottle() // not there, most often
	}
	var errs []error
	was := false
	for _, h := range g.hiers {
		there, err := removeTree(ctx, h.dir)
		if was = was || there; err != nil {
			errs = append(errs, fmt.Errorf("controller %s: %w", h.label(), err))
		}
	}
	if len(errs) > 0 {
		if p, _, err := g.allProcs(); err == nil && len(p) > 0 {
			errs = append(errs, fmt.Errorf("processes inside: %v", p))
		}
		return fmt.Errorf("remove cgroup %s: %w", g.name, errors.Join(errs...))
	}
	g.removed.Store(true)
	if was {
		g.weighAll(false) // it may have been the last that yielded
	}
	return nil
}

// RemoveEmpty is Remove of a group that nobody lives in and that is in no other's. The kernel decides: it removes none, in no hierarchy,
// that a process lives in, so true is the proof that nobody does. Otherwise some of it may be gone, and Kill and Remove do the rest. It
// is for v1, where the proof by lists takes one of each hierarchy; on v2, of which a group has a leaf, it does nothing.
func (g *Group) RemoveEmpty() (removed bool) {
	if g.mode == V2 || g.nested() || g.guest() {
		return false
	}
	was := false
	for _, h := range g.hiers {
		err := unix.Rmdir(h.dir)
		if err != nil && !gone(err) {
			return false
		}
		was = was || err == nil
	}
	g.removed.Store(true)
	if was {
		g.weighAll(false)
	}
	return true
}

// removeTree also tells whether there was one.
func removeTree(ctx context.Context, dir string) (there bool, err error) {
	if err := unix.Rmdir(dir); err == nil || gone(err) { // as a rule there is none in it
		return err == nil, nil
	}
	var b backoff
	for {
		dirs, err := subgroups(dir)
		if err != nil {
			return true, err
		}
		busy := error(nil)
		for _, d := range dirs {
			if err := unix.Rmdir(d); errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINTR) {
				busy = &os.PathError{Op: "rmdir", Path: d, Err: err}
			} else if err != nil && !gone(err) {
				return true, &os.PathError{Op: "rmdir", Path: d, Err: err}
			}
		}
		if busy == nil {
			return true, nil
		}
		if werr := b.wait(ctx); werr != nil {
			return true, errors.Join(busy, werr)
		}
	}
}

// RemoveParentIfEmpty removes a parent such as "agentrun" from every hierarchy where it has no children and no processes. removed is true
// when it is in none any more.
func RemoveParentIfEmpty(parent string) (removed bool, err error) {
	g, err := find(parent, 1)
	if err != nil {
		return false, fmt.Errorf("remove parent cgroup: %w", err)
	}
	removed = true
	for _, hi := range g.hiers {
		switch err := unix.Rmdir(hi.dir); {
		case err == nil, gone(err):
		case errors.Is(err, unix.EBUSY):
			removed = false
		default:
			return false, fmt.Errorf("remove parent cgroup: controller %s: %w", hi.label(), &os.PathError{Op: "rmdir", Path: hi.dir, Err: err})
		}
	}
	return removed, nil
}

// Sweep kills and removes every child of parent, in any hierarchy, that alive does not claim; it asks once per name. A run must be known to
// alive before its group is made. Names that Create would refuse are not touched, they are reported in err: what made them is not agentrun.
// One child's error does not stop the others.
func Sweep(ctx context.Context, parent string, alive func(name string) bool) (removed []string, err error) {
	all, err := find(parent, 1)
	if err != nil {
		return nil, fmt.Errorf("sweep cgroups: %w", err)
	}
	if alive == nil {
		return nil, fmt.Errorf("sweep cgroups below %s: no alive function", parent)
	}
	if s := all.share(all.dir("cpu")); s != nil {
		s.settle() // a supervisor may have died in a hurry
	}
	var errs []error
	names := map[string]struct{}{}
	for _, hi := range all.hiers {
		ents, err := os.ReadDir(hi.dir)
		if err != nil && !gone(err) {
			errs = append(errs, err)
		}
		for _, e := range ents {
			if e.IsDir() {
				names[e.Name()] = struct{}{}
			}
		}
	}
	for _, n := range slices.Sorted(maps.Keys(names)) {
		g, err := find(parent+"/"+n, 2)
		if err == nil && alive(n) {
			continue
		}
		if err == nil {
			_, err = g.Kill(ctx)
		}
		if err == nil {
			err = g.Remove(ctx)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, n)
	}
	if len(errs) > 0 {
		return removed, fmt.Errorf("sweep cgroups below %s: %w", parent, errors.Join(errs...))
	}
	return removed, nil
}

// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// readFile reads a small cgroup file in one read, without its last newline. Opened afresh each time on purpose: a v1 cgroup.procs caches
// its list per open file.
func readFile(path string) (string, error) {
	fd, err := retryInt(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0) })
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var buf [4096]byte
	n, err := retryInt(func() (int, error) { return unix.Read(fd, buf[:]) })
	if err != nil {
		return "", &os.PathError{Op: "read", Path: path, Err: err}
	}
	return string(bytes.TrimRight(buf[:n], "\n")), nil
}

// readList reads a file of any length, such as cgroup.procs, without what os.ReadFile asks the kernel about a file that it might wait for.
func readList(path string) (list []byte, err error) {
	fd, err := retryInt(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	for {
		list = slices.Grow(list, 4096) // no read of such a file gives more than a page
		n, err := retryInt(func() (int, error) { return unix.Read(fd, list[len(list):cap(list)]) })
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return list, nil
		}
		list = list[:len(list)+n]
	}
}

// writeFile writes values one by one. It never creates: on a path that is not a cgroup file it must fail.
func writeFile(path string, values ...string) error {
	fd, err := retryInt(func() (int, error) { return unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0) })
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	for _, value := range values {
		if _, err := retryInt(func() (int, error) { return unix.Write(fd, []byte(value)) }); err != nil {
			return &os.PathError{Op: "write " + value + " to", Path: path, Err: err}
		}
	}
	return nil
}

func retryInt(f func() (int, error)) (int, error) {
	for {
		if n, err := f(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func readInt(path string) (int64, error) {
	s, err := readFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// readKeys reads a flat keyed file ("key value" lines) and returns the values of the keys in order, -1 where absent.
func readKeys(path string, keys ...string) ([]int64, error) {
	s, err := readFile(path)
	if err != nil {
		return nil, err
	}
	out := make([]int64, len(keys))
	for i := range out {
		out[i] = -1
	}
	for line := range strings.Lines(s) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), " ")
		if i := slices.Index(keys, k); i >= 0 {
			if out[i], err = strconv.ParseInt(v, 10, 64); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", path, k, err)
			}
		}
	}
	return out, nil
}

// gone is true for errors that mean the group is not there (any more): a removed directory, or one removed while a file was open.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) }

// subgroups lists the directories below dir, deepest first and dir last; empty when dir does not exist. A cgroup directory's link count is
// 2 + its children (kernfs_refresh_inode), so a leaf costs one stat.
func subgroups(dir string) ([]string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		if gone(err) {
			return nil, nil
		}
		return nil, &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, &os.PathError{Op: "read", Path: dir, Err: unix.ENOTDIR}
	}
	if st.Nlink == 2 {
		return []string{dir}, nil
	}
	ents, err := os.ReadDir(dir)
	if err != nil && !gone(err) {
		return nil, err
	}
	var out []string
	for _, e := range ents {
		if e.IsDir() {
			sub, err := subgroups(filepath.Join(dir, e.Name()))
			if err != nil {
				return nil, err
			}
			out = append(out, sub...)
		}
	}
	return append(out, dir), nil
}

// procs lists the live processes below one directory. hidden counts those of another PID namespace, which v2 shows as 0: they exist but
// have no number here, and 0 must never reach kill(2), where it means the caller's own process group. Zombies are not listed.
func procs(dir string) (pids []int, hidden int, err error) {
	dirs, err := subgroups(dir)
	if err != nil {
		return nil, 0, err
	}
	return procsIn(dirs...)
}

// procsIn is procs of these directories alone.
func procsIn(dirs ...string) (pids []int, hidden int, err error) {
	for _, d := range dirs {
		b, err := readList(filepath.Join(d, "cgroup.procs"))
		// EOPNOTSUPP: a threaded group, whose processes are all listed by its domain above.
		if err != nil && !gone(err) && !errors.Is(err, unix.EOPNOTSUPP) {
			return nil, 0, err
		}
		for f := range strings.FieldsSeq(string(b)) {
			n, err := strconv.Atoi(f)
			if err != nil {
				return nil, 0, fmt.Errorf("%s: %w", filepath.Join(d, "cgroup.procs"), err)
			}
			if n > 0 {
				pids = append(pids, n)
			} else {
				hidden++
			}
		}
	}
	return pids, hidden, nil
}

// list is who is in a group: every process, those of them that were not in the cgroup2 tree, if there is one, and how many of another PID
// namespace.
type list struct {
	pids, outside []int
	hidden        int
}

// allProcs is the union over every mounted hierarchy, ours or made by someone else under the same name.
func (g *Group) allProcs() (pids []int, hidden int, err error) {
	l, err := g.census()
	return l.pids, l.hidden, err
}

// manyProcs is from where on the lists of several hierarchies are read at once. With a thousand processes one takes the kernel half a
// millisecond, with few less than a goroutine.
const manyProcs = 128

// census lists every mounted hierarchy, of which the cgroup2 tree is the first.
func (g *Group) census() (list, error) {
	type read struct {
		pids   []int
		hidden int
		err    error
	}
	of := make([]read, len(g.hiers))
	var others sync.WaitGroup
	for i, h := range g.hiers {
		look := func() { of[i].pids, of[i].hidden, of[i].err = procs(h.dir) }
		if i > 0 && len(of[0].pids) >= manyProcs {
			others.Go(look)
		} else {
			look()
		}
	}
	others.Wait()
	var l list
	for i, r := range of {
		if r.err != nil {
			return list{}, fmt.Errorf("controller %s: %w", g.hiers[i].label(), r.err)
		}
		l.pids, l.hidden = append(l.pids, r.pids...), max(l.hidden, r.hidden)
	}
	slices.Sort(l.pids)
	l.pids = slices.Compact(l.pids)
	if _, ok := g.unified(); ok {
		unified := slices.Sorted(slices.Values(of[0].pids))
		for _, p := range l.pids {
			if _, in := slices.BinarySearch(unified, p); !in {
				l.outside = append(l.outside, p)
			}
		}
	}
	return l, nil
}

// ownProcs is allProcs without the processes of groups in this one.
func (g *Group) ownProcs() (pids []int, err error) {
	for _, h := range g.hiers {
		p, _, err := procsIn(h.dir, g.home(h))
		if err != nil {
			return nil, fmt.Errorf("controller %s: %w", h.label(), err)
		}
		pids = append(pids, p...)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Pids lists the live processes in the group or its children, in any hierarchy, in ascending order. Zombies are not in it.
func (g *Group) Pids() ([]int, error) {
	p, _, err := g.allProcs()
	if err != nil {
		return nil, fmt.Errorf("list cgroup %s: %w", g.name, err)
	}
	return p, nil
}

// Populated tells whether there is a live process in the group, also one in a pid namespace that isn't below this one: that has no pid
// here (pid_namespaces(7)), so that Pids leaves it out, and cgroup2 lists it as 0. Version 1 doesn't list it; but there nothing can kill it
// either, for want of cgroup.kill, and the group can't be removed. The count of pids.current has zombies too, which nobody may ever reap.
func (g *Group) Populated() (bool, error) {
	pids, hidden, err := g.allProcs()
	return len(pids) > 0 || hidden > 0, err
}

// backoff waits 50 µs, doubling to 4 ms. The kernel offers no wake-up that works for v1 too, and a poll of cgroup.events would still need
// the check of every other hierarchy.
type backoff struct{ d time.Duration }

func (b *backoff) wait(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	b.d = min(max(2*b.d, 50*time.Microsecond), 4*time.Millisecond)
	t := time.NewTimer(b.d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Stats of a group since it was made.
type Stats struct {
	CPU           time.Duration // used by all processes, dead ones too
	MemoryCurrent int64         // bytes
	MemoryPeak    int64         // bytes; v2 since 5.19; -1: this kernel does not keep it
	PIDs          int64         // processes and threads now; a fork counts for the instant before it is refused
	OOMKills      uint64        // processes killed for memory
}

// Stats reads the kernel's counters directly. The library's Stat reads some twenty files and starts a goroutine per controller; these
// are five (figures in docs/cgroups.md).
func (g *Group) Stats() (Stats, error) {
	s, err := g.account()
	if err == nil {
		s.MemoryCurrent, err = readInt(g.file("memory", g.files().used))
	}
	if err == nil {
		s.PIDs, err = readInt(g.file("pids", "pids.current"))
	}
	if err != nil {
		err = fmt.Errorf("stats of cgroup %s: %w", g.name, err)
	}
	return s, err
}

// Account is what of Stats tells how a run went that is over: CPU, MemoryPeak and OOMKills. Three files instead of five: the
// end of a run waits for them.
func (g *Group) Account() (Stats, error) {
	s, err := g.account()
	if err != nil {
		err = fmt.Errorf("account of cgroup %s: %w", g.name, err)
	}
	return s, err
}

func (g *Group) account() (s Stats, err error) {
	s.CPU, err = g.CPUTime()
	if err == nil {
		s.MemoryPeak, err = readOptional(g.file("memory", g.files().peak))
	}
	if err == nil {
		s.OOMKills, err = g.oomKills()
	}
	return s, err
}

// Reclaimable is what of MemoryCurrent holds copies of files, which the kernel drops before it refuses memory. It costs as much as Stats.
func (g *Group) Reclaimable() (int64, error) {
	k, err := readKeys(g.file("memory", "memory.stat"), g.files().cached[:]...)
	if err != nil {
		return 0, fmt.Errorf("cached files of cgroup %s: %w", g.name, err)
	}
	return max(0, k[0]) + max(0, k[1]), nil
}

func readOptional(path string) (int64, error) {
	n, err := readInt(path)
	if errors.Is(err, unix.ENOENT) {
		return -1, nil
	}
	return n, err
}

// Pressure is how much of the last 10 s at least one process of a group waited for something it lacked, in percent (PSI, "some avg10":
// Documentation/accounting/psi.rst).
type Pressure struct{ CPU, Memory, IO float64 }

// Pressure reads the group's. The error is errors.ErrUnsupported where the kernel keeps none for groups: version 1 has no such files,
// and version 2 only with CONFIG_PSI and without psi=0.
func (g *Group) Pressure() (p Pressure, err error) {
	if g.mode != V2 {
		return p, errors.ErrUnsupported
	}
	for name, to := range map[string]*float64{"cpu": &p.CPU, "memory": &p.Memory, "io": &p.IO} {
		text, err := readFile(filepath.Join(g.dir(""), name+".pressure"))
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
			return Pressure{}, errors.ErrUnsupported
		}
		if err == nil {
			_, err = fmt.Sscanf(text, "some avg10=%f", to)
		}
		if err != nil {
			return Pressure{}, fmt.Errorf("%s pressure of cgroup %s: %w", name, g.name, err)
		}
	}
	return p, nil
}

// OOMKills counts the processes that the kernel killed because the group was at its memory limit. On v2 one event kills the whole group
// (memory.oom.group); on v1 it kills one process and the rest live on, so a supervisor that sees the count rise kills the rest.
func (g *Group) OOMKills() (uint64, error) {
	n, err := g.oomKills()
	if err != nil {
		return 0, fmt.Errorf("oom kills of cgroup %s: %w", g.name, err)
	}
	return n, nil
}

func (g *Group) oomKills() (uint64, error) {
	p := g.file("memory", g.files().oom)
	if g.mode == V2 {
		p = g.file("memory", filepath.Join(homeName, g.files().oom)) // the group's own count has those of the groups in it
	}
	k, err := readKeys(p, "oom_kill")
	if err != nil {
		return 0, err
	}
	if k[0] < 0 { // v1 before 4.13
		return 0, fmt.Errorf("%s has no oom_kill count: %w", p, errors.ErrUnsupported)
	}
	return uint64(k[0]), nil
}

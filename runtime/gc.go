// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/cgroups"
	"agentrun/internal/rootless"
)

const (
	sandboxesDir = "sandboxes"
	locksDir     = "locks"
)

// lockRun takes the lock of a run that may be dead. A run is alive while its lock is held. The lock file is
// made before the run's folder and removed after it, so whoever finds a folder whose lock is free has found a
// crash.
func lockRun(runDir, id string) (*os.File, error) {
	for {
		f, err := openLock(runDir, id)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock run %s: %w", id, err)
		}
		// Another collector may have removed the file between our open and our lock: a lock on a file
		// that is no longer there would tell nobody anything.
		mine, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		if there, err := os.Lstat(f.Name()); err == nil && os.SameFile(mine, there) {
			return f, nil
		}
		f.Close()
	}
}

// newLock makes a run's lock, which says where its cgroup is. It is held before it has a name, so no collector ever finds it free.
func newLock(runDir, id, cgroup string) (*os.File, error) {
	dir := filepath.Join(runDir, locksDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("unnamed file in %s (the run folder must be on a file system that has them, as tmpfs, ext4, xfs or btrfs): %w", dir, err)
	}
	f := os.NewFile(uintptr(fd), filepath.Join(dir, id))
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil && isGuest(cgroup) {
		_, err = f.WriteString(cgroup)
	}
	if err == nil {
		// linkat(2): the way to name an O_TMPFILE without CAP_DAC_READ_SEARCH.
		err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, f.Name(), unix.AT_SYMLINK_FOLLOW)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock run %s: %w", id, err)
	}
	return f, nil
}

func openLock(runDir, id string) (*os.File, error) {
	dir := filepath.Join(runDir, locksDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(dir, id), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
}

func removeRun(runDir, id string, lock *os.File) error {
	if lock == nil {
		return nil
	}
	err := os.RemoveAll(filepath.Join(runDir, sandboxesDir, id))
	return errors.Join(err, os.Remove(lock.Name()), lock.Close())
}

// validID is the form of newID: what else lies in the folder is not ours to remove.
func validID(s string) bool {
	return len(s) == 16 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// Collect removes what crashed supervisors left in a run folder: processes, cgroups, folders. Runs
// that are alive are not touched. It returns the ids it cleaned up after; errors do not stop it.
//
// The agents of a dead supervisor are dead already (parent-death signal, control socket), unless
// their v1 cgroup was frozen at that moment: a frozen process does not die of SIGKILL. That is
// why processes are looked for here at all.
//
// The parent of all groups, and groups in it that no run folder tells of, are looked at if something was removed, or all is asked for:
// whatever run ends last does it, too.
func Collect(ctx context.Context, runDir string, all bool) (removed []string, err error) {
	ids, err := knownRuns(runDir)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, id := range ids {
		lock, err := lockRun(runDir, id)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue
		}
		if err == nil {
			err = collectOne(ctx, runDir, id, lock)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("clean up after run %s: %w", id, err))
			continue
		}
		removed = append(removed, id)
	}
	if err := sweepPlaceholders(runDir); err != nil {
		errs = append(errs, err)
	}
	if all || len(errs) > 0 || len(removed) > 0 {
		if parent, err := holdParent(); err == nil {
			errs = append(errs, releaseParent(parent))
		}
	}
	return removed, errors.Join(errs...)
}

// knownRuns are the runs that have a folder, and those killed before they had one, which have a lock.
func knownRuns(runDir string) (ids []string, err error) {
	for _, dir := range []string{sandboxesDir, locksDir} {
		names, err := os.ReadDir(filepath.Join(runDir, dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, n := range names {
			if validID(n.Name()) {
				ids = append(ids, n.Name())
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// CountLive tells how many sandboxes of a run folder have a supervisor that lives: those of runs, and those that a daemon keeps
// ready.
func CountLive(runDir string) (live int, err error) {
	names, err := os.ReadDir(filepath.Join(runDir, locksDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, err
	}
	for _, n := range names {
		if !validID(n.Name()) {
			continue
		}
		f, err := os.OpenFile(filepath.Join(runDir, locksDir, n.Name()), os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // it has just ended
		}
		// Shared, and for an instant: a collector that comes in between takes the run for alive, and looks again later.
		if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
			live++
		}
		f.Close()
	}
	return live, nil
}

const cgroupParent = "agentrun"

// Every run holds a shared lock while its cgroup is below the common parent, and the parent is removed only
// under the exclusive one. Without it the end of one run took the directory away from another that was
// just making its own in it (seen in 1 of 100 starts with others ending beside them).
func holdParent() (*os.File, error) {
	if !haveCgroups() {
		return nil, nil
	}
	if err := openWay(); err != nil {
		return nil, err
	}
	at, flags := filepath.Join(idsDir(), "cgroup-parent"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW
	if rootless.Is() {
		// An ordinary user's delegated cgroup is mounted here as the whole tree, and has a common parent of
		// its own. A lock for all of the user's runs would leave the parent in a tree that then can't be
		// given back, whenever another run lives in another.
		at, flags = "/sys/fs/cgroup", os.O_RDONLY|unix.O_DIRECTORY
	}
	f, err := os.OpenFile(at, flags, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH) // whoever has it exclusively has it for some rmdirs
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock the common cgroup: %w", err)
		}
	}
}

// releaseParent lets go, and removes the common parent if this was the last run. Groups of runs whose run
// folder is gone, so that Collect doesn't hear of them, go too: every live run has the lock, so none of these
// is one. An agentrun with another /run (in a container) and the same cgroups has another lock: what still
// has processes is let be, of whichever pid namespace. What has none yet is in the middle of a launch there,
// which fails.
func releaseParent(f *os.File) error {
	if f == nil {
		return nil
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // others are alive; the last one removes it
	}
	removed, err := cgroups.RemoveParentIfEmpty(cgroupParent)
	if removed || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), teardownTime)
	defer cancel()
	_, err = cgroups.Sweep(ctx, cgroupParent, func(id string) bool {
		g, err := cgroups.Open(cgroupParent + "/" + id)
		if err != nil {
			return true
		}
		populated, err := g.Populated()
		return populated || err != nil
	})
	if err != nil {
		return err
	}
	_, err = cgroups.RemoveParentIfEmpty(cgroupParent)
	return err
}

func collectOne(ctx context.Context, runDir, id string, lock *os.File) error {
	if !haveCgroups() { // its agents died with their pid 1, and that with its supervisor
		return removeRun(runDir, id, lock)
	}
	names := []string{cgroupParent + "/" + id, cgroupParent + "/" + id + gatewaySuffix}
	guest, err := io.ReadAll(io.NewSectionReader(lock, 0, unix.PathMax))
	if err != nil {
		lock.Close()
		return err
	}
	if len(guest) > 0 {
		names = append(names, string(guest))
	}
	for _, name := range names {
		g, err := cgroups.Open(name)
		if err == nil {
			if _, err = g.Kill(ctx); err == nil {
				err = g.Remove(ctx)
			}
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			lock.Close()
			return err
		}
	}
	if err := leaveGuest(string(guest)); err != nil {
		lock.Close()
		return err
	}
	return removeRun(runDir, id, lock)
}

// isGuest tells of a run's cgroup that it is in one of another's, and not in the common one.
func isGuest(cgroup string) bool { return cgroup != "" && !strings.HasPrefix(cgroup, cgroupParent+"/") }

// leaveGuest removes the folder of ours in a group of another's after the last run there.
func leaveGuest(cgroup string) error {
	if !isGuest(cgroup) {
		return nil
	}
	above, _, _ := strings.Cut(cgroup, "/"+cgroupParent+"/")
	_, err := cgroups.RemoveParentIfEmpty(above + "/" + cgroupParent)
	return err
}

// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/rootless"
)

// idsDir is machine-wide, whatever --run-dir says: uid ranges are one pool, and the root views are all
// mounted on one empty folder, each in a mount namespace of its own. Pid 1 walks there
// as the run's own uid, so the way must be open to others; a run folder may lie anywhere.
//
// An ordinary user has a place of the same kind for all of the own runs, which share the user's subordinate
// ids: see ownPlace. Not below XDG_RUNTIME_DIR: nobody else may walk there, and a variable would make two
// pools of one.
func idsDir() string {
	if ids, err := rootless.Inside(); err == nil && ids != nil {
		return ownDir(ids.Own)
	}
	return "/run/agentrun"
}

// SharedDir is that folder, for whoever keeps it out of sandboxes. It isn't made: where there is none yet,
// the answer is a name of the kind it may get, at which nobody can have put a link.
func SharedDir() string {
	if ids, err := rootless.Inside(); err == nil && ids != nil {
		if dir, _ := oldestOwn("/tmp", placeName(ids.Own)); dir != "" {
			return dir
		}
		return filepath.Join("/tmp", placeName(ids.Own)+"-"+rand.Text())
	}
	return "/run/agentrun"
}

func mountDir() string { return filepath.Join(idsDir(), "mnt") }

func placeName(own int) string { return fmt.Sprintf("agentrun-%d", own) }

var (
	placesMu sync.Mutex
	places   = map[int]string{}
)

func ownDir(own int) string {
	placesMu.Lock()
	defer placesMu.Unlock()
	if places[own] == "" {
		places[own] = claimPlace("/tmp", placeName(own))
	}
	return places[own]
}

// claimPlace gives the user's folder in one where everybody may make folders. The attack: another user makes
// it first, and nobody but them decides when it goes; all runs would be refused. Then a name that nobody can
// foresee is taken, and found again by its owner: only the user, or root, makes folders that are the user's.
// All of the user's runs must come to the same one, or two would claim the same ids; so it is the oldest, and
// who has just made one looks again. What it can't have is refused by ownPlace.
func claimPlace(in, name string) string {
	for {
		dir, since := oldestOwn(in, name)
		if dir == "" {
			break
		}
		wait := clockTick - time.Since(since)
		if wait <= 0 || wait > clockTick { // in the future: the clock was set back
			return dir
		}
		time.Sleep(wait) // another may still come that is as old to the clock, and before it by name
	}
	dir := filepath.Join(in, name)
	if err := os.Mkdir(dir, 0o711); errors.Is(err, fs.ErrExist) {
		if made, err := os.MkdirTemp(in, name+"-"); err == nil {
			dir = made
		}
	}
	time.Sleep(clockTick) // another that is as old to the clock is there by now
	if oldest, _ := oldestOwn(in, name); oldest != "" && oldest != dir {
		_ = os.Remove(dir) // it is ours and empty, or stays
		return oldest
	}
	return dir
}

// clockTick is far longer than the coarsest that file times are taken by (10 ms, CONFIG_HZ 100). mkdir(2)
// takes the time and makes the folder seen under one lock of the folder above, so two that are made in
// different ticks are seen in their order. It is waited for once, by a user's first runs.
const clockTick = 100 * time.Millisecond

// oldestOwn finds the user's folder of that name, or with something behind it, and since when it is there; ""
// if there is none.
func oldestOwn(in, name string) (dir string, since time.Time) {
	f, err := os.Open(in)
	if err != nil {
		return "", since
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return "", since
	}
	slices.Sort(names)
	var first unix.StatxTimestamp
	for _, n := range names {
		var st unix.Statx_t
		if n != name && !strings.HasPrefix(n, name+"-") ||
			unix.Statx(int(f.Fd()), n, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st) != nil || !isOwn(uint32(st.Mode), st.Uid) {
			continue
		}
		if dir == "" || st.Btime.Sec < first.Sec || st.Btime.Sec == first.Sec && st.Btime.Nsec < first.Nsec {
			dir, first = filepath.Join(in, n), st.Btime
		}
	}
	return dir, time.Unix(first.Sec, int64(first.Nsec))
}

func isOwn(mode, uid uint32) bool {
	return mode&unix.S_IFMT == unix.S_IFDIR && uid == uint32(os.Geteuid()) && mode&0o022 == 0 //nolint:gosec // an id
}

// ownPlace refuses a folder that somebody else has put there: /tmp is everybody's.
func ownPlace() error {
	if !rootless.Is() {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(idsDir(), &st); err != nil {
		return &os.PathError{Op: "lstat", Path: idsDir(), Err: err}
	}
	if !isOwn(st.Mode, st.Uid) {
		return fmt.Errorf("%s is not this user's own folder: it belongs to user %d with mode %04o, seen from inside", idsDir(), st.Uid, st.Mode&0o7777)
	}
	return nil
}

// idPool is where runs take their ids from.
func idPool() (pool, error) {
	ids, err := rootless.Inside()
	switch {
	case err != nil:
		return pool{}, err
	case ids == nil:
		return rootPool(), nil
	case ids.Sub < rootless.MinIDs:
		return pool{}, fmt.Errorf("the user namespace has %d ids beside uid 0, want at least %d", ids.Sub, rootless.MinIDs)
	}
	return subordinatePool(ids.Sub), nil
}

// haveCgroups tells whether cgroups can be made: by root always, by others in a tree that was delegated.
func haveCgroups() bool { return !rootless.Is() || rootless.Delegated() == nil }

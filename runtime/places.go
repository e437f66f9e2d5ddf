// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"agentrun/internal/rootless"
)

// idsDir is machine-wide, whatever --run-dir says: uid ranges are one pool, and the root views are all
// mounted on one empty folder, each in a mount namespace of its own. libcontainer's init walks there
// as the run's own uid, so the way must be open to others; a run folder may lie anywhere.
//
// An ordinary user has a place of the same kind for all of the own runs, which share the user's subordinate ids. Not below
// XDG_RUNTIME_DIR: nobody else may walk there, and a variable would make two pools of one.
func idsDir() string {
	if ids, err := rootless.Inside(); err == nil && ids != nil {
		return fmt.Sprintf("/tmp/agentrun-%d", ids.Own)
	}
	return "/run/agentrun"
}

// SharedDir is that folder, for whoever keeps it out of sandboxes.
func SharedDir() string { return idsDir() }

func mountDir() string { return filepath.Join(idsDir(), "mnt") }

// ownPlace refuses a folder that somebody else has put there: /tmp is everybody's.
func ownPlace() error {
	if !rootless.Is() {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(idsDir(), &st); err != nil {
		return &os.PathError{Op: "lstat", Path: idsDir(), Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != 0 || st.Mode&0o022 != 0 {
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

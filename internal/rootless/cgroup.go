// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// leaf is where agentrun itself goes: a cgroup that gives controllers to others holds no processes (cgroups(7), "no internal
	// processes"). It stays behind, empty, in a cgroup that nobody removes; systemd removes its scopes whole.
	leaf = "agentrun-self"
)

var wanted = []string{"cpu", "memory", "pids"}

// Delegated tells why the cgroup that this process is in can't be had as a tree of our own; nil: it can. Before Enter it looks at the
// host's tree; inside at what Arrived took.
func Delegated() error {
	return delegated(cgroupRoot, "/proc/self/cgroup", os.Geteuid(), hasCgroup())
}

func delegated(root, self string, uid int, taken bool) error {
	missing := func(why string) error {
		return &MissingError{"cgroup-delegation", why, "cgroup v2 and systemd: systemd-run --user --scope -p Delegate=yes agentrun exec …; a service of the user's: Delegate=yes; without systemd: a cgroup of v2 that belongs to the user, with cpu, memory and pids, entered before the start"}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return missing(err.Error())
	}
	if int64(fs.Type) != unix.CGROUP2_SUPER_MAGIC { //nolint:unconvert // differs between architectures
		return missing("cgroups are mounted as v1, which can't be delegated to users safely")
	}
	dir, err := ownCgroup(root, self)
	if taken && filepath.Base(dir) == leaf {
		dir = filepath.Dir(dir)
	}
	if err != nil {
		return missing(err.Error())
	}
	for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
		var st unix.Stat_t
		at := filepath.Join(dir, name)
		if err := unix.Stat(at, &st); err != nil {
			return missing(fmt.Sprintf("stat %s: %v", at, err))
		}
		if int(st.Uid) != uid {
			return missing(fmt.Sprintf("%s belongs to user %d, not to %d", at, st.Uid, uid))
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return missing(err.Error())
	}
	have := strings.Fields(string(b))
	for _, c := range wanted {
		if !slices.Contains(have, c) {
			return missing(fmt.Sprintf("controller %s is not given to %s", c, dir))
		}
	}
	return nil
}

// ownCgroup is the folder of the cgroup this process is in.
func ownCgroup(root, self string) (string, error) {
	b, err := os.ReadFile(self)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if at, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::/"); ok {
			if strings.Contains("/"+at+"/", "/../") {
				return "", errors.New("the cgroup of this process is outside of the tree that is mounted")
			}
			return filepath.Join(root, at), nil
		}
	}
	return "", errors.New("this process is in no cgroup of v2")
}

// takeCgroup mounts the delegated cgroup as the whole tree, if the process was given a cgroup namespace for it, and leaves its root. All
// that makes cgroups then does what it does as root.
func takeCgroup() error {
	if !hasCgroup() {
		return nil
	}
	// The root of the cgroup namespace is the cgroup that we came in.
	// The host's tree is the same file system, and one isn't mounted on itself (EBUSY): there is another between.
	if err := unix.Mount("tmpfs", cgroupRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RDONLY, "size=4k,mode=755"); err != nil {
		return os.NewSyscallError("mount over the host's cgroups", err)
	}
	if err := unix.Mount("cgroup2", cgroupRoot, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return os.NewSyscallError("mount the delegated cgroup", err)
	}
	at := filepath.Join(cgroupRoot, leaf)
	if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := moveAll(cgroupRoot, at); err != nil {
		return fmt.Errorf("leave the root of the delegated cgroup: %w", err)
	}
	return Delegated()
}

// moveAll takes along whoever came with us: the command that waits for a detached run to begin, systemd-run's own.
func moveAll(from, to string) error {
	for range 16 { // one that forks meanwhile has left a child behind
		b, err := os.ReadFile(filepath.Join(from, "cgroup.procs"))
		if err != nil || len(b) == 0 {
			return err
		}
		for pid := range strings.FieldsSeq(string(b)) {
			err := os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(pid), 0)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return fmt.Errorf("processes go on to come into it: %w", unix.EBUSY)
}

// Left gives the delegated cgroup back as it was, but for the empty leaf, so that another process can enter it. The groups of runs must be gone.
func Left() error {
	if !hasCgroup() || Delegated() != nil {
		return nil
	}
	control := filepath.Join(cgroupRoot, "cgroup.subtree_control")
	b, err := os.ReadFile(control)
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(b)) { // the sandboxes' library gives all that there are
		if err := os.WriteFile(control, []byte("-"+c), 0); err != nil {
			return fmt.Errorf("give the delegated cgroup back: %w", err)
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Kind says what an entry is. The zero value is refused.
type Kind string

// Kinds of entry.
const (
	Dir     Kind = "dir"     // an empty directory on the skeleton
	Link    Kind = "link"    // a symbolic link to Source
	File    Kind = "file"    // a small file with Content
	Bind    Kind = "bind"    // the host's Source, file or directory, with its submounts
	Tmpfs   Kind = "tmpfs"   // an empty tmpfs of Size bytes, owned by the agent
	Devpts  Kind = "devpts"  // a devpts instance of its own
	Overlay Kind = "overlay" // the host's Source, writable, changes kept on a private tmpfs, or where Options.UpperDir or Changes says
	Again   Kind = "again"   // the mount already placed at Source, seen a second time
	Cover   Kind = "cover"   // a program with Content in the place of the host's Source, which stays hidden beneath
	Fact    Kind = "fact"    // a made-up file or folder of Facts, placed when the sandbox is there
)

// Owner is who owns a bound directory on the host.
type Owner struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// Entry is one piece of a root view.
type Entry struct {
	Kind     Kind        `json:"kind"`
	Target   string      `json:"target"`             // absolute, clean path inside
	Source   string      `json:"source,omitempty"`   // Bind, Overlay: canonical host path; Link: the link's text; Again: target of an earlier entry
	Content  string      `json:"-"`                  // File, Cover
	Mode     os.FileMode `json:"mode,omitempty"`     // Dir, File, Tmpfs; permission bits only
	Agent    bool        `json:"agent,omitempty"`    // Dir: owned by the agent
	Writable bool        `json:"writable,omitempty"` // Bind
	Live     bool        `json:"live,omitempty"`     // Bind: built writable all the same; closed from outside before the agent starts, see Live
	Exec     bool        `json:"exec,omitempty"`     // Bind, Overlay, Tmpfs: programs may be executed from it; Again: as at Source
	Device   bool        `json:"device,omitempty"`   // Bind: a device node, not mounted nodev
	IsFile   bool        `json:"file,omitempty"`     // Bind: Source is not a directory
	Guard    bool        `json:"guard,omitempty"`    // Bind: a part of an earlier bind, mounted over itself so that nobody inside can rename or remove it
	Size     int64       `json:"size,omitempty"`     // Tmpfs: bytes
	// Owner, for Bind and Overlay (nil there: host root): show files of this host owner as the agent's, and let what the agent creates
	// belong to that owner (idmapped mount, Linux 5.12). Nil: no mapping; files of unmapped owners
	// appear as nobody's.
	Owner *Owner `json:"owner,omitempty"`
	// Sealed, for Overlay, are layers over Source and beneath the changes, the uppermost first: host folders, without links in their
	// paths, that nobody writes any more. Each belongs to whoever has its topmost folder, who is shown as the agent. At most MaxSealed.
	Sealed []string `json:"sealed,omitempty"`
	// Changes, for Overlay, is Options.UpperDir for this one.
	Changes string `json:"changes,omitempty"`
	// Shifting, for Overlay with Changes: Source may change while nothing is mounted. Folders that lie in it can't be renamed then.
	Shifting bool   `json:"shifting,omitempty"`
	Why      string `json:"why,omitempty"`
}

// MaxSealed layers lie on each other: their names are one value of fsconfig(2), which is 255 bytes long.
const MaxSealed = 48

// Lasting are the folders of the host's with what was changed in this view, by their owners the agent's, where upper is Options.UpperDir.
// They needn't be there.
func Lasting(entries []Entry, upper string) (folders []string) {
	for _, e := range entries {
		if dir := cmp.Or(e.Changes, upper); e.Kind == Overlay && dir != "" {
			folders = append(folders, ChangesIn(dir, e.Target))
		}
	}
	return folders
}

// ChangesIn is where an Overlay at target has its changes in a folder for them.
func ChangesIn(dir, target string) string { return filepath.Join(dir, "changes", target) }

// IDs are the host ids that the agent's user and group have.
type IDs struct{ UID, GID int }

// reserved are the places agentrun fills itself; a supplied root or a bind may not stand in for them.
// Each was an escape somewhere: /proc and /sys as links (CVE-2019-19921, CVE-2025-52881), /dev
// (CVE-2025-31133, CVE-2025-52565).
var reserved = []string{"/proc", "/sys", "/dev", "/tmp"}

// CheckTarget refuses a mount point that is not a clean absolute path or that would cover a place
// agentrun fills itself.
func CheckTarget(target string) error {
	switch {
	case !strings.HasPrefix(target, "/") || path.Clean(target) != target || target == "/":
		return fmt.Errorf("mount point %q is not a clean absolute path below /", target)
	case strings.IndexByte(target, 0) >= 0:
		return fmt.Errorf("mount point %q holds a NUL byte", target)
	case strings.HasPrefix(target, "/.agentrun"):
		return fmt.Errorf("mount point %q belongs to agentrun", target)
	}
	for _, r := range reserved {
		if target == "/etc" {
			return fmt.Errorf("mount point %q would show all of the host's users and services; name the files below it", target)
		}
		if target == r || strings.HasPrefix(target, r+"/") && r != "/tmp" || target == "/tmp/sandbox" {
			return fmt.Errorf("mount point %q belongs to agentrun (%s are its own)", target, strings.Join(reserved, ", "))
		}
	}
	return nil
}

// HostRoot lists what the default view shows of the host: /usr and the /bin and /lib* beside it,
// as directories or as the links they are on a merged-/usr system.
func HostRoot() ([]Entry, error) {
	var list []Entry
	for _, name := range []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		e, err := topLevel("/", name)
		if errors.Is(err, os.ErrNotExist) && name != "usr" {
			continue
		}
		if err != nil {
			return nil, err
		}
		e.Why = "programs and libraries of the host, read-only (M-2)"
		list = append(list, e)
	}
	return list, nil
}

// ErrHostileRoot marks a supplied root that could lead mounts astray.
var ErrHostileRoot = errors.New("unsafe root")

// SuppliedRoot lists what a folder given as root contains. Its /run is left out, and its /proc, /sys, /dev and /tmp are
// replaced; where one of them is anything but a directory the folder is refused, as are devices and
// sockets at its top. Nothing is written to the folder.
func SuppliedRoot(dir string) ([]Entry, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	list := []Entry{{Kind: Dir, Target: "/run", Mode: 0o755, Why: "empty: sockets of the way out are in it"}}
	for _, n := range names {
		if n.Name() == "run" { // of whatever kind
			continue
		}
		own := slices.Contains(reserved, "/"+n.Name()) || n.Name() == "workspace" || strings.HasPrefix(n.Name(), ".agentrun")
		if (own || n.Name() == "etc") && !n.IsDir() { // files of ours may be shown in /etc
			return nil, fmt.Errorf("%w: %s is %s, not a directory", ErrHostileRoot, filepath.Join(dir, n.Name()), n.Type())
		}
		if own {
			continue
		}
		e, err := topLevel(dir, n.Name())
		if err != nil {
			return nil, err
		}
		e.Why = "the supplied root, read-only"
		list = append(list, e)
	}
	return list, nil
}

// topLevel describes one name of a root folder without following it.
func topLevel(dir, name string) (Entry, error) {
	source := filepath.Join(dir, name)
	info, err := os.Lstat(source)
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Target: "/" + name, Source: source}
	switch info.Mode().Type() {
	case os.ModeSymlink:
		e.Kind = Link
		if e.Source, err = os.Readlink(source); err != nil {
			return Entry{}, err
		}
	case os.ModeDir, 0:
		e.Kind, e.Exec, e.IsFile = Bind, true, info.Mode().IsRegular()
	default:
		return Entry{}, fmt.Errorf("%w: %s is %s", ErrHostileRoot, source, info.Mode().Type())
	}
	return e, nil
}

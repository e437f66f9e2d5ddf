// SPDX-License-Identifier: Apache-2.0

// Package mounts tells whether two paths of the host lead to the same files, also where a file system is seen in more than one
// place: by a bind mount, as the top of a btrfs file system beside its subvolumes, or below an overlay.
//
//	t, err := mounts.Read()
//	a, _, err := t.Places("/sysroot/ostree/deploy/var")
//	b, _, err := t.Places("/var/lib/agentrun")
//	if mounts.Overlap(a, b) { … }
//
// A path alone can't tell. What can is the kernel's own account (proc(5), /proc/PID/mountinfo): the file system a mount is of, and the
// path of the mount's root within it.
//
// It doesn't see through what makes a second file system of the same files: FUSE, a network file system mounted from two servers or
// with nosharecache, a block device that is read. A hard link to a single file isn't seen either. Errors are those of reading the table,
// or of a path that isn't to be found in it: whoever asks to protect something refuses then.
package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Place is a file or folder, and all below it, within a file system.
type Place struct {
	device string // major:minor
	path   string
}

// Within says whether p is dir or lies in it. Whole components count: /a/session-10 is not in /a/session-1.
func (p Place) Within(dir Place) bool { return p.device == dir.device && within(dir.path, p.path) }

func within(dir, path string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// Overlap says whether any of a is, holds or lies in any of b.
func Overlap(a, b []Place) bool {
	return slices.ContainsFunc(a, func(p Place) bool {
		return slices.ContainsFunc(b, func(q Place) bool { return p.Within(q) || q.Within(p) })
	})
}

// Table is the mount table of this process at one moment.
type Table struct{ mounts []mount }

type mount struct {
	id     uint64
	at     string
	root   Place
	layers []string // overlay: the folders that it is made of
}

// Read reads the table.
func Read() (*Table, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parse(string(text))
}

// parse takes lines such as
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
func parse(text string) (*Table, error) {
	t := &Table{}
	for line := range strings.Lines(text) {
		field := strings.Fields(line)
		dash := slices.Index(field, "-") // behind six fields and any number of tags
		if dash < 6 || len(field) < dash+4 {
			return nil, fmt.Errorf("mountinfo line %.256q", line)
		}
		id, err := strconv.ParseUint(field[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("mountinfo line %.256q: %w", line, err)
		}
		m := mount{id: id, at: Unescape(field[4]), root: Place{field[2], Unescape(field[3])}}
		if field[dash+1] == "overlay" {
			m.layers = layers(Unescape(field[dash+3]))
		}
		t.mounts = append(t.mounts, m)
	}
	return t, nil
}

// layers reads an overlay's options. Names with a colon or comma in them, which it escapes in its own way, are not found.
func layers(options string) (names []string) {
	for o := range strings.SplitSeq(options, ",") {
		key, value, _ := strings.Cut(o, "=")
		if slices.Contains([]string{"lowerdir", "lowerdir+", "datadir+", "upperdir"}, key) {
			names = append(names, strings.FieldsFunc(value, func(r rune) bool { return r == ':' })...)
		}
	}
	return names
}

// Unescape undoes the octal escapes of space, tab, newline and backslash (proc(5)).
func Unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Places are where a path without links is, and what is mounted below it. Of a path that doesn't exist yet it is where it will be.
func (t *Table) Places(path string) (own, under []Place, err error) {
	if own, err = t.place(path, maxNested); err != nil {
		return nil, nil, fmt.Errorf("find %.256q in the mount table: %w", path, err)
	}
	for i := range t.mounts {
		if m := &t.mounts[i]; m.at != path && within(path, m.at) {
			under = append(append(under, m.root), t.below(m, "/", maxNested)...)
		}
	}
	return own, under, nil
}

// maxNested bounds overlays of overlays; the kernel has 2 (FILESYSTEM_MAX_STACK_DEPTH).
const maxNested = 4

// place gives the path's own place, and those of the folders below an overlay that show through there.
func (t *Table) place(path string, nested int) ([]Place, error) {
	var st unix.Statx_t
	for at := path; ; at = filepath.Dir(at) {
		err := unix.Statx(unix.AT_FDCWD, at, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.ENOENT) || at == "/" || at == "." {
			return nil, os.NewSyscallError("statx", err)
		}
	}
	for i := range t.mounts {
		m := &t.mounts[i]
		if m.id != st.Mnt_id {
			continue
		}
		if !within(m.at, path) {
			return nil, unix.ESTALE // moved since the table was read
		}
		rest := strings.TrimPrefix(path, strings.TrimSuffix(m.at, "/"))
		own := Place{m.root.device, filepath.Join(m.root.path, rest)}
		return append([]Place{own}, t.below(m, rest, nested)...), nil
	}
	// In a chroot the table lacks the mount that the root is in the middle of.
	return []Place{{fmt.Sprintf("mount %d", st.Mnt_id), path}}, nil
}

// below gives what a path in an overlay is made of, where this process can see it.
func (t *Table) below(m *mount, rest string, nested int) (list []Place) {
	if nested == 0 {
		return nil
	}
	for _, layer := range m.layers {
		if p, err := t.place(filepath.Join(layer, m.root.path, rest), nested-1); err == nil {
			list = append(list, p...)
		}
	}
	return list
}

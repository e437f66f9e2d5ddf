// SPDX-License-Identifier: Apache-2.0

// Package mounts tells whether two paths of the host lead to the same files, also where a file system is seen in more than one
// place: by a bind mount, as the top of a btrfs file system beside its subvolumes, or below an overlay.
//
//	var v mounts.View
//	a, err := v.Canonical("/sysroot/ostree/deploy/var")
//	b, err := v.Nearest("/var/lib/agentrun")
//	t, err := v.Table() // after the look: what moves in between is refused
//	ours, _, err := t.Places(a)
//	theirs, _, err := t.Places(b)
//	if mounts.Overlap(ours, theirs) { … }
//
// A path alone can't tell. What can is the kernel's own account (proc(5), /proc/PID/mountinfo): the file system a mount is of, and the
// path of the mount's root within it.
//
// It doesn't see through what makes a second file system of the same files: FUSE, a network file system mounted from two servers or
// with nosharecache, a block device that is read. A hard link to a single file isn't seen either. Errors are those of reading the table,
// or of a path that isn't to be found in it: whoever asks to protect something refuses then.
package mounts

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"agentrun/internal/read"
)

// Place is a file or folder, and all below it, within a file system.
type Place struct {
	device string // major:minor
	path   string
}

// Within says whether p is dir or lies in it. Whole components count: /a/session-10 is not in /a/session-1.
func (p Place) Within(dir Place) bool { return p.device == dir.device && within(dir.path, p.path) }

func within(dir, path string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/') || dir == "/"
}

// Overlap says whether any of a is, holds or lies in any of b.
func Overlap(a, b []Place) bool {
	return slices.ContainsFunc(a, func(p Place) bool {
		return slices.ContainsFunc(b, func(q Place) bool { return p.Within(q) || q.Within(p) })
	})
}

// Table is the mount table of a process at one moment.
type Table struct{ Mounts []Mount }

// Mount is one line of it.
type Mount struct {
	At      string
	Options []string // of the mount, not of its file system
	Line    string   // as the kernel writes it
	ID      uint64
	Parent  uint64 // the ID of the mount it is mounted on

	root   Place
	layers []string // overlay: the folders that it is made of
}

// Read reads the table of this process, which is its main thread's, whatever namespace another one is in. It is for many: nobody may change it.
func Read() (*Table, error) {
	text, err := read.Kernel("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	if l := last.Load(); l != nil && l.text == text {
		return l.table, nil
	}
	table, err := parse(text)
	if err == nil {
		last.Store(&reading{text, table})
	}
	return table, err
}

// last is what Read has read last: most tables are as they were.
var last atomic.Pointer[reading]

type reading struct {
	text  string
	table *Table
}

// ReadOf reads a process' table.
func ReadOf(pid string) (*Table, error) {
	text, err := read.Kernel("/proc/" + pid + "/mountinfo")
	if err != nil {
		return nil, err
	}
	return parse(text)
}

// parse takes lines such as
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
func parse(text string) (*Table, error) {
	t := &Table{Mounts: make([]Mount, 0, strings.Count(text, "\n"))}
	field := make([]string, 0, 16)
	for line := range strings.Lines(text) {
		field = slices.AppendSeq(field[:0], strings.FieldsSeq(line))
		dash := slices.Index(field, "-") // behind six fields and any number of tags
		if dash < 6 || len(field) < dash+4 {
			return nil, fmt.Errorf("mountinfo line %.256q", line)
		}
		id, err := strconv.ParseUint(field[0], 10, 64)
		parent, err2 := strconv.ParseUint(field[1], 10, 64)
		if err := cmp.Or(err, err2); err != nil {
			return nil, fmt.Errorf("mountinfo line %.256q: %w", line, err)
		}
		m := Mount{
			At: Unescape(field[4]), Options: strings.Split(field[5], ","), Line: strings.TrimSuffix(line, "\n"),
			ID: id, Parent: parent, root: Place{field[2], Unescape(field[3])},
		}
		if field[dash+1] == "overlay" {
			m.layers = layers(Unescape(field[dash+3]))
		}
		t.Mounts = append(t.Mounts, m)
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

// Places are where a spot is, and what is mounted below it. Of a path that doesn't exist yet it is where it will be.
func (t *Table) Places(s Spot) (own, under []Place, err error) {
	if own, err = t.place(s, maxNested); err != nil {
		return nil, nil, fmt.Errorf("find %.256q in the mount table: %w", s.Path, err)
	}
	for i := range t.Mounts {
		if m := &t.Mounts[i]; m.At != s.Path && within(s.Path, m.At) {
			under = append(append(under, m.root), t.below(m, "/", maxNested)...)
		}
	}
	return own, under, nil
}

// Along are the mounts that a clone of these paths brings along (open_tree(2), AT_RECURSIVE).
func (t *Table) Along(paths []string) (list []Mount) {
	for _, m := range t.Mounts {
		if slices.ContainsFunc(paths, func(p string) bool { return within(p, m.At) }) {
			list = append(list, m)
		}
	}
	return list
}

// maxNested bounds overlays of overlays; the kernel has 2 (FILESYSTEM_MAX_STACK_DEPTH).
const maxNested = 4

// place gives the spot's own place, and those of the folders below an overlay that show through there. The error is
// ESTALE when the mounts there have changed between the look and the table.
func (t *Table) place(s Spot, nested int) ([]Place, error) {
	rooted := false
	for i := range t.Mounts {
		m := &t.Mounts[i]
		rooted = rooted || m.At == "/"
		if m.ID != s.mount {
			continue
		}
		if !within(m.At, s.Path) {
			return nil, unix.ESTALE
		}
		rest := strings.TrimPrefix(s.Path, strings.TrimSuffix(m.At, "/"))
		own := Place{m.root.device, filepath.Join(m.root.path, rest)}
		return append([]Place{own}, t.below(m, rest, nested)...), nil
	}
	if rooted {
		return nil, unix.ESTALE
	}
	// In a chroot the table lacks the mount that the root is in the middle of.
	return []Place{{fmt.Sprintf("mount %d", s.mount), s.Path}}, nil
}

// below gives what a path in an overlay is made of, where this process can see it.
func (t *Table) below(m *Mount, rest string, nested int) (list []Place) {
	if nested == 0 {
		return nil
	}
	for _, layer := range m.layers {
		spot, err := new(View).Nearest(filepath.Join(layer, m.root.path, rest))
		if err != nil {
			continue
		}
		if p, err := t.place(spot, nested-1); err == nil {
			list = append(list, p...)
		}
	}
	return list
}

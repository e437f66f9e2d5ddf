// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"golang.org/x/sys/unix"
)

// LandlockRule lets a Landlock domain do Access beneath Path.
type LandlockRule struct {
	Path   string `json:"path"`
	Access uint64 `json:"access"`
}

// LandlockDomain is the second wall behind the mounts: should a mount be wrong, these rights still
// hold. Fixed for the life of the process and never elevatable.
type LandlockDomain struct {
	FS     uint64         `json:"handled_fs"` // rights the domain refuses unless a rule gives them
	Scoped uint64         `json:"scoped"`     // no abstract sockets to, no signals to, processes outside (ABI 6)
	Rules  []LandlockRule `json:"rules"`
}

const (
	llMake = unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	llWrite = llMake | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REFER
)

// Scopes of landlock(7), ABI 6.
const (
	scopeAbstractUnix = 1 << 0
	scopeSignal       = 1 << 1
)

// handled is every file system right a Landlock version knows, so that what is not given is refused, but for two. Reading: all that is
// shown may be read, so a domain could only say that once more, and it would cost each open(2) and each listing a walk up to the root.
// Truncating, for the same price: a domain that handles it walks at each open, also of one for reading, to know whether a later
// ftruncate(2) may (hook_file_open in security/landlock/fs.c). What it alone would stop is truncate(2) and O_RDONLY|O_TRUNC of a file that
// the agent's own user may write below a mount that is read-only by mistake; for writing to such a file WRITE_FILE is asked.
func handled(abi int) uint64 {
	fs := uint64(llMake | unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK)
	if abi >= 2 {
		fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 5 {
		fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	return fs
}

// Landlock derives the domain of a view. A workspace that an elevation may open (Entry.Live) gets its write rights although it is
// mounted read-only: a Landlock domain can never be widened, and the mount stays the wall that decides until then. But a read-only
// mount doesn't keep anybody from writing into a FIFO (inode_permission looks at the type first), so what nobody will ever open for
// writing gets no write rights here either. /proc is read-only by its mount.
func Landlock(abi int, entries []Entry, writableRoot bool) LandlockDomain {
	d := LandlockDomain{FS: handled(abi)}
	if abi >= 6 {
		d.Scoped = scopeAbstractUnix | scopeSignal
	}
	give := func(path string, access uint64) {
		if access &= d.FS; access != 0 {
			d.Rules = append(d.Rules, LandlockRule{Path: path, Access: access})
		}
	}
	if writableRoot {
		give("/", llWrite|unix.LANDLOCK_ACCESS_FS_EXECUTE)
	}
	give("/dev", unix.LANDLOCK_ACCESS_FS_WRITE_FILE|unix.LANDLOCK_ACCESS_FS_IOCTL_DEV)
	for _, e := range entries {
		switch {
		case e.Kind == Tmpfs && e.Exec:
			give(e.Target, llWrite|unix.LANDLOCK_ACCESS_FS_EXECUTE)
		case e.Kind == Tmpfs:
			give(e.Target, llWrite)
		case e.Kind != Bind && e.Kind != Overlay, e.Device:
		case e.Guard: // the rule for what it is a part of covers it; the mount decides
		default:
			var access uint64
			if e.Exec {
				access |= unix.LANDLOCK_ACCESS_FS_EXECUTE
			}
			if e.Writable || e.Live {
				access |= llWrite
			}
			if e.IsFile {
				access &= fileRights
			}
			give(e.Target, access)
		}
	}
	return d
}

// fileRights are the rights a rule on something that is not a directory may carry; landlock_add_rule(2)
// answers EINVAL to any other.
const fileRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV

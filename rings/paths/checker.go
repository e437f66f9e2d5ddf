// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	goruntime "runtime"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/rings"
)

// Checker decides on the real file system. It is safe for concurrent use, save for Close. Nil, the zero value and a
// closed one deny everything.
type Checker struct {
	bases [][]string // the base as it was given and as it really is: paths may use either
	dir   *os.File
}

// Open returns a Checker for the sessions in the folder base, an absolute path without "..". Symlinks on the way to
// base are the operator's and are followed, once: the Checker stays with the folder it found.
func Open(base string) (*Checker, error) {
	given, denied := components(base)
	if denied != nil {
		return nil, fmt.Errorf("session base %.256q: %s", base, denied.Reason)
	}
	real, err := filepath.EvalSymlinks(base)
	if err != nil {
		return nil, fmt.Errorf("session base: %w", err)
	}
	canonical, denied := components(real)
	if denied != nil {
		return nil, fmt.Errorf("session base %.256q: %s", real, denied.Reason)
	}
	dir, err := os.OpenFile(real, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("session base: %w", err)
	}
	return &Checker{bases: [][]string{given, canonical}, dir: dir}, nil
}

// Close lets go of the base. Everything is denied afterwards.
func (c *Checker) Close() error {
	if c == nil || c.dir == nil {
		return nil
	}
	dir := c.dir
	c.dir = nil
	return dir.Close()
}

// Target is what a path was found to be.
type Target struct {
	// File is what the path names, or the deepest folder on its way that exists, as an O_PATH descriptor. Its name is
	// only for messages.
	File *os.File
	// Missing is what doesn't exist of the path, relative to File; empty if all of it does. When it was looked at
	// nothing stood at its first component, not even a dangling symlink. Who creates it does so beneath File, with
	// O_EXCL|O_NOFOLLOW or mkdirat, one component after the other.
	Missing string
}

// Close closes the file.
func (t *Target) Close() error { return t.File.Close() }

// Allowed tells whether unsafePath belongs to session now. It is an answer for people: who goes on to use the path
// calls Resolve.
func (c *Checker) Allowed(session, unsafePath string) rings.Decision {
	t, d := c.Resolve(session, unsafePath)
	if t != nil {
		_ = t.Close()
	}
	return d
}

// Resolve tells whether unsafePath belongs to session, and if so returns what it names. The target is nil exactly if
// the path is denied.
func (c *Checker) Resolve(session, unsafePath string) (*Target, rings.Decision) {
	if c == nil || c.dir == nil {
		return nil, deny(CodeBase, "there is no base: the checker is not open")
	}
	var rest []string
	var denied *rings.Decision
	for _, base := range c.bases {
		if rest, denied = within(base, session, unsafePath); denied == nil {
			break
		}
	}
	if denied != nil {
		return nil, *denied
	}
	// The session's folder itself may be no symlink, or one session could be made to be another.
	defer goruntime.KeepAlive(c.dir) // or its descriptor may be closed, and be another, under our hands
	root, err := openBeneath(int(c.dir.Fd()), session, unix.O_DIRECTORY, unix.RESOLVE_NO_SYMLINKS)
	if errors.Is(err, unix.ENOENT) {
		return nil, deny(CodeUnknownSession, "there is no such session")
	}
	if err != nil {
		return nil, refused(err)
	}
	return resolve(root, rest)
}

func refused(err error) rings.Decision {
	if errors.Is(err, unix.EXDEV) {
		return deny(CodeEscapes, "a symlink leads out of the session's folder")
	}
	return deny(CodeUnresolvable, "resolve the path: "+err.Error())
}

// maxMissing bounds the search for what exists: each step costs a system call that may walk the whole path.
const maxMissing = 64

// resolve opens rest beneath root, which it closes.
func resolve(root int, rest []string) (*Target, rings.Decision) {
	defer unix.Close(root)
	for missing := 0; ; missing++ {
		have := rest[:len(rest)-missing]
		fd, err := openBeneath(root, path.Join(".", path.Join(have...)), 0, 0)
		if errors.Is(err, unix.ENOENT) && len(have) > 0 && missing < maxMissing {
			continue
		}
		if err != nil {
			return nil, refused(err)
		}
		t := &Target{File: os.NewFile(uintptr(fd), path.Join(have...)), Missing: strings.Join(rest[len(have):], "/")}
		if missing > 0 {
			if d := vacant(fd, rest[len(have)]); !d.Allowed() {
				_ = t.Close()
				return nil, d
			}
		}
		return t, allow()
	}
}

// vacant denies unless nothing has the name in dir. ENOENT, which brought us here, is also what a symlink to nowhere
// gives, and creating the file would create what it points to, wherever that is.
func vacant(dir int, name string) rings.Decision {
	var st unix.Stat_t
	switch err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, unix.ENOENT):
		return allow()
	case err != nil:
		return refused(err)
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return deny(CodeEscapes, "a symlink on the path leads nowhere")
	}
	return deny(CodeUnresolvable, "the path changed while it was looked at")
}

// openTries is how often a resolution is begun anew that a rename got in the way of. Somebody who keeps renaming gets a
// refusal.
const openTries = 16

// openBeneath opens name beneath dir as O_PATH. RESOLVE_BENEATH makes the kernel refuse, with EXDEV, every ".." and
// symlink that leaves dir while it walks, and absolute symlinks; RESOLVE_NO_MAGICLINKS those of /proc, which go
// anywhere at all (openat2(2)). There is no second way for kernels without it: walking by hand would be one more thing to be right.
func openBeneath(dir int, name string, flags, resolve uint64) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | resolve,
	}
	for try := 1; ; try++ {
		fd, err := unix.Openat2(dir, name, &how)
		if err == nil {
			return fd, nil
		}
		// EAGAIN: the kernel can't be sure that a ".." stayed beneath, as something was renamed meanwhile.
		if try < openTries && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)) {
			continue
		}
		return -1, os.NewSyscallError("openat2", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetIDError names programs with a set-ID bit or file capabilities in a folder that a run would write, or says that they were not
// looked for to the end.
type SetIDError struct {
	Folder string
	Files  []string // at most maxSetID of them
	Why    string   // not empty: the look was given up
}

func (e *SetIDError) Error() string {
	if e.Why != "" {
		return fmt.Sprintf("look for set-ID programs in %s: %s", e.Folder, e.Why)
	}
	return fmt.Sprintf("the run could write what is executed with other rights: set-ID or capabilities on %s", strings.Join(e.Files, ", "))
}

// Hint is the way out.
func (e *SetIDError) Hint() string {
	if e.Why != "" {
		return "give the run a smaller folder; --best-effort runs without the look, and says so"
	}
	return "chmod ug-s and setcap -r them, or give the run another folder; --best-effort runs all the same, and says so"
}

const (
	maxSetID  = 5
	maxLooked = 1 << 20 // names
	maxLook   = 5 * time.Second
)

// LookForSetID finds regular files below folder that have a set-ID bit or security.capability, and that an agent with this owner's rights
// may open for writing. Nil as owner: with anybody's.
//
// The attack: write(2) takes such bits away (inode(7), file_remove_privs), a store to a shared mapping doesn't. So the agent, which can
// give nobody such a bit, rewrites a program that has one, and whoever starts it on the host runs the agent's code with its rights. No
// mount option of ours changes what the host sees, and Landlock can't take one file out of a folder: what is left is to look before.
// It is bounded, in names and time, and running into a bound is an answer of its own. What gets such a bit later, by the host's doing,
// isn't seen, nor what another run that writes there moves about meanwhile.
func LookForSetID(folder string, owner *Owner) error {
	l := &look{folder: folder, owner: owner, until: time.Now().Add(maxLook)}
	l.left.Store(maxLooked)
	l.paths.Store(MaxPaths)
	err := l.all()
	switch {
	case err != nil:
		return &SetIDError{Folder: folder, Why: err.Error()}
	case len(l.found) > 0:
		return &SetIDError{Folder: folder, Files: l.found}
	}
	return nil
}

type look struct {
	folder string
	owner  *Owner
	root   int
	left   atomic.Int64
	paths  atomic.Int64 // bytes of folders' paths that may still come
	until  time.Time

	mu      sync.Mutex
	more    *sync.Cond // folders, or an end
	todo    []string   // folders
	looking int        // goroutines that are in one
	err     error
	found   []string
}

func (l *look) all() error {
	info, err := os.Lstat(l.folder)
	if err != nil {
		return err
	}
	name := ""
	if !info.IsDir() {
		l.folder, name = path.Split(l.folder)
	}
	if l.root, err = openNoLinks(l.folder, unix.O_DIRECTORY); err != nil {
		return os.NewSyscallError("openat2", err)
	}
	defer unix.Close(l.root)
	if name != "" {
		return l.file(l.root, name, "")
	}
	l.todo, l.more = []string{"."}, sync.NewCond(&l.mu)
	var all sync.WaitGroup
	for range min(4, goruntime.NumCPU()) { // a launch waits for it
		all.Go(l.folders)
	}
	all.Wait()
	return l.err
}

// folders takes one after the other, until none is left and nobody looks at one that may have others in it.
func (l *look) folders() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for len(l.todo) == 0 && l.looking > 0 && l.err == nil {
			l.more.Wait()
		}
		if len(l.todo) == 0 || l.err != nil || len(l.found) >= maxSetID {
			l.more.Broadcast()
			return
		}
		dir := l.todo[len(l.todo)-1]
		l.todo = l.todo[:len(l.todo)-1]
		l.looking++
		l.mu.Unlock()
		more, err := l.names(dir)
		l.mu.Lock()
		l.looking--
		l.todo = append(l.todo, more...)
		if err != nil && l.err == nil {
			l.err = fmt.Errorf("%.256q: %w", dir, err)
		}
		l.more.Broadcast()
	}
}

// names looks at one folder and gives those in it.
func (l *look) names(dir string) (todo []string, err error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	fd, err := unix.Openat2(l.root, dir, &how)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return todo, nil // gone since, or another thing by now, which is no way in
	}
	if err != nil {
		return todo, os.NewSyscallError("openat2", err)
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	for {
		list, err := f.ReadDir(1024)
		if l.left.Add(-int64(len(list))) < 0 {
			return todo, fmt.Errorf("more than %d names", maxLooked)
		}
		if time.Now().After(l.until) {
			return todo, fmt.Errorf("it takes longer than %v", maxLook)
		}
		for _, d := range list {
			switch d.Type() {
			case fs.ModeDir:
				if l.paths.Add(-int64(len(dir)+len(d.Name()))) < 0 {
					return todo, fmt.Errorf("more than %d bytes of folders' paths", MaxPaths)
				}
				todo = append(todo, path.Join(dir, d.Name()))
			case 0:
				if err := l.file(fd, d.Name(), dir); err != nil {
					return todo, err
				}
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) { // a folder that was removed under us has no names
			return todo, nil
		}
		if err != nil {
			return todo, err
		}
	}
}

// file looks at one name in a folder.
func (l *look) file(at int, name, dir string) error {
	var st unix.Stat_t
	err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("fstatat", err)
	}
	// The bits of the group are also the mask of an access control list (acl(5)): one that lets the owner in shows in them.
	if st.Mode&unix.S_IFMT != unix.S_IFREG || l.owner != nil && st.Uid != l.owner.UID && st.Mode&0o022 == 0 {
		return nil
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) == 0 {
		has, err := hasCapability(at, name)
		if err != nil || !has {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.found) < maxSetID {
		l.found = append(l.found, path.Join(l.folder, dir, name))
	}
	return nil
}

const sysGetxattrat = 464 // Linux 6.13; the same number on all architectures

// hasCapability asks for the attribute's length only.
func hasCapability(at int, name string) (bool, error) {
	args := struct {
		value       uint64
		size, flags uint32
	}{}
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return false, err
	}
	attr := [...]byte{'s', 'e', 'c', 'u', 'r', 'i', 't', 'y', '.', 'c', 'a', 'p', 'a', 'b', 'i', 'l', 'i', 't', 'y', 0}
	_, _, errno := unix.Syscall6(sysGetxattrat, uintptr(at), uintptr(unsafe.Pointer(p)), unix.AT_SYMLINK_NOFOLLOW, uintptr(unsafe.Pointer(&attr)),
		uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args))
	err = errno
	if errno == unix.ENOSYS {
		_, err = unix.Lgetxattr(fmt.Sprintf("/proc/self/fd/%d/%s", at, name), string(attr[:len(attr)-1]), nil)
	}
	switch {
	case err == nil || errno == 0:
		return true, nil
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT):
		return false, nil
	}
	return false, os.NewSyscallError("getxattrat", err)
}

// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Facts are made-up files that a sandbox sees where the kernel has facts of the machine (/proc/meminfo). They are on a file system of
// their own: inside it is read-only, the builder changes it while the sandbox lives.
//
// The sandbox's /proc has processes only (subset=pid), so there is nothing to mount on. It is therefore mounted whole, before any code of
// the agent runs; the facts are placed; then it is told to have processes only (Show). The kernel keeps a name that something is mounted
// on (a mount holds its dentry), finds no other from then on (proc_lookup in fs/proc/generic.c), and lists none of them. A mask for each
// of the other names, as other runtimes have it, would be a list that misses what the next kernel adds, and one to race
// (CVE-2025-31133, CVE-2025-52881).
type Facts struct {
	mounts *Detached
	fs     int
}

// factsSize bounds the file system of facts: some bytes for each, 2 KiB for each processor.
const factsSize = 4 << 20

// MakeFacts makes a file system beside a root view, on the thread that built it, with one file for each name below /, and folders above
// them. at are the places where Show will put its files and folders. The folder never, one of them, with its files is not written again,
// and may be one that many sandboxes have. On error nothing is left open.
func MakeFacts(r *Root, at []string, files map[string]string, never string, stages *Stages) (_ *Facts, err error) {
	f, dir := &Facts{mounts: &Detached{}, fs: -1}, filepath.Join(filepath.Dir(r.Path), "facts")
	defer func() {
		if err != nil {
			f.Close()
			err = fmt.Errorf("facts: %w", err)
		}
	}()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := mountTmpfs(dir, factsSize, IDs{}); err != nil {
		return nil, err
	}
	if f.fs, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	shared := stages.copy(folderWith(never, files))
	if shared >= 0 {
		f.mounts.mounts = append(f.mounts.mounts, detached{shared, never, true})
	}
	made := map[string]bool{"": true}
	for name, content := range files {
		if shared >= 0 && isIn(name, never) {
			continue
		}
		if err := writeShown(dir, name, content, made); err != nil {
			return nil, err
		}
	}
	for _, target := range at {
		if shared >= 0 && target == never {
			continue
		}
		mnt, err := unix.OpenTree(f.fs, strings.TrimPrefix(target, "/"), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
		if err != nil {
			return nil, fmt.Errorf("open_tree %s: %w", target, err)
		}
		_, isFile := files[target]
		f.mounts.mounts = append(f.mounts.mounts, detached{mnt, target, !isFile})
		if err := r.dress(mnt, Entry{}); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// folderWith are the entries of a folder with those of the files that are in it, in the same order each time.
func folderWith(dir string, files map[string]string) []Entry {
	list := []Entry{{Kind: Dir, Target: dir, Mode: 0o755}}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if isIn(name, dir) {
			list = append(list, Entry{Kind: File, Target: name, Content: files[name], Mode: 0o644})
		}
	}
	return list
}

// writeShown writes a file that everybody may read, whatever the umask, in folders of which those made are there.
func writeShown(dir, name, content string, made map[string]bool) error {
	if err := makeShown(dir, path.Dir(name), made); err != nil {
		return err
	}
	return writeNew(unix.AT_FDCWD, dir+name, content, 0o644)
}

// writeNew writes a file that isn't there, with its mode whatever the umask.
func writeNew(dir int, name, content string, mode uint32) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	defer unix.Close(fd)
	for b := []byte(content); len(b) > 0; {
		n, err := unix.Write(fd, b)
		if err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		b = b[n:]
	}
	return os.NewSyscallError("fchmod", unix.Fchmod(fd, mode))
}

func makeShown(dir, name string, made map[string]bool) error {
	name = strings.TrimSuffix(name, "/")
	if made[name] {
		return nil
	}
	if err := makeShown(dir, path.Dir(name), made); err != nil {
		return err
	}
	made[name] = true
	if err := unix.Mkdir(dir+name, 0o755); err != nil {
		return fmt.Errorf("mkdir %s: %w", name, err)
	}
	return os.NewSyscallError("chmod", unix.Chmod(dir+name, 0o755))
}

// Show puts the facts in their places in a process's mount namespace, and has its /proc mount take on procOptions, as subset=pid. Call it
// before any code of the agent runs there.
func (f *Facts) Show(pid int, procOptions string) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	ours, err := procDevice()
	if err != nil {
		return err
	}
	return enter(ns, func() error {
		// The option is one of the file system, not of the mount: on the host's own it would be the host's.
		if theirs, err := procDevice(); err != nil || theirs == ours {
			return errors.Join(err, fmt.Errorf("the /proc of process %d is our own: %w", pid, unix.EBUSY))
		}
		if err := f.mounts.attach(); err != nil {
			return err
		}
		// The kernel drops the names that nobody uses before it takes an option on (reconfigure_super). What was looked up between the
		// two goes with the second time.
		return errors.Join(remountProc(procOptions), remountProc(procOptions))
	})
}

// procDevice identifies the instance of procfs at /proc, as the calling thread sees it.
func procDevice() (uint64, error) {
	var st unix.Stat_t
	err := os.NewSyscallError("stat /proc", unix.Stat("/proc", &st))
	return st.Dev, err
}

func remountProc(options string) error {
	fs, err := unix.Fspick(unix.AT_FDCWD, "/proc", unix.FSPICK_CLOEXEC|unix.FSPICK_SYMLINK_NOFOLLOW)
	if err != nil {
		return os.NewSyscallError("fspick /proc", err)
	}
	defer unix.Close(fs)
	key, value, _ := strings.Cut(options, "=")
	if err := unix.FsconfigSetString(fs, key, value); err != nil {
		return fmt.Errorf("fsconfig /proc %s: %w", options, err)
	}
	return os.NewSyscallError("reconfigure /proc", unix.FsconfigReconfigure(fs))
}

// Write changes files that are there, also while they are seen.
func (f *Facts) Write(files map[string]string) error {
	var errs []error
	for name, content := range files {
		fd, err := unix.Openat(f.fs, strings.TrimPrefix(name, "/"), unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			errs = append(errs, fmt.Errorf("open %s: %w", name, err))
			continue
		}
		// Written over and then cut: who reads meanwhile finds no empty file.
		_, err = unix.Pwrite(fd, []byte(content), 0)
		errs = append(errs, os.NewSyscallError("pwrite "+name, err), os.NewSyscallError("ftruncate "+name, unix.Ftruncate(fd, int64(len(content)))))
		unix.Close(fd)
	}
	return errors.Join(errs...)
}

// Close gives the facts up; the file system goes with the last mount of it. It may be called on nil.
func (f *Facts) Close() {
	if f == nil {
		return
	}
	f.mounts.Close()
	if f.fs >= 0 {
		unix.Close(f.fs)
		f.fs = -1
	}
}

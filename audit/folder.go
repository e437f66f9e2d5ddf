// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// folder is the open folder of one chain: NNNNNN.jsonl and the file lock. Everything in it is opened relative to its
// descriptor and never through a symbolic link, so that nobody who could only rename its parent makes two processes
// write to different files.
type folder struct {
	path string // for messages
	fd   int
}

const (
	lockName   = "lock"
	fileSuffix = ".jsonl"
	// 0600 and 0700: the records name agents, actions and operators.
	fileMode, dirMode = 0o600, 0o700
	maxFiles          = 999999
)

// Folder gives the name of the folder of a chain beneath the audit folder. It is the name of the chain, but for names
// that no file system would take whole (a session's id may have 256 characters): those end in a hash instead.
func Folder(chain string) string {
	if len(chain) <= 200 {
		return chain
	}
	sum := sha256.Sum256([]byte(chain))
	// A chain's name has no dot, so this is no other chain's folder.
	return chain[:120] + "." + hex.EncodeToString(sum[:])
}

func fileName(n int) string { return fmt.Sprintf("%06d%s", n, fileSuffix) }

// fileNumber gives 0 for what is no file of a chain.
func fileNumber(name string) int {
	if len(name) != 6+len(fileSuffix) || name[6:] != fileSuffix {
		return 0
	}
	n := 0
	for _, b := range []byte(name[:6]) {
		if b < '0' || b > '9' {
			return 0
		}
		n = n*10 + int(b-'0')
	}
	return n
}

// createFolder opens the folder of a chain and makes it if it isn't there.
func createFolder(dir, chain string) (*folder, error) {
	path := filepath.Join(dir, Folder(chain))
	if f, err := openFolder(dir, chain); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := os.MkdirAll(path, dirMode); err != nil {
		return nil, err
	}
	// A chain whose folder vanishes with the power is truncated to nothing: the names must last as the contents do.
	for _, p := range []string{dir, filepath.Dir(dir)} {
		if err := syncDir(p); err != nil {
			return nil, err
		}
	}
	return openFolder(dir, chain)
}

func openFolder(dir, chain string) (*folder, error) {
	path := filepath.Join(dir, Folder(chain))
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := &folder{path: path, fd: fd}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.close()
		return nil, f.error("stat", "", err)
	}
	if st.Mode&0o022 != 0 {
		f.close()
		return nil, &ModeError{Path: path, Mode: fs.FileMode(st.Mode & 0o777), Want: dirMode}
	}
	return f, nil
}

func (f *folder) close() { unix.Close(f.fd) }

func (f *folder) error(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: filepath.Join(f.path, name), Err: err}
}

func (f *folder) open(name string, flags int) (int, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(f.fd, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, fileMode)
	})
	if err != nil {
		return -1, f.error("open", name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, f.error("stat", name, err)
	}
	// A fifo or a device would take what is written and keep nothing.
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return -1, f.error("open", name, errors.New("no regular file"))
	}
	return fd, nil
}

// files lists the numbers of the chain's files in order.
func (f *folder) files() ([]int, error) {
	// A new descriptor, because reading a folder moves its offset.
	fd, err := unix.Openat(f.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, f.error("open", "", err)
	}
	d := os.NewFile(uintptr(fd), f.path)
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, name := range names {
		if n := fileNumber(name); n > 0 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// lock takes the chain's lock, which the kernel gives back when the holder dies. It belongs to the open file, so two Logs
// in one process exclude each other as two processes do. No time limit: giving up would mean writing without the lock or
// refusing what another process merely takes long for, and nobody holds it over a sync but a rotation.
func lock(fd int, how int) error {
	_, err := retry(func() (int, error) { return 0, unix.Flock(fd, how) })
	return err
}

// retry repeats what a signal interrupted; Go's own preemption sends them all the time.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// ModeError says that something that must be private isn't.
type ModeError struct {
	Path string
	Mode fs.FileMode // as found
	Want fs.FileMode
}

func (e *ModeError) Error() string {
	return fmt.Sprintf("%s: mode %04o lets others in, want %04o", e.Path, e.Mode.Perm(), e.Want.Perm())
}

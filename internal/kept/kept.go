// SPDX-License-Identifier: Apache-2.0

// Package kept keeps what was computed once, as files of a folder, by the digest of all that it was computed from.
//
//	f := kept.Folder{Path: "/var/lib/agentrun/seccomp", Magic: "agentrun-seccomp\x00\x00\x00\x01", Max: 1 << 20, Files: 64}
//	value, err := f.Get(key) // fs.ErrNotExist: compute it
//	err = f.Put(key, value)
//
// Guarantees. A value decides something, so it is believed only when nobody else can have written it: folder and file belong to
// this process's user, the folder has no permission for others, the file is regular with mode 0600 and one link, both are opened
// without following a link, and the file repeats its magic, its key and the checksum of the value. The checksum finds damage, not
// malice; malice is kept out by owner and mode. A reader never sees half of a value.
//
// Errors. fs.ErrNotExist: there is nothing. Any other says why what is there isn't believed. Whoever asks computes the value
// instead, for whatever reason there is none: nothing here needs to be there.
//
// It does not protect against a key that leaves out something that the value depends on.
package kept

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Key is a SHA-256.
type Key = [sha256.Size]byte

// Folder is where values of one kind are. It has to be there.
type Folder struct {
	Path  string
	Magic string // at the head of each file: kind and form of the values
	Max   int    // bytes of a value
	Files int    // when so many are there, all are removed before the next: what is out of date is never asked for again
}

// Get returns the value that was put under key.
func (f Folder) Get(key Key) ([]byte, error) {
	d, err := f.open()
	if err != nil {
		return nil, err
	}
	defer d.Close()
	value, err := f.read(d, key)
	if err != nil {
		return nil, fmt.Errorf("read %s/%x: %w", f.Path, key, err)
	}
	return value, nil
}

// Put keeps a value, in place of one that may be there.
func (f Folder) Put(key Key, value []byte) error {
	d, err := f.open()
	if err != nil {
		return err
	}
	defer d.Close()
	if err := f.write(d, key, value); err != nil {
		return fmt.Errorf("write %s/%x: %w", f.Path, key, err)
	}
	return nil
}

func (f Folder) open() (*os.File, error) {
	fd, err := unix.Open(f.Path, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: f.Path, Err: err}
	}
	d := os.NewFile(uintptr(fd), f.Path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		d.Close()
		return nil, &fs.PathError{Op: "stat", Path: f.Path, Err: err}
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		d.Close()
		return nil, fmt.Errorf("use %s: owner %d mode %#o, want owner %d and no permission for others", f.Path, st.Uid, st.Mode&0o7777, os.Geteuid())
	}
	return d, nil
}

func (f Folder) head(key Key, value []byte) []byte {
	sum := sha256.Sum256(value)
	return append(append([]byte(f.Magic), key[:]...), sum[:]...)
}

func (f Folder) read(d *os.File, key Key) ([]byte, error) {
	fd, err := unix.Openat(int(d.Fd()), hex.EncodeToString(key[:]), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode != unix.S_IFREG|0o600 || int(st.Uid) != os.Geteuid() || st.Nlink != 1 {
		return nil, fmt.Errorf("owner %d mode %#o links %d: not written by agentrun", st.Uid, st.Mode, st.Nlink)
	}
	head := len(f.Magic) + 2*sha256.Size
	if st.Size < int64(head) || st.Size > int64(head+f.Max) {
		return nil, fmt.Errorf("%d bytes are no value", st.Size)
	}
	text := make([]byte, st.Size)
	if n, err := unix.Pread(fd, text, 0); err != nil || n != len(text) {
		return nil, fmt.Errorf("%d of %d bytes: %w", n, len(text), errors.Join(err, fs.ErrInvalid))
	}
	if value := text[head:]; bytes.Equal(text[:head], f.head(key, value)) {
		return value, nil
	}
	return nil, errors.New("damaged")
}

// write puts the file in place by rename.
func (f Folder) write(d *os.File, key Key, value []byte) error {
	dir := int(d.Fd())
	if names, err := d.Readdirnames(f.Files); err == nil && len(names) == f.Files {
		for _, n := range names {
			_ = unix.Unlinkat(dir, n, 0) // what is left is only in the way
		}
	}
	tmp := ".new-" + rand.Text()
	fd, err := unix.Openat(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), tmp)
	_, err = file.Write(append(f.head(key, value), value...))
	// A umask can only take bits of 0600 away, which reading then refuses; set it outright.
	err = errors.Join(err, file.Chmod(0o600), file.Close())
	if err == nil {
		err = unix.Renameat(dir, tmp, dir, hex.EncodeToString(key[:]))
	}
	if err != nil {
		_ = unix.Unlinkat(dir, tmp, 0)
	}
	return err
}

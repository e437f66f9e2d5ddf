// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

var (
	// ErrKeyFile: what was read is no key, or no list of them.
	ErrKeyFile = errors.New("not a key file")
	// ErrExposed: others than root and this user can write it, or read it where it is private.
	ErrExposed = errors.New("others have access")
)

// maxFile bounds what is read. A thousand operators are 100 KB.
const maxFile = 256 << 10

// LoadKeys reads the operators file. Whoever can write it can release any agent, so it has to be a regular file that only root and this
// user can change, and so have all folders above it, as sshd asks of authorized_keys. A folder with the sticky bit may be
// written by all: they can't rename what isn't theirs. A file that doesn't exist is an error that is fs.ErrNotExist.
func LoadKeys(name string) (Keys, error) {
	text, err := readFile(name, 0o022)
	if err != nil {
		return Keys{}, fmt.Errorf("operators file: %w", err)
	}
	keys, err := ParseKeys(text)
	if err != nil {
		return Keys{}, fmt.Errorf("operators file %s: %w", name, err)
	}
	return keys, nil
}

// LoadKey reads a private key from a file that nobody but its owner can read.
func LoadKey(name string) (*Key, error) {
	text, err := readFile(name, 0o077)
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	k, err := ParseKey(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return k, nil
}

// Create writes the private key to a new file, mode 0600, synced. It never replaces one: the attestations of a lost key are lost.
func (k *Key) Create(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("write private key: %w", err)
	}
	_, err = f.WriteString(k.private + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		os.Remove(name)
		return fmt.Errorf("write private key: %w", err)
	}
	return nil
}

// readFile reads a file whose mode has none of the bits in denied. What is checked is the open file, so that a name which is
// swapped meanwhile changes nothing.
func readFile(name string, denied fs.FileMode) ([]byte, error) {
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if real, err = filepath.Abs(real); err != nil {
		return nil, err
	}
	for dir := filepath.Dir(real); ; dir = filepath.Dir(dir) {
		if err := checkDir(dir); err != nil {
			return nil, err
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	// O_NONBLOCK: a fifo would hold us here before it could be refused.
	f, err := os.OpenFile(real, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file: %w", real, ErrKeyFile)
	}
	if err := checkOwner(real, info, denied); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes: %w", real, maxFile, ErrKeyFile)
	}
	return text, err
}

func checkDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	denied := fs.FileMode(0o022)
	if info.Mode()&fs.ModeSticky != 0 {
		denied = 0
	}
	return checkOwner(dir, info, denied)
}

func checkOwner(name string, info fs.FileInfo, denied fs.FileMode) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: owner unknown: %w", name, ErrExposed)
	}
	if uid := int(stat.Uid); uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, neither root nor you: %w", name, uid, ErrExposed)
	}
	if bad := info.Mode().Perm() & denied; bad != 0 {
		return fmt.Errorf("%s has mode %04o, of which %04o must go: %w", name, info.Mode().Perm(), bad, ErrExposed)
	}
	return nil
}

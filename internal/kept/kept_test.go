// SPDX-License-Identifier: Apache-2.0

package kept

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func folder(t *testing.T) Folder {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "kept")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return Folder{Path: dir, Magic: "test\x00\x01", Max: 16, Files: 8}
}

func key(text string) Key { return sha256.Sum256([]byte(text)) }

func (f Folder) file(text string) string {
	k := key(text)
	return filepath.Join(f.Path, hex.EncodeToString(k[:]))
}

func TestGetWhatWasPut(t *testing.T) {
	f := folder(t)
	if _, err := f.Get(key("a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want that there is nothing", err)
	}
	for _, value := range []string{"yes", "", "0123456789abcdef", "another"} {
		if err := f.Put(key("a"), []byte(value)); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Get(key("a")); err != nil || string(got) != value {
			t.Errorf("got %q, %v, want %q", got, err, value)
		}
	}
	if _, err := f.Get(key("b")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another key: got %v, want that there is nothing", err)
	}
	for i := range 3 * f.Files {
		if err := f.Put(key(string(rune('c'+i))), nil); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := os.ReadDir(f.Path); err != nil || len(m) > f.Files || len(m) == 0 {
		t.Errorf("got %d files, %v, want at most %d", len(m), err, f.Files)
	}
}

// What somebody else may have written is not a value, and one that is put afterwards is.
func TestThreatTakeoverForeignValues(t *testing.T) {
	for _, tt := range []struct {
		name  string
		do    func(f Folder, file string) error
		stays bool // not mended by Put
	}{
		{"of another key", func(f Folder, file string) error {
			return errors.Join(f.Put(key("b"), []byte("no")), os.Rename(f.file("b"), file))
		}, false},
		{"of another kind", func(f Folder, file string) error {
			f.Magic = "tset\x00\x01"
			return f.Put(key("a"), []byte("no"))
		}, false},
		{"larger than one is", func(f Folder, file string) error { return f.Put(key("a"), make([]byte, 17)) }, false},
		{"damaged", func(_ Folder, file string) error { return flip(file, -1) }, false},
		{"cut", func(_ Folder, file string) error { return os.Truncate(file, 20) }, false},
		{"empty", func(_ Folder, file string) error { return os.Truncate(file, 0) }, false},
		{"open to others", func(_ Folder, file string) error { return os.Chmod(file, 0o644) }, false},
		{"another user's", func(_ Folder, file string) error { return os.Chown(file, 65534, 65534) }, false},
		{"with a second link", func(_ Folder, file string) error { return os.Link(file, file+"2") }, false},
		{"a link", func(_ Folder, file string) error {
			return errors.Join(os.Rename(file, file+"2"), os.Symlink(file+"2", file))
		}, false},
		{"a FIFO", func(_ Folder, file string) error { return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)) }, false},
		{"in a folder open to others", func(f Folder, _ string) error { return os.Chmod(f.Path, 0o750) }, true},
		{"in another user's folder", func(f Folder, _ string) error { return os.Chown(f.Path, 65534, 65534) }, true},
		{"behind a link", func(f Folder, _ string) error {
			return errors.Join(os.Rename(f.Path, f.Path+"2"), os.Symlink(f.Path+"2", f.Path))
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := folder(t)
			if err := f.Put(key("a"), []byte("yes")); err != nil {
				t.Fatal(err)
			}
			if err := tt.do(f, f.file("a")); errors.Is(err, fs.ErrPermission) {
				t.Skip("need: root, to give files away")
			} else if err != nil {
				t.Fatal(err)
			}
			if got, err := f.Get(key("a")); err == nil || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("got %q, %v, want why it isn't believed", got, err)
			}
			err := f.Put(key("a"), []byte("yes"))
			if got, gerr := f.Get(key("a")); tt.stays != (err != nil) || !tt.stays && (gerr != nil || string(got) != "yes") {
				t.Errorf("put again: %v; then %q, %v", err, got, gerr)
			}
		})
	}
}

func flip(file string, at int) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	b[len(b)+at] ^= 1
	return os.WriteFile(file, b, 0o600)
}

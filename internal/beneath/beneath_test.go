// SPDX-License-Identifier: Apache-2.0

package beneath

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// place is a folder with links that lead out, and beside it a file of somebody else's.
func place(t *testing.T) (f *Folder, dir, outside string) {
	t.Helper()
	top := t.TempDir()
	dir, outside = filepath.Join(top, "in"), filepath.Join(top, "outside")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "folder", "full"), 0o755))
	must(os.WriteFile(outside, []byte("secret"), 0o600))
	must(os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o640))
	must(os.Symlink(outside, filepath.Join(dir, "link")))
	must(os.Symlink("..", filepath.Join(dir, "up")))
	must(os.Symlink("folder", filepath.Join(dir, "within")))
	must(os.Symlink("/proc/self/root", filepath.Join(dir, "magic")))
	must(os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	must(unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	f, err := Open(dir)
	must(err)
	t.Cleanup(func() { _ = f.Close() })
	return f, dir, outside
}

// M-11: paths that lead anywhere else are refused, each operation by itself.
func TestM11OnlyBeneath(t *testing.T) {
	f, _, outside := place(t)
	ops := map[string]func(string) error{
		"read":   func(p string) error { _, _, err := f.Read(p, 0, 100); return err },
		"write":  func(p string) error { return f.Write(p, []byte("x")) },
		"list":   func(p string) error { _, _, err := f.List(p, 10); return err },
		"remove": f.Remove,
	}
	for _, tt := range []struct {
		path string
		want error
		only string // the operations; empty: all
	}{
		{"..", ErrPath, ""}, {"../outside", ErrPath, ""}, {"folder/../../outside", ErrPath, ""}, {"/etc/passwd", ErrPath, ""}, {"/", ErrPath, ""},
		{"a//b", ErrPath, ""}, {"./file", ErrPath, ""}, {"file/", ErrPath, ""}, {"a\x00b", ErrPath, ""}, {"a\nb", ErrPath, ""},
		{"a\u202eb", ErrPath, ""}, {"\xff", ErrPath, ""}, {strings.Repeat("a/", 40) + "a", ErrPath, ""}, {strings.Repeat("a", 256), ErrPath, ""},
		{"", ErrPath, "read write remove"},
		{"link", ErrKind, "read write list"}, {"dangling", ErrKind, "read write list"},
		{"up/outside", ErrKind, ""}, {"up", ErrKind, "read write list"}, {"within/x", ErrKind, ""}, {"magic/etc/passwd", ErrKind, ""},
		{"file/x", ErrKind, ""}, {"folder", ErrKind, "read write"}, {"pipe", ErrKind, "read write list"},
		{"folder", ErrFull, "remove"}, {"missing", fs.ErrNotExist, "read list remove"}, {"missing/x", fs.ErrNotExist, "read list remove"},
	} {
		for name, op := range ops {
			if tt.only != "" && !strings.Contains(tt.only, name) {
				continue
			}
			if err := op(tt.path); !errors.Is(err, tt.want) {
				t.Errorf("%s %q: got %v, want %v", name, tt.path, err, tt.want)
			}
		}
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "secret" {
		t.Errorf("outside is now %q, %v", b, err)
	}
}

func TestFolder(t *testing.T) {
	f, dir, _ := place(t)
	if err := f.Write("a/b/new", []byte("12345")); err != nil {
		t.Fatal(err)
	}
	if b, size, err := f.Read("a/b/new", 1, 2); err != nil || string(b) != "23" || size != 5 {
		t.Errorf("read: got %q, %d, %v", b, size, err)
	}
	if b, size, err := f.Read("a/b/new", 100, 2); err != nil || len(b) != 0 || size != 5 {
		t.Errorf("read behind the end: got %q, %d, %v", b, size, err)
	}
	if err := os.Chmod(filepath.Join(dir, "file"), 0o750|fs.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if err := f.Write("file", nil); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(filepath.Join(dir, "file")); err != nil || st.Mode() != 0o750 || st.Size() != 0 {
		t.Errorf("replaced: got %v, %v", st, err)
	}
	list, more, err := f.List("", 4)
	if err != nil || !more || len(list) != 4 {
		t.Errorf("list: got %v, %v, %v", list, more, err)
	}
	if list, more, err = f.List("", 100); err != nil || more || len(list) != 9 || list[0].Name != "a" || list[0].Kind != fs.ModeDir {
		t.Errorf("list: got %v, %v, %v", list, more, err)
	}
	for _, name := range []string{"a/b/new", "a/b", "link", "dangling", "pipe"} {
		if err := f.Remove(name); err != nil {
			t.Errorf("remove %s: %v", name, err)
		}
	}
}

// Nothing is left behind by a write that fails, and what is being written isn't listed.
func TestWriteIsWholeOrNothing(t *testing.T) {
	f, dir, _ := place(t)
	if err := f.Write("folder", []byte("x")); err == nil {
		t.Error("a folder was replaced")
	}
	if err := os.WriteFile(filepath.Join(dir, temporary+"x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	list, _, err := f.List("", 100)
	for _, e := range list {
		if strings.HasPrefix(e.Name, temporary) {
			t.Errorf("%s is listed", e.Name)
		}
	}
	entries, _ := os.ReadDir(dir)
	if err != nil || len(entries) != len(list)+1 {
		t.Errorf("the folder has %v, listed are %v, %v", entries, list, err)
	}
}

// THREATS, files: an agent swaps a folder for a link that leads out while the supervisor writes beneath it.
func TestThreatSwappedFolder(t *testing.T) {
	f, dir, outside := place(t)
	folder, link, aside := filepath.Join(dir, "swap"), filepath.Join(dir, "swaplink"), filepath.Join(dir, "aside")
	if err := errors.Join(os.Mkdir(folder, 0o755), os.Symlink("..", link)); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Rename(folder, aside)
				_ = os.Rename(link, folder)
				_ = os.Rename(folder, link)
				_ = os.Rename(aside, folder)
			}
		}
	})
	for range 2000 {
		_ = f.Write("swap/outside", []byte("overwritten"))
		_ = f.Remove("swap/outside")
		if b, _, err := f.Read("swap/outside", 0, 100); err == nil && bytes.Contains(b, []byte("secret")) {
			t.Fatal("read outside of the folder")
		}
	}
	close(stop)
	swapping.Wait()
	if b, err := os.ReadFile(outside); err != nil || string(b) != "secret" {
		t.Errorf("outside is now %q, %v", b, err)
	}
}

// An agent that holds a lease on its file makes whoever opens it wait for up to 45 s (fcntl(2)); here nobody waits.
func TestThreatLease(t *testing.T) {
	f, dir, _ := place(t)
	file, err := os.OpenFile(filepath.Join(dir, "file"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Read("file", 0, 100); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("got %v, want that it would have to wait", err)
	}
}

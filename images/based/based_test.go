// SPDX-License-Identifier: Apache-2.0

package based

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/images"
)

// trees are a base, a folder with what layers above it have put there, and files beside them that nothing may touch.
func trees(t *testing.T, above ...string) (top, base, root string) {
	t.Helper()
	top = t.TempDir()
	base, root = filepath.Join(top, "base"), filepath.Join(top, "root")
	fill(t, base, "etc/", "etc/passwd=root", "d/x=x", "d/s/t=t", "l>..", "f=f")
	fill(t, root, above...)
	fill(t, top, "secret=secret", "dir/x=outside", "dir/empty=")
	err := errors.Join(os.Link(filepath.Join(base, "d/x"), filepath.Join(base, "d/h")), os.Chmod(filepath.Join(base, "f"), 0o751), os.Chmod(filepath.Join(base, "etc"), 0o711),
		os.Chmod(filepath.Join(base, "d"), 0o777|fs.ModeSticky))
	if xerr := unix.Setxattr(filepath.Join(base, "f"), "user.note", []byte("z"), 0); !errors.Is(xerr, unix.ENOTSUP) {
		err = errors.Join(err, xerr)
	}
	if os.Geteuid() == 0 {
		err = errors.Join(err, os.Lchown(filepath.Join(base, "f"), 7, 8), os.Lchown(filepath.Join(base, "l"), 9, 9), os.Lchown(filepath.Join(base, "etc"), 5, 5))
	}
	for _, name := range []string{"f", "etc/passwd", "d/x", "d/s", "d", "etc", ""} {
		err = errors.Join(err, os.Chtimes(filepath.Join(base, name), time.Unix(1e9, 7), time.Unix(1e9, 7)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return top, base, root
}

// fill makes files, name=content, links, name>to, and folders, name/.
func fill(t *testing.T, root string, what ...string) {
	t.Helper()
	for _, w := range append([]string{""}, what...) {
		name, content, file := strings.Cut(w, "=")
		link, to, symlink := strings.Cut(w, ">")
		at := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		switch {
		case err != nil:
		case file:
			err = os.WriteFile(at, []byte(content), 0o644)
		case symlink:
			err = os.Symlink(to, filepath.Join(root, link))
		default:
			err = os.MkdirAll(at, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// all that there is below a folder, but for skip.
func all(t *testing.T, root, skip string, links bool) (lines []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == skip {
			return filepath.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		text, _ := os.ReadFile(path)
		to, _ := os.Readlink(path)
		list := make([]byte, 256)
		n, _ := unix.Llistxattr(path, list)
		line := fmt.Sprintf("%s %v %d:%d %q %q %q", strings.TrimPrefix(path, root), info.Mode(), st.Uid, st.Gid, text, to, list[:max(n, 0)])
		if d.Type() != fs.ModeSymlink && path != root {
			line += fmt.Sprint(" ", info.ModTime().UnixNano())
		}
		if links && !d.IsDir() {
			line += fmt.Sprint(" ", st.Nlink, st.Ctim)
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// Whatever stands in the tree and in the delta, of which a program that was taken over may have written each byte: nothing outside is read,
// linked or changed, and nothing of the base.
func TestThreatTakeoverHostileDelta(t *testing.T) {
	names := func(n ...images.Name) []images.Name { return n }
	for name, c := range map[string]struct {
		above []string
		delta images.Delta
		want  string // empty: it is taken
	}{
		"a link that leads out":            {[]string{"h="}, images.Delta{Links: []images.Link{{Name: "h", To: "../secret"}}}, "cross-device"},
		"a link by an absolute name":       {[]string{"h="}, images.Delta{Links: []images.Link{{Name: "h", To: "/secret"}}}, "no such file"},
		"a link behind a link":             {[]string{"h="}, images.Delta{Links: []images.Link{{Name: "h", To: "l/secret"}}}, "not a directory"},
		"a link behind a link, above":      {[]string{"m>../dir"}, images.Delta{Links: []images.Link{{Name: "m/empty", To: "f"}}}, "not a directory"},
		"a link to a place that leads out": {[]string{"h="}, images.Delta{Links: []images.Link{{Name: "../dir/empty", To: "f"}}}, "cross-device"},
		"a link over a file":               {[]string{"h=full"}, images.Delta{Links: []images.Link{{Name: "h", To: "f"}}}, "want an empty file"},
		"a link over a link":               {[]string{"h>../dir/empty"}, images.Delta{Links: []images.Link{{Name: "h", To: "f"}}}, "want an empty file"},
		"a link to a folder":               {[]string{"h="}, images.Delta{Links: []images.Link{{Name: "h", To: "d"}}}, "is a directory"},
		"a link to the root":               {[]string{"h="}, images.Delta{Links: []images.Link{{Name: "h", To: "."}}}, "no name of a file"},
		"a link to nothing":                {[]string{"h="}, images.Delta{Links: []images.Link{{Name: "h", To: ""}}}, "no name of a file"},
		"a file that isn't there":          {nil, images.Delta{Files: names("no")}, "a hard link leads to it"},
		"a file behind a link":             {nil, images.Delta{Files: names("l/secret")}, "a hard link leads to it"},
		"a file that leads out":            {nil, images.Delta{Files: names("../secret")}, "cross-device"},
		"a way through a link":             {nil, images.Delta{Through: names("l")}, "on the way"},
		"a way through a file":             {nil, images.Delta{Through: names("f")}, "on the way"},
		"a way out":                        {nil, images.Delta{Through: names("../dir")}, "cross-device"},
		"a deletion that leads out":        {nil, images.Delta{Deleted: names("../secret")}, "cross-device"},
		"names that are none":              {nil, images.Delta{Hidden: names("", "//", "../secret", "/etc", "\x00"), Folders: names("../dir", "..", "/", "l")}, ""},
		"a name with a zero":               {nil, images.Delta{Through: names("a\x00b")}, "invalid argument"},
		"a link in a folder's place":       {[]string{"d>../dir", "etc>/etc"}, images.Delta{}, ""},
		"a link that is to be a folder":    {[]string{"d>../dir"}, images.Delta{Folders: names("d")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			top, base, root := trees(t, c.above...)
			before, below := all(t, top, root, false), all(t, filepath.Join(top, "dir"), "", true)
			_, err := Complete(t.Context(), root, base, c.delta, os.Geteuid() == 0)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if diff := cmp.Diff(before, all(t, top, root, false)); diff != "" {
				t.Errorf("outside: %s", diff)
			}
			if diff := cmp.Diff(below, all(t, filepath.Join(top, "dir"), "", true)); diff != "" {
				t.Errorf("outside: %s", diff)
			}
		})
	}
	for name, place := range map[string]func(base, root string) error{
		"a root that is a link": func(_, root string) error {
			return errors.Join(os.Remove(root), os.Symlink("dir", root))
		},
		"a base that is a link": func(base, _ string) error { return errors.Join(os.Rename(base, base+"2"), os.Symlink("dir", base)) },
		"a pipe in the base":    func(base, _ string) error { return unix.Mkfifo(filepath.Join(base, "pipe"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			top, base, root := trees(t)
			err := place(base, root)
			before := all(t, filepath.Join(top, "dir"), "", true)
			if _, cerr := Complete(t.Context(), root, base, images.Delta{}, false); err != nil || cerr == nil {
				t.Errorf("%v %v", err, cerr)
			}
			if diff := cmp.Diff(before, all(t, filepath.Join(top, "dir"), "", true)); diff != "" {
				t.Errorf("outside: %s", diff)
			}
		})
	}
}

// Where a file can have no other name it is copied, with all that an image's files have. Other errors are errors.
func TestNoLinks(t *testing.T) {
	delta := images.Delta{Folders: []images.Name{""}, Links: []images.Link{{Name: "h", To: "d/x"}}}
	for _, errno := range []unix.Errno{0, unix.EMLINK, unix.EXDEV, unix.EPERM, unix.EOPNOTSUPP, unix.ENOSYS, unix.ENOSPC, unix.EIO} {
		t.Run(errno.Error(), func(t *testing.T) {
			_, base, root := trees(t, "h=")
			_, err := complete(t.Context(), root, base, delta, os.Geteuid() == 0, func(from int, old string, to int, name string) error {
				if errno != 0 {
					return errno
				}
				return unix.Linkat(from, old, to, name, 0)
			})
			if fails := slices.Contains([]unix.Errno{unix.ENOSPC, unix.EIO}, errno); fails {
				if !errors.Is(err, errno) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			same(t, base, root, errno == 0)
		})
	}
}

// same holds what came of an empty folder and a link, h, against the base.
func same(t *testing.T, base, root string, linked bool) {
	t.Helper()
	for _, name := range []string{"f", "etc/passwd", "h"} {
		of := strings.Replace(name, "h", "d/x", 1)
		if name != "h" {
			of = name
		}
		one, err := os.Lstat(filepath.Join(base, of))
		two, err2 := os.Lstat(filepath.Join(root, name))
		if err != nil || err2 != nil || os.SameFile(one, two) != linked {
			t.Errorf("%s: %v %v, want the same file: %v", name, err, err2, linked)
		}
	}
	if err := os.Remove(filepath.Join(root, "h")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all(t, base, "", false), all(t, root, "", false)); diff != "" {
		t.Error(diff)
	}
}

// The same with two file systems.
func TestOtherFileSystem(t *testing.T) {
	_, base, _ := trees(t)
	other := ""
	for _, dir := range []string{"/dev/shm", "/run", "/var/tmp", "/"} {
		var a, b unix.Stat_t
		if err := errors.Join(unix.Stat(base, &a), unix.Stat(dir, &b)); err == nil && a.Dev != b.Dev {
			if other, err = os.MkdirTemp(dir, "based"); err == nil {
				t.Cleanup(func() { _ = os.RemoveAll(other) })
				break
			}
		}
	}
	if other == "" {
		t.Skip("need: a second file system that can be written")
	}
	fill(t, other, "h=")
	if _, err := Complete(t.Context(), other, base, images.Delta{Folders: []images.Name{""}, Links: []images.Link{{Name: "h", To: "d/x"}}}, os.Geteuid() == 0); err != nil {
		t.Fatal(err)
	}
	same(t, base, other, false)
}

func TestCancelled(t *testing.T) {
	_, base, root := trees(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Complete(ctx, root, base, images.Delta{}, false); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// made is a folder of files: "/" at the end is a folder, "-> x" a link, "=> x" another name of x, "| " a pipe.
func made(t *testing.T, files ...[2]string) *os.File {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		at := filepath.Join(dir, f[0])
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		switch kind, to, _ := strings.Cut(f[1], " "); {
		case strings.HasSuffix(f[0], "/"):
			err = errors.Join(err, os.MkdirAll(at, 0o755))
		case kind == "->":
			err = errors.Join(err, os.Symlink(to, at))
		case kind == "=>":
			err = errors.Join(err, os.Link(filepath.Join(dir, to), at))
		case kind == "|":
			err = errors.Join(err, unix.Mkfifo(at, 0o644))
		default:
			err = errors.Join(err, os.WriteFile(at, []byte(f[1]), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// again opens a folder anew: a layer reads its names to the end.
func again(t *testing.T, d *os.File) *os.File {
	t.Helper()
	n, err := os.Open(d.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

func written(l Limits, fill func(*Writer) error) (names []string, text []byte, c Counts, err error) {
	var b bytes.Buffer
	w := New(&b, l)
	if err := errors.Join(fill(w), w.Close()); err != nil {
		return nil, nil, c, err
	}
	for r := tar.NewReader(bytes.NewReader(b.Bytes())); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, b.Bytes(), w.Counts, nil
		}
		if err != nil {
			return nil, nil, c, err
		}
		content, _ := io.ReadAll(r)
		names = append(names, strings.TrimSpace(fmt.Sprint(h.Name, " ", h.Linkname, string(content))))
	}
}

var room = Limits{Bytes: 1 << 20, Files: 100}

// The same folder makes the same layer, and a folder beside itself makes none.
func TestWhole(t *testing.T) {
	d := made(t, [2]string{"b", "2"}, [2]string{"a/x", "1"}, [2]string{"l", "-> /etc/passwd"}, [2]string{"z", "=> b"}, [2]string{"p", "| "})
	names, one, c, err := written(room, func(w *Writer) error { return w.Whole(d) })
	if want := []string{"a/", "a/x 1", "b 2", "l /etc/passwd", "z b"}; err != nil || !slices.Equal(names, want) || c.LeftOut != 1 {
		t.Errorf("%q %+v %v, want %q", names, c, err, want)
	}
	if _, two, _, err := written(room, func(w *Writer) error { return w.Whole(again(t, d)) }); err != nil || !bytes.Equal(one, two) {
		t.Errorf("another time another layer: %v", err)
	}
	if names, _, _, err := written(room, func(w *Writer) error { return w.Changes("d", again(t, d), again(t, d)) }); err != nil || len(names) > 0 {
		t.Errorf("changes of nothing: %q %v", names, err)
	}
}

func TestChanges(t *testing.T) {
	before := made(t, [2]string{"gone", "x"}, [2]string{"dir/sub/f", "x"}, [2]string{"file", "x"}, [2]string{"was", "x"}, [2]string{"folder/in", "x"}, [2]string{"piped", "x"}, [2]string{"kept", "x"})
	now := made(t, [2]string{"dir", "now a file"}, [2]string{"file/", ""}, [2]string{"file/in", "y"}, [2]string{"was", "-> /"}, [2]string{"folder/", ""},
		[2]string{"piped", "| "}, [2]string{".wh.kept", "a lie"}, [2]string{".wh..wh..opq", ""}, [2]string{"kept", "z"})
	names, _, c, err := written(room, func(w *Writer) error { return w.Changes("top", before, now) })
	want := []string{"top/.wh.gone", "top/dir now a file", "top/file/", "top/file/in y", "top/folder/.wh.in", "top/kept z", "top/.wh.piped", "top/was /"}
	if err != nil || !slices.Equal(names, want) || c.Deleted != 3 || c.LeftOut != 3 {
		t.Errorf("%q %+v %v, want %q", names, c, err, want)
	}
}

// What is larger than it may be is refused before it is read, by the size that it says it has.
func TestLimits(t *testing.T) {
	holes := made(t, [2]string{"a", ""}, [2]string{"b", ""})
	for _, name := range []string{"a", "b"} {
		if err := os.Truncate(filepath.Join(holes.Name(), name), 1<<40); err != nil {
			t.Fatal(err)
		}
	}
	deep := made(t, [2]string{strings.Repeat("d/", maxDepth+2) + "x", ""})
	many := made(t, [2]string{"a", ""}, [2]string{"b", ""}, [2]string{"c", ""})
	for name, c := range map[string]struct {
		dir    *os.File
		limits Limits
	}{"holes": {holes, room}, "deep": {deep, Limits{1 << 20, 1000}}, "many": {many, Limits{1 << 20, 2}}} {
		if _, _, _, err := written(c.limits, func(w *Writer) error { return w.Whole(c.dir) }); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A few folders of long names make each name in the last of them a path of 30 KiB: they are refused before they fill memory and disk.
func TestLongPaths(t *testing.T) {
	d := made(t)
	at, err := os.OpenRoot(d.Name())
	for i := 0; err == nil && i < maxDepth-5; i++ {
		var in *os.Root
		if err = at.Mkdir(strings.Repeat("d", 255), 0o755); err == nil {
			in, err = at.OpenRoot(strings.Repeat("d", 255))
		}
		at.Close()
		at = in
	}
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	for i := range maxPaths/(255*(maxDepth-5)) + 1 {
		if err := at.WriteFile(fmt.Sprint(i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, _, err := written(Limits{1 << 20, 1_000_000}, func(w *Writer) error { return w.Whole(d) }); !errors.Is(err, ErrLimit) {
		t.Errorf("got %v", err)
	}
}

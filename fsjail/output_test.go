// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func output(t *testing.T, name string, shown ...string) *Output {
	t.Helper()
	o, err := OpenOutput(name, shown)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// Where an output may lie, and which links on the way there are followed.
func TestOpenOutput(t *testing.T) {
	dir := t.TempDir()
	ws, elsewhere := filepath.Join(dir, "ws"), filepath.Join(dir, "elsewhere")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(ws, "out"), 0o755), os.Mkdir(elsewhere, 0o755),
		os.Symlink(elsewhere, filepath.Join(ws, "led")), os.Symlink("../elsewhere", filepath.Join(ws, "out", "up")),
		os.Symlink(ws, filepath.Join(dir, "operators")), os.Symlink("operators/led", filepath.Join(dir, "around")),
		os.Symlink("loop", filepath.Join(dir, "loop")), os.Mkdir(filepath.Join(ws, "out", "folder"), 0o755),
		os.Symlink("/dev/null", filepath.Join(ws, "out", "null")), os.Symlink("/etc/shadow", filepath.Join(ws, "out", "shadow")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ name, refused string }{
		{"ws/out/s", ""},
		{"operators/out/s", ""},
		{"elsewhere/s", ""},
		{"elsewhere/../ws/out/s", ""},
		{"ws/out/shadow", ""}, // replaced, not followed
		{"ws/led/s", "a run may write"},
		{"ws/out/up/s", "a run may write"},
		{"operators/led/s", "a run may write"},
		{"around/s", "a run may write"}, // the operator's own link, into one of theirs
		{"operators/../ws/led/s", "a run may write"},
		{"loop/s", "too many levels"},
		{"missing/s", "no such file"},
		{"ws/out/folder", "not a regular file"},
		{"ws/out/null", "not a regular file"},
		{"ws/out/", "names no file"},
		{"ws/out/..", "names no file"},
		{"", "names no file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := c.name
			if name != "" {
				name = dir + "/" + name
			}
			o, err := OpenOutput(name, []string{ws, filepath.Join(dir, "not there")})
			o.Close()
			if c.refused == "" && err != nil || c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
				t.Errorf("got %v, want an error with %q", err, c.refused)
			}
		})
	}
}

// The file goes into the folder that was opened, wherever its name leads by then; a link in its own place is replaced.
func TestOutputStaysWithItsFolder(t *testing.T) {
	dir := t.TempDir()
	out, moved, trap := filepath.Join(dir, "out"), filepath.Join(dir, "moved"), filepath.Join(dir, "trap")
	for _, d := range []string{out, trap} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	o := output(t, filepath.Join(out, "file"), dir)
	if err := o.Try(); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{os.Rename(out, moved), os.Symlink(trap, out), os.Symlink(trap+"/victim", filepath.Join(moved, "file"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	fill := func(f *os.File) error { _, err := f.WriteString("x"); return err }
	if err := o.Write(fill); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(moved, "file")); string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
	broken := errors.New("broken")
	if err := o.Write(func(*os.File) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	for folder, want := range map[string]int{trap: 0, moved: 1} {
		if names, _ := os.ReadDir(folder); len(names) != want {
			t.Errorf("%s holds %v, want %d", folder, names, want)
		}
	}
	if err := os.RemoveAll(moved); err != nil {
		t.Fatal(err)
	}
	if err := o.Write(fill); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("into a folder that is gone: got %v", err)
	}
}

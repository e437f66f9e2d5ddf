// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// M-2: the paths of a tree are bounded by their number too, over all of its folders: second names of an empty file take no room of a quota, and
// what is kept of each is far more than a short one has. 3 million of them took 1.3 GB of whoever started the sandbox.
func TestPathsOfATreeAreCounted(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a/x/y", "b/x", "c"} {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Lstat(dir)
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for most, want := range map[int]error{5: ErrTooManyNames, 6: nil} {
		w := &treeWalk{
			dev: info.Sys().(*syscall.Stat_t).Dev, left: MaxPaths, more: most,
			do: func(*os.Root, string, fs.FileInfo, *syscall.Stat_t) error { return nil },
		}
		if err := w.folder(root, "", nil, 0); !errors.Is(err, want) {
			t.Errorf("6 paths, at most %d: %v, want %v", most, err, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Whatever links there are, the answer is that of the standard library, also from a view that has seen other paths.
func TestCanonicalIsEvalSymlinks(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a/b/c", "d"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a/file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	links := map[string]string{
		"abs": filepath.Join(dir, "a/b"), "rel": "a/b", "a/up": "../d", "a/b/out": "../../rel/c", "d/odd": "../rel/../file", "d/twice": "..//a/./b/",
		"gone": "a/nosuch", "empty-end": "a/b/..", "through": "a/file/x", "self": "self", "ping": "pong", "pong": "ping",
		"far": strings.Repeat("../", 40) + dir[1:] + "/a",
	}
	for i := range 12 {
		links[fmt.Sprintf("chain%d", i)] = fmt.Sprintf("chain%d", i+1)
	}
	links["chain12"] = "rel"
	for i := range 300 {
		links[fmt.Sprintf("long%d", i)] = fmt.Sprintf("long%d", i+1)
	}
	links["long300"] = "a"
	for name, text := range links {
		if err := os.Symlink(text, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	parts := []string{"a", "b", "c", "d", "abs", "rel", "up", "out", "odd", "twice", "gone", "nosuch", "empty-end", "through", "self", "ping", "far", "file", "..", "chain0", "long0", "long120"}
	shared := new(View)
	random := rand.New(rand.NewPCG(1, 2))
	for range 1500 {
		name := dir
		for range 1 + random.IntN(5) {
			name += "/" + parts[random.IntN(len(parts))]
		}
		want, wantErr := filepath.EvalSymlinks(filepath.Clean(name))
		for kind, r := range map[string]*View{"new": {}, "used": shared} {
			got, err := r.Canonical(name)
			if got.Path != want || (err == nil) != (wantErr == nil) {
				t.Fatalf("%s view, %s: got %q, %v, want %q, %v", kind, name, got.Path, err, want, wantErr)
			}
			if err != nil {
				continue
			}
			var is unix.Stat_t
			if err := unix.Lstat(want, &is); err != nil || got.Dev != is.Dev || got.Ino != is.Ino {
				t.Fatalf("%s view, %s: told of another file than %s: %v", kind, name, want, err)
			}
		}
	}
}

// A name is looked at when it is asked for; only the folders above it are remembered.
func TestViewLooksAtEachName(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "name")
	r := new(View)
	if _, err := r.Canonical(name); err == nil {
		t.Fatal("nothing is there")
	}
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Canonical(name); err != nil || got.Path != name || got.IsDir() {
		t.Errorf("got %+v, %v, want the file that came", got, err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/usr", name); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Canonical(name); err != nil || got.Path != "/usr" || !got.IsDir() {
		t.Errorf("got %+v, %v, want where the link leads", got, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever links there are, the answer is that of the standard library, also from a resolver that has seen other paths.
func TestCanonicalIsEvalSymlinks(t *testing.T) {
	dir := hostDir(t)
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
	shared := new(Resolver)
	random := rand.New(rand.NewPCG(1, 2))
	for range 1500 {
		name := dir
		for range 1 + random.IntN(5) {
			name += "/" + parts[random.IntN(len(parts))]
		}
		want, wantErr := filepath.EvalSymlinks(filepath.Clean(name))
		for kind, r := range map[string]*Resolver{"new": {}, "used": shared} {
			got, info, err := r.Canonical(name)
			if got != want || (err == nil) != (wantErr == nil) {
				t.Fatalf("%s resolver, %s: got %q, %v, want %q, %v", kind, name, got, err, want, wantErr)
			}
			if err != nil {
				continue
			}
			is, err := os.Lstat(got)
			if err != nil || !os.SameFile(info, is) {
				t.Fatalf("%s resolver, %s: told of another file than %s: %v", kind, name, got, err)
			}
		}
	}
}

// A name is looked at when it is asked for; only the folders above it are remembered.
func TestResolverLooksAtEachName(t *testing.T) {
	dir := hostDir(t)
	name := filepath.Join(dir, "name")
	r := new(Resolver)
	if _, _, err := r.Canonical(name); err == nil {
		t.Fatal("nothing is there")
	}
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, info, err := r.Canonical(name); err != nil || got != name || !info.Mode().IsRegular() {
		t.Errorf("got %q, %v, want the file that came", got, err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/usr", name); err != nil {
		t.Fatal(err)
	}
	if got, info, err := r.Canonical(name); err != nil || got != "/usr" || !info.IsDir() {
		t.Errorf("got %q, %v, want where the link leads", got, err)
	}
}

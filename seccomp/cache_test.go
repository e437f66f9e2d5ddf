// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func chmod(path string, mode os.FileMode) error { return os.Chmod(path, mode) }

func cacheDir(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "cache")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func small() Filter {
	return Filter{Unlisted: Notify, Rules: []Rule{
		{Syscalls: []string{"read", "write"}, Action: Allow, Why: "t"},
		{Syscalls: []string{"socket"}, Action: Allow, Args: []Arg{{Op: MaskedEqual, Mask: 0xffffffff, Value: unix.AF_UNIX}}, Why: "t"},
	}}
}

func cacheFile(t *testing.T, dir string) string {
	t.Helper()
	m, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(m) != 1 {
		t.Fatalf("got files %v (%v), want one", m, err)
	}
	return m[0]
}

func TestCacheHit(t *testing.T) {
	dir := cacheDir(t)
	want := compile(t, small(), Options{})
	for i := range 3 {
		p, err := small().CompileCached(dir, Options{})
		if err != nil || p.CacheErr != nil || p.Cached != (i > 0) || !bytes.Equal(p.Bytes(), want.Bytes()) || p.Digest() != want.Digest() {
			t.Fatalf("use %d: cached %v, err %v, %v", i, p.Cached, err, p.CacheErr)
		}
	}
	bad := small()
	bad.Rules[0].Why = ""
	if _, err := bad.CompileCached(dir, Options{}); err == nil {
		t.Error("a filter without a reason is accepted from the cache")
	}
}

// M-4: nothing that another could have written, or that is damaged, becomes a filter.
func TestCacheRefuses(t *testing.T) {
	for _, c := range []struct {
		what string
		do   func(dir, file string) error
	}{
		{"directory open to others", func(dir, _ string) error { return os.Chmod(dir, 0o750) }},
		{"directory of another user", func(dir, _ string) error { return os.Chown(dir, 65534, 65534) }},
		{"directory is a link", func(dir, _ string) error {
			if err := os.Rename(dir, dir+".x"); err != nil {
				return err
			}
			return os.Symlink(dir+".x", dir)
		}},
		{"file open to others", func(_, file string) error { return os.Chmod(file, 0o644) }},
		{"file of another user", func(_, file string) error { return os.Chown(file, 65534, 65534) }},
		{"file has a second link", func(_, file string) error { return os.Link(file, file+"2") }},
		{"file is a link", func(_, file string) error {
			if err := os.Rename(file, file+"2"); err != nil {
				return err
			}
			return os.Symlink(file+"2", file)
		}},
		{"file is a fifo", func(_, file string) error {
			os.Remove(file)
			return unix.Mkfifo(file, 0o600)
		}},
		{"code changed", func(_, file string) error { return change(file, -1) }},
		{"key changed", func(_, file string) error { return change(file, 30) }},
		{"magic changed", func(_, file string) error { return change(file, 0) }},
		{"cut short", func(dir, file string) error { return os.Truncate(file, int64(len(cache(dir).Magic)+2*sha256.Size+8)) }},
		{"empty", func(_, file string) error { return os.Truncate(file, 0) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := cacheDir(t)
			if _, err := small().CompileCached(dir, Options{}); err != nil {
				t.Fatal(err)
			}
			if err := c.do(dir, cacheFile(t, dir)); err != nil {
				t.Fatal(err)
			}
			p, err := small().CompileCached(dir, Options{})
			if err != nil || p.Cached || p.CacheErr == nil || p.Digest() != compile(t, small(), Options{}).Digest() {
				t.Fatalf("got cached %v, err %v, cache error %v", p.Cached, err, p.CacheErr)
			}
			if strings.HasPrefix(c.what, "directory") {
				return
			}
			if p, err = small().CompileCached(dir, Options{}); err != nil || (!p.Cached && !strings.Contains(c.what, "link")) {
				t.Errorf("the bad file was not replaced: %v, %v", err, p.CacheErr)
			}
		})
	}
}

func change(file string, at int) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if at < 0 {
		at += len(b)
	}
	b[at] ^= 1
	return os.WriteFile(file, b, 0o600)
}

func TestCacheKeys(t *testing.T) {
	seen := map[[32]byte]string{}
	add := func(what string, k [32]byte) {
		if old, ok := seen[k]; ok {
			t.Errorf("%s and %s share a key", what, old)
		}
		seen[k] = what
	}
	add("base", small().key(Options{}))
	add("arm64", small().key(Options{Arch: ARM64}))
	for what, ch := range map[string]func(*Filter){
		"unlisted": func(f *Filter) { f.Unlisted = KillProcess },
		"errno":    func(f *Filter) { f.UnlistedErrno = 1 },
		"action":   func(f *Filter) { f.Rules[0].Action = Notify },
		"present":  func(f *Filter) { f.Rules[0].IfPresent = true },
		"joined":   func(f *Filter) { f.Rules[0].Syscalls = []string{"readwrite"} },
		"swapped":  func(f *Filter) { f.Rules[0].Syscalls = []string{"write", "read"} },
		"value":    func(f *Filter) { f.Rules[1].Args[0].Value = 2 },
		"mask":     func(f *Filter) { f.Rules[1].Args[0].Mask = 1 },
		"op":       func(f *Filter) { f.Rules[1].Args[0].Op = MaskedNotEqual },
		"index":    func(f *Filter) { f.Rules[1].Args[0].Index = 1 },
		"why":      func(f *Filter) { f.Rules[1].Why = "" },
	} {
		f := small()
		ch(&f)
		add(what, f.key(Options{}))
	}
}

func TestCacheIsBounded(t *testing.T) {
	dir := cacheDir(t)
	for i := range cache(dir).Files + 5 {
		f := small()
		f.UnlistedErrno = unix.Errno(1 + i)
		f.Unlisted = Errno
		if p, err := f.CompileCached(dir, Options{}); err != nil || p.CacheErr != nil {
			t.Fatal(err, p.CacheErr)
		}
	}
	m, _ := os.ReadDir(dir)
	if most := cache(dir).Files; len(m) > most || len(m) == 0 {
		t.Errorf("got %d files, want at most %d", len(m), most)
	}
}

// A program, of which no number is known by a name alone, is pinned together with the generation in cache keys: when this fails,
// raise generation and put the new digest here.
func TestGeneration(t *testing.T) {
	f := small()
	f.Rules = slices.Concat(f.Rules, noNamespaces(Notify, 0), noSetID(Errno, unix.EPERM)) // conditions of all kinds
	p, err := f.resolve(AMD64)
	if err != nil {
		t.Fatal(err)
	}
	got := Program{code: p.assemble()}.Digest()
	if want := map[int]string{4: "ff80f1afcbe5a83b892b3bc38fdf33ddeec91989676aaebd29b0f8376cbca03c"}[generation]; got != want {
		t.Errorf("generation %d: the program has digest %s, want %s", generation, got, want)
	}
}

// SPDX-License-Identifier: Apache-2.0

package homes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/profiles"
)

func folder(t *testing.T) Folder {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return Folder{StateDir: dir}
}

func take(t *testing.T, f Folder, name string) *Home {
	t.Helper()
	h, err := f.Take(name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// One at a time, also within one process, as a daemon's runs are; whoever comes after has what lies there.
func TestTake(t *testing.T) {
	f := folder(t)
	h := take(t, f, "a")
	if info, err := os.Stat(h.Files); err != nil || info.Mode().Perm() != 0o700 || h.Files != f.Files("a") {
		t.Errorf("got %s, %v, %v", h.Files, info, err)
	}
	if _, err := f.Take("a"); !errors.Is(err, ErrBusy) {
		t.Errorf("taken twice: %v", err)
	}
	if err := f.Remove("a"); !errors.Is(err, ErrBusy) {
		t.Errorf("removed while it is in use: %v", err)
	}
	other := take(t, f, "b")
	other.Close()
	list, err := f.List()
	if err != nil || len(list) != 2 || !list[0].Live || list[1].Live {
		t.Errorf("got %+v, %v", list, err)
	}
	h.Close()
	again := take(t, f, "a")
	again.Close()
	if err := f.Remove("a"); err != nil {
		t.Error(err)
	}
	if err := f.Remove("a"); !errors.Is(err, ErrNone) {
		t.Errorf("removed twice: %v", err)
	}
	(*Home)(nil).Close() // a run without
}

func TestNamesOfHomes(t *testing.T) {
	f := folder(t)
	for _, name := range []string{"", ".", "..", "../x", "a/b", "-a", ".a", "a b", "a\n", "ü", strings.Repeat("a", 65)} {
		_, err := f.Take(name)
		if errs := []error{err, f.Remove(name), f.Seed(name, nil)}; errs[0] == nil || errs[1] == nil || errs[2] == nil {
			t.Errorf("%q: got %v", name, errs)
		}
	}
	if left, _ := os.ReadDir(f.StateDir); len(left) > 0 {
		t.Errorf("made %v", left)
	}
}

func TestQuota(t *testing.T) {
	f := folder(t)
	f.Quota = 64 * profiles.KiB
	h := take(t, f, "a")
	if err := os.WriteFile(filepath.Join(h.Files, "big"), make([]byte, 256<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	h.Close()
	_, err := f.Take("a")
	if over, ok := errors.AsType[*OverQuotaError](err); !ok || over.Bytes < 256*profiles.KiB {
		t.Errorf("got %v", err)
	}
	f.Quota = 0
	take(t, f, "a").Close() // and nobody holds it since
}

// What is put in stays beneath the home, whatever an agent has made of it, and never replaces anything (A-M7).
func TestSeed(t *testing.T) {
	f := folder(t)
	outside := filepath.Join(f.StateDir, "outside")
	if err := os.Mkdir(outside, 0o700); err != nil {
		t.Fatal(err)
	}
	files := []File{{".a/settings.json", "new"}, {"b", "new"}}
	read := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(f.Files("x"), name))
		return string(text)
	}
	if err := f.Seed("x", files); err != nil || read(".a/settings.json") != "new" || read("b") != "new" {
		t.Fatalf("got %q, %v", read("b"), err)
	}
	if err := os.WriteFile(filepath.Join(f.Files("x"), "b"), []byte("the agent's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Seed("x", files); err != nil || read("b") != "the agent's" {
		t.Errorf("got %q, %v", read("b"), err)
	}
	for _, link := range []string{outside, "../../../outside"} {
		a := filepath.Join(f.Files("x"), ".a")
		if err := errors.Join(os.RemoveAll(a), os.Symlink(link, a)); err != nil {
			t.Fatal(err)
		}
		if err := f.Seed("x", files); err == nil {
			t.Errorf("a link to %s is followed", link)
		}
		b := filepath.Join(f.Files("x"), "b")
		if err := errors.Join(os.RemoveAll(a), os.RemoveAll(b), os.Symlink(outside+"/planted", b)); err != nil {
			t.Fatal(err)
		}
		_ = f.Seed("x", files)
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("outside: %v", left)
	}
}

// Sweep removes what nobody has used for as long as it is kept, and what a live run has not.
func TestSweep(t *testing.T) {
	f := folder(t)
	f.Keep = time.Hour
	live := take(t, f, "live")
	defer live.Close()
	for _, name := range []string{"old", "young"} {
		take(t, f, name).Close()
	}
	past := time.Now().Add(-2 * time.Hour)
	for _, name := range []string{"live", "old"} {
		if err := os.Chtimes(f.lockOf(name), past, past); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := f.Sweep(time.Now())
	if d := cmp.Diff([]string{"old"}, removed); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
	if d := cmp.Diff([]string{"live", "young"}, f.names()); d != "" {
		t.Error(d)
	}
}

// What a live agent swaps while it is looked at is nothing that went wrong, and one home that can't be read hides no other.
func TestListBesideAnAgent(t *testing.T) {
	f := folder(t)
	take(t, f, "b").Close()
	h := take(t, f, "a")
	defer h.Close()
	const swapped = 64
	at := func(kind string, i int) string { return filepath.Join(h.Files, fmt.Sprint(kind, i)) }
	for i := range swapped {
		if err := errors.Join(os.Mkdir(at("d", i), 0o700), os.Symlink("/etc", at("l", i))); err != nil {
			t.Fatal(err)
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i = (i + 1) % swapped {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, at("d", i), unix.AT_FDCWD, at("l", i), unix.RENAME_EXCHANGE)
			}
		}
	}()
	for range 200 {
		if list, err := f.List(); err != nil || len(list) != 2 {
			t.Errorf("%d homes, %v", len(list), err)
			break
		}
	}
	close(stop)
	<-stopped

	if err := errors.Join(os.RemoveAll(h.Files), os.WriteFile(h.Files, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	list, err := f.List()
	if err == nil || !strings.Contains(err.Error(), "home a: ") || len(list) != 2 || list[1].Name != "b" {
		t.Errorf("of a home that can't be read: %v, %v", list, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// copiesDetached says whether this kernel can do what stages are made of.
func copiesDetached(t *testing.T) bool {
	t.Helper()
	mnt, err := newFS("tmpfs", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(mnt)
	again, err := copyDetached(mnt)
	if err == nil {
		unix.Close(again)
	}
	return err == nil
}

// shownIn lists all below folders of a view: what each is, who may do what with it, and what is in it.
func shownIn(t *testing.T, r *Root, dirs ...string) (list []string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(r.Path, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				return err
			}
			text := ""
			switch st.Mode & unix.S_IFMT {
			case unix.S_IFREG:
				b, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				text = string(b)
			case unix.S_IFLNK:
				if text, err = os.Readlink(path); err != nil {
					return err
				}
			}
			list = append(list, fmt.Sprintf("%s %o %d:%d %x %q", strings.TrimPrefix(path, r.Path), st.Mode, st.Uid, st.Gid, st.Rdev, text))
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	return list
}

func stagedView(src string) []Entry {
	return []Entry{
		{Kind: Dir, Target: "/etc", Mode: 0o755}, {Kind: File, Target: "/etc/passwd", Content: "x\n", Mode: 0o444},
		{Kind: Bind, Target: "/etc/ssl/one", Source: filepath.Join(src, "one"), IsFile: true},
		{Kind: Bind, Target: "/etc/all", Source: src}, {Kind: Bind, Target: "/etc/all/two", Source: filepath.Join(src, "one"), IsFile: true},
		{Kind: Link, Target: "/etc/link", Source: "passwd"},
		{Kind: Dir, Target: "/dev", Mode: 0o755}, {Kind: Bind, Target: "/dev/null", Source: "/dev/null", Device: true, IsFile: true},
		{Kind: Devpts, Target: "/dev/pts"}, {Kind: Link, Target: "/dev/ptmx", Source: "pts/ptmx"}, {Kind: Dir, Target: "/sys", Mode: 0o555},
	}
}

// M-2: a view of a stage shows what one shows that was built whole, also while others are built, and nobody can write to what is shared.
func TestM2StagesShowTheSame(t *testing.T) {
	src := hostDir(t)
	for _, name := range []string{"one", "two"} {
		writeFile(t, filepath.Join(src, name), name)
	}
	entries := stagedView(src)
	var want []string
	if err := build(t, entries, Options{}, func(r *Root) { want = shownIn(t, r, "/etc", "/dev", "/sys") }); err != nil {
		t.Fatal(err)
	}
	var s Stages
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5 {
				err := build(t, entries, Options{Stages: &s}, func(r *Root) {
					if got := shownIn(t, r, "/etc", "/dev", "/sys"); !slices.Equal(got, want) {
						t.Errorf("got  %q\nwant %q", got, want)
					}
					for _, name := range []string{"etc/passwd", "etc/new", "etc/ssl/one", "etc/ssl/new", "dev/new"} {
						if err := os.WriteFile(filepath.Join(r.Path, name), nil, 0o600); !errors.Is(err, unix.EROFS) {
							t.Errorf("write to %s: %v", name, err)
						}
					}
					if err := os.WriteFile(filepath.Join(r.Path, "dev/null"), []byte("x"), 0o600); err != nil {
						t.Error(err)
					}
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	// While one of them makes a stage, the others build their views whole; by now there is one of each.
	err := build(t, entries, Options{Stages: &s}, func(r *Root) {
		if copiesDetached(t) && !slices.Equal(r.Staged, staged) {
			t.Errorf("staged: %v", r.Staged)
		}
	})
	if err != nil {
		t.Error(err)
	}
	if s.off == copiesDetached(t) {
		t.Errorf("stages are off: %v", s.off)
	}
}

// M-2: what was replaced on the host is shown as it is now; what was changed in its place, at once.
func TestM2StagesFollowTheHost(t *testing.T) {
	src := hostDir(t)
	one := filepath.Join(src, "one")
	writeFile(t, one, "first")
	writeFile(t, filepath.Join(src, "two"), "two")
	var s Stages
	see := func(want string) {
		t.Helper()
		for range 3 {
			err := build(t, stagedView(src), Options{Stages: &s}, func(r *Root) {
				for _, name := range []string{"etc/ssl/one", "etc/all/one", "etc/all/two"} {
					if b, err := os.ReadFile(filepath.Join(r.Path, name)); err != nil || string(b) != want {
						t.Errorf("%s: %q %v, want %q", name, b, err, want)
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	see("first")
	writeFile(t, one, "changed")
	see("changed")
	writeFile(t, filepath.Join(src, "new"), "replaced")
	if err := os.Rename(filepath.Join(src, "new"), one); err != nil {
		t.Fatal(err)
	}
	see("replaced")
	// A link in its place is refused as it is without stages.
	if err := errors.Join(os.Remove(one), os.Symlink("two", one)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := build(t, stagedView(src), Options{Stages: &s}, nil); !errors.Is(err, unix.ELOOP) {
			t.Errorf("a link as source: %v", err)
		}
	}
	if len(s.kept) > 1 { // /dev
		t.Errorf("kept: %d", len(s.kept))
	}
}

// M-2: a view shows the same whatever umask agentrun was started with, also by a stage.
func TestM2ViewsWhateverTheUmask(t *testing.T) {
	src := hostDir(t)
	for _, name := range []string{"one", "two"} {
		writeFile(t, filepath.Join(src, name), name)
	}
	var want []string
	if err := build(t, stagedView(src), Options{}, func(r *Root) { want = shownIn(t, r, "/etc", "/dev", "/sys") }); err != nil {
		t.Fatal(err)
	}
	var s Stages
	for range 3 {
		dir := t.TempDir()
		inside(t, func() {
			unix.Umask(0o077) // of this thread, which has a file system context of its own
			r, err := Build(dir, stagedView(src), agent, Options{Stages: &s})
			if err != nil {
				t.Error(err)
				return
			}
			if got := shownIn(t, r, "/etc", "/dev", "/sys"); !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}

// What a view may change, or has for itself, is in no stage; nor is anything of a view that may be written.
func TestM2StagesKeepWhatIsOnesOwnApart(t *testing.T) {
	src := hostDir(t)
	file := filepath.Join(src, "one")
	writeFile(t, file, "x")
	etc := Entry{Kind: Dir, Target: "/etc", Mode: 0o755}
	for name, c := range map[string]struct {
		entries []Entry
		opt     Options
	}{
		"the agent's folder":   {entries: []Entry{{Kind: Dir, Target: "/etc", Mode: 0o755, Agent: true}}},
		"a folder in it":       {entries: []Entry{etc, {Kind: Dir, Target: "/etc/a", Mode: 0o755, Agent: true}}},
		"a writable file":      {entries: []Entry{etc, {Kind: Bind, Target: "/etc/a", Source: file, IsFile: true, Writable: true}}},
		"one to be opened":     {entries: []Entry{etc, {Kind: Bind, Target: "/etc/a", Source: file, IsFile: true, Live: true}}},
		"one with an owner":    {entries: []Entry{etc, {Kind: Bind, Target: "/etc/a", Source: file, IsFile: true, Owner: &Owner{}}}},
		"a program's cover":    {entries: []Entry{etc, {Kind: Bind, Target: "/etc/a", Source: file, IsFile: true}, {Kind: Cover, Target: "/etc/a", Content: "y"}}},
		"a folder shown whole": {entries: []Entry{{Kind: Bind, Target: "/etc", Source: src}}},
		"a writable view":      {entries: []Entry{etc}, opt: Options{Writable: true, UpperSize: 1 << 20}},
	} {
		var s Stages
		c.opt.Stages = &s
		for range 3 {
			err := build(t, c.entries, c.opt, func(r *Root) {
				if len(r.Staged) > 0 {
					t.Errorf("%s: staged %v", name, r.Staged)
				}
			})
			if err != nil && !errors.Is(err, ErrNoIDMap) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if len(s.kept) > 0 {
			t.Errorf("%s: kept", name)
		}
	}
}

// Of a fixed entry, every field that makes a difference is in the key.
func TestStageKeyCountsEveryField(t *testing.T) {
	base := Entry{Kind: Bind, Target: "/etc/a", Source: "/a", IsFile: true}
	without := map[string]string{
		"Agent": "not fixed, or of no folder", "Writable": "not fixed", "Live": "not fixed", "Guard": "not fixed", "Owner": "not fixed", "IsFile": "what is no file isn't fixed",
		"Size": "of a tmpfs", "Sealed": "of an overlay", "Changes": "of an overlay", "Shifting": "of an overlay", "Why": "for people",
	}
	for i := range reflect.TypeFor[Entry]().NumField() {
		e, name := base, reflect.TypeFor[Entry]().Field(i).Name
		switch f := reflect.ValueOf(&e).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(!f.Bool())
		case reflect.Uint32:
			f.SetUint(1)
		}
		if differs := stageKey([]Entry{e}) != stageKey([]Entry{base}); differs == (without[name] != "") {
			t.Errorf("%s: in the key: %v, want %v", name, differs, !differs)
		}
	}
	if a, b := (Entry{Kind: Link, Target: "/a", Source: "bc"}), (Entry{Kind: Link, Target: "/ab", Source: "c"}); stageKey([]Entry{a}) == stageKey([]Entry{b}) {
		t.Error("two texts that run into each other")
	}
}

// However many different folders are asked for, a bounded number is kept, and none is left open.
func TestStagesAreBounded(t *testing.T) {
	var s Stages
	before := openFiles(t)
	for i := range 3 * maxStages {
		for range 2 {
			err := build(t, []Entry{{Kind: Dir, Target: "/etc", Mode: 0o755}, {Kind: File, Target: "/etc/n", Content: fmt.Sprint(i)}}, Options{Stages: &s}, nil)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(s.kept); n > maxStages || copiesDetached(t) && n < maxStages {
		t.Errorf("%d are kept", n)
	}
	for i := range 2 * maxAsked {
		s.copy([]Entry{{Kind: Dir, Target: fmt.Sprint("/", i)}})
	}
	if len(s.asked) > maxAsked {
		t.Errorf("%d are remembered", len(s.asked))
	}
	if now := openFiles(t); now > before+maxStages {
		t.Errorf("%d descriptors, before %d", now, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // everybody reads it
		t.Fatal(err)
	}
}

// What nobody asks for any more is let go, with the file systems it is on.
func TestStagesAreLetGo(t *testing.T) {
	if !copiesDetached(t) {
		t.Skip("need: copies of detached mounts, Linux 6.15: without them nothing is kept (TestM2StagesShowTheSame)")
	}
	before := openFiles(t)
	synctest.Test(t, func(t *testing.T) {
		var s Stages
		entries := []Entry{{Kind: Dir, Target: "/etc", Mode: 0o755}}
		s.copy(entries)
		kept := func() int {
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.kept)
		}
		ask := func() {
			t.Helper()
			mnt := s.copy(entries)
			if mnt < 0 {
				t.Fatal("none")
			}
			unix.Close(mnt)
		}
		ask()
		time.Sleep(tidyTime + time.Second)
		ask()
		time.Sleep(tidyTime - time.Second)
		if n := kept(); n != 1 {
			t.Errorf("asked for within the time, and %d are kept", n)
		}
		time.Sleep(tidyTime)
		if n := kept(); n != 0 {
			t.Errorf("%d are kept for nobody", n)
		}
		ask()
		time.Sleep(3 * tidyTime)
		synctest.Wait()
	})
	if now := openFiles(t); now > before {
		t.Errorf("%d descriptors, before %d", now, before)
	}
}

// A file system of the host's that never answers holds up nobody but who shows it.
func TestStagesWaitForNobody(t *testing.T) {
	if !copiesDetached(t) {
		t.Skip("need: copies of detached mounts, Linux 6.15: without them nothing is kept (TestM2StagesShowTheSame)")
	}
	var s Stages
	mine := []Entry{{Kind: Dir, Target: "/etc", Mode: 0o755}}
	s.copy(mine)
	s.mu.Lock()
	s.asked[stageKey(mine)] = true // somebody is at it
	s.mu.Unlock()
	if mnt := s.copy(mine); mnt >= 0 {
		t.Error("it can't be there yet")
	}
	other := []Entry{{Kind: Dir, Target: "/dev", Mode: 0o755}}
	s.copy(other)
	if mnt := s.copy(other); mnt < 0 {
		t.Error("another one waits")
	} else {
		unix.Close(mnt)
	}
}

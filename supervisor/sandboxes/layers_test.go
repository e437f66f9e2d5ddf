// SPDX-License-Identifier: Apache-2.0

package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wrote is what a run leaves: a file in HOME, which a first layer has as a plain folder, and one in its workspace.
func wrote(t *testing.T, f Folder, name, file string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(homeOf(t, f, name), file), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(workspaceOf(t, f, name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(workspaceOf(t, f, name), file), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Change(name, func(s *Sandbox) error { s.Changed = true; return nil }); err != nil {
		t.Fatal(err)
	}
}

func workspaceOf(t *testing.T, f Folder, name string) string {
	t.Helper()
	s, err := f.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(f.Workspace(s), "changes", "workspace")
}

func layersOf(t *testing.T, f Folder) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(f.layers(), "*"))
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

func snap(name string) Snapshot { return Snapshot{Name: name, By: "uid:0", At: time.Now()} }

// M-23: a sandbox that stands still is sealed once, however often it is forked; what nobody names any more goes, and nothing else.
func TestLayersAreShared(t *testing.T) {
	f := folder(t, "a")
	ctx := context.Background()
	wrote(t, f, "a", "one")
	first, err := f.Load("a")
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"b", "c", "d"} {
		if err := f.Fork(ctx, "a", "", nil, Sandbox{Name: to}, whole); err != nil {
			t.Fatal(err)
		}
		s, err := f.Load(to)
		if err != nil || !slices.Equal(s.Below, []string{first.Layer}) || s.Sealed == 0 || s.Words[1] != "true" {
			t.Errorf("%s: %+v, %v", to, s, err)
		}
	}
	if n := len(layersOf(t, f)); n != 5 { // one sealed, and each sandbox' own
		t.Errorf("%d layers", n)
	}
	if _, err := f.Snapshot(ctx, "a", snap("now"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Snapshot(ctx, "a", snap("now"), nil); !errors.Is(err, ErrSnapshotExists) {
		t.Errorf("a second one of that name: %v", err)
	}
	wrote(t, f, "a", "two")
	second, _ := f.Load("a")
	if err := f.Rollback(t.Context(), "a", "none"); !errors.Is(err, ErrNoSnapshot) {
		t.Errorf("to no snapshot: %v", err)
	}
	if err := f.Rollback(t.Context(), "a", "now"); err != nil {
		t.Fatal(err)
	}
	if left := layersOf(t, f); slices.Contains(left, f.layer(second.Layer)) || !slices.Contains(left, f.layer(first.Layer)) {
		t.Errorf("after a rollback: %v", left)
	}
	if err := f.Remove("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(f.layer(first.Layer)); err != nil {
		t.Errorf("forks have it: %v", err)
	}
	for _, name := range []string{"b", "c", "d"} {
		if err := f.Remove(name); err != nil {
			t.Error(err)
		}
	}
	if left := layersOf(t, f); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Each sandbox has a copy of its own of what changed in its workspace, and empties that alone, all of it.
func TestWorkspacesAreTheirOwn(t *testing.T) {
	f := folder(t, "a")
	wrote(t, f, "a", "one")
	has := func(name string, want ...string) {
		t.Helper()
		var got []string
		list, _ := os.ReadDir(workspaceOf(t, f, name))
		for _, e := range list {
			got = append(got, e.Name())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	if _, err := f.Snapshot(t.Context(), "a", snap("first"), nil); err != nil {
		t.Fatal(err)
	}
	if err := f.Fork(t.Context(), "a", "first", nil, Sandbox{Name: "b"}, whole); err != nil {
		t.Fatal(err)
	}
	wrote(t, f, "b", "two")
	has("a", "one")
	has("b", "one", "two")
	held, err := f.Hold("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Take("a"); !errors.Is(err, ErrBusy) {
		t.Errorf("a start meanwhile: %v", err)
	}
	for range 2 {
		if err := held.EmptyWorkspace(); err != nil {
			t.Fatal(err)
		}
		has("a")
	}
	held.Close()
	has("b", "one", "two")
	// What a kill has left half put away is nothing, and goes with the next start.
	held, _ = f.Hold("b")
	if err := os.Rename(filepath.Join(f.Workspace(held.Sandbox), "changes"), f.putAway(held.Sandbox)); err != nil {
		t.Fatal(err)
	}
	held.Close()
	has("b")
	taken, err := f.Take("b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(f.putAway(taken.Sandbox)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	taken.Close()
	if err := f.Rollback(t.Context(), "a", "first"); err != nil {
		t.Fatal(err)
	}
	has("a", "one")
}

// Nothing is pruned that somebody is about to name, nor while it can't be told what is named.
func TestPruneSpares(t *testing.T) {
	f := folder(t, "a", "b")
	wrote(t, f, "a", "one")
	making, err := f.making()
	if err != nil {
		t.Fatal(err)
	}
	id, err := f.newLayer()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.prune(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.layer(id)); err != nil {
		t.Errorf("one that is being made: %v", err)
	}
	making.Close()
	text, err := os.ReadFile(f.about("b"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.about("b"), []byte(`{"version":9}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.prune(); err == nil || !strings.Contains(err.Error(), "version 9") {
		t.Errorf("beside one of another version: %v", err)
	}
	if err := os.WriteFile(f.about("b"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.prune(); err != nil {
		t.Error(err)
	}
	if left := layersOf(t, f); len(left) != 2 {
		t.Errorf("left: %v", left)
	}
	// As where no descriptor is left to list the sandboxes by, and then one is.
	if err := errors.Join(os.Rename(f.dir(), f.dir()+"-aside"), os.WriteFile(f.dir(), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if list, err := f.List(); err == nil {
		t.Errorf("what can't be listed has %+v", list)
	}
	if err := f.prune(); err == nil {
		t.Error("sandboxes that can't be listed have no layers")
	}
	if left := layersOf(t, f); len(left) != 2 {
		t.Errorf("left: %v", left)
	}
}

// Whoever looks at all sandboxes, to remove what none of them has, sees one that gets another name meanwhile: that waits.
func TestRenameWaitsForWhoLooks(t *testing.T) {
	f := folder(t, "a")
	looks, err := lockFolder(f.dir(), unix.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	defer looks.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(looks.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	renamed := make(chan error, 1)
	go func() { renamed <- f.Rename("a", "b") }()
	for waits := false; !waits; {
		select {
		case err := <-renamed:
			t.Fatal("it was renamed beside who looks: ", err)
		default:
		}
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(locks)) {
			waits = waits || strings.Contains(line, "-> FLOCK") && strings.Contains(line, fmt.Sprintf(":%d ", st.Ino))
		}
	}
	if list, err := f.List(); len(list) != 1 || list[0].Name != "a" || err != nil {
		t.Errorf("there are %+v, %v", list, err)
	}
	looks.Close()
	if err := <-renamed; err != nil {
		t.Error(err)
	}
}

// State that names another folder as a layer is refused: its files would be mounted, and removed.
func TestLayersAreNames(t *testing.T) {
	f := folder(t, "a")
	for _, bad := range []string{"", "..", "../sandboxes", "/etc", strings.Repeat("a", 31), strings.Repeat("A", 32)} {
		for _, where := range []func(*Sandbox){
			func(s *Sandbox) { s.Layer = bad }, func(s *Sandbox) { s.Below = []string{bad} },
			func(s *Sandbox) { s.Snapshots = []Snapshot{{Name: "x", Files: Files{Below: []string{bad}}}} },
		} {
			s, err := f.Load("a")
			if err != nil {
				t.Fatal(err)
			}
			if where(&s); s.checkLayers() == nil {
				t.Errorf("%q is taken", bad)
			}
		}
	}
}

// M-23: on a disk that is full, what a sandbox is stays the old at each step, and nothing is left of the new.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	f := Folder{StateDir: dir}
	if err := f.Create(t.Context(), Sandbox{Name: "a", Restart: RestartNo, Words: []string{"--", "true"}}, whole); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	wrote(t, f, "a", "one")
	if _, err := f.Snapshot(ctx, "a", snap("first"), nil); err != nil {
		t.Fatal(err)
	}
	wrote(t, f, "a", "two")
	running, err := f.Take("a")
	if err != nil {
		t.Fatal(err)
	}
	full := filepath.Join(dir, "full")
	file, err := os.Create(full)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	file.Close()
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	before, err := f.Load("a")
	if err != nil {
		t.Fatal(err)
	}
	layers := layersOf(t, f)
	goOn := func(copy func() error) error { return copy() }
	refused := func(what string, err error) {
		t.Helper()
		after, lerr := f.Load("a")
		if !errors.Is(err, unix.ENOSPC) && (err == nil || !strings.Contains(err.Error(), "No space left")) {
			t.Errorf("%s on a full disk: %v", what, err)
		}
		if lerr != nil || after.Layer != before.Layer || len(after.Snapshots) != 1 || !slices.Equal(after.Below, before.Below) {
			t.Errorf("%s on a full disk: %+v, %v", what, after, lerr)
		}
		if err := f.prune(); err != nil {
			t.Error(err)
		}
		if now := layersOf(t, f); !slices.Equal(now, layers) {
			t.Errorf("%s left %v of %v", what, now, layers)
		}
	}
	_, err = f.Snapshot(ctx, "a", snap("live"), goOn)
	refused("snapshot of one that runs", err)
	refused("fork of one that runs", f.Fork(ctx, "a", "", goOn, Sandbox{Name: "b"}, whole))
	running.Close()
	_, err = f.Snapshot(ctx, "a", snap("second"), nil)
	refused("snapshot", err)
	refused("fork", f.Fork(ctx, "a", "first", nil, Sandbox{Name: "b"}, whole))
	refused("rollback", f.Rollback(t.Context(), "a", "first"))
	refused("create", f.Create(t.Context(), Sandbox{Name: "c", Restart: RestartNo}, whole))
	if list, err := f.List(); len(list) != 1 || err != nil {
		t.Errorf("there are %+v, %v", list, err)
	}
	if err := f.Remove("a"); err != nil { // takes no room
		t.Error(err)
	}
	names, err := f.names()
	if left := append(layersOf(t, f), names...); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A pause that somebody ends in the middle of a copy has the agent at work beside it: no link that it puts in a folder's place is followed.
func TestCopyFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	from, outside := filepath.Join(dir, "from"), filepath.Join(dir, "outside")
	for _, in := range []string{filepath.Join(from, "sub"), outside} {
		if err := os.MkdirAll(in, 0o700); err != nil {
			t.Fatal(err)
		}
		for i := range 500 {
			if err := os.WriteFile(filepath.Join(in, fmt.Sprint(i)), []byte(filepath.Base(in)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Symlink(outside, filepath.Join(from, "link")); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(from, "sub"), unix.AT_FDCWD, filepath.Join(from, "link"), unix.RENAME_EXCHANGE)
			}
		}
	}()
	for i := range 20 {
		to := filepath.Join(dir, fmt.Sprint("to", i))
		_ = copyTree(t.Context(), from, to) // what was swapped is an error
		err := filepath.WalkDir(to, func(at string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			if text, _ := os.ReadFile(at); string(text) == "outside" {
				return fmt.Errorf("%s was copied from outside", at)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	<-stopped
	to := filepath.Join(dir, "whole")
	if err := copyTree(t.Context(), from, to); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"sub", "link"} {
		is, err := os.Lstat(filepath.Join(from, name))
		got, gerr := os.Lstat(filepath.Join(to, name))
		if err != nil || gerr != nil || is.Mode() != got.Mode() {
			t.Errorf("%s: %v %v", name, err, gerr)
		}
	}
}

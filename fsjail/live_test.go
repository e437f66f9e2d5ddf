// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// sleeper is a process with a user and a mount namespace of its own, as a sandbox has.
func sleeper(t *testing.T) int {
	t.Helper()
	ids := []syscall.SysProcIDMap{{HostID: 0, Size: 1}}
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: ids, GidMappings: ids, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

func all(string) bool { return true }

// M-22: a mount is opened and closed under a process that lives, as often as one likes; one that somebody writes to is not closed
// and named; what was read-only from the start can't be opened.
func TestM22LiveMounts(t *testing.T) {
	src, fixed := hostDir(t), hostDir(t)
	err := build(t, []Entry{
		{Kind: Bind, Target: "/a b", Source: src, Live: true},
		{Kind: Bind, Target: "/fixed", Source: fixed},
		{Kind: Tmpfs, Target: "/tmp", Size: 1 << 20, Exec: true},
	}, Options{}, func(r *Root) {
		pid := sleeper(t)
		l, err := HoldLive(pid, func(at string) Closes {
			switch {
			case at == r.Path+"/tmp":
				return NoExec
			case strings.HasPrefix(at, r.Path+"/"):
				return ReadOnly
			}
			return 0
		}, all)
		if err != nil {
			t.Error(err)
			return
		}
		defer l.Close()
		if got, want := l.Mounts(), []string{r.Path + "/a b", r.Path + "/tmp"}; !slices.Equal(got, want) {
			t.Errorf("held %q, want %q", got, want)
		}
		file := fmt.Sprintf("/proc/%d/root%s/a b/file", pid, r.Path)
		write := func() error {
			f, err := os.OpenFile(file, os.O_WRONLY, 0)
			if err == nil {
				f.Close()
			}
			return err
		}
		holdsPrograms := func() bool {
			var st unix.Statfs_t
			if err := unix.Statfs(fmt.Sprintf("/proc/%d/root%s/tmp", pid, r.Path), &st); err != nil {
				t.Error(err)
			}
			return st.Flags&unix.ST_NOEXEC == 0
		}
		for range 3 {
			if err := l.Set(func(string) bool { return false }); err != nil {
				t.Error(err)
			}
			if holdsPrograms() {
				t.Error("closed: the scratch holds programs")
			}
			if err := write(); !errors.Is(err, unix.EROFS) {
				t.Errorf("closed: %v, want %v", err, unix.EROFS)
			}
			if err := l.Set(all); err != nil {
				t.Error(err)
			}
			if err := write(); err != nil {
				t.Errorf("open: %v", err)
			}
			if !holdsPrograms() {
				t.Error("open: the scratch holds no programs")
			}
		}
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err != nil {
			t.Error(err)
			return
		}
		err = l.Set(func(string) bool { return false })
		if busy, ok := errors.AsType[*BusyError](err); !ok || busy.At != r.Path+"/a b" || !errors.Is(err, unix.EBUSY) {
			t.Errorf("held by a writer: %v", err)
		}
		f.Close()
		if err := l.Set(func(string) bool { return false }); err != nil {
			t.Error(err)
		}
		// The builder's own view is another namespace's and stays as it was.
		if err := os.WriteFile(filepath.Join(r.Path, "a b", "mine"), nil, 0o600); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A mount that another one hides is left out; one whose mount point was moved by somebody else is an error, and so is a process
// that is gone.
func TestM22LiveMountsHiddenAndMoved(t *testing.T) {
	outer, inner := hostDir(t), hostDir(t)
	if err := os.Mkdir(filepath.Join(outer, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	view := []Entry{
		{Kind: Bind, Target: "/hidden/sub", Source: inner, Writable: true},
		{Kind: Bind, Target: "/hidden", Source: inner, Writable: true},
		{Kind: Bind, Target: "/w", Source: outer, Writable: true},
		{Kind: Bind, Target: "/w/dir", Source: inner, Writable: true},
	}
	err := build(t, view, Options{}, func(r *Root) {
		pid := sleeper(t)
		want := func(at string) Closes {
			if strings.HasPrefix(at, r.Path+"/") {
				return ReadOnly
			}
			return 0
		}
		l, err := HoldLive(pid, want, all)
		if err != nil {
			t.Error(err)
			return
		}
		if got, want := l.Mounts(), []string{r.Path + "/hidden", r.Path + "/w", r.Path + "/w/dir"}; !slices.Equal(got, want) {
			t.Errorf("held %q, want %q", got, want)
		}
		l.Close()
		table, err := readMounts(pid, want)
		if err != nil {
			t.Error(err)
			return
		}
		l = &Live{}
		if l.ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid)); err != nil {
			t.Error(err)
			return
		}
		defer l.Close()
		i := slices.IndexFunc(table.wanted, func(m mountPoint) bool { return m.at == r.Path+"/w/dir" })
		moved := table.wanted[i]
		moved.at = r.Path + "/w/file" // as if somebody had put something else there
		if err := enter(l.ns, func() error { return l.hold(moved, table) }); !errors.Is(err, unix.ESTALE) {
			t.Errorf("moved: %v, want %v", err, unix.ESTALE)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := HoldLive(1<<22+1, func(string) Closes { return ReadOnly }, all); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such process: %v", err)
	}
	if err := (*Live)(nil).Close(); err != nil {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func conn(t testing.TB, pid int, dir string) *Conn {
	t.Helper()
	cwd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(cwd) })
	return &Conn{Request: Request{Dir: dir}, PID: pid, cwd: cwd}
}

// A caller that sees another host runs alone, and so does one that is gone.
func TestSame(t *testing.T) {
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		attr syscall.SysProcAttr
		want string
	}{
		"same":   {syscall.SysProcAttr{}, ""},
		"mnt":    {syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}, "another mnt namespace"},
		"net":    {syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}, "another net namespace"},
		"pid":    {syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}, "another pid namespace"},
		"cgroup": {syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWCGROUP}, "another cgroup namespace"},
		"user":   {syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}, "another user namespace"},
		"root":   {syscall.SysProcAttr{Chroot: "/usr"}, "another root"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/bin/cat")
			if name == "root" {
				cmd.Dir = "/"
			}
			cmd.SysProcAttr = &tt.attr
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); errors.Is(err, unix.EPERM) {
				t.Skip("need: root, for namespaces")
			} else if err != nil {
				t.Fatal(err)
			}
			c := conn(t, cmd.Process.Pid, dir)
			err = c.Same()
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			in.Close()
			_ = cmd.Wait()
			if err := c.Same(); err == nil {
				t.Error("a caller that is gone is the same")
			}
		})
	}
	c := conn(t, os.Getpid(), dir)
	before := openFDs(t)
	if err := c.Same(); err != nil {
		t.Errorf("myself: %v", err)
	}
	if err := os.Rename(dir, dir+"-moved"); err != nil {
		t.Fatal(err)
	}
	if err := c.Same(); err == nil {
		t.Error("a folder that is not there")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.Same(); err == nil || !strings.Contains(err.Error(), "another folder") {
		t.Errorf("another folder of that name: got %v", err)
	}
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// BenchmarkSame is of a caller that may be served.
func BenchmarkSame(b *testing.B) {
	cmd := exec.Command("/bin/cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	c := conn(b, cmd.Process.Pid, b.TempDir())
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Same(); err != nil {
			b.Fatal(err)
		}
	}
	in.Close()
	_ = cmd.Wait()
}

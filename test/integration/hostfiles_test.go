// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// What a sandbox does to files that it may only read: the inode is the host's, whatever the mount says.

// THREATS "the host's shared counters", "paths the host follows". A lease on a file makes each open of it on the host wait for the holder. The
// agent may hold one on files of its workspace, since it is mapped to their owner: also where it may only read them.
func TestLeases(t *testing.T) {
	needSandbox(t)
	for _, profile := range allProfiles {
		t.Run(profile, func(t *testing.T) {
			ws := workspace(t)
			file := write(t, filepath.Join(ws, "file"), "host", 0o644)
			os.Chown(file, owner, owner)
			c := prepare(t, opts{profile: profile, flags: []string{"--workspace", ws}},
				probeArgs("lease /workspace/file", "dnotify /usr/bin", "dnotify /workspace", "ready", "sleep 20")...)
			c.startUntil(t, "ready")
			opened := make(chan error, 1)
			go func() {
				fd, err := unix.Open(file, unix.O_WRONLY|unix.O_CLOEXEC, 0) // conflicts with a read lease
				if err == nil {
					unix.Close(fd)
				}
				opened <- err
			}()
			select {
			case err := <-opened:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Duration(slow * float64(5*time.Second))):
				t.Error("the host's open of a file in the workspace waits for the agent")
			}
			c.Process.Signal(unix.SIGTERM)
			r := c.finish(t)
			got := answers(c.out.String())
			for _, a := range []attack{
				{try: "lease /workspace/file", want: "EPERM@fcntl"},
				{try: "dnotify /usr/bin", want: "EPERM@fcntl"},
				{try: "dnotify /workspace", want: "EPERM@fcntl"},
			} {
				a.check(t, got[a.try], r)
			}
		})
	}
}

// THREATS "the host's shared counters": inotify on a folder of the system tells ring 3 which programs the host and other runs start. Rings
// 2 and 1 have it: watchers and editors there are ordinary.
func TestInotify(t *testing.T) {
	attempt(t, opts{}, []attack{
		{try: "inotify /usr/bin", want: "ok", in: same("ENOSYS@inotify_init1", "ring3", "strict")},
		{try: "inotify /workspace", want: "ok", in: same("ENOSYS@inotify_init1", "ring3", "strict")},
	})
}

// THREATS "paths the host follows": a read-only mount doesn't keep anybody from writing into a FIFO, and whoever reads it on the host takes the
// agent's bytes for another program's. Where no elevation can come, Landlock does. A workspace that was offered by name may be
// opened for writing later, so there it can't: that is in SECURITY.
func TestFIFOInReadOnlyWorkspace(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.Landlock(1))
	ws := workspace(t)
	fifo := filepath.Join(ws, "fifo")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	os.Chown(fifo, owner, owner)
	reader, err := os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	b, err := os.ReadFile(probeBin)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(ws, "own-probe"), string(b), 0o755)
	for _, tc := range []struct {
		what, command, at, want string
		o                       opts
	}{
		{"strict", "/probe", "/workspace/fifo", "EACCES", opts{profile: "strict", flags: []string{"--workspace", ws}}},
		{"ring 3, a folder nobody offered", "./own-probe", "/workspace/fifo", "EACCES", opts{profile: "ring3", dir: ws}},
		{"ring 3, shown read-only", "/probe", "/data/fifo", "EACCES", opts{profile: "ring3", flags: []string{"--ro-bind", ws + ":/data"}}},
		{"ring 3, offered by name", "/probe", "/workspace/fifo", "ok", opts{profile: "ring3", flags: []string{"--workspace", ws}}},
		{"ring 2", "/probe", "/workspace/fifo", "ok", opts{profile: "ring2", flags: []string{"--workspace", ws}}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			try := "write " + tc.at + " forged"
			r := run(t, tc.o, append([]string{tc.command}, probeArgs(try)[1:]...)...)
			attack{try: try, want: tc.want}.check(t, answers(r.stdout)[try], r)
			n, _ := reader.Read(make([]byte, 64))
			if (n > 0) != (tc.want == "ok") {
				t.Errorf("the host's reader got %d bytes", n)
			}
		})
	}
}

// M-2: the agent's own files of a folder that it may only read keep their bytes, by path and by a descriptor for reading: no other wall than the
// mount has a say in truncating (fsjail.Landlock).
func TestReadOnlyFilesAreNotTruncated(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	needProgram(t, "python3")
	ws := workspace(t)
	kept := write(t, filepath.Join(ws, "kept"), "kept\n", 0o666)
	os.Chown(kept, owner, owner)
	const truncate = `
import errno, os
for how in (lambda: os.truncate("kept", 0), lambda: os.open("kept", os.O_RDONLY | os.O_TRUNC),
            lambda: os.ftruncate(os.open("kept", os.O_RDONLY), 0)):
    try: how(); print("done")
    except OSError as e: print(errno.errorcode[e.errno])`
	for _, flag := range []string{"--workspace", "--ro-bind"} {
		r := run(t, opts{profile: "ring3", flags: []string{flag, ws + map[string]string{"--ro-bind": ":/data"}[flag]}},
			"sh", "-c", `cd /data 2>/dev/null || cd /workspace; exec python3 -c "$0"`, truncate)
		if r.stdout != "EROFS\nEROFS\nEINVAL\n" {
			t.Errorf("%s: got %q, %q", flag, r.stdout, r.stderr)
		}
		if b, err := os.ReadFile(kept); string(b) != "kept\n" {
			t.Errorf("%s: the file is %q %v", flag, b, err)
		}
	}
}

// THREATS "the host's shared counters": for each open folder that is read in part file systems keep memory that no cgroup is charged for. A run
// that hoards them is ended, also where each process has few; one that has a thousand goes on.
func TestOpenFolders(t *testing.T) {
	for _, profile := range []string{"ring2", "ring1"} {
		t.Run(profile, func(t *testing.T) {
			needSandbox(t)
			r := run(t, opts{profile: profile}, probeArgs("folders 0 12")...)
			r.want(t, 137, "policy")
			if !strings.Contains(r.status.Reason, "open folders") || r.status.CPUTime > 6*time.Second {
				t.Errorf("ended after %v of processor time: %s", r.status.CPUTime, r.status.Reason)
			}
		})
	}
	t.Run("of several processes", func(t *testing.T) {
		needProgram(t, "sh")
		r := run(t, opts{profile: "ring2"}, "sh", "-c", "for i in 1 2 3; do /probe folders 900 12 & done; wait")
		r.want(t, 137, "policy")
		if !strings.Contains(r.status.Reason, "open folders") {
			t.Errorf("ended: %s", r.status.Reason)
		}
	})
	// An overlay keeps all names of a folder for each that has it open, and a list of its own after each change.
	for _, c := range []struct {
		try string
		o   opts
	}{
		{"merged /usr/share 10000 100 12", opts{profile: "ring1"}},
		{"merged /usr/share 100 600 12", opts{profile: "ring1"}},
		{"merged /usr/share 100 80 12 sent", opts{profile: "ring1"}},
		{"merged /workspace 10000 100 12", opts{profile: "ring2", flags: []string{"--workspace", workspace(t), "--workspace-mode", "overlay"}}},
	} {
		t.Run(c.try, func(t *testing.T) {
			r := run(t, c.o, probeArgs(c.try)...)
			r.want(t, 137, "policy")
			if !strings.Contains(r.status.Reason, "open folders of an overlay") {
				t.Errorf("ended after %v of processor time: %s", r.status.CPUTime, r.status.Reason)
			}
		})
	}
	t.Run("of an overlay, in bounds", func(t *testing.T) {
		if got := observe(t, opts{profile: "ring1"}, "merged /usr/share 100 300 3"); got != "300" {
			t.Errorf("had %s folders open, want 300", got)
		}
	})
	t.Run("in bounds", func(t *testing.T) {
		if got := observe(t, opts{profile: "ring2"}, "folders 1000 3"); got != "1000" {
			t.Errorf("had %s folders open, want 1000", got)
		}
	})
}

// THREATS "the host's shared counters": who watches a timer is woken in its interrupt, in time that is in no run's account, 0.3 µs for each
// watch. A run that hoards them is ended, also where it does nothing more; one with hundreds goes on, whoever inherits them.
func TestEpollWatches(t *testing.T) {
	for _, c := range []struct{ profile, try, want string }{
		{"ring3", "watches 3 400 20", "epoll watches"}, {"strict", "watches 3 400 20", "epoll watches"},
		{"ring2", "watches 3 400 20", "epoll watches"}, {"ring1", "watches 3 400 20", "epoll watches"},
		{"ring2", "watches 3000 0 20", "epolls"},
	} {
		t.Run(c.profile+" "+c.want, func(t *testing.T) {
			needSandbox(t)
			began := time.Now()
			r := run(t, opts{profile: c.profile}, probeArgs(c.try)...)
			r.want(t, 137, "policy")
			if !strings.Contains(r.status.Reason, c.want) || time.Since(began) > 15*time.Second {
				t.Errorf("ended after %v: %s", time.Since(began), r.status.Reason)
			}
		})
	}
	t.Run("of an ordinary user", func(t *testing.T) {
		u := newUser(t)
		code, stdout, stderr := u.run(t, "exec", "--ring", "2", "--no-gateway", "--best-effort", "--ro-bind", probeBin+":/probe", "--",
			"/probe", "watches", "100", "400", "12")
		if code != 137 || !strings.Contains(stderr, "epoll watches") {
			t.Errorf("exit %d, want 137 for epoll watches\n%s%s", code, stdout, stderr)
		}
	})
	t.Run("in bounds", func(t *testing.T) {
		if got := observe(t, opts{profile: "ring2"}, "watches 100 9 4 8"); got != "900" {
			t.Errorf("had %s watches, want 900", got)
		}
	})
}

// THREATS "the host's shared counters": who waits in poll(2) for a timer is gone through in its interrupt, in time that is in no run's account,
// once for each time that it names it, and sleeps on where it waits for what a timer never has. A run that hoards them is ended; one that has a
// server's goes on.
func TestPolls(t *testing.T) {
	for _, c := range []struct{ profile, try string }{
		{"ring3", "polls 1 24 1024 20"}, {"strict", "polls 1 24 1024 20"}, {"ring2", "polls 3 4 4096 20"}, {"ring1", "polls 1 8 8192 20"},
	} {
		t.Run(c.profile, func(t *testing.T) {
			needSandbox(t)
			began := time.Now()
			r := run(t, opts{profile: c.profile}, probeArgs(c.try)...)
			r.want(t, 137, "policy")
			if !strings.Contains(r.status.Reason, "descriptors that are polled") || time.Since(began) > 15*time.Second {
				t.Errorf("ended after %v: %s", time.Since(began), r.status.Reason)
			}
		})
	}
	t.Run("of an ordinary user", func(t *testing.T) {
		u := newUser(t)
		code, stdout, stderr := u.run(t, "exec", "--ring", "2", "--no-gateway", "--best-effort", "--ro-bind", probeBin+":/probe", "--",
			"/probe", "polls", "1", "20", "4096", "12")
		if code != 137 || !strings.Contains(stderr, "descriptors that are polled") {
			t.Errorf("exit %d, want 137 for polled descriptors\n%s%s", code, stdout, stderr)
		}
	})
	t.Run("in bounds", func(t *testing.T) {
		if got := observe(t, opts{profile: "ring2"}, "polls 1 3 4096 4"); got == "0" {
			t.Error("the timer never expired")
		}
	})
}

// THREATS "the host's shared counters": each record lock is memory of the kernel's that no cgroup is charged for, and no rlimit counts them. A run
// that hoards them is ended; one that holds a thousand goes on. Locks that the supervisor couldn't count aren't there.
func TestRecordLocks(t *testing.T) {
	for _, profile := range allProfiles {
		t.Run(profile, func(t *testing.T) {
			needSandbox(t)
			r := run(t, opts{profile: profile}, probeArgs("locks 0 12")...)
			r.want(t, 137, "policy")
			if !strings.Contains(r.status.Reason, "file locks") || r.status.CPUTime > 6*time.Second {
				t.Errorf("ended after %v of processor time: %s", r.status.CPUTime, r.status.Reason)
			}
		})
	}
	t.Run("in bounds", func(t *testing.T) {
		if got := observe(t, opts{}, "locks 1000 3"); got != "1000" {
			t.Errorf("got %s locks, want 1000", got)
		}
	})
	attempt(t, opts{}, []attack{
		{try: "ofd-lock", want: "EINVAL"},
		{try: "sys 56 0x411", want: "EPERM@clone"}, // clone(CLONE_FILES|SIGCHLD): a table of descriptors that outlives the locks' process
	})
}

// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/cgroups"
	"agentrun/fsjail"
	"agentrun/internal/thread"
	"agentrun/netns"
	"agentrun/runtime/internal/stub"
)

// M-5: wherever the stub is on its way to pid 1, it ends when its socket hangs up, also if its parent's death sends no signal.
func TestM5StubDiesOfTheHangUp(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("need: root, for namespaces of another user")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "stub")
	if err := os.WriteFile(program, stub.Image, 0o711); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Dir(dir)} { // of this test; the stub looks for the root as a user that they don't know
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	goruntime.LockOSThread() // which the stub is a child of
	defer goruntime.UnlockOSThread()
	for _, last := range []stub.Kind{stub.KindInvalid, stub.Apart, stub.Hello} {
		t.Run(fmt.Sprint(last), func(t *testing.T) {
			control, peer, err := stub.Pair()
			if err != nil {
				t.Fatal(err)
			}
			defer control.Close()
			control.Bound(time.Minute)
			own, err := os.Open("/proc/thread-self/ns/net")
			if err != nil {
				t.Fatal(err)
			}
			defer own.Close()
			pid, err := syscall.ForkExec(program, []string{"stub"}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2, peer.Fd(), own.Fd()}})
			peer.Close()
			if err != nil {
				t.Fatal(err)
			}
			l := &launch{control: control, stage0: pid, group: &bareGroup{}}
			l.ids = rootPool().block(1, false)
			l.plan = &Plan{Ring: 3, Hostname: "agent", Namespaces: []string{"user", "pid", "mnt", "ipc", "uts", "cgroup"}}
			if last != stub.KindInvalid {
				if err := control.Make(&stub.Sandbox{
					Namespaces: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
					Owner:      uint32(l.ids.hostOwner()), Agent: agentID, Hostname: "agent", Root: root,
				}); err != nil {
					t.Fatal(err)
				}
			}
			switch last {
			case stub.Apart:
				if err := errors.Join(bornTo(control, stub.Apart, func(is int) { l.initPID = is }), waitFor(pid)); err != nil {
					t.Fatal(err)
				}
				pid = l.initPID
			case stub.Hello:
				if err := l.makeApart(); err != nil {
					t.Fatal(err)
				}
				pid = l.initPID
			}
			control.Close()
			late := time.AfterFunc(20*time.Second, func() {
				t.Error("it waits on")
				_ = unix.Kill(pid, unix.SIGKILL)
			})
			defer late.Stop()
			if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// Without a cgroup a launch that is given up has what its thread has started, and nothing else of this process.
func TestM5GuardKillsChildrenOfTheLaunch(t *testing.T) {
	goruntime.LockOSThread() // or the launch could get this thread
	defer goruntime.UnlockOSThread()
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	done := make(chan *exec.Cmd)
	go func() {
		goruntime.LockOSThread() // and the thread ends with it
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Error(err)
		}
		g := &guard{tid: unix.Gettid()}
		if len(g.children()) == 0 {
			t.Log("the kernel lists no children of a thread (CONFIG_PROC_CHILDREN)")
			_ = cmd.Process.Kill()
		}
		g.strike(&bareGroup{})
		_ = cmd.Wait()
		done <- cmd
	}()
	cmd := <-done
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != unix.SIGKILL {
		t.Errorf("its child: %v, want it killed", cmd.ProcessState)
	}
	if err := other.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("another thread's child: %v", err)
	}
}

// Whatever holds up the cgroup of a run that is being started (here it is frozen), everything else of its supervisor goes on, garbage
// collection too, which waits for each thread; and the launch is given up.
func TestM22FrozenGroupHoldsUpNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("need: root, for a cgroup")
	}
	watchdog := exec.Command("sh", "-c", fmt.Sprintf("sleep 60; kill -KILL %d", os.Getpid())) // no goroutine could tell
	watchdog.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := watchdog.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(-watchdog.Process.Pid, unix.SIGKILL); _ = watchdog.Wait() }()
	g, err := cgroups.Create(fmt.Sprintf("%s/frozen%d", cgroupParent, os.Getpid()), cgroups.Limits{CPU: 1, Memory: 64 << 20, PIDs: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if err := g.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(dir+stubPath, stub.Image, 0o711); err != nil {
		t.Fatal(err)
	}
	began, ended := make(chan struct{}), make(chan error)
	l := &launch{group: &runGroup{Group: g}, root: &fsjail.Root{Path: dir}, plan: &Plan{Ring: 3, Hostname: "agent", Namespaces: []string{"user", "pid", "mnt"}}}
	l.ids = rootPool().block(1, false)
	l.network = func() (*netns.NS, error) { close(began); return netns.New() }
	go thread.Throwaway(func() {
		other, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "60"}, nil) // a child of the same thread, and nobody's to wait for
		if err != nil {
			t.Error(err)
		}
		err = l.startContainer()
		err = errors.Join(err, l.destroyContainer())
		if err := errors.Join(unix.Kill(other, unix.SIGKILL), waitFor(other)); err != nil {
			t.Error(err)
		}
		ended <- err
	})
	<-began
	time.Sleep(50 * time.Millisecond) // it is on its way into the group
	goruntime.GC()
	if err := exec.Command("true").Run(); err != nil {
		t.Error(err)
	}
	if _, err := g.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("a sandbox in a frozen group was made")
	}
}

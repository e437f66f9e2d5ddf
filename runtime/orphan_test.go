// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const orphanFIFO = "AGENTRUN_TEST_ORPHAN"

func TestMain(m *testing.M) {
	if fifo := os.Getenv(orphanFIFO); fifo != "" {
		goruntime.LockOSThread()
		DieWithSupervisor()
		// The instants after libcontainer's setuid(2): no signal is set, and the next thing is an open that waits for ever.
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0)
		_, _ = os.Stdout.WriteString("x")
		_, err := unix.Open(fifo, unix.O_WRONLY, 0)
		_, _ = os.Stdout.WriteString(err.Error())
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// M-5: the hang-up alone ends an init that waits in a FIFO for somebody who is dead, before and after it began to wait.
func TestM5InitDiesOfTheHangUp(t *testing.T) {
	for _, when := range []string{"before", "while it waits"} {
		t.Run(when, func(t *testing.T) {
			fifo := filepath.Join(t.TempDir(), "fifo")
			if err := unix.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
			defer ours.Close()
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = []string{orphanFIFO + "=" + fifo}
			cmd.ExtraFiles = []*os.File{theirs}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if when == "before" {
				ours.Close()
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			theirs.Close()
			if when != "before" {
				if _, err := out.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				ours.Close()
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				_ = cmd.Process.Kill()
				t.Fatal("it waits on")
			}
			if code := cmd.ProcessState.ExitCode(); code != ExitFailed {
				t.Errorf("it ended with %v, want %d", cmd.ProcessState, ExitFailed)
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

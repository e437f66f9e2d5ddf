// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"agentrun/internal/hinted"
	"agentrun/supervisor"
)

func checkDetach(r *supervisor.Request) error {
	if !r.Detach {
		if r.IdlePause != 0 {
			return hinted.New(errors.New("--idle-pause: want --detach too: a run that stands still would look hung to whoever waits for it, and no input wakes it"), "agentrun exec -d --idle-pause 10m -- COMMAND; agentrun pause REF pauses any run")
		}
		return nil
	}
	for _, f := range []struct {
		flag  string
		given bool
	}{{"t", r.TTY}, {"i", r.Interactive}} {
		if f.given {
			return hinted.New(fmt.Errorf("-%s contradicts --detach: a detached run has no terminal, and its input has ended", f.flag), "leave one of the two out")
		}
	}
	return nil
}

// detachAlone starts this program anew as the supervisor, in a session of its own, and ends with it unless it says that the run
// lives: what is wrong before that is said by it, on our stderr, and its exit code is ours.
func detachAlone() error {
	lives, says, err := os.Pipe()
	if err != nil {
		return err
	}
	defer lives.Close()
	// The file of this process, not what stands at its path by now.
	cmd := exec.Command("/proc/self/exe", append([]string{"--" + detachedFlag + "=3"}, os.Args[1:]...)...) //nolint:gosec // ourselves
	cmd.Args[0] = os.Args[0]
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdout, os.Stderr, []*os.File{says}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	says.Close()
	if err != nil {
		return err
	}
	if n, _ := io.ReadFull(lives, make([]byte, 1)); n == 1 {
		return cmd.Process.Release()
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code > 0 {
		return exitError(code)
	}
	return errors.New("the supervisor ended before the run began")
}

// detachedFlag gives the supervisor of a detached run the pipe on which it says that the run lives.
const detachedFlag = "detached-fd"

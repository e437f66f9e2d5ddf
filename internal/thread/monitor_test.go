// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Nobody is told of a child's end any more, and it is there to be waited for all the same.
func TestQuietChildren(t *testing.T) {
	const child = "AGENTRUN_TEST_QUIET"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestQuietChildren$", "-test.v") //nolint:gosec // ourselves
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	caught := func() bool {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, mask, _ := strings.Cut(string(status), "\nSigCgt:\t")
		mask, _, _ = strings.Cut(mask, "\n")
		return strings.ContainsRune("13579bdf", rune(mask[len(mask)-5])) // the fifth digit from the right has SIGCHLD, the 17th signal, as its lowest bit
	}
	if !caught() {
		t.Fatal("Go doesn't catch SIGCHLD: the call is of no use")
	}
	if err := QuietChildren(); err != nil {
		t.Fatal(err)
	}
	if caught() {
		t.Error("SIGCHLD is still caught")
	}
	err := exec.Command("/bin/sh", "-c", "exit 7").Run()
	if failed, ok := errors.AsType[*exec.ExitError](err); !ok || failed.ExitCode() != 7 {
		t.Errorf("a child: %v", err)
	}
	pid, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	var ws unix.WaitStatus
	if got, err := unix.Wait4(pid.Pid, &ws, 0, nil); err != nil || got != pid.Pid || !ws.Exited() {
		t.Errorf("waited for: %d %v, %v", got, ws, err)
	}
}

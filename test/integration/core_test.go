// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// THREATS "runtime takeover": where the host's core_pattern is a program, as apport and systemd-coredump make it, the kernel starts it
// as root on the host for each crash, at a core limit of 0 too. No crash of a run's starts one, and the agent can't make the
// limit 0. Only where the pattern is nobody else's: in the virtual machine.
func TestCrashesStartNothing(t *testing.T) {
	needSandbox(t)
	if os.Getenv("AGENTRUN_TEST_CLOCK") != "1" {
		unmet(t, "a machine whose core_pattern a test may set: AGENTRUN_TEST_CLOCK=1, as in the virtual machine")
	}
	const file = "/proc/sys/kernel/core_pattern"
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	told, helper := filepath.Join(dir, "told"), filepath.Join(dir, "helper")
	if err := os.WriteFile(helper, []byte("#!/bin/sh\necho $1 >>"+told+"\ncat >/dev/null\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("|"+helper+" %e"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(file, before, 0) })
	for _, profile := range allProfiles {
		got, r := try(t, opts{profile: profile}, "core-limit", "raise 6")
		if got["core-limit"] != "EINVAL" || r.status.Signal != "SIGABRT" {
			t.Errorf("%s: %v, signal %q, want EINVAL and SIGABRT", profile, got, r.status.Signal)
		}
	}
	if b, err := os.ReadFile(told); err == nil {
		t.Errorf("the host's program was started for %s", strings.Fields(string(b)))
	}
	// Outside of a sandbox a limit of 0 starts it.
	outside := exec.Command(probeBin, "core-limit", ",", "raise", "6")
	if err := outside.Run(); err == nil {
		t.Error("the probe lived on")
	}
	if b, err := os.ReadFile(told); err != nil || !strings.Contains(string(b), "probe") {
		t.Errorf("outside of a sandbox it isn't started: %q, %v", b, err)
	}
}

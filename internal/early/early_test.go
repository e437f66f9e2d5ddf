// SPDX-License-Identifier: Apache-2.0

package early

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The program has no libc: a call of it, even one that the compiler puts in for a loop or for the zeroes of a structure, would not link, or
// in a test's program go through an address that nobody has filled in yet.
func TestNeedsNoLibc(t *testing.T) {
	for _, level := range []string{"-O0", "-O2", "-O3", "-Os"} {
		object := filepath.Join(t.TempDir(), "client.o")
		if out, err := exec.Command("gcc", "-std=gnu11", level, "-ffreestanding", "-fno-stack-protector", "-c", "-o", object, filepath.Join("c", "early.c")).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out, err := exec.Command("nm", "--undefined-only", object).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			name := strings.TrimPrefix(strings.TrimSpace(line), "U ")
			// Go's beginning, where it hands over to.
			if !slices.Contains([]string{"_rt0_amd64_linux", "_rt0_arm64_linux", "_GLOBAL_OFFSET_TABLE_"}, name) {
				t.Errorf("%s: it needs %s", level, name)
			}
		}
	}
}

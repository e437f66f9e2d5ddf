// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// In a static program the client runs before libc has set itself up: a call of libc's, even one that the compiler puts in for a loop or for
// the zeroes of a structure, would go through an address that nobody has filled in yet.
func TestClientNeedsNoLibc(t *testing.T) {
	for _, level := range []string{"-O0", "-O2", "-O3", "-Os"} {
		object := filepath.Join(t.TempDir(), "client.o")
		if out, err := exec.Command("gcc", "-std=gnu11", level, "-fno-stack-protector", "-c", "-o", object, "client.c").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out, err := exec.Command("nm", "--undefined-only", object).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			name := strings.TrimPrefix(strings.TrimSpace(line), "U ")
			// libc's beginning, where the client hands over to; and what Go asks for, later.
			if !slices.Contains([]string{"_start", "getauxval", "_GLOBAL_OFFSET_TABLE_"}, name) {
				t.Errorf("%s: the client needs %s", level, name)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package tidy gives back what only a launch needed, once a run lasts.
package tidy

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// after is how long a run must last before its supervisor tidies. Runs that end sooner don't pay for it.
const after = 200 * time.Millisecond

// Soon tidies if this process still lives then.
func Soon() { time.AfterFunc(after, tidy) }

// tidy gives back the garbage of the launch, and the pages of our own program that nothing but the launch reads. From then on the
// supervisor mostly waits.
func tidy() {
	debug.FreeOSMemory()
	letGoOfProgram()
}

// letGoOfProgram unmaps the program's read-only pages, which come back from the file one by one when they are needed again
// (madvise(2), MADV_DONTNEED). Only mappings of which nothing was ever written: what the dynamic linker has relocated would come
// back as it is in the file.
func letGoOfProgram() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer f.Close()
	var from, to uintptr
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if value, ok := strings.CutPrefix(line, "Anonymous:"); ok && to != 0 {
			if strings.TrimSpace(value) == "0 kB" {
				_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED) // an error leaves them where they are
			}
			to = 0
		}
		var a, b uintptr
		var perm string
		if n, _ := fmt.Sscanf(line, "%x-%x %4s ", &a, &b, &perm); n == 3 {
			from, to = 0, 0
			if (perm == "r-xp" || perm == "r--p") && strings.HasSuffix(line, exe) {
				from, to = a, b
			}
		}
	}
}

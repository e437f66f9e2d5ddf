// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// checkThreads reads what the kernel says of each thread. A silent no-op of one of the steps, or a thread that Go doesn't
// know of, ends the start here. A thread that ended meanwhile is no matter.
func checkThreads(o Options) error {
	const tasks = "/proc/self/task"
	entries, err := os.ReadDir(tasks)
	if err != nil {
		return err
	}
	for _, e := range entries {
		status, err := os.ReadFile(tasks + "/" + e.Name() + "/status")
		if errors.Is(err, fs.ErrNotExist) || err != nil && strings.Contains(err.Error(), "no such process") {
			continue
		}
		if err != nil {
			return err
		}
		if err := checkStatus(status, o); err != nil {
			return fmt.Errorf("thread %s: %w", e.Name(), err)
		}
	}
	return nil
}

// checkStatus compares the lines of proc_pid_status(5) that tell of rights. One that is missing is as wrong as one that
// differs.
func checkStatus(status []byte, o Options) error {
	ids := func(id int) string { return strings.Repeat(strconv.Itoa(id)+"\t", 3) + strconv.Itoa(id) }
	const none = "0000000000000000"
	want := map[string]string{"Uid": ids(o.UID), "Gid": ids(o.GID), "Groups": "", "NoNewPrivs": "1",
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none}
	for line := range bytes.Lines(status) {
		name, value, _ := strings.Cut(string(line), ":")
		if expected, asked := want[name]; asked {
			if got := strings.TrimSpace(value); got != expected {
				return fmt.Errorf("%s is %q, want %q", name, got, expected)
			}
			delete(want, name)
		}
	}
	for name := range want {
		return fmt.Errorf("%s: not told in /proc", name)
	}
	return nil
}

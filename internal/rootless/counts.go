// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// What one run may have of what the kernel counts by user. The owner of a run's namespace is an id of the run's own, but above it all is
// charged to the user of the host once more (kernel/ucount.c): without these one agent takes the 128 inotify instances that all programs
// of the user have together. They hold for each id in our namespace by itself, so for each run.
var counts = []struct {
	name string
	most int
}{{"max_inotify_instances", 16}, {"max_inotify_watches", 8192}}

const userSysctls = "/proc/sys/user/"

// limitCounts lowers them in the namespace that we are in. What can't be written (a /proc/sys that is read-only) Counts tells.
func limitCounts() {
	for _, c := range counts {
		if now, err := readCount(c.name); err == nil && now > c.most {
			_ = os.WriteFile(userSysctls+c.name, []byte(strconv.Itoa(c.most)), 0)
		}
	}
}

// Counts tells why one run could take all of what the user has of something; nil: it can't. Inside only.
func Counts() error {
	for _, c := range counts {
		now, err := readCount(c.name)
		if err != nil {
			return err
		}
		if now > c.most {
			return fmt.Errorf("%s%s is %d and can't be lowered to %d: is /proc/sys read-only?", userSysctls, c.name, now, c.most)
		}
	}
	return nil
}

func readCount(name string) (int, error) {
	b, err := os.ReadFile(userSysctls + name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

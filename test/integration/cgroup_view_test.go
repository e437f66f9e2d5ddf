// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"agentrun/internal/hostcaps"
)

// M-3: whoever calls from below a group, in a cgroup namespace of their own or with that group alone mounted as an engine does, has runs
// whose groups the probe finds where it expects them. On cgroup v2 the kernel lets nobody out of such a namespace, which is told.
func TestM3CgroupsAsOthersSeeThem(t *testing.T) {
	at := "/sys/fs/cgroup/memory"
	if hostcaps.Cgroups() == hostcaps.CgroupV2 {
		at = "/sys/fs/cgroup"
	}
	ways := map[string][]string{"namespace": {"unshare", "--cgroup"}}
	if hostcaps.Cgroups() != hostcaps.CgroupV2 { // there a group has the controllers that those above it give
		ways["subtree"] = []string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" ` + at + ` && exec "$@"`, "GROUP"}
		ways["both"] = []string{"unshare", "--mount", "--cgroup", "sh", "-c", `mount --bind "$0" ` + at + ` && exec "$@"`, "GROUP"}
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			group := fmt.Sprintf("%s/agentrun-view-%s-%d", at, name, os.Getpid())
			if err := os.Mkdir(group, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { removeGroups(t, group) })
			under := []string{"/bin/sh", "-c", `echo 0 >"$0/cgroup.procs" && exec "$@"`, group}
			for _, word := range way {
				if word == "GROUP" {
					word = group
				}
				under = append(under, word)
			}
			r := run(t, opts{profile: "ring3", under: under}, "cat", "/proc/self/cgroup")
			if hostcaps.Cgroups() == hostcaps.CgroupV2 {
				if r.exit != 125 || !strings.Contains(r.stderr, "call agentrun from outside of that namespace") {
					t.Errorf("with nsdelegate: exit %d: %s", r.exit, r.stderr)
				}
			} else if r.exit != 0 {
				t.Errorf("exit %d: %s", r.exit, r.stderr)
			}
		})
	}
}

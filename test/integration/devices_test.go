// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// M-2, the attack: whoever stands in a live run's groups and has come to a device node opens it only if it is one of the few. Alone and by
// the daemon, whose runs have the filter in another place on hybrid hosts.
func TestM2DevicesOfLiveRuns(t *testing.T) {
	for _, by := range []string{"alone", "daemon"} {
		t.Run(by, func(t *testing.T) {
			p := newPlace(t)
			if by == "daemon" {
				n := &daemonNode{run: p.run, state: p.state, log: filepath.Join(filepath.Dir(p.run), "log")}
				n.start(t)
				defer n.drain(t)
			}
			p.detached("dev", workspace(t), opts{profile: "ring2"}, ":")
			defer p.do("kill", "dev")
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", asked[box](p, "inspect", "dev").PID))
			if err != nil {
				t.Fatal(err)
			}
			var groups []string
			for line := range strings.Lines(string(text)) {
				f := strings.SplitN(strings.TrimSpace(line), ":", 3)
				if !strings.Contains(f[2], "agentrun") {
					continue
				}
				at := "/sys/fs/cgroup"
				if f[1] != "" {
					at = filepath.Join(at, f[1])
				} else if _, err := os.Stat(at + "/unified"); err == nil {
					at += "/unified"
				}
				groups = append(groups, filepath.Join(at, f[2], "cgroup.procs"))
			}
			if len(groups) == 0 {
				t.Fatalf("no group of agentrun's in %s", text)
			}
			const script = `for g; do echo 0 > "$g" || exit 9; done; exec 3< "$0"` // sh exits 2 if it can't
			for device, want := range map[string]int{"/dev/zero": 0, "/dev/null": 0, "/dev/kmsg": 2} {
				for in, want := range map[string]int{"": 0, strings.Join(groups, " "): want} {
					c := exec.Command("sh", slices.Concat([]string{"-c", script, device}, strings.Fields(in))...)
					if out, _ := c.CombinedOutput(); c.ProcessState.ExitCode() != want {
						t.Errorf("%s in groups %q: exit %d, want %d: %s", device, in, c.ProcessState.ExitCode(), want, out)
					}
				}
			}
		})
	}
}

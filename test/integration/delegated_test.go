// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// A delegated cgroup is the user's, so its files are what keeps others from it: another local user, and whoever has the agent's own id
// on the host (an agent that has got out, say), can't move processes into or out of a run's group, raise a limit, freeze, kill, or make
// and remove groups. From inside there is no cgroup file system to do it with.
func TestM3DelegatedCgroupIsTheUsersAlone(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.CgroupIs(hostcaps.CgroupV2, "cpu", "memory", "pids"))
	needProgram(t, "setpriv", "sleep")
	u := someone(t)
	stdin, hold := io.Pipe()
	inside := []string{
		"create /sys/fs/cgroup/x", "mkdir /sys/fs/cgroup/x", "write /sys/fs/cgroup/cgroup.procs 0", "mount cgroup2 /tmp/sandbox",
		"release_agent", "ls /sys/fs/cgroup",
	}
	c := prepare(t, opts{user: u, stdin: stdin, flags: []string{"--no-gateway", "-i"}}, probeArgs(append(inside, "ready", "wait")...)...)
	c.startUntil(t, "ready")
	defer func() {
		hold.Close()
		c.finish(t)
	}()
	for words, answer := range answers(c.told) {
		if words != "ready" && (answer == "ok" || strings.HasPrefix(answer, "value=")) {
			t.Errorf("from inside: %s: %s", words, answer)
		}
	}
	group := ""
	for _, dir := range groupsBelow(u.cgroup + "/agentrun") {
		if filepath.Base(filepath.Dir(dir)) == "agentrun" {
			group = dir
		}
	}
	if group == "" {
		in, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.Cmd.Process.Pid))
		t.Fatalf("no run's group below %s: %v; the command is in %q, %v", u.cgroup, groupsBelow(u.cgroup), in, err)
	}
	procs, err := os.ReadFile(filepath.Join(group, "agent", "cgroup.procs"))
	if err != nil || len(procs) == 0 {
		t.Fatalf("%s: %q, %v", group, procs, err)
	}
	first := strings.Fields(string(procs))[0]
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+first, &st); err != nil {
		t.Fatal(err)
	}
	before := groupSettings(t, group)
	for _, uid := range []int{ordinary + 1, agentOf(t, procs)} {
		for _, try := range []struct{ what, script string }{
			{"enter", "echo $$ > " + group + "/cgroup.procs"},
			{"take out", "echo " + first + " > " + u.cgroup + "/agentrun-self/cgroup.procs"},
			{"take out to the top", "echo " + first + " > /sys/fs/cgroup/cgroup.procs"},
			{"memory", "echo max > " + group + "/memory.max"},
			{"swap", "echo max > " + group + "/memory.swap.max"},
			{"pids", "echo max > " + group + "/pids.max"},
			{"cpu", "echo max > " + group + "/cpu.max"},
			{"weight", "echo 10000 > " + group + "/cpu.weight"},
			{"freeze", "echo 1 > " + group + "/cgroup.freeze"},
			{"kill", "echo 1 > " + group + "/cgroup.kill"},
			{"kill all", "echo 1 > " + u.cgroup + "/cgroup.kill"},
			{"divide", "echo +memory > " + group + "/cgroup.subtree_control"},
			{"threads", "echo threaded > " + group + "/cgroup.type"},
			{"make", "mkdir " + group + "/mine"},
			{"make beside", "mkdir " + filepath.Dir(group) + "/mine"},
			{"rename", "mv " + group + " " + group + "-gone"},
			{"pressure", "echo 'some 1000000 1000000' > " + group + "/memory.pressure"},
		} {
			t.Run(fmt.Sprintf("%d %s", uid, try.what), func(t *testing.T) {
				id := strconv.Itoa(uid)
				out, err := exec.Command("setpriv", "--reuid", id, "--regid", id, "--clear-groups", "sh", "-c", try.script).CombinedOutput()
				if err == nil {
					t.Errorf("user %d could: %s %s", uid, try.script, out)
				}
			})
		}
	}
	if after := groupSettings(t, group); after != before {
		t.Errorf("the group was changed:\n%s\nbefore:\n%s", after, before)
	}
}

// agentOf is the host's id of the agent: the one of the run's processes that isn't the user's.
func agentOf(t *testing.T, procs []byte) int {
	t.Helper()
	for pid := range strings.FieldsSeq(string(procs)) {
		b, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "Uid:" && f[1] != strconv.Itoa(ordinary) && f[1] != "0" {
				n, err := strconv.Atoi(f[1])
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
	}
	t.Fatal("no process of the run has an id of its own")
	return 0
}

func groupSettings(t *testing.T, group string) string {
	t.Helper()
	var s strings.Builder
	for _, name := range []string{"cgroup.procs", "memory.max", "memory.swap.max", "pids.max", "cpu.max", "cpu.weight", "cgroup.freeze", "cgroup.subtree_control", "cgroup.type"} {
		b, err := os.ReadFile(filepath.Join(group, name))
		if name == "cpu.weight" && string(b) == "0\n" {
			b = []byte("100\n") // it yields, which is its supervisor's doing
		}
		fmt.Fprintf(&s, "%s: %s %v\n", name, b, err)
	}
	return s.String()
}

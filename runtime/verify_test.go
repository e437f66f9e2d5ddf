// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"agentrun/cgroups"
	"agentrun/fsjail"
	"agentrun/netns"
)

// elsewhere is a group that the process isn't in, with other limits than the plan's.
type elsewhere struct{ group }

func (elsewhere) Place(string) string      { return "/agentrun/r" }
func (elsewhere) Paths() map[string]string { return map[string]string{"nowhere": "/agentrun/r"} }
func (elsewhere) Limits() cgroups.Limits   { return cgroups.Limits{PIDs: 7} }
func (elsewhere) Verify() error            { return errors.New("read back: not so") }

// M-1: what is promised is read back from the kernel's account, one promise a check. An ordinary process of this host keeps none
// of a sandbox's, and each check must say so by itself: the launch ends with the first that does.
func TestM1EachCheckSeesADifference(t *testing.T) {
	left, right, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer left.Close()
	defer right.Close()
	c := exec.Command("/bin/sleep", "60")
	c.ExtraFiles = []*os.File{left}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	pid := c.Process.Pid
	l := &launch{
		plan: &Plan{Ring: 3, Cgroup: "agentrun/r", Namespaces: []string{"mnt", "pid", "user"}, Limits: PlanLimits{PIDs: 64}},
		ids:  &idRange{base: 1 << 20, agent: 1<<20 + 1, size: 16, inside: []idMap{{0, 1 << 20, 2}}}, group: elsewhere{},
		process: process{agentPID: pid}, initPID: pid,
		network: func() (*netns.NS, error) { return nil, errors.New("no network") },
		root:    &fsjail.Root{Staged: []string{"/etc"}},
	}
	ours := *l
	ours.ids = &idRange{agent: os.Getuid()}
	for _, tt := range []struct {
		name  string
		check func(*verifier) error
		of    *launch
		want  []string
	}{
		{"status", (*verifier).status, l, []string{"NoNewPrivs is 0, promised 1", "Seccomp is 0, promised 2", "Uid is", "Gid is", "oom_score_adj is"}},
		{"namespaces", (*verifier).namespaces, l, []string{"mnt namespace is the supervisor's", "pid namespace is", "user namespace is"}},
		{"idMaps", (*verifier).idMaps, l, []string{"uid_map is", "gid_map is"}},
		{"member", (*verifier).member, l, []string{"cgroup of nowhere is"}},
		{"limits", (*verifier).limits, l, []string{"cgroup limits is", "read back: not so"}},
		{"mounts", (*verifier).mounts, l, []string{"promised nothing", "mount / is", "mount /etc is absent"}},
		{"descriptors", (*verifier).descriptors, l, []string{"descriptor 3 is inherited"}},
		{"hidden", (*verifier).hidden, &ours, []string{fmt.Sprintf("process %d is dumpable", pid)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := &verifier{l: tt.of, pid: pid}
			v.check(func() error { return tt.check(v) })
			told := fmt.Sprint(errors.Join(v.errs...))
			for _, want := range tt.want {
				if !strings.Contains(told, want) {
					t.Errorf("got %.2000s, want %q among it", told, want)
				}
			}
			if gone := (&verifier{l: tt.of, pid: 1 << 30}); tt.name != "limits" && tt.check(gone) == nil {
				t.Error("nothing is wrong with a process that isn't there")
			}
		})
	}
	l.plan.Namespaces = []string{"net"}
	if (&verifier{l: l, pid: pid}).namespaces() == nil {
		t.Error("there is no network to compare with, and nobody says so")
	}
}

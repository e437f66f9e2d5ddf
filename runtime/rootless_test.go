// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentrun/cgroups"
	"agentrun/internal/rootless"
)

// No id of one run is one of another's, of the user's own (0), or beyond what the user was given.
func TestM1SubordinateBlocks(t *testing.T) {
	for _, n := range []int{rootless.MinIDs, 1000, 65536, 1 << 20} {
		p := subordinatePool(n)
		seen := map[int]bool{0: true}
		for i := range p.count {
			r := p.block(i, false)
			for _, id := range []int{r.base, r.hostAgent(), r.hostGateway()} {
				if seen[id] || id < 1 || id > n {
					t.Fatalf("%d ids, block %d: id %d is another's or none of them", n, i, id)
				}
				seen[id] = true
			}
			shared := p.block(i, true)
			if shared.hostAgent() != 0 || shared.hostGateway() == 0 || shared.inside[0].outside == 0 {
				t.Fatalf("block %d, shared: %+v, want the agent alone to be the user", i, shared)
			}
		}
		if p.count < 1 || p.count > rangeCount {
			t.Errorf("%d ids: %d blocks", n, p.count)
		}
	}
	if r := rootPool().block(3, true); r.agent != r.base+agentID || r.base != rangeBase+3*rangeSize {
		t.Errorf("as root: got %+v", r)
	}
}

// Without a cgroup a pid namespace is listed and killed whole, and promises nothing else.
func TestM5BareGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("need: root, for a pid namespace")
	}
	cmd := exec.Command("sh", "-c", "sleep 60 & sleep 60 & setsid sleep 60 & wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limits := cgroups.Limits{CPU: 1, Memory: 1 << 28, PIDs: 64}
	b := &bareGroup{limits: limits}
	if err := b.hold(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := b.Update(limits); err != nil {
		t.Errorf("the limits it was started with: %v", err)
	}
	for what, err := range map[string]error{
		"other limits": b.Update(cgroups.Limits{CPU: 1, Memory: 1 << 28, PIDs: 65}),
		"freeze":       b.Freeze(t.Context()), "thaw": b.Thaw(t.Context()),
	} {
		if !errors.Is(err, ErrNoCgroup) {
			t.Errorf("%s: got %v, want %v", what, err, ErrNoCgroup)
		}
	}
	if _, _, err := b.KillOthers(t.Context()); !errors.Is(err, ErrNoCgroup) {
		t.Errorf("kill others: got %v, want %v", err, ErrNoCgroup)
	}
	if err := b.Remove(t.Context()); !errors.Is(err, unix.EBUSY) {
		t.Errorf("remove while they live: got %v, want %v", err, unix.EBUSY)
	}
	if pids, err := b.Pids(); err != nil || len(pids) < 1 {
		t.Errorf("got %v, %v, want pid 1 at least", pids, err)
	}
	if n, err := b.Kill(context.Background()); err != nil || n < 1 {
		t.Errorf("kill: got %d, %v", n, err)
	}
	pids, err := b.Pids()
	if err != nil || len(pids) > 0 {
		t.Errorf("after the kill: got %v, %v, want nobody", pids, err)
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Errorf("remove: %v", err)
	}
	_ = cmd.Wait()
}

func TestM3CPUTicks(t *testing.T) {
	for text, want := range map[string]uint64{
		"7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 5 6 7": 100,
		"7 (a) S 1 7": 0,
		"":            0,
		"7 (a) S 1 7 7 0 -1 4194560 1 2 3 4 x 20 30 40 20": 0,
	} {
		if got := cpuTicks([]byte(text)); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}

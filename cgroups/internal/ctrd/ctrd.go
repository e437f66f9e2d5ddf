// SPDX-License-Identifier: Apache-2.0

// Package ctrd is the only place that imports github.com/containerd/cgroups/v3 (a leaf of package cgroups).
//
// It exists so that the price of that import can be seen and moved: linking cgroup1 and cgroup2 brings protobuf, D-Bus and the eBPF
// library into the binary (figures in docs/cgroups.md). Nothing of those types leaves this package.
//
// What is taken from the library: making a v1 subsystem, writing its limits, writing v2 limits, enabling one v2 controller, moving a
// process. What is not, and why: its v1 Freeze never gives up, its v2 Freeze reads back its own write instead of cgroup.events, it has
// no v1 kill, its kill by pid can hit a reused pid, and its Delete walks with RemoveAll. Package cgroups does those itself.
package ctrd

import (
	"fmt"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Limits are the values to write now; a nil or zero field is not written.
// Memory and Swap must not both be set for v1: the library's reordering for "raise both" swaps the limit with the soft limit instead of
// memsw (cgroup1/memory.go Update), so a raise fails with EINVAL. The caller orders them with two calls.
type Limits struct {
	CPUQuota   int64  // µs per period
	CPUPeriod  uint64 // µs
	Memory     *int64
	Swap       *int64 // v1: memory+swap; v2: swap alone
	Swappiness *uint64
	PIDs       int64 // 0 is "not written" in the library too, never "none allowed"
}

// Tree is one group in one hierarchy.
type Tree interface {
	Set(Limits) error
	Add(pid int) error
}

type v1Tree struct {
	cg   cgroup1.Cgroup
	name cgroup1.Name
}

// V1 takes hold of an existing group of one v1 controller mounted at root/controller.
// One subsystem at a time: the library's own loop stops at the first error without saying which controller it was working on.
func V1(root, controller, group string) (Tree, error) {
	var s cgroup1.Subsystem
	switch controller {
	case "cpu":
		s = cgroup1.NewCpu(root)
	case "cpuacct":
		s = cgroup1.NewCpuacct(root)
	case "memory":
		s = cgroup1.NewMemory(root)
	case "pids":
		s = cgroup1.NewPids(root)
	case "freezer":
		s = cgroup1.NewFreezer(root)
	default:
		return nil, fmt.Errorf("controller %s: not one that agentrun sets limits with", controller)
	}
	cg, err := cgroup1.Load(cgroup1.StaticPath("/"+group), cgroup1.WithHierarchy(func() ([]cgroup1.Subsystem, error) {
		return []cgroup1.Subsystem{s}, nil
	}))
	if err != nil {
		return nil, err
	}
	return v1Tree{cg, s.Name()}, nil
}

func (t v1Tree) Set(l Limits) error {
	r := &specs.LinuxResources{}
	if l.CPUQuota != 0 {
		r.CPU = &specs.LinuxCPU{Quota: &l.CPUQuota, Period: &l.CPUPeriod}
	}
	if l.Memory != nil || l.Swap != nil || l.Swappiness != nil {
		r.Memory = &specs.LinuxMemory{Limit: l.Memory, Swap: l.Swap, Swappiness: l.Swappiness}
	}
	if l.PIDs != 0 {
		r.Pids = &specs.LinuxPids{Limit: &l.PIDs}
	}
	return t.cg.Update(r)
}

func (t v1Tree) Add(pid int) error { return t.cg.AddProc(uint64(pid), t.name) }

type v2Tree struct{ m *cgroup2.Manager }

// V2 takes hold of an existing group below the cgroup2 mount point.
func V2(mount, group string) (Tree, error) {
	m, err := cgroup2.Load("/"+group, cgroup2.WithMountpoint(mount))
	if err != nil {
		return nil, err
	}
	return v2Tree{m}, nil
}

// EnableV2 enables one controller in every ancestor of group. One at a time because the kernel refuses a whole subtree_control write for
// one unknown name in it (cgroup_subtree_control_write: "+nosuch +memory" is EINVAL and memory stays off).
func EnableV2(mount, group, controller string) error {
	m, err := cgroup2.Load("/"+group, cgroup2.WithMountpoint(mount))
	if err != nil {
		return err
	}
	return m.ToggleControllers([]string{controller}, cgroup2.Enable)
}

func (t v2Tree) Set(l Limits) error {
	r := &cgroup2.Resources{}
	if l.CPUQuota != 0 {
		r.CPU = &cgroup2.CPU{Max: cgroup2.NewCPUMax(&l.CPUQuota, &l.CPUPeriod)}
	}
	if l.Memory != nil || l.Swap != nil {
		r.Memory = &cgroup2.Memory{Max: l.Memory, Swap: l.Swap}
	}
	if l.PIDs != 0 {
		r.Pids = &cgroup2.Pids{Max: l.PIDs}
	}
	return t.m.Update(r)
}

func (t v2Tree) Add(pid int) error { return t.m.AddProc(uint64(pid)) }

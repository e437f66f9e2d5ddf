// SPDX-License-Identifier: Apache-2.0

// Package cgroups holds one sandbox's control group over cgroup v1, v2 and hybrid hosts behind one type.
//
// It guarantees: a group made by Create has its CPU, memory (swap included) and pids limits in the kernel's files, read back; after Kill
// returns nil no live process is in any hierarchy under the group's name, fork bombs and frozen processes included; after Remove returns
// nil no directory of that name is left, also not those that somebody made beside ours; Freeze and Thaw return when the kernel says
// so, or at the end of their context. A failed Create leaves nothing.
//
//	g, err := cgroups.Create("agentrun/"+id, cgroups.Limits{CPU: 0.5, Memory: 512 << 20, PIDs: 128})
//	if err != nil { return err }
//	defer g.Remove(ctx)
//	defer g.Kill(ctx) // runs before Remove
//	err = g.Add(pid)
//
// Errors name the group, the controller and the file, or the controllers that the host lacks. fs.ErrExist from Create: the name is
// taken, by a live run or by what a dead one left (Sweep removes those). errors.ErrUnsupported: the kernel has no such thing (OOMKills
// on v1 before 4.13). The context's error: Freeze, Thaw, Kill or Remove ran out of time; Kill then lists who is left.
//
// It does not protect against root on the host, nor against a process with write access to the cgroup tree: the sandbox must not see
// /sys/fs/cgroup, and needs a cgroup namespace so that it does not read its place in it. It sets no device rules, no I/O limits and no
// cpuset. It checks that limits are sane, not that policy allows them. It needs pidfd (Linux 5.3).
//
// How it fails: closed. A limit that cannot be written or does not read back is an error; a needed controller that is missing is an
// error; swap that cannot be limited while the host has swap is an error. Only cgroup.kill and cgroup.freeze have a replacement, the v1
// freezer and signals by pidfd, which proves the same outcome by reading cgroup.procs. docs/cgroups.md has what is set where and figures.
package cgroups

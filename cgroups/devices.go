// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/moby/sys/userns"
	"golang.org/x/sys/unix"
)

// device is one that a sandbox may open, whatever nodes it may come to see. The agent can make no node (no CAP_MKNOD, nodev mounts); this
// is the wall behind that one (M-2).
type device struct{ major, minor int32 }

const anyMinor = -1

var devices = []device{
	{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, // null, zero, full, random, urandom
	{5, 0}, {5, 2}, {136, anyMinor}, // tty, ptmx, pts/*
}

func (d device) String() string {
	if d.minor == anyMinor {
		return fmt.Sprintf("c %d:* rw", d.major)
	}
	return fmt.Sprintf("c %d:%d rw", d.major, d.minor)
}

// limitDevices lets the group open nothing but devices. In a user namespace the kernel gives nobody the right to say so; there no device
// node can be made or mounted either.
func (g *Group) limitDevices() error {
	if userns.RunningInUserNS() {
		return nil
	}
	for _, h := range g.hiers {
		if h.used && slices.Contains(h.controllers, "devices") {
			return limitDevicesV1(h.dir)
		}
	}
	if u, ok := g.unified(); ok {
		return limitDevicesV2(g.home(u))
	}
	return errors.New("controller devices: no hierarchy has it")
}

// limitDevicesV1 reads it back: the list is the kernel's own account.
func limitDevicesV1(dir string) error {
	if err := writeFile(filepath.Join(dir, "devices.deny"), "a"); err != nil {
		return err
	}
	var rules []string
	for _, d := range devices {
		rules = append(rules, d.String())
	}
	if err := writeFile(filepath.Join(dir, "devices.allow"), rules...); err != nil {
		return err
	}
	list, err := readFile(filepath.Join(dir, "devices.list"))
	if err != nil {
		return err
	}
	if got := strings.Count(list, "\n") + 1; got != len(devices) || strings.Contains(list, "a ") {
		return fmt.Errorf("devices.list is %q, set %v", list, devices)
	}
	return nil
}

// Prepare loads what every group of a process that makes many may share. Where it can't be loaded, groups are as they are without it.
// A group made after it is in one hierarchy less on hybrid hosts: loading the filter takes as long as limiting one group by its list.
func Prepare() {
	if userns.RunningInUserNS() {
		return
	}
	if _, err := deviceFilter(); err == nil {
		prepared.Store(true)
	}
}

var prepared atomic.Bool

var loaded struct {
	mu     sync.Mutex
	filter *ebpf.Program
}

// deviceFilter stays loaded. What fails once is tried again.
func deviceFilter() (_ *ebpf.Program, err error) {
	loaded.mu.Lock()
	defer loaded.mu.Unlock()
	if loaded.filter == nil {
		loaded.filter, err = loadDeviceFilter()
	}
	return loaded.filter, err
}

// loadDeviceFilter has a filter that decides by struct bpf_cgroup_dev_ctx (linux/bpf.h): {access_type: access << 16 | type, major, minor}.
func loadDeviceFilter() (*ebpf.Program, error) {
	const (
		access, major, minor = 0, 4, 8
		char                 = 2 // BPF_DEVCG_DEV_CHAR
		mknod                = 1 // BPF_DEVCG_ACC_MKNOD
	)
	list := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, access, asm.Word),
		asm.LoadMem(asm.R4, asm.R1, major, asm.Word),
		asm.LoadMem(asm.R5, asm.R1, minor, asm.Word),
		asm.Mov.Reg(asm.R3, asm.R2),
		asm.And.Imm(asm.R3, 0xffff),
		asm.JNE.Imm(asm.R3, char, "no"),
		asm.RSh.Imm(asm.R2, 16),
		asm.And.Imm(asm.R2, mknod),
		asm.JNE.Imm(asm.R2, 0, "no"),
	}
	for i, d := range devices {
		next := fmt.Sprint("after", i)
		list = append(list, asm.JNE.Imm(asm.R4, d.major, next))
		if d.minor != anyMinor {
			list = append(list, asm.JNE.Imm(asm.R5, d.minor, next))
		}
		list = append(list, asm.Mov.Imm(asm.R0, 1), asm.Return())
		list = append(list, asm.Mov.Imm(asm.R0, 0).WithSymbol(next))
	}
	list = append(list, asm.Mov.Imm(asm.R0, 0).WithSymbol("no"), asm.Return())
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: "agentrun_dev", Type: ebpf.CGroupDevice, License: "Apache-2.0", Instructions: list})
}

// limitDevicesV2 attaches the filter to a group of the cgroup2 tree; it goes with that.
func limitDevicesV2(dir string) error {
	filter, err := deviceFilter()
	if err != nil {
		return fmt.Errorf("controller devices: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	err = link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(f.Fd()), Program: filter, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI})
	if err != nil {
		return fmt.Errorf("controller devices: %w", err)
	}
	have, err := link.QueryPrograms(link.QueryOptions{Target: int(f.Fd()), Attach: ebpf.AttachCGroupDevice})
	if err == nil && len(have.Programs) == 0 {
		err = errors.New("the kernel has no filter of devices after it was attached")
	}
	return err
}

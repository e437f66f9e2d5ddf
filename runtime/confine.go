// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/runtime/internal/stub"
)

// confinement is what the agent's process gives up, in the stub's words. One that waits for its command
// learns its folder with it, and enters Landlock then if the workspace comes later too.
func (p *Plan) confinement(bpf []byte, waits, workspace bool) *stub.Confinement {
	m := &stub.Confinement{
		TTY: p.TTY, WaitKillable: p.Seccomp.WaitKillable, LandlockFS: p.Landlock.FS, LandlockScoped: p.Landlock.Scoped, BPF: bpf,
		LandlockLate: waits && workspace && p.Landlock.FS != 0,
	}
	if !waits {
		m.Cwd = p.Cwd
	}
	for _, r := range p.Landlock.Rules {
		m.Rules = append(m.Rules, stub.Rule{Access: r.Access, Path: r.Path})
	}
	for _, r := range p.Rlimits {
		m.Rlimits = append(m.Rlimits, stub.Rlimit{Resource: r.resource, Cur: r.soft(), Max: r.Value})
	}
	return m
}

// command is what it executes.
func (p *Plan) command(waited bool) *stub.Command {
	c := &stub.Command{Exe: p.Command.Exe, Args: p.Command.Args, Env: p.Env}
	if waited {
		c.Cwd = p.Cwd
	}
	return c
}

// lateCalls are what a process that waits does behind its filter, besides stubCalls.
var lateCalls = []string{"chdir", "landlock_restrict_self"}

// mayWait says whether the agent's process can be made before its command is known. Its filter must let it do
// the rest; what it may execute must not hang on the command (mode tools); a terminal is opened with the run; and a bundle's
// filter comes with its container.
func (p *Plan) mayWait() bool {
	return p.filterSum != [32]byte{} && p.bundle.Len() == 0 && !p.TTY && !p.onlyTools() && !slices.ContainsFunc(lateCalls, func(call string) bool { return !letsPass(&p.profile, call) })
}

// splitRules tells Landlock's rules about the workspace from the others, as split does with the entries.
func splitRules(all []fsjail.LandlockRule) (early, late []fsjail.LandlockRule) {
	for _, r := range all {
		if r.Path == workspaceDir || strings.HasPrefix(r.Path, workspaceDir+"/") {
			late = append(late, r)
		} else {
			early = append(early, r)
		}
	}
	return early, late
}

// addRules adds those about the workspace to the ruleset that the waiting process will enter. Landlock ties a
// rule to the file and not to a path (landlock(7)), so it can be made from outside, by the descriptor of the
// mount.
func (l *launch) addRules(d *fsjail.Detached) error {
	_, late := splitRules(l.plan.Landlock.Rules)
	if len(late) == 0 {
		return nil
	}
	if l.ruleset == nil {
		return errors.New("landlock: the process that waits has entered its domain already")
	}
	for _, r := range late {
		fd, ok := d.FD(r.Path)
		if !ok {
			return fmt.Errorf("landlock rule for %s: nothing is mounted there", r.Path)
		}
		a := unix.LandlockPathBeneathAttr{Allowed_access: r.Access, Parent_fd: int32(fd)} //nolint:gosec // a descriptor
		_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, fdOf(l.ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&a)), 0, 0, 0)
		if errno != 0 {
			return fmt.Errorf("landlock rule for %s: %w", r.Path, os.NewSyscallError("landlock_add_rule", errno))
		}
	}
	return nil
}

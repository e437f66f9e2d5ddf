// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/profiles"
)

// PlanRlimit is one resource limit of setrlimit(2).
type PlanRlimit struct {
	Name    string  `json:"name"`
	Value   uint64  `json:"value"`
	Soft    *uint64 `json:"soft,omitempty"`    // of a container's bundle; nil: as Value
	Clamped bool    `json:"clamped,omitempty"` // the host's hard limit is lower than what the profile gives

	resource int
}

// planEnv puts the environment together, and what comes later wins: the profile's, ours, the way out's, what
// is passed on from the caller, and last what was said for this run.
func (p *Plan) planEnv(s *Spec) {
	env := map[string]string{}
	for _, kv := range s.Image.Env {
		if k, v, _ := strings.Cut(kv, "="); k != "HOME" && k != "TMPDIR" { // in the image they can't be written
			env[k] = v
		}
	}
	path, ofImage := env["PATH"]
	for _, e := range p.profile.Environment.Set {
		env[e.Name] = e.Value
	}
	if ofImage {
		env["PATH"] = path // where programs are is the root's to say
	}
	env["PATH"] = cmp.Or(env["PATH"], defaultPath)
	env["HOME"] = cmp.Or(env["HOME"], HomeDir)
	env["TMPDIR"] = cmp.Or(env["TMPDIR"], scratchDir)
	env["USER"], env["LOGNAME"] = "agent", "agent"
	env["PWD"] = p.Cwd
	p.wayoutEnv(env)
	pass := func(name string) {
		named := name + "="
		for _, kv := range s.Environ {
			if v, ok := strings.CutPrefix(kv, named); ok {
				env[name] = v
			}
		}
	}
	for _, e := range p.profile.Environment.Pass {
		pass(e.Name)
	}
	for _, name := range s.EnvPass {
		pass(name)
	}
	for _, kv := range s.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	p.gitConfig(env, len(s.Binds) > 0)
	for k, v := range env {
		p.Env = append(p.Env, k+"="+v)
	}
	slices.Sort(p.Env)
}

// gitConfig has git compare files by time and size, and work in repositories that aren't the agent's. Its index
// knows the host's uid for each file, and the agent is shown another: git would read every file of the
// repository at the first status, and again on the host afterwards. And what --ro-bind shows, as what others
// own in a workspace, is nobody's inside, which git refuses to look into: its guard is against repositories of
// other users of the machine, and here is none. Git takes settings from its environment (git-config(1)), so no
// file is changed; where somebody else gives it some that way, theirs alone count.
func (p *Plan) gitConfig(env map[string]string, binds bool) {
	_, given := env["GIT_CONFIG_COUNT"]
	if given || !binds && !slices.ContainsFunc(p.Entries, func(e fsjail.Entry) bool { return e.Owner != nil }) {
		return
	}
	env["GIT_CONFIG_COUNT"] = "2"
	env["GIT_CONFIG_KEY_0"], env["GIT_CONFIG_VALUE_0"] = "core.checkStat", "minimal"
	env["GIT_CONFIG_KEY_1"], env["GIT_CONFIG_VALUE_1"] = "safe.directory", "*"
}

// Pending signals and POSIX timers are counted by user, up through the owners of the namespaces (asOwner): as
// an ordinary user's the counter of all their programs. A single process has no use for many: with 4096 for
// each, 24 runs were all that one user may have.
func pendingSignals(ring int) uint64 {
	if ring >= 3 {
		return 256
	}
	return 1024
}

// coreLimit keeps dumps, which carry the sandbox's memory, from the host. Where kernel.core_pattern is a program, as
// apport and systemd-coredump make it, the kernel starts it at a limit of 0 too (core(5)): as root, outside of every
// limit, with names and memory of the agent's, once for each crash. At 1 byte it does not (fs/coredump.c, since Linux
// 2.6.32), and no file is as small. The filter keeps the agent from making it 0.
const coreLimit = 1

func (p *Plan) planRlimits(l profiles.Limits, bundle []specs.POSIXRlimit) error {
	want := []PlanRlimit{
		{Name: "core", resource: unix.RLIMIT_CORE, Value: coreLimit},
		{Name: "nofile", resource: unix.RLIMIT_NOFILE, Value: uint64(l.OpenFiles)},
		{Name: "fsize", resource: unix.RLIMIT_FSIZE, Value: uint64(l.FileSize)},
		{Name: "memlock", resource: unix.RLIMIT_MEMLOCK, Value: uint64(l.LockedMemory)},
		{Name: "stack", resource: unix.RLIMIT_STACK, Value: 8 << 20},
		{Name: "nice", resource: unix.RLIMIT_NICE},
		{Name: "rtprio", resource: unix.RLIMIT_RTPRIO},
		{Name: "msgqueue", resource: unix.RLIMIT_MSGQUEUE, Value: 819200},
		{Name: "sigpending", resource: unix.RLIMIT_SIGPENDING, Value: pendingSignals(p.Ring)},
	}
	want, err := narrowed(want, bundle)
	if err != nil {
		return err
	}
	for _, r := range want {
		var host unix.Rlimit
		if err := unix.Getrlimit(r.resource, &host); err != nil {
			return fmt.Errorf("getrlimit %s: %w", r.Name, err)
		}
		// Raising a hard limit takes CAP_SYS_RESOURCE, which even root may lack; the lower one is the
		// stricter one.
		if host.Max < r.Value {
			r.Value, r.Clamped = host.Max, true
		}
		if r.Soft != nil && *r.Soft >= r.Value {
			r.Soft = nil
		}
		p.Rlimits = append(p.Rlimits, r)
	}
	return nil
}

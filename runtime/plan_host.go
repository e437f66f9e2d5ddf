// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"agentrun/fsjail"
	"agentrun/internal/hostcaps"
	"agentrun/profiles"
)

// Missing is a protection that was asked for and that this host can't give.
type Missing struct {
	Name  string `json:"name"`
	Loses string `json:"loses"`
	Why   string `json:"why"`
}

// setIDFiles looks for them where the agent may write in the ring it begins in or, with live, in one that it
// is elevated to. What fsjail.LookForSetID says of its bounds holds.
func (p *Plan) setIDFiles(live bool) error {
	for _, e := range p.Entries {
		if p.lookedAtIDs || e.Guard || e.Kind != fsjail.Bind || e.Device || !e.Writable && !(live && e.Live) {
			continue
		}
		if err := fsjail.LookForSetID(e.Source, e.Owner); err != nil {
			return err
		}
	}
	return nil
}

// MissingError names the host's missing abilities that stopped a plan.
type MissingError struct {
	Missing []Missing
	Needed  bool // cannot go on without, whatever is asked for
}

func (e *MissingError) Error() string {
	var names []string
	for _, m := range e.Missing {
		names = append(names, fmt.Sprintf("%s (%s)", m.Name, m.Why))
	}
	return "this host lacks " + strings.Join(names, ", ")
}

// planHost asks what this host can. Without what is needed no run is possible, whatever is asked for; without
// the second kind a run is weaker, which takes the caller's word (best effort), and is told before the run
// and in its status.
func (p *Plan) planHost(looking func() abilities, bestEffort bool) error {
	weaker := p.planRootless()
	host := looking()
	needed, second := host.needed, host.second
	if !p.bare {
		needed, second = slices.Concat(needed, host.cgroups), slices.Concat(second, host.socketMemory)
	}
	if p.WritableRoot || p.Overlay || p.layered {
		needed = append(needed, missing(hostcaps.OverlayIDMapped)...)
	}
	if len(needed) > 0 {
		return &MissingError{needed, true}
	}
	// Walls that have another one behind them: without these a run is weaker, not open.
	p.Missing = append(weaker, second...)
	if bestEffort {
		if err := p.setIDFiles(true); err != nil {
			p.Missing = append(p.Missing, Missing{"set-id-files", "the run can rewrite programs that the host executes with other rights than their caller's, and the bit stays", err.Error()})
		}
		p.lookedAtIDs = true
	}
	if len(p.Missing) > 0 && !bestEffort {
		return &MissingError{p.Missing, false}
	}
	p.Namespaces = []string{"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"}
	if hostcaps.TimeNS.Check() == nil {
		p.Namespaces = append(p.Namespaces, "time")
	}
	if hostcaps.ProcSubset.Check() == nil {
		p.ProcOptions = "subset=pid"
		p.Entries = append(p.Entries, planFacts()...)
	}
	p.CgroupMode = host.mode.String()
	if abi, err := hostcaps.LandlockABI(); err == nil {
		p.LandlockABI = abi
		p.Landlock = fsjail.Landlock(abi, p.Entries, p.WritableRoot)
		if p.onlyTools() {
			if err := p.narrowExec(); err != nil {
				return err
			}
		}
	} else if p.onlyTools() {
		return &MissingError{[]Missing{{"landlock", "profile " + p.Profile + " allows named programs only, and nothing else can hold execve to them", err.Error()}}, true}
	}
	p.Seccomp.WaitKillable = hostcaps.SeccompWaitKillable.Check() == nil
	return nil
}

func (p *Plan) keeps() bool { return p.OnDemotion == string(profiles.DemotionKeep) }

func (p *Plan) onlyTools() bool { return p.profile.Subprocess.Mode == profiles.SubprocessTools }

// abilities are what every plan asks the host for; what it can isn't listed.
type abilities struct {
	mode                                  hostcaps.CgroupMode
	needed, second, cgroups, socketMemory []Missing
}

// HostAhead is what a plan looks at on its host whatever its Spec says.
type HostAhead struct {
	root func() ([]fsjail.Entry, error)
	host func() abilities
}

// LookAhead prepares the looks. Each is made by Look, or by the plan if that hasn't come to it.
func LookAhead() *HostAhead {
	return &HostAhead{root: sync.OnceValues(fsjail.HostRoot), host: sync.OnceValue(lookAtHost)}
}

// Look makes those that no plan has asked for yet.
func (a *HostAhead) Look() {
	_, _ = a.root()
	_ = a.host()
}

// lookAtHost asks for them while the plan is made.
func lookAtHost() (a abilities) {
	a.mode = hostcaps.Cgroups()
	a.needed = missing(hostcaps.Root, hostcaps.UserNS, hostcaps.CgroupNS, hostcaps.NewMountAPI, hostcaps.Openat2, hostcaps.Pidfd, hostcaps.Seccomp, hostcaps.SeccompNotify)
	a.second = missing(hostcaps.Landlock(1), hostcaps.ProcSubset, hostcaps.SocketBuffers)
	a.cgroups = missing(hostcaps.CgroupIn(a.mode, "cpu", "memory", "pids", "freezer", "devices"))
	a.socketMemory = missing(hostcaps.SocketMemory)
	return a
}

// missing asks each probe now: what a kernel or an operator took away since the last run counts.
func missing(probes ...*hostcaps.Probe) []Missing {
	var ms []Missing
	for _, probe := range probes {
		if err := probe.Check(); err != nil {
			ms = append(ms, Missing{probe.Name, probe.Loses, err.Error()})
		}
	}
	return ms
}

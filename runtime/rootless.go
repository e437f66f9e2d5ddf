// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"agentrun/fsjail"
	"agentrun/internal/hostcaps"
	"agentrun/internal/rootless"
)

// planRootless makes what differs for an ordinary user, and names the protections that root would have
// (docs/rootless.md).
func (p *Plan) planRootless() (weaker []Missing) {
	if !rootless.Is() {
		return nil
	}
	p.Rootless = true
	if err := hostcaps.CgroupDelegation.Check(); err != nil {
		p.bare, p.Cgroup = true, ""
		weaker = append(weaker, Missing{hostcaps.CgroupDelegation.Name, hostcaps.CgroupDelegation.Loses, err.Error()})
	}
	if err := rootless.Counts(); err != nil {
		weaker = append(weaker, Missing{"user-counts", "one agent can take all the inotify instances and watches that the user has", err.Error()})
	}
	for i := range p.Entries {
		e := &p.Entries[i]
		if e.Kind != fsjail.Bind || e.Owner == nil {
			continue
		}
		e.Owner = nil // idmapped mounts take privilege over the file system's own user namespace
		if e.Writable && !p.shared {
			p.shared = true
			weaker = append(weaker, Missing{
				Name:  "uid-of-its-own",
				Loses: "the agent's uid on the host is the user's own: nothing but its namespaces keeps it from what is the user's, and its files are the user's",
				Why:   e.Target + " is writable, and an ordinary user can't have the host's files shown under another owner (idmapped mounts)",
			})
		}
	}
	return weaker
}

// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"fmt"
	"slices"
)

// takeLists returns p's lists and leaves none, so that a document decoded onto p brings only its own.
func takeLists(p *Profile) Profile {
	lists := Profile{
		Files:       Files{Etc: p.Files.Etc, Guard: p.Files.Guard},
		Subprocess:  Subprocess{Tools: p.Subprocess.Tools},
		Environment: p.Environment,
		Syscalls:    p.Syscalls,
	}
	p.Files.Etc, p.Files.Guard, p.Subprocess.Tools, p.Environment, p.Syscalls = nil, nil, nil, Environment{}, nil
	return lists
}

// mergeLists joins the parent's lists to the child's: entries by path or name, the child's over the parent's; rules by
// mergeRules.
func mergeLists(child *Profile, parent Profile, rep report) {
	child.Files.Etc = joinBy(parent.Files.Etc, child.Files.Etc, func(e EtcEntry) string { return e.Path })
	child.Files.Guard = joinBy(parent.Files.Guard, child.Files.Guard, func(e GuardEntry) string { return e.Path })
	child.Subprocess.Tools = joinBy(parent.Subprocess.Tools, child.Subprocess.Tools, func(t Tool) string { return t.Path })
	child.Environment.Set = joinBy(parent.Environment.Set, child.Environment.Set, func(e EnvSet) string { return e.Name })
	child.Environment.Pass = joinBy(parent.Environment.Pass, child.Environment.Pass, func(e EnvPass) string { return e.Name })
	child.Syscalls = mergeRules(child.Syscalls, parent.Syscalls, rep)
}

func joinBy[T any](parent, child []T, key func(T) string) []T {
	out := slices.Clone(parent)
	for _, c := range child {
		if i := slices.IndexFunc(out, func(p T) bool { return key(p) == key(c) }); i >= 0 {
			out[i] = c
		} else {
			out = append(out, c)
		}
	}
	return out
}

// mergeRules orders rules: the parent's floor, the child's floor, the child's rules, the parent's rules. It drops names
// that an earlier rule decides for every argument; where the child's own file says something that can't take effect, that
// is reported, since its author believes it does.
func mergeRules(child, parent []SyscallRule, rep report) []SyscallRule {
	var out []SyscallRule
	m := ruleMerger{decided: map[string]string{}, conds: map[string]string{}}
	isFloor := func(r SyscallRule) bool { return r.Floor }
	for _, r := range parent {
		if isFloor(r) {
			out = m.add(out, r, "the floor rule of a parent", nil)
		}
	}
	for _, floor := range []bool{true, false} {
		for i, r := range child {
			if isFloor(r) == floor {
				at := fmt.Sprintf("syscalls[%d]", i)
				out = m.add(out, r, at, func(name, by string) {
					rep(at, "can't take effect for %s: decided before by %s", name, by)
				})
			}
		}
	}
	for _, r := range parent {
		if !isFloor(r) {
			out = m.add(out, r, "a parent's rule", nil)
		}
	}
	return out
}

type ruleMerger struct {
	decided map[string]string // name → the rule without conditions that decides it
	conds   map[string]string // name and conditions → the rule that has them
}

func (m *ruleMerger) add(out []SyscallRule, r SyscallRule, at string, unreachable func(name, by string)) []SyscallRule {
	live := make([]string, 0, len(r.Names))
	for _, name := range r.Names {
		same := fmt.Sprint(name, condKey(r.Args))
		by, dead := m.decided[name]
		if !dead {
			by, dead = m.conds[same]
		}
		if dead {
			if unreachable != nil {
				unreachable(name, by)
			}
			continue
		}
		live = append(live, name)
		m.conds[same] = at
		if len(r.Args) == 0 {
			m.decided[name] = at
		}
	}
	if len(live) == 0 {
		return out
	}
	r.Names = live
	return append(out, r)
}

// condKey is the conditions without how their numbers were written.
func condKey(args []ArgCond) string {
	key := ""
	for _, c := range args {
		key += fmt.Sprintf(" %d%s%x/%x", c.Index, c.Op, c.Value.N, c.Mask.N)
	}
	return key
}

// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"crypto/sha256"
	"errors"
	"sync"

	"agentrun/seccomp"
)

// filters are those of the profiles that runs had lately. Turning 300 rules into a filter takes a tenth of a
// millisecond. One is found by the digest of its whole profile.
var filters filterMemo

const maxFilters = 8

type filterMemo struct {
	mu   sync.Mutex
	kept map[string]keptFilter
}

// keptFilter is not written to any more.
type keptFilter struct {
	filter seccomp.Filter
	sum    [sha256.Size]byte // its digest
}

// plan is planFilter. A profile whose filter can't be made is tried anew each time.
func (m *filterMemo) plan(p *Plan) error {
	if p.ProfileSum == "" { // it would be every profile's
		return errors.New("the plan has no digest of its profile")
	}
	f, ok := m.get(p.ProfileSum)
	if !ok {
		c := Plan{Profile: p.Profile, profile: p.profile}
		if err := c.planFilter(); err != nil {
			return err
		}
		detachNames(c.filter.Rules) // the profile is its caller's
		f = keptFilter{c.filter, c.filter.Digest()}
		m.keep(p.ProfileSum, f)
	}
	p.filter, p.filterSum, p.Seccomp.Rules, p.Seccomp.Unlisted = f.filter, f.sum, len(f.filter.Rules), f.filter.Unlisted.String()
	return nil
}

// detachNames copies the names of system calls, which a filter has of its profile's, into one array.
func detachNames(rules []seccomp.Rule) {
	n := 0
	for _, r := range rules {
		n += len(r.Syscalls)
	}
	names := make([]string, 0, n)
	for i := range rules {
		r := &rules[i]
		names = append(names, r.Syscalls...)
		r.Syscalls = names[len(names)-len(r.Syscalls) : len(names) : len(names)]
	}
}

func (m *filterMemo) get(sum string) (keptFilter, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.kept[sum]
	return f, ok
}

func (m *filterMemo) keep(sum string, f keptFilter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil || len(m.kept) >= maxFilters {
		m.kept = map[string]keptFilter{}
	}
	m.kept[sum] = f
}

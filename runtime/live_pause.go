// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// GiveBack has the kernel take back what memory the run can do without, and returns how many bytes that was: files' contents that can be
// read again. It is for a run that stands still. What memory others take or free meanwhile is in the number too. It takes no turn: a
// change of ring doesn't wait for it. A kernel that can't give back gives 0.
func (v *Live) GiveBack(ctx context.Context) (int64, error) {
	g, ok := v.launch.group.(*runGroup)
	if !ok {
		return 0, ErrNoCgroup
	}
	ctx, cancel := v.within(ctx)
	defer cancel()
	before, err := g.Stats()
	if err != nil {
		return 0, v.orEnded(err)
	}
	if err := g.Reclaim(ctx); errors.Is(err, errors.ErrUnsupported) {
		return 0, nil
	} else if err != nil {
		return 0, v.orEnded(err)
	}
	after, err := g.Stats()
	return max(0, before.MemoryCurrent-after.MemoryCurrent), v.orEnded(err)
}

// Used is the processor time of the run and of its gateway.
func (v *Live) Used() (time.Duration, error) {
	s, err := v.launch.group.Account()
	if err != nil {
		return 0, v.orEnded(err)
	}
	used := s.CPU
	if r, ok := v.launch.group.(*runGroup); ok {
		used += r.gatewayUsed().CPU
	}
	return used, nil
}

// Joined is how many commands have joined the run and not ended.
func (v *Live) Joined() int {
	v.joins.mu.RLock()
	defer v.joins.mu.RUnlock()
	return len(v.joins.all)
}

// Wants tells whether a thread of the run waits for a processor: on a busy host one that yields uses none for long, and is not idle.
// What it can't read it takes for one that does.
func (v *Live) Wants() bool {
	pids, err := v.launch.group.Pids()
	if err != nil {
		return true
	}
	for _, pid := range pids {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return true
		}
		for _, thread := range threads {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, thread.Name()))
			if err != nil || bytes.HasPrefix(b[bytes.LastIndexByte(b, ')')+1:], []byte(" R")) {
				return true
			}
		}
	}
	return false
}

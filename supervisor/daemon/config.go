// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"time"

	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/supervisor/daemon/queue"
)

// Config is "serve:" of the configuration file. What is left out has its default; flags of serve come first.
type Config struct {
	MaxSandboxes  int           `yaml:"max_sandboxes"`  // 0: as many as there is memory for
	Queue         int           `yaml:"queue"`          // that may wait for room
	QueueTimeout  time.Duration `yaml:"queue_timeout"`  // how long
	Grace         time.Duration `yaml:"grace"`          // between SIGTERM and the kill when the daemon ends
	MemoryReserve read.Word     `yaml:"memory_reserve"` // what is left to the host, as 512M
	MemoryShare   *float64      `yaml:"memory_share"`   // of what live runs may still take, how much counts as taken
	// Pool is how many sandboxes are always ready, by profile, without a workspace and as many with one; more
	// are prepared as they are asked for, at most PoolMax of all kinds. PoolMax 0: none.
	Pool    map[string]int `yaml:"pool"`
	PoolMax *int           `yaml:"pool_max"`
}

// What holds where a Config says nothing, and the bounds of what it may say.
const (
	DefaultQueue        = 1000
	DefaultQueueTimeout = time.Minute
	// MaxGrace is what runtime gives an agent after a signal that asks it to end.
	MaxGrace       = 5 * time.Second
	defaultReserve = 256 << 20
	DefaultPoolMax = 8
	mostPoolMax    = 1000
)

// Settings fills in every default and checks every value.
func (s Config) Settings() (Settings, error) {
	l := Settings{
		Limits: queue.Limits{Runs: s.MaxSandboxes, Waiting: DefaultQueue, Timeout: DefaultQueueTimeout, Reserve: defaultReserve, Share: 1},
		Grace:  MaxGrace, PoolMax: DefaultPoolMax, Pool: s.Pool,
	}
	if s.Queue != 0 {
		l.Waiting = s.Queue
	}
	if s.QueueTimeout != 0 {
		l.Timeout = s.QueueTimeout
	}
	if s.Grace != 0 {
		l.Grace = s.Grace
	}
	if s.MemoryReserve != "" {
		size, err := profiles.ParseSize(string(s.MemoryReserve))
		if err != nil {
			return l, fmt.Errorf("serve.memory_reserve: %w", err)
		}
		l.Reserve = int64(size)
	}
	if s.MemoryShare != nil {
		l.Share = *s.MemoryShare
	}
	switch {
	case l.Runs < 0:
		return l, fmt.Errorf("serve.max_sandboxes: %d, want a number from 1, or leave it out", l.Runs)
	case l.Waiting < 0:
		return l, fmt.Errorf("serve.queue: %d, want a number from 1", l.Waiting)
	case l.Timeout < 0:
		return l, fmt.Errorf("serve.queue_timeout: %s, want a time", l.Timeout)
	case l.Grace < 0 || l.Grace > MaxGrace:
		return l, fmt.Errorf("serve.grace: %s, want at most %s", l.Grace, MaxGrace)
	case l.Reserve < 0:
		return l, fmt.Errorf("serve.memory_reserve: %d, want a size", l.Reserve)
	case !(l.Share >= 0 && l.Share <= 1): // NaN too
		return l, fmt.Errorf("serve.memory_share: %g, want 0 to 1", l.Share)
	}
	if s.PoolMax != nil {
		l.PoolMax = *s.PoolMax
	}
	if l.PoolMax < 0 || l.PoolMax > mostPoolMax {
		return l, fmt.Errorf("serve.pool_max: %d, want 0 to %d", l.PoolMax, mostPoolMax)
	}
	for profile, n := range s.Pool {
		if n < 0 || 2*n > l.PoolMax {
			return l, fmt.Errorf("serve.pool: %.64s: %d, want a number from 0, with and without a workspace not over serve.pool_max, which is %d", profile, n, l.PoolMax)
		}
	}
	return l, nil
}

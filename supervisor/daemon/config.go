// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"fmt"
	"time"

	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/supervisor/daemon/queue"
	"agentrun/telemetry/scrape"
)

// Config is "serve:" of the configuration file. What is left out has its default; flags of serve come first.
type Config struct {
	MaxSandboxes  int           `yaml:"max_sandboxes"`  // 0: as many as there is memory for
	Queue         int           `yaml:"queue"`          // that may wait for room
	QueueTimeout  time.Duration `yaml:"queue_timeout"`  // how long
	Grace         time.Duration `yaml:"grace"`          // between SIGTERM and the kill when the daemon ends
	MemoryReserve read.Word     `yaml:"memory_reserve"` // what is left to the host, as 512M
	MemoryShare   *float64      `yaml:"memory_share"`   // how many times what live runs may still take is promised
	// Pool is how many sandboxes are always ready, by profile, without a workspace and as many with one; more
	// are prepared as they are asked for, at most PoolMax of all kinds. PoolMax 0: none.
	Pool    map[string]int `yaml:"pool"`
	PoolMax *int           `yaml:"pool_max"`
	// MetricsAddr is where the node's metrics are served; empty: on the control socket alone. Any address but
	// loopback needs MetricsAnywhere. A reload changes neither.
	MetricsAddr     string `yaml:"metrics_addr"`
	MetricsAnywhere bool   `yaml:"metrics_anywhere"`
}

// What holds where a Config says nothing, and the bounds of what it may say.
const (
	DefaultQueue        = 1000
	DefaultQueueTimeout = time.Minute
	// MaxGrace is what runtime gives an agent after a signal that asks it to end.
	MaxGrace       = 5 * time.Second
	defaultReserve = 256 << 20
	DefaultPoolMax = 8
	// DefaultMemoryShare lets 500 idle runs of ring 3 live on 24 GB: what they may still take, 122 GiB, counts as 15.
	DefaultMemoryShare = 8
	mostMemoryShare    = 1000
	mostPoolMax        = 1000
)

// Settings fills in every default and checks every value.
func (s Config) Settings() (Settings, error) {
	l := Settings{
		Limits: queue.Limits{
			Runs: s.MaxSandboxes, Waiting: cmp.Or(s.Queue, DefaultQueue), Timeout: cmp.Or(s.QueueTimeout,
				DefaultQueueTimeout),
			Reserve: defaultReserve, Share: or(s.MemoryShare, DefaultMemoryShare),
		},
		Grace: cmp.Or(s.Grace, MaxGrace), PoolMax: or(s.PoolMax, DefaultPoolMax), Pool: s.Pool,
	}
	if s.MemoryReserve != "" {
		size, err := profiles.ParseSize(string(s.MemoryReserve))
		if err != nil {
			return l, fmt.Errorf("serve.memory_reserve: %w", err)
		}
		l.Reserve = int64(size)
	}
	for _, c := range []struct {
		ok    bool
		key   string
		value any
		want  string
	}{
		{l.Runs >= 0, "max_sandboxes", l.Runs, "a number from 1, or leave it out"},
		{l.Waiting >= 0, "queue", l.Waiting, "a number from 1"},
		{l.Timeout >= 0, "queue_timeout", l.Timeout, "a time"},
		{l.Grace >= 0 && l.Grace <= MaxGrace, "grace", l.Grace, "at most " + MaxGrace.String()},
		{l.Reserve >= 0, "memory_reserve", l.Reserve, "a size"},
		{l.Share >= 1 && l.Share <= mostMemoryShare, "memory_share", l.Share, "1 (no byte is promised twice) to 1000"}, // NaN is neither
		{l.PoolMax >= 0 && l.PoolMax <= mostPoolMax, "pool_max", l.PoolMax, fmt.Sprintf("0 to %d", mostPoolMax)},
	} {
		if !c.ok {
			return l, fmt.Errorf("serve.%s: %v, want %s", c.key, c.value, c.want)
		}
	}
	for profile, n := range s.Pool {
		if n < 0 || 2*n > l.PoolMax {
			return l, fmt.Errorf("serve.pool: %.64s: %d, want a number from 0, with and without a workspace not over serve.pool_max, which is %d", profile, n, l.PoolMax)
		}
	}
	return l, nil
}

// Metrics is where metrics are served. The error is of an address that can't be.
func (s Config) Metrics() (Metrics, error) {
	m := Metrics{s.MetricsAddr, s.MetricsAnywhere}
	if m.Addr == "" {
		return m, nil
	}
	if _, err := scrape.CheckAddr(m.Addr, m.Anywhere); err != nil {
		return m, hinted.New(fmt.Errorf("serve.metrics_addr: %w", err),
			"127.0.0.1:9465, or serve.metrics_anywhere: true, which lets whoever can connect read")
	}
	return m, nil
}

func or[T any](said *T, def T) T {
	if said == nil {
		return def
	}
	return *said
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/profiles"
	"agentrun/supervisor/daemon/queue"
)

// serveConfig is "serve:" of the configuration file. What is left out has its default; flags of serve come first.
type serveConfig struct {
	MaxSandboxes  int           `yaml:"max_sandboxes"`  // 0: as many as there is memory for
	Queue         int           `yaml:"queue"`          // that may wait for room
	QueueTimeout  time.Duration `yaml:"queue_timeout"`  // how long
	Grace         time.Duration `yaml:"grace"`          // between SIGTERM and the kill when the daemon ends
	MemoryReserve textOrNumber  `yaml:"memory_reserve"` // what is left to the host, as 512M
	MemoryShare   *float64      `yaml:"memory_share"`   // of what live runs may still take, how much counts as taken
	// Pool is how many sandboxes are always ready, by profile, without a workspace and as many with one; more are prepared as they are
	// asked for, at most PoolMax of all kinds. PoolMax 0: none.
	Pool    map[string]int `yaml:"pool"`
	PoolMax *int           `yaml:"pool_max"`
}

// serveLimits is serveConfig with every default filled in.
type serveLimits struct {
	queue.Limits
	grace time.Duration
}

const (
	defaultQueue        = 1000
	defaultQueueTimeout = time.Minute
	// maxGrace is what runtime gives an agent after a signal that asks it to end.
	maxGrace       = 5 * time.Second
	defaultReserve = 256 << 20
	defaultPoolMax = 8
	mostPoolMax    = 1000
)

func serveFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "max-sandboxes", Usage: "at most `N` runs at once; more wait", DefaultText: "as many as there is memory for"},
		&cli.IntFlag{Name: "queue", Usage: "at most `N` that wait; more are refused", DefaultText: fmt.Sprint(defaultQueue)},
		&cli.DurationFlag{Name: "queue-timeout", Usage: "wait at most `TIME`, then refuse", DefaultText: defaultQueueTimeout.String()},
		&cli.DurationFlag{Name: "grace", Usage: "`TIME` between SIGTERM to the agents and their end, when the daemon ends, at most 5s", DefaultText: maxGrace.String()},
		&cli.StringFlag{Name: "memory-reserve", Usage: "`SIZE` of memory that is left to the host", DefaultText: "256M"},
		&cli.IntFlag{Name: "pool-max", Usage: "keep at most `N` sandboxes ready for who asks next; 0: none", DefaultText: fmt.Sprint(defaultPoolMax)},
		&cli.Float64Flag{Name: "memory-share", Usage: "count this share, `0–1`, of what live runs may still take as taken; below 1 memory may run out", DefaultText: "1"},
	}
}

// withFlags lays the flags of serve over the file.
func (s serveConfig) withFlags(c *cli.Context) serveConfig {
	if c.IsSet("max-sandboxes") {
		s.MaxSandboxes = c.Int("max-sandboxes")
	}
	if c.IsSet("queue") {
		s.Queue = c.Int("queue")
	}
	if c.IsSet("queue-timeout") {
		s.QueueTimeout = c.Duration("queue-timeout")
	}
	if c.IsSet("grace") {
		s.Grace = c.Duration("grace")
	}
	if c.IsSet("memory-reserve") {
		s.MemoryReserve = textOrNumber(c.String("memory-reserve"))
	}
	if c.IsSet("pool-max") {
		n := c.Int("pool-max")
		s.PoolMax = &n
	}
	if c.IsSet("memory-share") {
		share := c.Float64("memory-share")
		s.MemoryShare = &share
	}
	return s
}

// limits checks every value.
func (s serveConfig) limits() (serveLimits, error) {
	l := serveLimits{Limits: queue.Limits{Runs: s.MaxSandboxes, Waiting: defaultQueue, Timeout: defaultQueueTimeout, Reserve: defaultReserve, Share: 1}, grace: maxGrace}
	if s.Queue != 0 {
		l.Waiting = s.Queue
	}
	if s.QueueTimeout != 0 {
		l.Timeout = s.QueueTimeout
	}
	if s.Grace != 0 {
		l.grace = s.Grace
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
	case l.grace < 0 || l.grace > maxGrace:
		return l, fmt.Errorf("serve.grace: %s, want at most %s", l.grace, maxGrace)
	case l.Reserve < 0:
		return l, fmt.Errorf("serve.memory_reserve: %d, want a size", l.Reserve)
	case !(l.Share >= 0 && l.Share <= 1): // NaN too
		return l, fmt.Errorf("serve.memory_share: %g, want 0 to 1", l.Share)
	}
	return l, nil
}

// pool checks what is said about sandboxes that are kept ready.
func (s serveConfig) pool() (most int, least map[string]int, err error) {
	most = defaultPoolMax
	if s.PoolMax != nil {
		most = *s.PoolMax
	}
	if most < 0 || most > mostPoolMax {
		return 0, nil, fmt.Errorf("serve.pool_max: %d, want 0 to %d", most, mostPoolMax)
	}
	for profile, n := range s.Pool {
		if n < 0 || 2*n > most {
			return 0, nil, fmt.Errorf("serve.pool: %.64s: %d, want a number from 0, with and without a workspace not over serve.pool_max, which is %d", profile, n, most)
		}
	}
	return most, s.Pool, nil
}

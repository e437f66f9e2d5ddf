// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/internal/read"
	"agentrun/supervisor/daemon/queue"
)

func TestServeConfig(t *testing.T) {
	nan := 0.0
	nan /= nan
	half := 0.5
	for _, c := range []Config{
		{MaxSandboxes: -1}, {Queue: -1}, {QueueTimeout: -1}, {Grace: -1}, {Grace: 6 * time.Second}, {MemoryReserve: "lots"}, {MemoryShare: &nan}, {MemoryShare: new(float64)}, {MemoryShare: &half},
	} {
		if _, err := c.Settings(); err == nil || !strings.Contains(err.Error(), "serve.") {
			t.Errorf("%+v: got %v", c, err)
		}
	}
	for text, ok := range map[string]bool{
		"serve: {max_sandboxes: 10, queue: 5, queue_timeout: 30s, grace: 2s, memory_reserve: 1G, memory_share: 2.5}": true,
		"serve: {max_sandboxs: 10}": false,
	} {
		var cfg struct {
			Serve Config `yaml:"serve"`
		}
		file := read.YAML(read.Source{File: "config.yaml", Max: 1 << 10}, []byte(text))
		file.Into(&cfg)
		if err := file.Done(); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
		want := Settings{
			Limits: queue.Limits{Runs: 10, Waiting: 5, Timeout: 30 * time.Second, Reserve: 1 << 30, Share: 2.5}, Grace: 2 * time.Second, PoolMax: DefaultPoolMax,
		}
		if l, err := cfg.Serve.Settings(); ok && (err != nil || cmp.Diff(want, l) != "") {
			t.Errorf("%s: %+v, %v", text, l, err)
		}
	}
}

func TestPoolConfig(t *testing.T) {
	n := func(i int) *int { return &i }
	for _, c := range []struct {
		c    Config
		most int
		bad  string
	}{
		{Config{}, DefaultPoolMax, ""},
		{Config{PoolMax: n(0)}, 0, ""},
		{Config{Pool: map[string]int{"ring3": 2}}, DefaultPoolMax, ""},
		{Config{Pool: map[string]int{"ring3": 3}, PoolMax: n(5)}, 0, "serve.pool"},
		{Config{Pool: map[string]int{"ring3": -1}}, 0, "serve.pool"},
		{Config{PoolMax: n(-1)}, 0, "serve.pool_max"},
		{Config{PoolMax: n(mostPoolMax + 1)}, 0, "serve.pool_max"},
	} {
		l, err := c.c.Settings()
		if err == nil && l.PoolMax != c.most || (err == nil) != (c.bad == "") || err != nil && !strings.Contains(err.Error(), c.bad) {
			t.Errorf("%+v: got %d, %v, want %d, %q", c.c, l.PoolMax, err, c.most, c.bad)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrun/supervisor/daemon/queue"
)

func TestServeConfig(t *testing.T) {
	nan := 0.0
	nan /= nan
	for _, c := range []serveConfig{
		{MaxSandboxes: -1}, {Queue: -1}, {QueueTimeout: -1}, {Grace: -1}, {Grace: 6 * time.Second}, {MemoryReserve: "lots"}, {MemoryShare: &nan},
	} {
		if _, err := c.limits(); err == nil || !strings.Contains(err.Error(), "serve.") {
			t.Errorf("%+v: got %v", c, err)
		}
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	for text, ok := range map[string]bool{
		"serve: {max_sandboxes: 10, queue: 5, queue_timeout: 30s, grace: 2s, memory_reserve: 1G, memory_share: 0}": true,
		"serve: {max_sandboxs: 10}": false,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := readConfig(ownCaller(), file)
		if (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
		if l, err := cfg.Serve.limits(); ok && (err != nil || l != serveLimits{queue.Limits{Runs: 10, Waiting: 5, Timeout: 30 * time.Second, Reserve: 1 << 30}, 2 * time.Second}) {
			t.Errorf("%s: %+v, %v", text, l, err)
		}
	}
}

// The flag library keeps state in variables; callers at the same time get each their own answer, paths and environment.
func TestManyCallersAtOnce(t *testing.T) {
	d := &daemon{g: &global{stateDir: "/s", runDir: "/r"}, queue: queue.New(queue.Limits{}, queue.ThisHost()), clients: map[*client]struct{}{}}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			var out, errOut bytes.Buffer
			by := &caller{home: d, stdin: strings.NewReader(""), stdout: &out, stderr: &errOut, dir: fmt.Sprintf("/nosuch%d", i), environ: []string{"AGENTRUN_STATE_DIR=/s", "AGENTRUN_RUN_DIR=/r"}}
			words, code, want := []string{"exec", "--help"}, 0, "--ring"
			switch i % 4 {
			case 1:
				words, code, want = []string{"exec", fmt.Sprintf("--nosuch%d", i), "x"}, 125, fmt.Sprintf("-nosuch%d", i)
			case 2:
				words, code, want = []string{"exec", "--gateway", "g.yaml", "--", "x"}, 125, fmt.Sprintf("/nosuch%d/g.yaml", i)
			case 3:
				words, code, want = []string{"gc"}, 125, `"gc" is no command`
			}
			got, err := d.carryOut(t.Context(), by, append([]string{"agentrun"}, words...))
			if err != nil || got != code || !strings.Contains(out.String()+errOut.String(), want) {
				t.Errorf("%v: got %d, %v: %s%s", words, got, err, out.String(), errOut.String())
			}
		})
	}
	wg.Wait()
	// Somebody else's node is somebody else's.
	by := &caller{home: d, stdout: io.Discard, stderr: io.Discard, environ: []string{"AGENTRUN_STATE_DIR=/other", "AGENTRUN_RUN_DIR=/r"}}
	_, err := d.carryOut(t.Context(), by, []string{"agentrun", "exec", "x"})
	if _, ok := errors.AsType[*declined](err); !ok {
		t.Errorf("another state folder: got %v, want it declined", err)
	}
}

func TestPoolConfig(t *testing.T) {
	n := func(i int) *int { return &i }
	for _, c := range []struct {
		c    serveConfig
		most int
		bad  string
	}{
		{serveConfig{}, defaultPoolMax, ""},
		{serveConfig{PoolMax: n(0)}, 0, ""},
		{serveConfig{Pool: map[string]int{"ring3": 2}}, defaultPoolMax, ""},
		{serveConfig{Pool: map[string]int{"ring3": 3}, PoolMax: n(5)}, 0, "serve.pool"},
		{serveConfig{Pool: map[string]int{"ring3": -1}}, 0, "serve.pool"},
		{serveConfig{PoolMax: n(-1)}, 0, "serve.pool_max"},
		{serveConfig{PoolMax: n(mostPoolMax + 1)}, 0, "serve.pool_max"},
	} {
		most, _, err := c.c.pool()
		if most != c.most || (err == nil) != (c.bad == "") || err != nil && !strings.Contains(err.Error(), c.bad) {
			t.Errorf("%+v: got %d, %v, want %d, %q", c.c, most, err, c.most, c.bad)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// safetyLoop measures record_execution_step as an MCP client sees it: one step after the other, each judged by pattern and score and
// on record, on disk, before it is answered. The state lies in /var/tmp, since in memory a sync costs nothing.
func (b *bench) safetyLoop() ([]Row, error) {
	figures := map[string]samples{}
	var order []string
	for range b.size.proxy {
		for _, over := range []string{"stdio", "HTTP"} {
			took, err := b.safetySteps(over)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", over, err)
			}
			slices.Sort(took)
			var sum float64
			for _, ms := range took {
				sum += ms
			}
			for what, v := range map[string]float64{"p50": quantileSorted(took, 0.5), "p99": quantileSorted(took, 0.99), "steps/s": 1000 * float64(len(took)) / sum} {
				if figures[what] == nil {
					figures[what] = samples{}
					order = append(order, what)
				}
				figures[what].add(over, v)
			}
		}
	}
	slices.Sort(order)
	var rows []Row
	for _, what := range order {
		unit := "ms"
		if what == "steps/s" {
			unit = "/s"
		}
		for _, over := range []string{"stdio", "HTTP"} {
			row := figures[what].row(over, unit, nil)
			row.Name = "record_execution_step over " + over + ", " + what
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// safetySteps starts a loop and gives the time of each step in ms.
func (b *bench) safetySteps(over string) (took []float64, err error) {
	dir, err := os.MkdirTemp("/var/tmp", "agentrun-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	policy := filepath.Join(dir, "policy.json")
	if err := os.WriteFile(policy, []byte(`{"deny":["drop_*"],"requiresApproval":["git push*"]}`), 0o600); err != nil {
		return nil, err
	}
	args := []string{"--state-dir", filepath.Join(dir, "state"), "--run-dir", filepath.Join(dir, "run"), "safety", "serve", "--policy", policy, "--confirm", "client", "--max-steps", "10000"}
	cmd := exec.CommandContext(b.ctx, b.agentrun, args...)
	cmd.Env = b.env
	defer func() {
		if cmd.Process != nil {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		}
	}()
	var ask func(message string) ([]byte, error)
	if over == "stdio" {
		cmd.Args = append(cmd.Args, "--stdio")
		ask, err = safetyStdio(cmd)
	} else {
		ask, err = safetyHTTP(cmd)
	}
	if err != nil {
		return nil, err
	}
	for _, m := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
	} {
		if _, err := ask(m); err != nil {
			return nil, err
		}
	}
	const most = 9000 // below the step limit
	until := time.Now().Add(b.size.proxyTime)
	for id := 2; id < most && (len(took) < 20 || time.Now().Before(until)); id++ {
		m := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"mcp_aql_create","arguments":{"operation":"record_execution_step","params":{"element_name":"bench","nextActionHint":"reading docs/guide-%d.md to find the flag"}}}}`, id, id)
		began := time.Now()
		answer, err := ask(m)
		took = append(took, float64(time.Since(began).Nanoseconds())/1e6)
		if err != nil || !bytes.Contains(answer, []byte(`"continue":true`)) {
			return nil, errors.Join(err, fmt.Errorf("step %d: got %.300s", id, answer))
		}
	}
	return took, nil
}

func safetyStdio(cmd *exec.Cmd) (func(string) ([]byte, error), error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	answers := bufio.NewReaderSize(out, 64<<10)
	return func(m string) ([]byte, error) {
		if _, err := io.WriteString(in, m+"\n"); err != nil || !strings.Contains(m, `"id"`) {
			return nil, err
		}
		return answers.ReadBytes('\n')
	}, cmd.Start()
}

func safetyHTTP(cmd *exec.Cmd) (func(string) ([]byte, error), error) {
	cmd.Args = append(cmd.Args, "--http", "127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stderr).ReadString('\n')
	_, url, ok := strings.Cut(strings.TrimSpace(line), " is at ")
	if err != nil || !ok {
		return nil, errors.Join(err, fmt.Errorf("got %q", line))
	}
	session := ""
	return func(m string) ([]byte, error) {
		r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(m))
		if err != nil {
			return nil, err
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			r.Header.Set("Mcp-Session-Id", session)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		if s := resp.Header.Get("Mcp-Session-Id"); s != "" {
			session = s
		}
		return io.ReadAll(resp.Body)
	}, nil
}

// SPDX-License-Identifier: Apache-2.0

//go:build agents

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// realHosted is one of the real agents where it is hosted.
func realHosted(t *testing.T, name string) (realAgent, *realHost) {
	t.Helper()
	a := realAgents[slices.IndexFunc(realAgents, func(a realAgent) bool { return a.name == name })]
	text, err := os.ReadFile(filepath.Join("../../profiles/agents", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return a, a.host(t, filepath.Join(os.Getenv("AGENTRUN_TEST_AGENTS"), name), string(text))
}

// task begins one without a person.
func (h *realHost) task(a realAgent, flags ...string) *call {
	h.t.Helper()
	c := h.call(flags, append(slices.Clone(a.print), "do the steps")...)
	c.started = time.Now()
	if err := c.Start(); err != nil {
		h.t.Fatal(err)
	}
	return c
}

// with has a call read a configuration.
func (h *realHost) with(config string, c *call) *call {
	file := write(h.t, filepath.Join(h.t.TempDir(), "config.yaml"), config, 0o600)
	c.Args = slices.Insert(c.Args, slices.Index(c.Args, "host"), "--config", file)
	return c
}

// TestRealAgentsAreNotHostile has each agent do a short task five times within a minute, under one name: nothing that they do by
// themselves amounts to a breach (H-24).
func TestRealAgentsAreNotHostile(t *testing.T) {
	for _, a := range realAgents {
		t.Run(a.name, func(t *testing.T) {
			a, h := realHosted(t, a.name)
			h.script.Commands = []string{"ls -la; git init -q sub; python3 -c 'print(1)'; node -e 1"}
			h.x.n.must("agent", "score", a.name, "0.7")
			began := time.Now()
			for range 5 {
				r := h.task(a, "--agent", a.name).finish(t)
				r.want(t, 0, "exited")
			}
			t.Logf("five tasks in %s", time.Since(began).Round(time.Second))
			for _, e := range h.x.n.audit("node") {
				if strings.Contains(e.Kind, "breach") || strings.Contains(e.Kind, "quarantine") {
					t.Errorf("on record: %s %v", e.Kind, e.Data)
				}
			}
		})
	}
}

// TestRealAgentsMeetTheirCap stops a stream in its middle where the plan's tokens are used up: the agent says why, and the run ends (M-19).
func TestRealAgentsMeetTheirCap(t *testing.T) {
	for _, name := range []string{"claude", "codex"} {
		t.Run(name, func(t *testing.T) {
			a, h := realHosted(t, name)
			h.script.Commands, h.script.Endless = h.script.Commands[:1], true
			flags := h.x.planned(name, "--plan", "casual")
			h.x.n.must("agent", "score", name, "0.7")
			r := h.task(a, append(flags, "--timeout", "100s")...).finish(t)
			// It has a second for its last words; one that has ended by then has ended by itself.
			if held := r.status.State == "policy" && strings.Contains(r.status.Reason, "budget"); !held && (r.status.State != "exited" || r.exit == 0) {
				t.Errorf("ended as %s (%s), exit code %d", r.status.State, r.status.Reason, r.exit)
			}
			said := r.stdout + r.stderr
			if !strings.Contains(said, "quota_exceeded") && !strings.Contains(said, "tokens") {
				t.Errorf("it says nothing of its cap: %.3000s", said)
			}
			t.Logf("%.3000s\n%v", said, calls(h.x.n.audit("node"), "llm"))
			stopped := slices.ContainsFunc(calls(h.x.n.audit("node"), "llm"), func(e entry) bool { return strings.Contains(fmt.Sprint(e.Data), "quota_exceeded") })
			if !stopped {
				t.Errorf("no stopped call is on record: %v", calls(h.x.n.audit("node"), "llm"))
			}
		})
	}
}

// TestRealAgentForHalfAnHour has Claude Code work for half an hour on a lease of five minutes that an operator extends, with bursts of
// memory in between (F1, M-3).
func TestRealAgentForHalfAnHour(t *testing.T) {
	const steps, lease = 20, 5 * time.Minute
	a, h := realHosted(t, "claude")
	h.script.Commands = nil
	for i := range steps {
		h.script.Commands = append(h.script.Commands,
			fmt.Sprintf("echo step %d >> steps.txt; sleep 45; python3 -c 'b = bytearray(500 << 20); print(len(b))'; sleep 45", i+1))
	}
	c := h.with("ranges:\n- {ring: 2, timeout: 2h}\n", h.call([]string{"--name", "day", "--memory", "1G", "--timeout", lease.String()}, append(slices.Clone(a.print), "do the steps")...))
	c.started = time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan result)
	go func() { over <- c.finish(t) }()
	extended := 0
	for {
		select {
		case r := <-over:
			r.want(t, 0, "exited")
			h.hasDone(steps)
			if r.status.WallTime < 29*time.Minute || r.status.PeakMemory < 500<<20 || extended < 6 {
				t.Errorf("ran %s, %d MiB at most, extended %d times", r.status.WallTime, r.status.PeakMemory>>20, extended)
			}
			t.Logf("ran %s, %d MiB at most, extended %d times", r.status.WallTime.Round(time.Second), r.status.PeakMemory>>20, extended)
			return
		case <-time.After(lease - time.Minute):
			if r := h.x.n.do("extend", "day", "4m"); r.exit == 0 {
				extended++
			} else {
				t.Logf("extend: exit %d, %s", r.exit, r.stderr)
			}
		}
	}
}

// tmux is a terminal multiplexer of the host's that a hosted agent is started in.
type tmux struct {
	t   *testing.T
	dir string
}

func (m *tmux) do(args ...string) string {
	m.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-f", "/dev/null", "-S", filepath.Join(m.dir, "socket")}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

func (m *tmux) screen() string { return m.do("capture-pane", "-p", "-t", "0") }

func (m *tmux) until(word string) {
	m.t.Helper()
	for limit := time.Now().Add(hang()); !strings.Contains(m.screen(), word); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(limit) {
			m.t.Fatalf("%q isn't on the screen:\n%s", word, m.screen())
		}
	}
}

// TestRealAgentsUnderTmux has those with a screen of their own work under tmux: resized, interrupted in the middle of a step with the
// key for it, told to go on, and ended.
func TestRealAgentsUnderTmux(t *testing.T) {
	needProgram(t, "tmux")
	for name, interrupt := range map[string][]string{"claude": {"Escape"}, "opencode": {"Escape", "Escape"}} {
		t.Run(name, func(t *testing.T) {
			a, h := realHosted(t, name)
			h.script.Commands = []string{"echo step 1 >> steps.txt; sleep 1000", "echo step 2 >> steps.txt"}
			c := h.with("ranges:\n- {ring: 2, memory: 4GiB, cpu: 2}\n", h.call([]string{"--memory", "3G"}, a.screen...))
			m := &tmux{t, t.TempDir()}
			script := write(t, filepath.Join(m.dir, "start"), "#!/bin/sh\nexec "+shellWords(c.Args)+"\n", 0o700)
			start := exec.Command("tmux", "-f", "/dev/null", "-S", filepath.Join(m.dir, "socket"), "new-session", "-d", "-x", "100", "-y", "40", script, ";", "set", "-g", "remain-on-exit", "on")
			start.Env = c.Env
			if out, err := start.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Cleanup(func() { m.do("kill-server") })
			m.until(a.ready)
			time.Sleep(3 * time.Second) // it has drawn its prompt, and reads keys a little later
			m.do("send-keys", "-t", "0", "do the steps")
			time.Sleep(time.Second)
			m.do("send-keys", "-t", "0", "Enter")
			steps := func(n int) func() bool {
				return func() bool {
					got, _ := os.ReadFile(filepath.Join(h.x.ws, "steps.txt"))
					return strings.Count(string(got), "step ") == n
				}
			}
			eventually(t, hang(), "the first step", steps(1))
			m.do("resize-window", "-t", "0", "-x", "140", "-y", "50")
			time.Sleep(2 * time.Second)
			for _, key := range interrupt {
				m.do("send-keys", "-t", "0", key)
				time.Sleep(500 * time.Millisecond)
			}
			time.Sleep(3 * time.Second)
			m.do("send-keys", "-t", "0", "go on")
			time.Sleep(time.Second)
			m.do("send-keys", "-t", "0", "Enter")
			m.until(h.script.Last)
			if !steps(2)() {
				t.Error("the second step wasn't done")
			}
			m.do("send-keys", "-t", "0", "/exit")
			time.Sleep(2 * time.Second)
			m.do("send-keys", "-t", "0", "Enter")
			eventually(t, hang(), "its end", func() bool { return strings.TrimSpace(m.do("display-message", "-p", "-t", "0", "#{pane_dead}")) == "1" })
			if s := m.screen(); !strings.Contains(s, "agentrun: ran ") {
				t.Errorf("no closing line on the screen:\n%s", s)
			}
		})
	}
}

func shellWords(args []string) string {
	var words []string
	for _, a := range args {
		words = append(words, "'"+strings.ReplaceAll(a, "'", `'\''`)+"'")
	}
	return strings.Join(words, " ")
}

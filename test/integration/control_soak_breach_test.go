// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"time"
)

// child commits the breach in a sandbox that a tool starts for the run (H-15).
const child = `
import json, os, urllib.error, urllib.request
code = "import ctypes\nfor i in range(4): ctypes.CDLL(None).mount(b'x', b'/', b'tmpfs', 0, None)"
q = urllib.request.Request(os.environ["AGENTRUN_TOOLS_URL"] + "/code-executor", json.dumps({"args": {"language": "python", "code": code}}).encode(), {"Content-Type": "application/json"})
try: print(urllib.request.urlopen(q).read())
except urllib.error.HTTPError as e: print(e.read())
`

// breaches has agents, and runs without one, commit them until end: alone and by the daemon, by themselves and by a child.
func (s *soak) breaches(end time.Time) {
	write(s.t, s.ws+"/child.py", child, 0o644)
	mounts := probeArgs(append(slices.Repeat([]string{"mount tmpfs"}, 4), "sleep 60")...)
	for i := range 4 {
		s.do("score", "--agent", fmt.Sprint("breaker-", i), "0.8")
	}
	for i := 0; time.Now().Before(end); i++ {
		agent, argv := fmt.Sprint("breaker-", i%4), mounts
		flags := []string{"--ring", "3", "--timeout", "60s", "--agent", agent}
		switch i % 3 {
		case 1:
			argv = []string{"python3", "child.py"}
			flags = append(flags[2:], "--ring", "2", "--workspace", s.ws, "--gateway", s.policy.settings) // H-6: not in ring 3
		case 2:
			flags = flags[:len(flags)-2]
		}
		o := opts{flags: flags, dir: s.ws, breach: true}
		if i%2 == 0 {
			o.env = []string{"AGENTRUN_NO_DAEMON=1"}
		}
		c := s.at(prepare(s.t, o, argv...))
		if err := c.Start(); err != nil {
			s.t.Error(err)
			return
		}
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		select {
		case <-ended:
		case <-time.After(time.Second): // one whose agent is held goes on without rights
			s.do("kill", "--agent", agent)
			<-ended
		}
		c.cancel()
		s.count("breaker ended")
		s.countsMu.Lock()
		s.do(append([]string{"release", "--agent", agent}, s.release(agent)...)...)
		s.countsMu.Unlock()
		time.Sleep(100 * time.Millisecond) // the soak is about more than this
	}
}

// held compares, from the log alone, each breach with what must follow it (H-24), and says how many there were.
func (s *soak) held(log []entry) (n int) {
	for i, e := range log {
		if e.Kind != "breach" || e.Data["on_breach"] == "record" {
			continue
		}
		n++
		run, agent := e.Data["run_id"], e.Data["agent_id"]
		follows := slices.ContainsFunc(log[i+1:], func(f entry) bool {
			return f.Kind == "quarantine" && f.Data["agent_id"] == agent ||
				f.Data["run_id"] == run && (f.Kind == "kill_order" || f.Kind == "sandbox_end" && f.Data["state"] != "exited")
		})
		// Nobody's supervisor outlives its account: a run whose end is nowhere died with its supervisor.
		died := !slices.ContainsFunc(log, func(f entry) bool { return f.Kind == "sandbox_end" && f.Data["run_id"] == run })
		if !follows && !died && !s.quarantined(log[:i], agent) {
			s.t.Errorf("nothing follows a breach: %v", e.Data)
		}
	}
	return n
}

// quarantined tells whether an agent was held at the end of a log.
func (s *soak) quarantined(log []entry, agent any) (held bool) {
	for _, e := range log {
		if e.Data["agent_id"] == agent && (e.Kind == "quarantine" || e.Kind == "release") {
			held = e.Kind == "quarantine"
		}
	}
	return held
}

// whole looks for the fields that lead from each record of a run to it, and from a run to whom it belongs (H-27).
func (s *soak) whole(log []entry) {
	of := map[any]any{} // run → agent
	for _, e := range log {
		if e.Kind == "sandbox_start" {
			of[e.Data["run_id"]] = e.Data["agent_id"]
		}
	}
	about := []string{"refusal", "tool_call", "egress", "action_attempt", "rate_limit", "breach", "kill_order", "kill", "sandbox_end"}
	for _, e := range log {
		if !slices.Contains(about, e.Kind) {
			continue
		}
		run := e.Data["run_id"]
		agent, started := of[run]
		switch {
		case run == nil || run == "":
			s.t.Errorf("%s names no run: %v", e.Kind, e.Data)
		case started && agent != nil && e.Data["agent_id"] != agent:
			s.t.Errorf("%s names agent %v, its run belongs to %v: %v", e.Kind, e.Data["agent_id"], agent, e.Data)
		}
	}
}

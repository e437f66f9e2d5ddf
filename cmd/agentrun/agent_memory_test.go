// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/hypervisor"
	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// remember puts summaries as a run of the agent would.
func remember(t *testing.T, state, agent string, summaries ...string) {
	t.Helper()
	h, err := hypervisor.Open(hypervisor.Options{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	adm, err := h.Admit(context.Background(), hypervisor.Request{Agent: agent})
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Done()
	c := h.Control(adm, hypervisor.ControlOptions{Run: "r"})
	defer c.Close()
	e := c.Broker(hypervisor.BrokerOptions{MaxSteps: 9})
	defer e.Close()
	for _, s := range summaries {
		v, err := e.Check(t.Context(), link.Check{Held: true, Action: rings.Action{ID: "tool.memory.invoke", Name: "memory", ExecuteAPI: "memory", Reversibility: rings.Full, ReadOnly: true}})
		if err != nil || !v.Allowed {
			t.Fatalf("check: %+v, %v", v, err)
		}
		a, err := e.Memory(t.Context(), link.MemoryRequest{Op: link.MemoryPut, Item: link.MemoryItem{Kind: link.MemorySummary, Summary: s}})
		if err != nil || !a.Allowed {
			t.Fatalf("put: %+v, %v", a, err)
		}
		if _, err := e.End(t.Context(), link.End{Place: v.Place}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestM14AgentMemoryCommands(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	do := func(args ...string) (string, string, int) {
		t.Helper()
		return operatorRun(t, "", append([]string{"--state-dir", state, "agent", "memory"}, args...)...)
	}
	remember(t, state, "a", "one", "two\x1b[2Jtwo", strings.Repeat("long ", 100))
	out, errs, code := do("list", "a")
	if code != 0 || !strings.Contains(out, "m1") || !strings.Contains(out, "one") || strings.ContainsAny(out, "\x1b") || len(out) > 800 {
		t.Errorf("list: exit code %d, %q, %s", code, out, errs)
	}
	out, errs, code = do("list", "--json", "a")
	var rows []memoryRow
	if err := json.Unmarshal([]byte(out), &rows); err != nil || code != 0 || len(rows) != 3 || rows[2].Summary != strings.Repeat("long ", 100) {
		t.Errorf("list --json: exit code %d, %v, %s, %s", code, err, out, errs)
	}
	if out, _, code = do("delete", "a", "m1"); code != 0 || !strings.Contains(out, "1 items") {
		t.Errorf("delete m1: exit code %d, %q", code, out)
	}
	if _, errs, code = do("delete", "a", "m1"); code == 0 || !strings.Contains(errs, "agent memory list a") {
		t.Errorf("delete it again: exit code %d, %q", code, errs)
	}
	if _, errs, code = do("delete", "a", ""); code == 0 {
		t.Errorf("delete an empty name: exit code %d, %q", code, errs)
	}
	if out, _, code = do("delete", "--json", "a"); code != 0 || !strings.Contains(out, `"deleted": 2`) && !strings.Contains(out, `"deleted":2`) {
		t.Errorf("delete the rest: exit code %d, %q", code, out)
	}
	if out, _, code = do("list", "--json", "a"); code != 0 || strings.TrimSpace(out) != "[]" {
		t.Errorf("afterwards: exit code %d, %q", code, out)
	}
}

// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	safe    = "reading docs/guide.md to find the flag"
	harmful = "drop_table users on the staging database"
)

// S-1 to S-4, S-8 to S-10, S-12: a client that isn't ours goes the whole way, over both transports.
func TestS1TypeScriptClientDrivesTheLoop(t *testing.T) {
	t.Run("stdio", func(t *testing.T) {
		p := safetyPlace(t)
		needSafetyNPM(t)
		c := newNodeClient(t, append([]string{"stdio", agentrun}, p.serveArgs("--stdio")...)...)
		p.drive(c)
		if code := c.hangUp(); code != 0 {
			t.Errorf("exit %d\n%s", code, c.text())
		}
		// Another process, the same state (S-8).
		p.drivenOn(newNodeClient(t, append([]string{"stdio", agentrun}, p.serveArgs("--stdio")...)...))
		p.accounted()
	})
	t.Run("HTTP", func(t *testing.T) {
		p := safetyPlace(t)
		needSafetyNPM(t)
		file, tokens := p.tokens(map[string]string{"planner-1": "agent", "bob": "agent", "alice": "operator"})
		s := p.serveHTTP("--tokens", file)
		c := newNodeClient(t, "http", s.url, tokens["planner-1"])
		// S-12: an operator's connection confirms, neither one's own nor another agent's does.
		other := map[string]any{"element_name": "other"}
		token := map[string]any{"confirmation_token": c.do("execute_agent", other).want(t, "execute_agent", "CONFIRMATION_REQUIRED").token()}
		c.do("confirm_operation", token).want(t, "self-approval", "PERMISSION_DENIED")
		newNodeClient(t, "http", s.url, tokens["bob"]).do("confirm_operation", token).want(t, "another agent's approval", "PERMISSION_DENIED")
		newNodeClient(t, "http", s.url, tokens["alice"]).do("confirm_operation", token).want(t, "an operator's approval", "ok")
		other["confirmation_token"] = token["confirmation_token"]
		c.do("execute_agent", other).want(t, "the confirmed call", "ok")
		p.drive(c)
		if code := s.end(); code != 0 {
			t.Errorf("exit %d\n%s", code, s.text())
		}
		s = p.serveHTTP("--tokens", file)
		p.drivenOn(newNodeClient(t, "http", s.url, tokens["planner-1"]))
		s.end()
		p.accounted()
	})
}

// drive goes from start to stop.
func (p place) drive(c *nodeClient) {
	t := p.t
	t.Helper()
	slices.Sort(c.hello.Tools)
	if want := []string{"mcp_aql_create", "mcp_aql_execute", "mcp_aql_read"}; !slices.Equal(c.hello.Tools, want) || c.hello.Instructions == "" {
		t.Errorf("got tools %v, want %v, and instructions", c.hello.Tools, want)
	}
	if r := c.do("introspect", nil).want(t, "introspect", "ok"); !strings.Contains(r.raw, `"enforcing"`) || strings.Count(r.raw, `"mcpTool"`) != 7 {
		t.Errorf("introspect: got %s", r.raw)
	}
	p.confirmed(c, "execute_agent", map[string]any{"element_name": "planner"}).want(t, "execute_agent", "ok")
	p.confirmed(c, "record_execution_step", aStep(safe)).want(t, "the first step", "continue")
	c.do("record_execution_step", aStep(safe, "outcome", "success")).want(t, "a safe step", "continue")

	// Confirm: a pause, somebody else's word, the same step again.
	r := c.do("record_execution_step", aStep("git push origin main")).want(t, "a step for approval", "pause")
	p.must("challenges", "confirm", r.token())
	c.do("record_execution_step", aStep("git push origin main", "confirmation_token", r.token())).want(t, "the confirmed step", "continue")
	c.do("record_execution_step", aStep("git push origin main", "confirmation_token", r.token())).want(t, "its token again", "TOKEN_ALREADY_USED")

	// Verify: paused until an operator has read the code and says it.
	risky := aStep("sending the report to the mailing list", "riskScore", 70)
	r = c.do("record_execution_step", risky).want(t, "a verify step", "pause")
	id := r.verification()
	if got := c.do("record_execution_step", aStep(safe)).want(t, "a step while it waits", "pause"); id == "" || !strings.Contains(got.raw, id) {
		t.Errorf("got %s, want challenge %q", got.raw, id)
	}
	if r := c.do("verify_challenge", map[string]any{"challenge_id": id, "code": "guessed"}); r.Success {
		t.Errorf("a guessed code: got %s", r.raw)
	}
	if r := p.do("challenges", "verify", id, "guessed"); r.exit != 125 || !strings.Contains(r.stderr, "wrong_code") {
		t.Errorf("a guessed code by an operator: exit %d\n%s", r.exit, r.stderr)
	}
	p.must("challenges", "verify", id[:8], p.code(id))
	c.do("record_execution_step", aStep(safe)).want(t, "after verification", "continue")

	// Danger: stopped, blocked, under any name.
	r = c.do("record_execution_step", aStep(harmful)).want(t, "a denied step", "stop")
	if r.verification() == "" || r.Data.Notifications[0].Type != "danger_zone" {
		t.Errorf("got %s, want a danger_zone notification with its id", r.raw)
	}
	p.stopped(c)
}

// stopped holds for the agent and for what else the same client calls itself.
func (p place) stopped(c *nodeClient) {
	p.t.Helper()
	for _, name := range []string{"planner", "another-name"} {
		for operation, params := range map[string]map[string]any{"record_execution_step": aStep(safe, "element_name", name), "execute_agent": {"element_name": name}} {
			if r := c.do(operation, params); r.Success && r.is() != "stop" {
				p.t.Errorf("%s of %s after the stop: got %s", operation, name, r.raw)
			}
		}
	}
}

// drivenOn goes from a restart to the end.
func (p place) drivenOn(c *nodeClient) {
	t := p.t
	t.Helper()
	p.stopped(c)
	var blocks []struct {
		Agent  string `json:"agent"`
		Reason string `json:"reason"`
	}
	if err := json.Unmarshal([]byte(p.must("challenges", "blocks", "--json").stdout), &blocks); err != nil || len(blocks) != 1 {
		t.Fatalf("got %+v, %v, want one block", blocks, err)
	}
	p.must("challenges", "unblock", blocks[0].Agent, "--reason", "the table was a copy")
	p.confirmed(c, "record_execution_step", aStep(safe)).want(t, "after unblock", "continue")
	p.confirmed(c, "complete_execution", map[string]any{"element_name": "planner", "outcome": "success"}).want(t, "complete_execution", "ok")
	c.hangUp()
}

// accounted: all of it is on record, in a chain that verifies.
func (p place) accounted() {
	p.t.Helper()
	p.must("audit", "verify")
	log := p.must("audit", "show", "--json").stdout
	for _, kind := range []string{"safety_"} {
		if !strings.Contains(log, kind) {
			p.t.Errorf("the audit has nothing of %s:\n%.2000s", kind, log)
		}
	}
}

// S-1: the MCP inspector's command-line mode, of its line 1, the last that Node.js 20 runs. It wants to lie in the folder of the
// whole inspector, whose web pages aren't needed here.
func TestS1Inspector(t *testing.T) {
	npm, p, dir := needSafetyNPM(t), safetyPlace(t), t.TempDir()
	cli := os.DirFS(filepath.Join(npm, "node_modules/@modelcontextprotocol/inspector-cli"))
	manifest, err := fs.ReadFile(cli, "package.json")
	if err := errors.Join(err, os.CopyFS(filepath.Join(dir, "cli"), cli), os.Symlink(filepath.Join(npm, "node_modules"), filepath.Join(dir, "node_modules"))); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "package.json"), string(manifest), 0o644)
	inspect := func(args ...string) string {
		t.Helper()
		argv := append(append([]string{filepath.Join(dir, "cli/build/index.js"), agentrun}, p.serveArgs("--stdio", "--endpoints", "single")...), args...)
		out, err := exec.Command(sandboxProgram("node"), argv...).CombinedOutput()
		if err != nil {
			t.Fatalf("inspector %v: %v\n%.2000s", args, err, out)
		}
		return string(out)
	}
	if got := inspect("--method", "tools/list"); !strings.Contains(got, `"mcp_aql"`) || !strings.Contains(got, `"destructiveHint": true`) {
		t.Errorf("got %s", got)
	}
	if got := inspect("--method", "tools/call", "--tool-name", "mcp_aql", "--tool-arg", "operation=introspect"); !strings.Contains(got, "execution_safety_loop") {
		t.Errorf("got %s", got)
	}
}

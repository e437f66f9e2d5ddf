// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// S-1, S-5, S-8, S-10 to S-12: a client that knows the protocol and means harm, over both transports.
func TestS12HostileClient(t *testing.T) {
	t.Run("stdio", func(t *testing.T) {
		p := safetyPlace(t)
		c, l := newStdioClient(t, p)
		p.malformed(c)
		p.stolen(c)
		p.evading(c)
		if code := l.hangUp(); code != 0 {
			t.Errorf("exit %d\n%s", code, l.text())
		}
		c, l = newStdioClient(t, p, "--name", "again")
		refusedAll(t, "after a restart", c)
		l.hangUp()
		p.corrupted()
	})
	t.Run("HTTP", func(t *testing.T) {
		p := safetyPlace(t)
		file, tokens := p.tokens(map[string]string{"one": "agent", "two": "agent"})
		s := p.serveHTTP("--tokens", file)
		c, other := newHTTPClient(t, s.url, tokens["one"]), newHTTPClient(t, s.url, tokens["two"])
		p.malformed(c)
		p.confirmed(other, "record_execution_step", aStep(safe)).want(t, "the other one's first step", "continue")
		p.foreign(c, other)
		p.stolen(c)
		p.evading(c)
		refusedAll(t, "in a new session", newHTTPClient(t, s.url, tokens["one"]))
		// The other agent is told, and goes on.
		if r := other.do("record_execution_step", aStep(safe)).want(t, "the other one's step", "continue"); !strings.Contains(r.raw, "danger_zone") {
			t.Errorf("the stop was not broadcast: %s", r.raw)
		}
		s.end()
	})
}

// S-1: any user of the host can connect; whoever has no token keeps no agent out.
func TestS1StrangersLeaveRoom(t *testing.T) {
	p := safetyPlace(t)
	file, tokens := p.tokens(map[string]string{"one": "agent"})
	s := p.serveHTTP("--tokens", file)
	defer s.end()
	at := strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/mcp")
	for range 300 {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "POST /mcp HTTP/1.1\r\nHost: "+at+"\r\n\r\n") // who is refused stays for a minute; the first are gone soon
	}
	began := time.Now()
	p.confirmed(newHTTPClient(t, s.url, tokens["one"]), "record_execution_step", aStep(safe)).want(t, "beside 300 strangers", "continue")
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}

// S-1: nor does an agent that has one, by as many connections as it likes; its own oldest ones end.
func TestS1OneTokenLeavesRoom(t *testing.T) {
	p := safetyPlace(t)
	file, tokens := p.tokens(map[string]string{"one": "agent", "two": "agent"})
	s := p.serveHTTP("--tokens", file)
	defer s.end()
	at := strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/mcp")
	early := newHTTPClient(t, s.url, tokens["two"])
	p.confirmed(early, "record_execution_step", aStep(safe)).want(t, "the first step", "continue")
	for i := range 300 {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "POST /mcp HTTP/1.1\r\nHost: "+at+"\r\nAuthorization: Bearer "+tokens["one"]+"\r\nContent-Length: 2\r\n\r\n{}")
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Read(make([]byte, 12)); err != nil {
			t.Errorf("connection %d of its token: %v", i, err)
			break
		}
	}
	began := time.Now()
	early.do("record_execution_step", aStep(safe)).want(t, "in a session beside them", "continue")
	newHTTPClient(t, s.url, tokens["two"]).do("record_execution_step", aStep(safe)).want(t, "in a new session beside them", "continue")
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("beside another agent's connections it took %v", took)
	}
}

// S-12: what an operator has approved as a comment isn't approved as a command, which a line end makes of it.
func TestS12ApprovalIsForItsLines(t *testing.T) {
	p := safetyPlace(t)
	c, l := newStdioClient(t, p, "--confirm", "client")
	defer l.hangUp()
	step := func(hint, token string) safetyReply {
		params := map[string]any{"element_name": "a", "nextActionHint": hint, "riskScore": 50}
		if token != "" {
			params["confirmation_token"] = token
		}
		return c.do("record_execution_step", params)
	}
	const approved = "executing shell command: touch done  # make publish"
	// What parts lines on a screen parts none in a shell: this runs nothing behind the #, and with a line feed it would.
	shown := step("executing shell command: touch done #\rmake publish", "").want(t, "the step", "pause").token()
	p.must("challenges", "confirm", shown)
	step("executing shell command: touch done #\nmake publish", shown).want(t, "another", "TOKEN_SCOPE_MISMATCH")
	token := step(approved, "").want(t, "the step", "pause").token()
	p.must("challenges", "confirm", token)
	for _, lineEnd := range []string{"\n", "\r", "\u2028"} {
		step("executing shell command: touch done #"+lineEnd+"make publish", token).want(t, fmt.Sprintf("another with %q", lineEnd), "TOKEN_SCOPE_MISMATCH")
	}
	step(strings.ReplaceAll(approved, "  ", "\t")+"\n", token).want(t, "the step that was approved", "continue")
}

// malformed says what no client should: each is refused with its code, and nothing comes of it.
func (p place) malformed(c *mcpClient) {
	t := p.t
	t.Helper()
	hint := func(n int) string { return `{"element_name":"a","nextActionHint":"` + strings.Repeat("x", n) + `"}` }
	for _, tt := range []struct{ tool, arguments, want string }{
		{"mcp_aql_read", `{"operation":"execute_agent","params":{"element_name":"a"}}`, "PERMISSION_DENIED"},
		{"mcp_aql_execute", `{"operation":"record_execution_step","params":{"element_name":"a","nextActionHint":"b"}}`, "PERMISSION_DENIED"},
		{"mcp_aql_create", `{"operation":"confirm_operation","params":{"confirmation_token":"a"}}`, "PERMISSION_DENIED"},
		{"mcp_aql_create", `{"operation":"delete_everything","params":{}}`, "NOT_FOUND_OPERATION"},
		{"mcp_aql_create", `{"operation":"RECORD_EXECUTION_STEP","params":{}}`, "NOT_FOUND_OPERATION"},
		{"mcp_aql_create", `{"operation":"record_execution_step","params":{"element_name":"a"}}`, "VALIDATION_MISSING_PARAM"},
		{"mcp_aql_create", `{"operation":"record_execution_step","params":{"element_name":"a","nextActionHint":7}}`, "VALIDATION_INVALID_TYPE"},
		{"mcp_aql_create", `{"operation":"record_execution_step","params":{"element_name":"a","nextActionHint":"b","principal":"root","operator":true}}`, "VALIDATION_UNKNOWN_PARAM"},
		{"mcp_aql_create", `{"operation":"record_execution_step","params":{"element_name":"a","nextActionHint":"reading docs/a","nextActionHint":"drop_x"}}`, "VALIDATION_INVALID_TYPE"},
		{"mcp_aql_create", `{"operation":"record_execution_step","operation":"introspect","params":{}}`, "VALIDATION_INVALID_TYPE"},
		{"mcp_aql_create", `{"operation":"record_execution_step","principal":"root"}`, "VALIDATION_UNKNOWN_PARAM"},
		{"mcp_aql_create", `{"operation":"record_execution_step","params":` + hint(40<<10) + `}`, "VALIDATION_PAYLOAD_TOO_LARGE"},
		{"mcp_aql_create", `{"operation":"record_execution_step","params":` + hint(100<<10) + `}`, "VALIDATION_PAYLOAD_TOO_LARGE"},
		{"mcp_aql_execute", `{"operation":"confirm_operation","params":{"confirmation_token":"guessed"}}`, "TOKEN_INVALID"},
	} {
		c.call(tt.tool, tt.arguments).want(t, fmt.Sprintf("%s %.120s", tt.tool, tt.arguments), tt.want)
	}
}

// stolen tries tokens and codes: its own, guessed, used ones, and for something else than they are good for.
func (p place) stolen(c *mcpClient) {
	t := p.t
	t.Helper()
	first := c.do("execute_agent", map[string]any{"element_name": "planner"}).want(t, "execute_agent", "CONFIRMATION_REQUIRED")
	c.do("confirm_operation", map[string]any{"confirmation_token": first.token()}).want(t, "self-approval", "PERMISSION_DENIED")
	c.do("execute_agent", map[string]any{"element_name": "planner", "confirmation_token": first.token()}).want(t, "its unconfirmed token", "CONFIRMATION_REQUIRED")
	p.must("challenges", "confirm", first.token())
	c.do("execute_agent", map[string]any{"element_name": "other", "confirmation_token": first.token()}).want(t, "a token for somebody else", "TOKEN_SCOPE_MISMATCH")
	c.do("execute_agent", map[string]any{"element_name": "planner", "confirmation_token": first.token()}).want(t, "the confirmed token", "ok")
	c.do("abort_execution", map[string]any{"element_name": "planner", "confirmation_token": first.token()}).want(t, "a token for something else", "TOKEN_SCOPE_MISMATCH")
	p.confirmed(c, "record_execution_step", aStep(safe)).want(t, "the first step", "continue")

	id := c.do("record_execution_step", aStep("sending the report to the mailing list", "riskScore", 70)).want(t, "a verify step", "pause").verification()
	right := p.code(id)
	c.do("verify_challenge", map[string]any{"challenge_id": id, "code": right}).want(t, "the right code", "ok")
	if r := c.do("verify_challenge", map[string]any{"challenge_id": id, "code": right}); r.Success {
		t.Errorf("the same code again: got %s", r.raw)
	}
	id = c.do("record_execution_step", aStep("sending the report to another list", "riskScore", 70)).want(t, "a verify step", "pause").verification()
	if r := c.do("verify_challenge", map[string]any{"challenge_id": id, "code": right}); r.Success {
		t.Errorf("the last challenge's code: got %s", r.raw)
	}
	for i := range 12 {
		if r := c.do("verify_challenge", map[string]any{"challenge_id": id, "code": fmt.Sprint("guess-", i)}); r.Success {
			t.Fatalf("guess %d: got %s", i, r.raw)
		}
	}
	// S-11: locked out; and S-10: what an agent guesses doesn't burn the operator's challenge.
	if r := c.do("verify_challenge", map[string]any{"challenge_id": id, "code": p.code(id)}); r.Success {
		t.Errorf("the right code while locked out: got %s", r.raw)
	}
	p.must("challenges", "verify", id, p.code(id))
	c.do("record_execution_step", aStep(safe)).want(t, "after the operator's verification", "continue")
}

// foreign: an agent answers another's challenge with the right code.
func (p place) foreign(c, other *mcpClient) {
	t := p.t
	t.Helper()
	id := other.do("record_execution_step", aStep("sending the report to the mailing list", "riskScore", 70)).want(t, "a verify step", "pause").verification()
	code := p.code(id)
	if r := c.do("verify_challenge", map[string]any{"challenge_id": id, "code": code}); r.Success {
		t.Errorf("another's challenge: got %s", r.raw)
	}
	other.do("verify_challenge", map[string]any{"challenge_id": id, "code": code}).want(t, "its own", "ok")
	if r := c.do("confirm_operation", map[string]any{"confirmation_token": other.do("execute_agent", map[string]any{"element_name": "x"}).token()}); r.Success {
		t.Errorf("an agent confirmed for another: %s", r.raw)
	}
}

// evading hides what it means, is stopped, and tries to go on.
func (p place) evading(c *mcpClient) {
	t := p.t
	t.Helper()
	long := strings.Repeat("reading docs/guide.md and then ", 400) + "truncate everything"
	if len(long) < 10_000 {
		t.Fatalf("%d characters", len(long))
	}
	c.do("record_execution_step", aStep(long)).want(t, "the verb at the end", "stop")
	refusedAll(t, "after the stop", c)
	if r := p.must("challenges", "blocks"); strings.Count(r.stdout, "\n") != 2 {
		t.Errorf("got blocks\n%s", r.stdout)
	}
}

// refusedAll: a stopped agent gets nothing under any name.
func refusedAll(t *testing.T, when string, c *mcpClient) {
	t.Helper()
	for _, name := range []string{"planner", "another", "planner\u200b"} {
		for operation, params := range map[string]map[string]any{
			"record_execution_step": aStep(safe, "element_name", name), "execute_agent": {"element_name": name}, "complete_execution": {"element_name": name},
		} {
			if r := c.do(operation, params); r.Success && r.is() != "stop" {
				t.Errorf("%s, %s of %q: got %s", when, operation, name, r.raw)
			}
		}
	}
	c.do("introspect", nil).want(t, when+", introspect", "ok")
}

// corrupted: a state that can't be read stops everybody (S-8), and is not set aside.
func (p place) corrupted() {
	t := p.t
	t.Helper()
	path := filepath.Join(p.state, "state.db")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("garbage!", int(info.Size()/8))), 0o600); err != nil {
		t.Fatal(err)
	}
	c, l := newStdioClient(t, p, "--principal", "somebody-new")
	refusedAll(t, "with a damaged state", c)
	r := p.do("challenges", "blocks", "--json")
	if r.exit != 125 || !strings.Contains(r.stderr, "blocked_all") {
		t.Errorf("blocks: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	var list []json.RawMessage
	if err := json.Unmarshal([]byte(r.stdout), &list); err != nil || len(list) != 0 {
		t.Errorf("got %s, %v", r.stdout, err)
	}
	if code := l.hangUp(); code == 125 && !strings.Contains(l.text(), "hint") && !strings.Contains(l.text(), "audit") {
		t.Errorf("exit %d\n%s", code, l.text())
	}
}

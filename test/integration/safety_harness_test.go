// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// safetyPolicy has one pattern of each kind; the tiers of the tests come from the caller's own riskScore, which can only raise.
const safetyPolicy = `{"deny": ["drop_*", "*truncate everything*"], "requiresApproval": ["git push*"], "autoApprove": ["reading docs/*"]}`

// nodeSafety is a client of the TypeScript SDK that calls what it is told on its standard input.
const nodeSafety = `
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import readline from "node:readline";
const [kind, first, ...rest] = process.argv.slice(2);
const transport = kind === "stdio" ? new StdioClientTransport({ command: first, args: rest, env: process.env, stderr: "inherit" })
  : new StreamableHTTPClientTransport(new URL(first), { requestInit: { headers: rest.length ? { Authorization: "Bearer " + rest[0] } : {} } });
const client = new Client({ name: "agentrun-test", version: "1" });
await client.connect(transport);
const { tools } = await client.listTools();
console.log(JSON.stringify({ tools: tools.map((t) => t.name), instructions: client.getInstructions() }));
for await (const line of readline.createInterface({ input: process.stdin })) {
  const { tool, operation, params } = JSON.parse(line);
  const r = await client.callTool({ name: tool, arguments: { operation, params } });
  if (JSON.stringify(JSON.parse(r.content[0].text)) !== JSON.stringify(r.structuredContent)) throw new Error("text and structured content differ");
  if (!!r.isError === r.structuredContent.success) throw new Error("isError contradicts success");
  console.log(JSON.stringify(r.structuredContent));
}
await client.close();
`

// safetyReply is the loop's reply, with all that the tests look at.
type safetyReply struct {
	Success bool `json:"success"`
	Data    struct {
		Continue      *bool    `json:"continue"`
		Stopped       bool     `json:"stopped"`
		Reason        string   `json:"reason"`
		Factors       []string `json:"factors"`
		NextStepRisk  string   `json:"nextStepRisk"`
		Notifications []struct {
			Type     string         `json:"type"`
			Metadata map[string]any `json:"metadata"`
		} `json:"notifications"`
	} `json:"data"`
	Error struct {
		Code    string         `json:"code"`
		Message string         `json:"message"`
		Details map[string]any `json:"details"`
	} `json:"error"`

	raw string
}

// verification is the challenge's id, as the agent gets it.
func (r safetyReply) verification() string {
	for _, n := range r.Data.Notifications {
		if id, _ := n.Metadata["verificationId"].(string); id != "" {
			return id
		}
	}
	return ""
}

func (r safetyReply) token() string {
	if s, _ := r.Error.Details["confirmation_token"].(string); s != "" {
		return s
	}
	for _, n := range r.Data.Notifications {
		if s, _ := n.Metadata["confirmation_token"].(string); s != "" {
			return s
		}
	}
	return ""
}

// is describes a reply in a word: the code of an error, continue, pause or stop.
func (r safetyReply) is() string {
	switch {
	case !r.Success:
		return r.Error.Code
	case r.Data.Stopped:
		return "stop"
	case r.Data.Continue == nil:
		return "ok"
	case *r.Data.Continue:
		return "continue"
	}
	return "pause"
}

func (r safetyReply) want(t *testing.T, what, want string) safetyReply {
	t.Helper()
	if r.is() != want {
		t.Fatalf("%s: got %s, want %s\n%s", what, r.is(), want, r.raw)
	}
	return r
}

func toolOf(operation string) string {
	switch operation {
	case "introspect":
		return "mcp_aql_read"
	case "record_execution_step", "verify_challenge":
		return "mcp_aql_create"
	}
	return "mcp_aql_execute"
}

// safetyPlace is a state and a run folder for safety loops, which need neither cgroups nor namespaces.
func safetyPlace(t *testing.T) place {
	t.Helper()
	at := filepath.Join(base, fmt.Sprintf("safety-%d", counter.Add(1)))
	p := place{t, filepath.Join(at, "run"), filepath.Join(at, "state")}
	for _, d := range []string{p.run, p.state} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(at, "policy.json"), safetyPolicy, 0o644)
	return p
}

func (p place) policy() string { return filepath.Join(filepath.Dir(p.run), "policy.json") }

// serveArgs are those of agentrun for a loop of this place.
func (p place) serveArgs(more ...string) []string {
	return append([]string{"--state-dir", p.state, "--run-dir", p.run, "--log-level", "debug", "safety", "serve", "--policy", p.policy(), "--tolerance", "moderate"}, more...)
}

// conversation is a program that answers each line with one.
type conversation struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	mu    sync.Mutex
	said  bytes.Buffer // all of its standard output
	wrote bytes.Buffer // and error
	ended bool
}

// talk starts a program. Its end is waited for by hangUp, or by the test's cleanup.
func talk(t *testing.T, cmd *exec.Cmd) *conversation {
	t.Helper()
	c := &conversation{t: t, cmd: cmd}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = &syncWriter{mu: &c.mu, w: &c.wrote}
	c.in, c.out = in, bufio.NewReaderSize(io.TeeReader(out, &syncWriter{mu: &c.mu, w: &c.said}), 1<<20)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.hangUp() })
	return c
}

type syncWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (s *syncWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// text is all that it has written.
func (c *conversation) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said.String() + c.wrote.String()
}

func (c *conversation) line() []byte {
	c.t.Helper()
	timer := time.AfterFunc(hang(), func() { _ = c.cmd.Process.Kill() })
	defer timer.Stop()
	b, err := c.out.ReadBytes('\n')
	if err != nil {
		c.t.Fatalf("%s: %v\n%s", c.cmd.Path, err, c.text())
	}
	return b
}

func (c *conversation) ask(v any) []byte {
	c.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.in.Write(append(b, '\n')); err != nil {
		c.t.Fatalf("%s: %v\n%s", c.cmd.Path, err, c.text())
	}
	return c.line()
}

// hangUp closes its standard input, and gives its exit code.
func (c *conversation) hangUp() int {
	if !c.ended {
		c.ended = true
		_ = c.in.Close()
		timer := time.AfterFunc(hang(), func() { _ = c.cmd.Process.Kill() })
		_, _ = io.Copy(io.Discard, c.out)
		_ = c.cmd.Wait()
		timer.Stop()
	}
	return c.cmd.ProcessState.ExitCode()
}

// safetyClient calls operations.
type safetyClient interface {
	do(operation string, params map[string]any) safetyReply
}

// nodeClient is the TypeScript SDK's.
type nodeClient struct {
	*conversation
	hello struct {
		Tools        []string `json:"tools"`
		Instructions string   `json:"instructions"`
	}
}

// needSafetyNPM gives the folder whose node_modules has the clients.
func needSafetyNPM(t *testing.T) string {
	t.Helper()
	flags := needNPM(t)
	dir, _, _ := strings.Cut(flags[len(flags)-1], ":")
	return dir
}

func newNodeClient(t *testing.T, args ...string) *nodeClient {
	t.Helper()
	npm := needSafetyNPM(t)
	dir := t.TempDir()
	script := write(t, filepath.Join(dir, "client.mjs"), nodeSafety, 0o644)
	if err := os.Symlink(filepath.Join(npm, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	c := &nodeClient{conversation: talk(t, exec.Command(sandboxProgram("node"), append([]string{script}, args...)...))}
	if err := json.Unmarshal(c.line(), &c.hello); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *nodeClient) do(operation string, params map[string]any) safetyReply {
	c.t.Helper()
	return readReply(c.t, c.ask(map[string]any{"tool": toolOf(operation), "operation": operation, "params": params}))
}

func readReply(t *testing.T, raw []byte) (r safetyReply) {
	t.Helper()
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	r.raw = string(raw)
	return r
}

// mcpClient speaks the protocol by hand, so that it can say what no SDK would.
type mcpClient struct {
	t    *testing.T
	send func(message []byte) (answer []byte)
	next int
}

const protocolAt = "2025-06-18"

func (c *mcpClient) begin() *mcpClient {
	c.t.Helper()
	c.rpc("initialize", `{"protocolVersion":"`+protocolAt+`","capabilities":{},"clientInfo":{"name":"hostile","version":"1"}}`)
	c.send([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	return c
}

func (c *mcpClient) rpc(method, params string) []byte {
	c.t.Helper()
	c.next++
	return c.send(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, c.next, method, params))
}

// call gives the reply of a tool for arguments as they are written.
func (c *mcpClient) call(tool, arguments string) safetyReply {
	c.t.Helper()
	b := c.rpc("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments))
	var m struct {
		Result struct {
			StructuredContent json.RawMessage `json:"structuredContent"`
		} `json:"result"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(b, &m); err != nil || m.Result.StructuredContent == nil {
		c.t.Fatalf("%s %.200s: got %.400s, %v", tool, arguments, b, err)
	}
	r := readReply(c.t, m.Result.StructuredContent)
	r.raw = string(b)
	return r
}

func (c *mcpClient) do(operation string, params map[string]any) safetyReply {
	c.t.Helper()
	b, err := json.Marshal(map[string]any{"operation": operation, "params": params})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.call(toolOf(operation), string(b))
}

// newStdioClient starts a loop of its own, as an MCP client does.
func newStdioClient(t *testing.T, p place, more ...string) (*mcpClient, *conversation) {
	t.Helper()
	l := talk(t, exec.Command(agentrun, p.serveArgs(append([]string{"--stdio"}, more...)...)...))
	c := &mcpClient{t: t, send: func(m []byte) []byte {
		if _, err := l.in.Write(append(m, '\n')); err != nil {
			t.Fatalf("write: %v\n%s", err, l.text())
		}
		if bytes.Contains(m, []byte(`"id":`)) {
			return l.line()
		}
		return nil
	}}
	return c.begin(), l
}

// served is a loop over HTTP.
type served struct {
	*conversation
	url string
}

var safetyAt = regexp.MustCompile(`the safety loop is at (http://[^ \n]+)`)

func (p place) serveHTTP(more ...string) *served {
	p.t.Helper()
	s := &served{conversation: talk(p.t, exec.Command(agentrun, p.serveArgs(append([]string{"--http", "127.0.0.1:0"}, more...)...)...))}
	eventually(p.t, 20*time.Second, "the safety loop serves", func() bool {
		m := safetyAt.FindStringSubmatch(s.text())
		if m != nil {
			s.url = m[1]
		}
		return m != nil || syscall.Kill(s.cmd.Process.Pid, 0) != nil
	})
	if s.url == "" {
		p.t.Fatal(s.text())
	}
	return s
}

// end is what an operator's SIGTERM does.
func (s *served) end() int {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	return s.hangUp()
}

func newHTTPClient(t *testing.T, url, token string) *mcpClient {
	session := ""
	return (&mcpClient{t: t, send: func(m []byte) []byte {
		ctx, cancel := context.WithTimeout(t.Context(), hang())
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(m))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": protocolAt, "Mcp-Session-Id": session} {
			if v != "" {
				r.Header.Set(k, v)
			}
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if s := resp.Header.Get("Mcp-Session-Id"); s != "" {
			session = s
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode/100 != 2 {
			t.Fatalf("%.200s: status %d, %v: %.200s", m, resp.StatusCode, err, b)
		}
		return b
	}}).begin()
}

// tokens makes a file of them; the result is by name.
func (p place) tokens(roles map[string]string) (file string, texts map[string]string) {
	p.t.Helper()
	texts = map[string]string{}
	content := "tokens:\n"
	for name, role := range roles {
		r := p.must("safety", "token", name, "--role", role)
		texts[name], content = strings.TrimSpace(r.stdout), content+r.stderr
	}
	return write(p.t, filepath.Join(filepath.Dir(p.run), "tokens.yaml"), content, 0o600), texts
}

// confirmed repeats a call with its token, once an operator has confirmed it by the command line.
func (p place) confirmed(c safetyClient, operation string, params map[string]any) safetyReply {
	p.t.Helper()
	first := c.do(operation, params).want(p.t, operation, "CONFIRMATION_REQUIRED")
	p.must("challenges", "confirm", first.token())
	params["confirmation_token"] = first.token()
	return c.do(operation, params)
}

// code is what show prints to operators.
func (p place) code(id string) string {
	p.t.Helper()
	var shown struct {
		Code string `json:"code"`
	}
	if err := json.Unmarshal([]byte(p.must("challenges", "show", id, "--json").stdout), &shown); err != nil || shown.Code == "" {
		p.t.Fatalf("challenge %s: no code (%v)", id, err)
	}
	return shown.Code
}

func aStep(hint string, more ...any) map[string]any {
	params := map[string]any{"element_name": "planner", "nextActionHint": hint}
	for i := 0; i+1 < len(more); i += 2 {
		params[more[i].(string)] = more[i+1]
	}
	return params
}

// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/audit"
	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/safetyloop"
	"agentrun/safetyloop/judge"
	"agentrun/safetyloop/policy"
	"agentrun/store"
	"agentrun/telemetry"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/gate/gatetest"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/mcpserver"
	"agentrun/toolproxy/tools"
)

// looped is a supervisor with a real loop: its judge takes the judgement that came with the call, and there is no other.
type looped struct {
	*gatetest.Supervisor
	loop  *safetyloop.Loop
	mu    sync.Mutex
	shown []safetyloop.Challenge
}

type judgementKey struct{}

func (*looped) Judge(ctx context.Context, _ string) (judge.Judgement, error) {
	j, _ := ctx.Value(judgementKey{}).(*judge.Judgement)
	if j == nil {
		return judge.Judgement{}, errors.New("no judgement came")
	}
	return *j, nil
}

func (*looped) Record(context.Context, string, audit.Record) error { return nil }

func (l *looped) Show(_ context.Context, c safetyloop.Challenge) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shown = append(l.shown, c)
	return nil
}

func who() safetyloop.Caller {
	return safetyloop.Caller{Principal: "agent-1", Bound: true, Ring: rings.Sandbox}
}

func newLooped(t testing.TB, mode judge.Mode) *looped {
	t.Helper()
	l := &looped{Supervisor: gatetest.New(rings.Sandbox)}
	var err error
	l.loop, err = safetyloop.New(safetyloop.Settings{
		Mode: mode, Tolerance: judge.Moderate, MaxSteps: 100, Confirm: judge.ConfirmClient, Store: store.NewMemory(), Record: l, Judge: l, Channels: []safetyloop.Channel{l}, Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.loop.Close)
	s := l.Supervisor
	s.OnSafety = func(ctx context.Context, q link.Safety) (json.RawMessage, error) {
		ctx = context.WithValue(ctx, judgementKey{}, q.Judgement)
		return json.Marshal(l.loop.Do(ctx, safetyloop.Call{Caller: who(), Endpoint: endpointOf(strings.ToLower(q.Endpoint)), Operation: q.Operation, Params: telemetry.NewPlaintext(q.Params)}))
	}
	s.OnIntent = func(ctx context.Context, tool, target string) error {
		switch err := l.loop.Intent(ctx, who(), tool, target); {
		case errors.Is(err, safetyloop.ErrBlocked):
			return link.ErrStopped
		case errors.Is(err, safetyloop.ErrIntent):
			return link.ErrNoIntent
		default:
			return err
		}
	}
	s.OnCheck = func(c link.Check) (link.Verdict, error) {
		if l.loop.Blocked(t.Context(), who()) != nil {
			return link.Verdict{Code: link.CodeStopped, Ring: rings.Sandbox}, nil
		}
		return link.Verdict{Allowed: true, Code: rings.CodeOK, Ring: rings.Sandbox}, nil
	}
	return l
}

type echo struct{}

func (echo) Call(_ context.Context, c tools.Call) (tools.Result, error) {
	return tools.Result{Output: c.Args.Reveal()}, nil
}

// client is an MCP client in the sandbox: Mux, SDK, registry and gate are the real ones, and the policy's patterns too.
func client(t *testing.T, l *looped, text string) *mcp.ClientSession {
	t.Helper()
	caller := link.Caller{Run: "run-1", Agent: "agent-1", Team: "team-1", Role: "member", Plan: "premium", Mode: "public"}
	g, err := gate.New(gate.Options{
		Supervisor: l.Supervisor, Caller: caller, MaxSteps: 100, Granted: gate.Granting(nil), Safety: l.Supervisor, RequireIntent: true,
		Policy: pdp.DeciderFunc(func(context.Context, pdp.Request) pdp.Decision {
			return pdp.Decision{Verdict: rings.Allow, Code: pdp.CodeOK}
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	define := func(name string) tools.Definition {
		return tools.Definition{Name: name, Description: "Says it again.", Category: gate.CategoryA, Action: tools.ReadAction(name), Tool: echo{}, Schema: json.RawMessage(`{"type":"object"}`)}
	}
	r, err := tools.New(tools.Options{
		Entrance: g, Caller: caller, Builtin: []tools.Definition{define("read_file"), define("mcp_aql_read")},
		Filter: func(_ string, output json.RawMessage) (json.RawMessage, []string, error) { return output, nil, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Parse("policy.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	h, err := New(Options{Gate: g, Loop: l.Supervisor, Judge: p.For("agent-1", true), Mode: judge.Enforcing})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(nil)
	server.Config.Handler = tools.NewMux(tools.MuxOptions{
		Mounts: map[egress.Family]http.Handler{egress.MCP: mcpserver.New(mcpserver.Options{Tools: r, Beside: h, Version: "test", Instructions: Instructions(true)})},
		Hosts:  []string{server.Listener.Addr().String()},
	})
	server.Start()
	t.Cleanup(server.Close)
	session, err := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: server.URL + "/mcp", DisableStandaloneSSE: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session
}

func call(t *testing.T, s *mcp.ClientSession, name string, args map[string]any) (text string, failed bool) {
	t.Helper()
	result, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatal(err)
	}
	return result.Content[0].(*mcp.TextContent).Text, result.IsError
}

func report(t *testing.T, s *mcp.ClientSession, hint string) string {
	t.Helper()
	text, _ := call(t, s, "mcp_aql_create", map[string]any{"operation": "record_execution_step", "params": map[string]any{"element_name": "planner", "nextActionHint": hint}})
	return text
}

// The whole way of an agent: what it may do it reports first, each step is good for one call, a stop ends everything, and the code,
// which it never sees, begins it again.
func TestS15AgentInASandbox(t *testing.T) {
	l := newLooped(t, judge.Enforcing)
	s := client(t, l, "deny: [drop_*]\nautoApprove: [read_file *]\n")
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		if schema, _ := json.Marshal(tool.InputSchema); tool.Name == "mcp_aql_create" && (!strings.Contains(string(schema), `"record_execution_step"`) || strings.Contains(string(schema), "confirm_operation")) {
			t.Errorf("got schema %s", schema)
		}
	}
	if d := cmp.Diff([]string{"mcp_aql_read", "mcp_aql_create", "mcp_aql_execute", "read_file"}, names); d != "" {
		t.Error(d)
	}
	if !strings.Contains(s.InitializeResult().Instructions, "INTENT_REQUIRED") {
		t.Errorf("got instructions %q", s.InitializeResult().Instructions)
	}
	file := map[string]any{"path": "/work/a.txt"}
	if text, failed := call(t, s, "read_file", file); !failed || !strings.Contains(text, "INTENT_REQUIRED") || !strings.Contains(text, "/work/a.txt") {
		t.Errorf("without a step: got %s", text)
	}
	if text := report(t, s, "read_file /work/a.txt"); !strings.Contains(text, `"continue":true`) {
		t.Fatalf("got %s", text)
	}
	if text, failed := call(t, s, "read_file", map[string]any{"path": "/work/b.txt"}); !failed || !strings.Contains(text, "INTENT_REQUIRED") {
		t.Errorf("another target: got %s", text)
	}
	if text, failed := call(t, s, "read_file", file); failed {
		t.Errorf("with its step: got %s", text)
	}
	if text, failed := call(t, s, "read_file", file); !failed {
		t.Errorf("once more: got %s", text)
	}
	report(t, s, "read_file /work/a.txt")
	if text := report(t, s, "calling drop_table on users"); !strings.Contains(text, `"stopped":true`) {
		t.Fatalf("got %s, want it stopped", text)
	}
	if text, failed := call(t, s, "read_file", file); !failed || !strings.Contains(text, "AGENT_STOPPED") {
		t.Errorf("stopped: got %s", text)
	}
	if text := report(t, s, "read_file /work/a.txt"); !strings.Contains(text, `"stopped":true`) || !strings.Contains(text, "verificationId") {
		t.Errorf("stopped: got %s, want the loop's own answer", text)
	}
	waiting := l.loop.Challenges(t.Context())
	if len(waiting) != 1 {
		t.Fatalf("got %d challenges, want 1", len(waiting))
	}
	challenge, err := l.loop.Show(t.Context(), "operator", waiting[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	text, failed := call(t, s, "mcp_aql_create", map[string]any{"operation": "verify_challenge", "params": map[string]any{"challenge_id": challenge.ID, "code": challenge.Code.Reveal()}})
	if failed || strings.Contains(text, challenge.Code.Reveal()) {
		t.Errorf("verify: got %s", text)
	}
	if text, failed := call(t, s, "read_file", file); !failed || !strings.Contains(text, "INTENT_REQUIRED") {
		t.Errorf("a step from before the stop: got %s", text)
	}
	report(t, s, "read_file /work/a.txt")
	if text, failed := call(t, s, "read_file", file); failed {
		t.Errorf("afterwards: got %s", text)
	}
}

// What is judged is what is decided about: whatever an agent sends, the hint that is found here is the one that the loop reads.
func FuzzHintIsTheLoops(f *testing.F) {
	for _, body := range []string{
		step, `{"operation":"record_execution_step","params":{"element_name":"a","next_action_hint":"x\u0000y"}}`, `{"operation":"record_execution_step","params":{"element_name":"a","nextActionHint":"a","\u006eextActionHint":"b"}}`,
		`{"operation":"record_execution_step","params":{"element_name":"a","NextActionHint":"a"}}`, `{"params":{"element_name":"a","nextActionHint":"\ud83d\ude00","findings":[{"nextActionHint":"b"}]},"operation":"record_execution_step"}`,
		`{"operation":"record_execution_step","params":{"nextActionHint":["a"],"element_name":"b"}}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		q, refused := decode(body)
		if refused != nil || q.Operation != stepOperation {
			return
		}
		here, ok := hintOf(q.Params)
		heard := judgeFunc(func(_ context.Context, hint string) (judge.Judgement, error) {
			if !ok || hint != here {
				t.Errorf("%q: the loop reads %q, here it is %q, %v", body, hint, here, ok)
			}
			return judge.Judgement{Rule: judge.RuleDefault}, nil
		})
		loop, err := safetyloop.New(safetyloop.Settings{
			Mode: judge.Monitoring, Tolerance: judge.Moderate, MaxSteps: 100, Confirm: judge.ConfirmClient, Store: store.NewMemory(), Record: &looped{}, Judge: heard, Now: time.Now,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer loop.Close()
		loop.Do(t.Context(), safetyloop.Call{Caller: who(), Endpoint: judge.Create, Operation: q.Operation, Params: telemetry.NewPlaintext(q.Params)})
	})
}

type judgeFunc func(context.Context, string) (judge.Judgement, error)

func (f judgeFunc) Judge(ctx context.Context, hint string) (judge.Judgement, error) {
	return f(ctx, hint)
}

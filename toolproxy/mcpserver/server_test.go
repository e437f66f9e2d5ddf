// SPDX-License-Identifier: Apache-2.0

package mcpserver_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/gate/gatetest"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/mcpserver"
	"agentrun/toolproxy/tools"
)

type echo struct{}

func (echo) Call(_ context.Context, c tools.Call) (tools.Result, error) {
	return tools.Result{Output: c.Args.Reveal()}, nil
}

// hold ends with its context, and not before.
type hold struct{ began chan struct{} }

func (h hold) Call(ctx context.Context, _ tools.Call) (tools.Result, error) {
	h.began <- struct{}{}
	<-ctx.Done()
	return tools.Result{}, ctx.Err()
}

var holding = hold{make(chan struct{}, 8)}

// ends is when the run's time is over.
var ends atomic.Pointer[time.Time]

// world is the whole way: MCP client, HTTP, Mux, SDK, registry, gate, supervisor.
func world(t *testing.T) (*gatetest.Supervisor, *mcp.ClientSession, string) {
	t.Helper()
	ends.Store(new(time.Time))
	s := gatetest.New(rings.Sandbox)
	who := link.Caller{Run: "run-1", Agent: "agent-1", Team: "team-1", Role: "member", Plan: "premium", Mode: "public"}
	g, err := gate.New(gate.Options{
		Supervisor: s, Caller: who, MaxSteps: 100, Granted: gate.Granting(nil),
		Policy: pdp.DeciderFunc(func(context.Context, pdp.Request) pdp.Decision {
			return pdp.Decision{Verdict: rings.Allow, Code: pdp.CodeOK}
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	define := func(name string, action rings.Action, does tools.Tool) tools.Definition {
		return tools.Definition{
			Name: name, Description: "Says it again.", Category: gate.CategoryA, Action: action, Tool: does, Timeout: time.Minute,
			Schema: json.RawMessage(`{"type":"object","properties":{"say":{"type":"string"}},"required":["say"]}`),
		}
	}
	r, err := tools.New(tools.Options{
		Entrance: g, Caller: who,
		Builtin: []tools.Definition{
			define("echo", tools.ReadAction("echo"), echo{}), define("drop", undoable("drop", "undrop"), echo{}),
			define("hold", undoable("hold", "unhold"), holding),
		},
		Filter: func(_ string, output json.RawMessage) (json.RawMessage, []string, error) { return output, nil, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(nil)
	server.Config.Handler = tools.NewMux(tools.MuxOptions{
		Mounts: map[egress.Family]http.Handler{egress.MCP: mcpserver.New(mcpserver.Options{Tools: r, Version: "test", Ends: func() time.Time { return *ends.Load() }})},
		Hosts:  []string{server.Listener.Addr().String()},
	})
	server.Start()
	t.Cleanup(server.Close)
	client := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: server.URL + "/mcp", DisableStandaloneSSE: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return s, session, server.URL
}

// M-3: in the run's last minute its agent reads so in what tools answer, where a model looks; not before, and never without an end.
func TestM3ResultsTellOfTheEnd(t *testing.T) {
	_, session, _ := world(t)
	for in, want := range map[time.Duration]bool{0: false, time.Hour: false, 30 * time.Second: true, -time.Second: true} {
		at := time.Time{}
		if in != 0 {
			at = time.Now().Add(in)
		}
		ends.Store(&at)
		r, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"say": "x"}})
		if err != nil {
			t.Fatal(err)
		}
		last, _ := r.Content[len(r.Content)-1].(*mcp.TextContent)
		if told := strings.HasPrefix(last.Text, "agentrun: this run's time is over in "); told != want || len(r.Content) != 1+map[bool]int{true: 1}[want] {
			t.Errorf("ends in %v: got %d contents, the last %q", in, len(r.Content), last.Text)
		}
	}
}

func TestM12ClientListsWhatItMayCall(t *testing.T) {
	s, session, _ := world(t)
	names := func() (names []string) {
		t.Helper()
		list, err := session.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list.Tools {
			names = append(names, tool.Name)
			if schema, _ := tool.InputSchema.(map[string]any); schema["type"] != "object" {
				t.Errorf("%s: got schema %v", tool.Name, tool.InputSchema)
			}
		}
		return names
	}
	if d := cmp.Diff([]string{"echo"}, names()); d != "" {
		t.Errorf("ring 3 (-want +got):\n%s", d)
	}
	s.SetRing(rings.Standard)
	if d := cmp.Diff([]string{"drop", "echo", "hold"}, names()); d != "" {
		t.Errorf("ring 2 (-want +got):\n%s", d)
	}
	s.SetRing(rings.Sandbox)
	if d := cmp.Diff([]string{"echo"}, names()); d != "" {
		t.Errorf("ring 3 again (-want +got):\n%s", d)
	}
}

// A call that is under way when its ring is taken back ends then, and the agent gets nothing of it; others go on.
func TestM22ClientsCallEndsWithTheRing(t *testing.T) {
	s, session, _ := world(t)
	s.SetRing(rings.Standard)
	done := make(chan *mcp.CallToolResult, 1)
	go func() {
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "hold", Arguments: map[string]any{"say": "x"}})
		if err != nil {
			t.Error(err)
		}
		done <- result
	}()
	<-holding.began
	s.SetRing(rings.Privileged) // still allowed
	select {
	case r := <-done:
		t.Fatalf("got %v in a ring that allows it", r)
	case <-time.After(20 * time.Millisecond):
	}
	s.SetRing(rings.Sandbox)
	select {
	case r := <-done:
		if text := r.Content[0].(*mcp.TextContent).Text; !r.IsError || !strings.Contains(text, `"ring_denied"`) {
			t.Errorf("got %s, want ring_denied", text)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the call goes on after demotion")
	}
	if result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"say": "x"}}); err != nil || result.IsError {
		t.Errorf("got %v, %v", result, err)
	}
}

func TestM9ClientCallsPassTheSameEntrance(t *testing.T) {
	s, session, _ := world(t)
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"say": "hello"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := result.Content[0].(*mcp.TextContent).Text; got != `{"say":"hello"}` || result.IsError {
		t.Errorf("got %s, error %v", got, result.IsError)
	}
	if d := cmp.Diff(map[string]any{"say": "hello"}, result.StructuredContent); d != "" {
		t.Errorf("structured (-want +got):\n%s", d)
	}
	if got := len(s.Records()); got != 1 {
		t.Errorf("got %d records, want 1", got)
	}
}

func TestM13ErrorsAreResultsWithTheSameJSON(t *testing.T) {
	s, session, _ := world(t)
	for _, tt := range []struct {
		tool string
		args any
		want rings.Code
	}{
		{"echo", map[string]any{"say": 1}, gate.CodeBadArguments},
		{"echo", nil, gate.CodeBadArguments},
		{"drop", map[string]any{"say": "x"}, gate.CodeRing},
		{"nothing", map[string]any{}, gate.CodeToolUnknown},
		{"../etc", map[string]any{}, gate.CodeToolUnknown},
	} {
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tt.tool, Arguments: tt.args})
		if err != nil {
			t.Fatalf("%s: %v", tt.tool, err)
		}
		var got struct {
			OK    *bool
			Error struct{ Code, Message, Next string }
		}
		if err := json.Unmarshal([]byte(result.Content[0].(*mcp.TextContent).Text), &got); err != nil {
			t.Fatal(err)
		}
		if !result.IsError || got.OK == nil || *got.OK || got.Error.Code != string(tt.want) || got.Error.Message == "" || got.Error.Next == "" {
			t.Errorf("%s %v: got %+v, want %s", tt.tool, tt.args, got, tt.want)
		}
	}
	places, reservations, wrong := s.Held()
	if places != 0 || reservations != 0 || wrong != nil {
		t.Errorf("got %d places, %d reservations, %v, want none", places, reservations, wrong)
	}
}

// One meaning of the arguments here too: what is decided on is what the tool gets.
func TestArgumentsWithTwoMeaningsAreRefused(t *testing.T) {
	_, _, url := world(t)
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"say":"a","say":"b"}}}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("MCP-Protocol-Version", "2025-06-18")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	if strings.Contains(string(answer), `\"say\":\"`) || !strings.Contains(string(answer), "bad_arguments") {
		t.Errorf("got %s, want bad_arguments", answer)
	}
}

func TestNoSessionsAreKept(t *testing.T) {
	_, _, url := world(t)
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		req, err := http.NewRequestWithContext(t.Context(), method, url+"/mcp", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		req.Header.Set("Mcp-Session-Id", "another-agent")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: got %d, want 405", method, resp.StatusCode)
		}
	}
}

// endless is a cursor as the SDK writes them, by encoding/gob, of a structure with 2^63-1 empty ones in a map.
const endless = "Hn8DAQL_gAABAgEBWAH_hAABB0xhc3RVSUQBDAAAACf_gwQBARVtYXBbbWFpbi5rZXldbWFpbi5rZXkB_4QAAf-CAf-CAAAS_4EDAQL_ggABAQEBQQEEAAAADP-AAfh__________w=="

// A cursor isn't looked at: the SDK would never end, and take a processor and all lists that come later with it.
func TestCursorsAreRefused(t *testing.T) {
	_, c, _ := world(t)
	_, tools := c.ListTools(t.Context(), &mcp.ListToolsParams{Cursor: endless})
	_, prompts := c.ListPrompts(t.Context(), &mcp.ListPromptsParams{Cursor: endless})
	_, resources := c.ListResources(t.Context(), &mcp.ListResourcesParams{Cursor: endless})
	_, templates := c.ListResourceTemplates(t.Context(), &mcp.ListResourceTemplatesParams{Cursor: endless})
	for _, err := range []error{tools, prompts, resources, templates} {
		if err == nil || !strings.Contains(err.Error(), "no such cursor") {
			t.Errorf("got %v", err)
		}
	}
	if list, err := c.ListTools(t.Context(), nil); err != nil || len(list.Tools) == 0 {
		t.Errorf("a list without one: got %v, %v", list, err)
	}
}

func undoable(name, undo string) rings.Action {
	a := tools.ReadAction(name)
	a.ReadOnly, a.UndoAPI = false, &undo
	return a
}

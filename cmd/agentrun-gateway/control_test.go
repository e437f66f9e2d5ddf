// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/gate/gatetest"
	"agentrun/toolproxy/link"
)

const deployTool = `tools:
  deploy:
    description: Deploys.
    category: B
    reversibility: full
    args: {type: object}
    command: {argv: [/bin/true]}
`

// lending is an assembled gateway of a run in ring 3, whose supervisor lends rings; allow are entries of --allow.
func lending(t *testing.T, config string, allow ...string) (*gateway, *gatetest.Supervisor) {
	t.Helper()
	s, err := readSettings(conf(config), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	supervisor := gatetest.New(rings.Sandbox)
	supervisor.OnElevate = func(_ context.Context, e link.Elevation) (link.Elevated, error) {
		supervisor.SetRing(e.Target)
		return link.Elevated{Granted: true, Code: rings.CodeOK, ID: "e1", Target: e.Target, Expires: time.Now().Add(time.Hour), TTL: time.Hour}, nil
	}
	start := link.Start{Ring: rings.Sandbox, MaxSteps: 100, MaxModelCalls: 100, Version: version, Allow: allow, Caller: link.Caller{Run: "run-1", Plan: "operator", Mode: "public"}}
	g, err := assemble(t.Context(), start, s, supervisor, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.close(nil, slog.New(slog.DiscardHandler)) })
	return g, supervisor
}

func (g *gateway) mcpList(t *testing.T) string {
	t.Helper()
	r := httptest.NewRequest("POST", "/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	r.Host = "127.0.0.1:7600"
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	w := httptest.NewRecorder()
	g.mux.ServeHTTP(w, r)
	if w.Code != 200 {
		t.Fatalf("MCP: got %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// through asks the forward proxy for a tunnel, and says whether what is said there comes back.
func through(t *testing.T, proxy, to string) (answer string, echoed bool) {
	t.Helper()
	c, err := net.Dial("tcp", proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "CONNECT "+to+" HTTP/1.1\r\nHost: "+to+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1024)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	answer, _, _ = strings.Cut(string(buf[:n]), "\r\n")
	if !strings.Contains(answer, " 200 ") {
		return answer, false
	}
	if _, err := io.WriteString(c, "ping"); err != nil {
		return answer, false
	}
	_, err = io.ReadFull(c, buf[:4])
	return answer, err == nil && string(buf[:4]) == "ping"
}

func echoServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	return l.Addr().String()
}

// The life of an elevation in one gateway: tools of ring 2 and --allow are there while it lasts, and before and after they aren't.
func TestM22AssembledGatewayFollowsAnElevation(t *testing.T) {
	upstream := echoServer(t)
	g, s := lending(t, deployTool, upstream)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.forward.ServeProxy(l) }()
	holds := func(want bool) {
		t.Helper()
		if _, list := g.ask("GET", "/internal/tools", ""); strings.Contains(list, `"deploy"`) != want {
			t.Errorf("got %.300s, want deploy listed: %v", list, want)
		}
		if list := g.mcpList(t); strings.Contains(list, `"deploy"`) != want || !strings.Contains(list, `"math"`) {
			t.Errorf("MCP: got %.300s, want deploy listed: %v", list, want)
		}
		code, body := g.ask("POST", "/internal/tools/deploy", `{"args":{}}`)
		if denied := strings.Contains(body, `"ring_denied"`); denied == want || code == 200 {
			t.Errorf("got %d %s, want it to pass the ring: %v", code, body, want)
		}
		if answer, echoed := through(t, l.Addr().String(), upstream); echoed != want {
			t.Errorf("--allow: got %s, want a tunnel: %v", answer, want)
		}
	}
	holds(false)
	for range 2 {
		if code, body := g.ask("POST", "/internal/elevation", `{"target_ring":2,"ttl_seconds":3600,"reason":"deploy"}`); code != 200 || !strings.Contains(body, `"elevation_id":"e1"`) {
			t.Fatalf("got %d %s", code, body)
		}
		holds(true)
		s.SetRing(rings.Sandbox)
		holds(false)
	}
	if code, body := g.ask("GET", "/internal/elevation", ""); code != 200 || body != `{"ok":true,"output":{"ring":3,"elevation":null}}` {
		t.Errorf("got %d %s", code, body)
	}
}

// H-23: a critical forbid denies, is on record, and the supervisor has heard of it before the agent does. Lists are no attempts.
func TestH23AssembledGatewaySoundsTheAlarm(t *testing.T) {
	policy := policyFile(t, "p.cedar", `@id("no-math") @severity("critical") forbid (principal, action == Action::"tool.invoke", resource == Tool::"math");
@id("no-ring-1") @severity("critical") forbid (principal, action == Action::"agent.elevation.request", resource == Resource::"ring:1");
@id("no-text") @severity("high") forbid (principal, action == Action::"tool.invoke", resource == Tool::"text");`)
	for name, c := range map[string]struct{ path, body, action, policy string }{
		"tool":      {"/internal/tools/math", `{"args":{"expression":"1"}}`, "tool.math.invoke", "no-math"},
		"elevation": {"/internal/elevation", `{"target_ring":1}`, "agent.elevation.request", "no-ring-1"},
	} {
		g, s := lending(t, "policy: {file: "+policy+"}")
		var tries int
		s.OnAlarm = func(context.Context, link.Alarm) error {
			if tries++; tries == 1 {
				return errors.New("the audit is busy")
			}
			return nil
		}
		if code, list := g.ask("GET", "/internal/tools", ""); code != 200 || strings.Contains(list, `"math"`) {
			t.Errorf("%s: got %d %.200s, want a list without math", name, code, list)
		}
		g.ask("POST", "/internal/tools/text", `{"args":{"op":"upper","text":"x"}}`)
		g.ask("POST", "/internal/elevation", `{"target_ring":2}`)
		if got := s.Alarms(); got != nil {
			t.Fatalf("%s: got %v before, want none", name, got)
		}
		code, body := g.ask("POST", c.path, c.body)
		if code != 403 || !strings.Contains(body, `"code":"acl_block"`) {
			t.Errorf("%s: got %d %s", name, code, body)
		}
		want := link.Alarm{Reason: rings.KillPolicyViolation, Action: c.action, Detail: "policy " + c.policy}
		if d := cmp.Diff([]link.Alarm{want, want}, s.Alarms()); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		last := s.Records()[len(s.Records())-1]
		if last.Rule != c.policy || last.Allowed || len(last.Flags) != 1 || last.Flags[0] != gate.FlagCritical {
			t.Errorf("%s: got record %+v", name, last)
		}
		asked := s.Asked()
		if d := cmp.Diff([]string{"end", "alarm", "alarm"}, asked[len(asked)-3:]); d != "" {
			t.Errorf("%s: record before effect: %s", name, d)
		}
		for path, body := range map[string]string{"/internal/tools/calendar": `{"args":{"op":"now"}}`, "/internal/elevation": `{"target_ring":2}`, chatPath: fmt.Sprintf(chatBody, "x")} {
			if code, body := g.ask("POST", path, body); code != 403 || !strings.Contains(body, `"run_ended"`) {
				t.Errorf("%s: %s afterwards: got %d %s, want run_ended", name, path, code, body)
			}
		}
	}
}

// H-23: tools whose sandboxes don't start are shed, and with kill_at the run is killed.
func TestH23AssembledGatewayBreaks(t *testing.T) {
	g, s := lending(t, deployTool+"breaker: {calls: 3, kill_at: 1, kill_calls: 4}\n")
	s.SetRing(rings.Standard)
	alarmed := make(chan link.Alarm, 1)
	s.OnAlarm = func(_ context.Context, a link.Alarm) error { alarmed <- a; return nil }
	for i, want := range []string{`"unavailable"`, `"unavailable"`, `"unavailable"`, `"tool_unavailable"`} {
		if code, body := g.ask("POST", "/internal/tools/deploy", `{"args":{}}`); code != 503 || !strings.Contains(body, `"code":`+want) {
			t.Errorf("call %d: got %d %s, want %s", i+1, code, body, want)
		}
	}
	if code, body := g.ask("POST", "/internal/tools/math", `{"args":{"expression":"6*7"}}`); code != 200 {
		t.Errorf("another tool: got %d %s", code, body)
	}
	if len(alarmed) != 0 {
		t.Error("alarm although one of four succeeded")
	}
	g, s = lending(t, deployTool+"breaker: {kill_at: 0.5, kill_calls: 4}\n")
	s.SetRing(rings.Standard)
	s.OnAlarm = func(_ context.Context, a link.Alarm) error { alarmed <- a; return nil }
	for range 4 {
		g.ask("POST", "/internal/tools/deploy", `{"args":{}}`)
	}
	select {
	case a := <-alarmed:
		if a.Reason != rings.KillCircuitBreaker || a.Check() != nil {
			t.Errorf("got %+v, %v", a, a.Check())
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no alarm")
	}
	if code, body := g.ask("POST", "/internal/tools/math", `{"args":{"expression":"1"}}`); code != 403 || !strings.Contains(body, `"run_ended"`) {
		t.Errorf("afterwards: got %d %s", code, body)
	}
}

// An alarm that nobody takes is given up; one whose words the link wouldn't take is given other words.
func TestH23AlarmsAreHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := gatetest.New(rings.Sandbox)
		a := &alarms{to: s, log: slog.New(slog.DiscardHandler)}
		a.violation(t.Context(), gate.Violation{Action: "tool.x.invoke", Policy: "/etc/a\nb\x1b[2J" + strings.Repeat("é", 2000) + "\xff:3"})
		if got := s.Alarms(); len(got) != 1 || got[0].Check() != nil {
			t.Errorf("got %v, want one that the link takes", got)
		}
		a.violation(t.Context(), gate.Violation{Action: "tool.x.invoke"})
		if got := s.Alarms()[1]; got.Check() != nil || !strings.Contains(got.Detail, "remote") {
			t.Errorf("got %+v", got)
		}
		s = gatetest.New(rings.Sandbox)
		s.OnAlarm = func(context.Context, link.Alarm) error { return errors.New("the audit is full") }
		(&alarms{to: s, log: slog.New(slog.DiscardHandler)}).tripped(t.Context(), "x")
		if got := len(s.Alarms()); got != alarmTries {
			t.Errorf("got %d tries, want %d", got, alarmTries)
		}
		(&alarms{log: slog.New(slog.DiscardHandler)}).tripped(t.Context(), "nobody kills")
	})
}

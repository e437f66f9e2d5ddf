// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/audit"
	"agentrun/governance"
	"agentrun/internal/fault"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/store"
	"agentrun/toolproxy/link"
)

// TestMain lets the test binary be another process of agentrun on the same state.
func TestMain(m *testing.M) {
	if dir := os.Getenv("AGENTRUN_TEST_DIR"); dir != "" {
		if err := child(os.Getenv("AGENTRUN_TEST_CHILD"), dir); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(what, dir string) error {
	ctx := context.Background()
	h, err := Open(Options{StateDir: dir})
	if err != nil {
		return err
	}
	switch what {
	case "admit": // and hold the place until stdin ends
		_, err := h.Admit(ctx, Request{Agent: "a"})
		if d, ok := errors.AsType[*DeniedError](err); ok {
			fmt.Println(d.Code)
			return nil
		}
		fmt.Println("in", err)
		_, _ = io.Copy(io.Discard, os.Stdin)
		return nil
	case "approve", "deny": // the first call that waits
		for {
			calls, err := h.Approvals(ctx)
			if err != nil {
				return err
			}
			for _, a := range calls {
				if a.State != ApprovalPending {
					continue
				}
				_, err := h.AnswerApproval(ctx, a.ID, what == "approve", "uid:42")
				fmt.Println(a.ID)
				return errors.Join(err, h.Close())
			}
			time.Sleep(10 * time.Millisecond)
		}
	case "elevate": // and hold it until stdin ends
		adm, err := h.Admit(ctx, Request{Agent: "a", Ring: rings.Sandbox})
		if err != nil {
			return err
		}
		c := h.Control(adm, ControlOptions{Run: "child", Elevatable: func(rings.Ring) error { return nil }})
		if _, err := c.Elevate(ctx, ElevateRequest{Target: rings.Standard, Reason: "test"}); err != nil {
			return err
		}
		fmt.Println("elevated")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return nil
	case "quarantine":
		_, err := h.Quarantine(ctx, "a", Cause{Code: "operator", Reason: "test"})
		fmt.Println("done")
		return errors.Join(err, h.Close())
	}
	return errors.New("unknown child")
}

// other starts another process and returns its first line.
func (n *node) other(what string) (*exec.Cmd, string) {
	n.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "AGENTRUN_TEST_DIR="+n.dir, "AGENTRUN_TEST_CHILD="+what, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { stdin.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		n.t.Fatalf("%s: %v", what, err)
	}
	return cmd, strings.TrimSpace(line)
}

func (n *node) set(id string, change func(*AgentSettings)) {
	n.t.Helper()
	if _, err := n.SetAgent(n.t.Context(), id, "uid:0", change); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) admit(r Request) Admission {
	n.t.Helper()
	adm, err := n.Admit(n.t.Context(), r)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(adm.Done)
	return adm
}

// broker opens the broker of a run of agent a, whose ring its score has given.
func (n *node) broker(opt BrokerOptions) *Broker {
	n.t.Helper()
	return n.brokerOf("r1", opt)
}

func (n *node) brokerOf(run string, opt BrokerOptions) *Broker {
	n.t.Helper()
	e := n.Control(n.admit(Request{Agent: "a"}), ControlOptions{Run: run}).Broker(opt)
	n.t.Cleanup(func() { over(e) })
	return e
}

// over is the end of a run that has nothing but its broker.
func over(e *Broker) error { return errors.Join(e.Close(), e.control.Close()) }

func tool(name string) link.Check {
	return link.Check{Held: true, Action: rings.Action{ID: "tool." + name + ".invoke", Name: name, ExecuteAPI: name, Reversibility: rings.Full, ReadOnly: true}}
}

func check(t *testing.T, e *Broker, c link.Check) link.Verdict {
	t.Helper()
	v, err := e.Check(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// The ledger knows no link, and says the same words.
func TestCodesOfTheLedgerAreTheLinks(t *testing.T) {
	for ours, theirs := range map[rings.Code]rings.Code{
		governance.CodeUnavailable: link.CodeUnavailable, governance.CodeCost: link.CodeCost, governance.CodeQuota: link.CodeQuota,
	} {
		if ours != theirs {
			t.Errorf("got %s, want %s", ours, theirs)
		}
	}
}

// end closes a call that cost so much.
func end(t testing.TB, e *Broker, place, reservation uint64, cost int64) link.Reservation {
	t.Helper()
	r := link.Record{Kind: "tool", Name: "math", Allowed: true, Code: rings.CodeOK, Cost: cost, Count: 1}
	a, err := e.End(t.Context(), link.End{Place: place, Reservation: reservation, Record: &r})
	if err != nil {
		t.Error(err)
	}
	return a
}

// giveBack is the end of what was no call.
func giveBack(t testing.TB, e *Broker, place uint64) {
	t.Helper()
	if _, err := e.End(t.Context(), link.End{Place: place}); err != nil {
		t.Error(err)
	}
}

// M-18, M-19: the calls of a gateway that dies in the middle are on record, and what they had reserved is spent.
func TestM18CallsOfADeadGatewayAreOnRecord(t *testing.T) {
	n := newNode(t)
	n.set("a", func(s *AgentSettings) { s.Plan = governance.Freemium })
	e := n.broker(BrokerOptions{MaxSteps: 9})
	ended, working, asking := check(t, e, tool("math")), check(t, e, tool("search")), check(t, e, tool("text"))
	r, err := e.Reserve(t.Context(), link.Spend{What: "tool", Place: ended.Place, Estimate: 10})
	if err != nil || !r.Allowed {
		t.Fatalf("got %+v %v", r, err)
	}
	end(t, e, ended.Place, r.ID, 7)
	r, err = e.Reserve(t.Context(), link.Spend{What: "tool", Place: working.Place, Estimate: 1000, Tokens: 5})
	if err != nil || !r.Allowed || asking.Place == 0 {
		t.Fatalf("got %+v %v, place %d", r, err, asking.Place)
	}
	if err := over(e); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, rec := range (&site{node: n}).records(audit.NodeChain, "tool_call") {
		c := rec.(*audit.ToolCall)
		got = append(got, fmt.Sprint(c.Name, " ", c.Allowed, " ", c.Code, " ", c.Cost, " ", c.Count))
	}
	want := []string{"math true ok 7 1", "search true run_ended 1000 1", "text false run_ended 0 1"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("calls on record (-want +got):\n%s", d)
	}
	if u, err := n.Usage(t.Context(), "a"); err != nil || u[0].Cost != 1007 {
		t.Errorf("got %+v %v, want what was booked and what was reserved", u, err)
	}
}

// H-28: a call begins once, when it is on record, and not at all if it can't be; what it had reserved goes back.
func TestH28CallsBeginOnRecord(t *testing.T) {
	n := newNode(t)
	e := n.broker(BrokerOptions{MaxSteps: 9})
	v := check(t, e, tool("math"))
	undo := fault.Set("record/action_attempt=ENOSPC")
	if r, err := e.Reserve(t.Context(), link.Spend{What: "tool", Place: v.Place, Estimate: 10}); err == nil || r.Allowed {
		t.Errorf("got %+v %v without a record, want an error", r, err)
	}
	undo()
	for range 3 { // a gateway that has fallen may ask again and again
		if r, err := e.Reserve(t.Context(), link.Spend{What: "tool", Place: v.Place, Estimate: 10}); err != nil || !r.Allowed {
			t.Fatalf("got %+v %v", r, err)
		}
	}
	var got []audit.Record
	got = append(got, (&site{node: n}).records(audit.NodeChain, "action_attempt")...)
	want := []audit.Record{&audit.ActionAttempt{
		Action: "tool.math.invoke", AgentID: "a", BucketTokens: audit.NumberOf(9), RequiredRing: audit.Sandbox, Ring: audit.Sandbox, RunID: "r1", Timestamp: n.now.UTC(),
	}}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b audit.Number) bool { return a == b })); d != "" {
		t.Errorf("begun on record (-want +got):\n%s", d)
	}
}

// H-27: whichever way a call is refused, its one record says what decided; what a gateway claims of others stays a claim.
func TestH27RefusalsSayWhatDecided(t *testing.T) {
	n := newNode(t)
	e := n.broker(BrokerOptions{MaxSteps: 9})
	for _, tt := range []struct {
		r    link.Record
		kind string
		rule string
	}{
		{link.Record{Name: "x", Code: link.CodeRing, Required: rings.Root, Action: "tool.x.invoke"}, "ring_check", "H-9"},
		{link.Record{Name: "x", Code: link.CodeRing}, "tool_call", "H-9"}, // of no known ring
		{link.Record{Name: "x", Code: link.CodeRateLimited, Rule: "rate_limited"}, "rate_limit", ""},
		{link.Record{Name: "x", Code: link.CodeRateLimited, Rule: "M-11"}, "tool_call", "M-11"}, // the tool's own bucket
		{link.Record{Name: "x", Code: rings.CodeQuarantined}, "tool_call", "H-31"},
		{link.Record{Name: "x", Code: "acl_block", Rule: "no-x"}, "tool_call", "no-x"},
		{link.Record{Name: "x", Code: "made_up"}, "tool_call", "M-13"},
	} {
		tt.r.Kind, tt.r.Count = "tool", 1
		rec, err := e.recordOf(tt.r)
		if err != nil {
			t.Fatal(err)
		}
		rule := ""
		switch rec := rec.(type) {
		case *audit.RingCheck:
			rule = rec.Rule
		case *audit.ToolCall:
			rule = rec.Rule
		}
		if string(rec.Kind()) != tt.kind || rule != tt.rule {
			t.Errorf("%+v: got %s by %q, want %s by %q", tt.r, rec.Kind(), rule, tt.kind, tt.rule)
		}
	}
}

// M-19: a call whose cost finds no room goes on record as that, in the same step, and its place is free.
func TestM19EndThatFindsNoRoom(t *testing.T) {
	n := newNode(t)
	n.set("a", func(s *AgentSettings) { s.Plan = governance.Freemium }) // 0.005 a run
	e := n.broker(BrokerOptions{MaxSteps: 9})
	v := check(t, e, tool("math"))
	r, err := e.Reserve(t.Context(), link.Spend{What: "tool", Place: v.Place, Estimate: 10})
	if err != nil || !r.Allowed {
		t.Fatalf("got %+v %v", r, err)
	}
	if a := end(t, e, v.Place, r.ID, 9000); a.Allowed || a.Code != governance.CodeCost {
		t.Errorf("got %+v, want no room", a)
	}
	if len(e.places) != 0 {
		t.Error("the place is still taken")
	}
	recs := (&site{node: n}).records(audit.NodeChain, "tool_call")
	if len(recs) != 1 {
		t.Fatalf("got %d calls on record, want 1", len(recs))
	}
	if c := recs[0].(*audit.ToolCall); c.Code != "cost_exceeded" || c.Rule != "M-19" || c.Cost != 9000 || !c.Allowed {
		t.Errorf("got %+v", c)
	}
}

func TestM19ParallelRunsOverProcesses(t *testing.T) {
	n := newNode(t)
	n.set("a", func(s *AgentSettings) { s.Plan = governance.Freemium })
	first, line := n.other("admit")
	if line != "in <nil>" {
		t.Fatalf("got %q, want the first run to be admitted", line)
	}
	if _, line := n.other("admit"); line != string(link.CodeConcurrency) {
		t.Errorf("got %q, want %s in another process", line, link.CodeConcurrency)
	}
	_, err := n.Admit(t.Context(), Request{Agent: "a"})
	if code(t, err) != link.CodeConcurrency || !strings.Contains(err.Error(), "plan parallel limit reached") {
		t.Errorf("got %v, want the limit of the plan", err)
	}
	// The kernel gives the place back, however the process ends.
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	adm := n.admit(Request{Agent: "a"})
	adm.Done()
	adm = n.admit(Request{Agent: "a"})
	if adm.Grant.Plan != governance.Freemium || adm.Grant.Limits.Steps != 20 {
		t.Errorf("got %+v", adm.Grant)
	}
}

// M-19: what is expected of a run is held against its plan and the day before it starts, and a stake raises the runs at once.
func TestM19ExpectedBeforeTheStart(t *testing.T) {
	n := newNode(t)
	n.set("a", func(s *AgentSettings) { s.Plan, s.Role, s.Stake = governance.Casual, "reader", 20000 })
	for _, c := range []struct {
		r    Request
		want rings.Code
	}{
		{Request{Expect: governance.Estimate{Amounts: governance.Amounts{Cost: 40_001}}}, governance.CodeCost},
		{Request{Expect: governance.Estimate{Amounts: governance.Amounts{Tokens: 200_001}}}, governance.CodeQuota},
		{Request{Expect: governance.Estimate{Steps: 101}}, governance.CodeQuota},
		{Request{Tools: []string{"math", "webhook.send"}}, link.CodeToolRestricted},
	} {
		c.r.Agent = "a"
		if _, err := n.Admit(t.Context(), c.r); code(t, err) != c.want {
			t.Errorf("%+v: got %v, want %s", c.r, err, c.want)
		}
	}
	for range 6 { // twice the three of the plan
		n.admit(Request{Agent: "a", Tools: []string{"math"}, Expect: governance.Estimate{Amounts: governance.Amounts{Cost: 40_000}, Steps: 100}})
	}
	if _, err := n.Admit(t.Context(), Request{Agent: "a"}); code(t, err) != link.CodeConcurrency {
		t.Errorf("got %v, want a seventh run refused", err)
	}
}

func TestM19TeamSharesItsPlan(t *testing.T) {
	n := newNode(t)
	for _, id := range []string{"a", "b", "c", "d"} {
		n.set(id, func(s *AgentSettings) { s.Plan, s.Team = governance.Casual, "t" })
	}
	n.set("lonely", func(s *AgentSettings) { s.Plan = governance.Casual })
	for _, id := range []string{"a", "b", "c"} {
		n.admit(Request{Agent: id})
	}
	if _, err := n.Admit(t.Context(), Request{Agent: "d"}); code(t, err) != link.CodeConcurrency {
		t.Errorf("got %v, want a fourth name in the team to gain nothing", err)
	}
	n.admit(Request{Agent: "lonely"})
	n.admit(Request{}) // the operator's own has no plan
}

func TestAgentSettings(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.8, false)
	n.set("a", func(s *AgentSettings) {
		s.Plan, s.Role, s.Team, s.Stake, s.Mode = "premium", "reader", "t1", 5000, ModeConfidential
	})
	n.set("new", func(s *AgentSettings) { s.Team = "t1" })
	n.restart()
	want := AgentSettings{Plan: "premium", Role: "reader", Team: "t1", Stake: 5000, Mode: ModeConfidential}
	if a := n.agent("a"); a.AgentSettings != want || a.score() != 0.8 {
		t.Errorf("got %+v, want %+v beside the score", a, want)
	}
	if all, err := n.Agents(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("got %v %v, want both agents", all, err)
	}
	for _, change := range []func(*AgentSettings){
		func(s *AgentSettings) { s.Plan = "nope" }, func(s *AgentSettings) { s.Role = "nope" }, func(s *AgentSettings) { s.Stake = -1 },
		func(s *AgentSettings) { s.Mode = "secret" }, func(s *AgentSettings) { s.Team = "a/b" },
	} {
		if _, err := n.SetAgent(t.Context(), "a", "uid:0", change); err == nil {
			t.Error("an impossible setting was taken")
		}
	}
	if diff := cmp.Diff([]string{"score", "agent_settings", "agent_settings"}, n.log(audit.NodeChain)); diff != "" {
		t.Error(diff)
	}
	n.breakAudit()
	if _, err := n.SetAgent(t.Context(), "a", "uid:0", func(s *AgentSettings) { s.Stake = 20000 }); err == nil {
		t.Error("set without a record")
	}
	if a := n.agent("a"); a.Stake != 5000 {
		t.Errorf("got %v", a.Stake)
	}
}

func TestM9CheckOrder(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.8, false)
	n.set("a", func(s *AgentSettings) { s.Role = "reader" })
	e := n.broker(BrokerOptions{MaxSteps: 100})
	if v := check(t, e, tool("math")); !v.Allowed || v.Place == 0 || v.Ring != rings.Standard {
		t.Errorf("got %+v", v)
	}
	admin := tool("math")
	admin.Action.Admin = true
	irreversible := tool("math")
	irreversible.Action.ReadOnly, irreversible.Action.Reversibility = false, rings.Irreversible
	for name, tt := range map[string]struct {
		c    link.Check
		want rings.Code
	}{
		"zero": {link.Check{}, link.CodeRing}, "admin": {admin, link.CodeRing}, "ring 1": {irreversible, link.CodeRing}, "role": {tool("webhook.send"), link.CodeToolRestricted},
		"egress": {link.Check{Egress: true}, rings.CodeOK}, "egress of ring 1": {link.Check{Egress: true, Action: irreversible.Action}, link.CodeRing},
	} {
		if v := check(t, e, tt.c); v.Code != tt.want || v.Allowed != (tt.want == rings.CodeOK) || !v.Allowed && (v.Message == "" || v.Next == "") {
			t.Errorf("%s: got %+v, want %s", name, v, tt.want)
		}
	}
	if _, err := n.Quarantine(t.Context(), "a", Cause{Code: "operator", Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []link.Check{{}, tool("math"), {Egress: true}} {
		if v := check(t, e, c); v.Code != rings.CodeQuarantined || v.Allowed {
			t.Errorf("got %+v, want quarantined before all else", v)
		}
	}
	over(e)
	if v := check(t, e, tool("math")); v.Allowed || v.Code != link.CodeCanceled {
		t.Errorf("got %+v after the end", v)
	}
}

func TestM7NoEgressInRing3(t *testing.T) {
	n := newNode(t)
	e := n.broker(BrokerOptions{MaxSteps: 1})
	if v := check(t, e, link.Check{Egress: true}); v.Allowed || v.Code != link.CodeRing {
		t.Errorf("got %+v, want ring 3 to have no egress", v)
	}
}

func TestH11ConcurrencyAndM3Steps(t *testing.T) {
	n := newNode(t)
	e := n.broker(BrokerOptions{MaxSteps: 6})
	var places []uint64
	for range 4 {
		places = append(places, check(t, e, tool("math")).Place)
	}
	if v := check(t, e, tool("math")); v.Allowed || v.Code != link.CodeConcurrency || v.Retry <= 0 {
		t.Errorf("got %+v, want four tools at once in ring 3", v)
	}
	for _, p := range places {
		giveBack(t, e, p)
		giveBack(t, e, p)
	}
	giveBack(t, e, 99)
	for range 2 {
		giveBack(t, e, check(t, e, tool("math")).Place)
	}
	if v := check(t, e, tool("math")); v.Allowed || v.Code != link.CodeSteps {
		t.Errorf("got %+v, want the steps to be used", v)
	}
	if b, err := e.Budget(t.Context()); err != nil || b.Steps != 0 || b.RunCost != governance.Unlimited {
		t.Errorf("got %+v %v", b, err)
	}
}

// F5: calls of models are counted apart from tools', here too: by what is called, not by what the gateway says of it.
func TestM3ModelCallsAreCountedApart(t *testing.T) {
	n := newNode(t)
	e := n.broker(BrokerOptions{MaxSteps: 1, MaxModelCalls: 2})
	for i, row := range []struct{ tool, says string }{{"llm", ""}, {"math", ""}, {"embeddings", ""}, {"llm", "its 2 model calls"}, {"math", "its tool calls"}} {
		v := check(t, e, tool(row.tool))
		if v.Allowed != (row.says == "") || !v.Allowed && (v.Code != link.CodeSteps || !strings.Contains(v.Message, row.says)) {
			t.Errorf("call %d of %s: got %+v, want %q", i, row.tool, v, row.says)
		}
		giveBack(t, e, v.Place)
	}
	if b, err := e.Budget(t.Context()); err != nil || b.Steps != 0 {
		t.Errorf("got %+v %v, want no steps left", b, err)
	}
}

func TestH16RateOfTheRing(t *testing.T) {
	n := newNode(t)
	e := n.broker(BrokerOptions{MaxSteps: 1000})
	allowed := 0
	for range 50 {
		v := check(t, e, tool("math"))
		giveBack(t, e, v.Place)
		if v.Allowed {
			allowed++
		} else if v.Code != link.CodeRateLimited || v.Retry <= 0 {
			t.Fatalf("got %+v", v)
		}
	}
	if allowed != 10 {
		t.Errorf("got %d, want the burst of ring 3", allowed)
	}
	// A second run of the same agent finds the bucket as the first has left it.
	if v := check(t, n.brokerOf("r2", BrokerOptions{MaxSteps: 9}), tool("math")); v.Allowed {
		t.Error("a new run filled the bucket")
	}
}

func TestH31QuarantineByAnotherProcess(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.8, false)
	e := n.broker(BrokerOptions{MaxSteps: 100})
	ring, changed := e.Ring()
	if ring != rings.Standard || !check(t, e, tool("math")).Allowed {
		t.Fatalf("got %v", ring)
	}
	if _, line := n.other("quarantine"); line != "done" {
		t.Fatal(line)
	}
	if v := check(t, e, tool("math")); v.Allowed || v.Code != rings.CodeQuarantined {
		t.Errorf("got %+v, want the quarantine to hold at the next call", v)
	}
	<-changed
	if ring, _ := e.Ring(); ring != rings.Sandbox {
		t.Errorf("got %v, want ring 3", ring)
	}
}

// The watcher alone must notice: an open tunnel asks nothing.
func TestM22RingChangesWithoutAQuestion(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.8, false)
	e := n.broker(BrokerOptions{})
	_, changed := e.Ring()
	n.score("a", 0.1, false)
	<-changed
	ring, changed := e.Ring()
	if ring != rings.Sandbox {
		t.Errorf("got %v, want ring 3", ring)
	}
	n.score("a", 0.99, true)
	<-changed
	if ring, _ := e.Ring(); ring != rings.Standard {
		t.Errorf("got %v, want never more than admitted to", ring)
	}
	_, changed = e.Ring()
	over(e)
	<-changed
}

func TestBrokerFailsClosed(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.8, false)
	e := n.broker(BrokerOptions{MaxSteps: 100})
	db := filepath.Join(n.dir, stateFile)
	if err := os.WriteFile(db, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if v, err := e.Check(ctx, tool("math")); err == nil || v != (link.Verdict{}) {
		t.Errorf("check: got %+v %v", v, err)
	}
	if ring, _ := e.Ring(); ring != rings.Sandbox {
		t.Errorf("got %v, want ring 3", ring)
	}
	if r, err := e.Reserve(ctx, link.Spend{Estimate: 1}); r.Allowed {
		t.Errorf("reserve: got %+v %v", r, err)
	}
	if b, err := e.Budget(ctx); err == nil || b != (link.Budget{}) {
		t.Errorf("budget: got %+v %v", b, err)
	}
	if a, err := e.Approve(ctx, approvalOf("webhook.send", `{}`)); err == nil || a.Allowed {
		t.Errorf("approve: got %+v %v", a, err)
	}
	if _, err := e.Execute(ctx, "x"); err == nil {
		t.Error("a command was run")
	}
}

func TestM19BudgetOverRuns(t *testing.T) {
	n := newNode(t)
	n.set("a", func(s *AgentSettings) { s.Plan = governance.Freemium }) // 0.005 a run, 0.05 a day
	ctx := t.Context()
	spend := func(run string) rings.Code {
		adm, err := n.Admit(ctx, Request{Agent: "a"})
		if err != nil {
			t.Fatal(err)
		}
		defer adm.Done()
		e := n.Control(adm, ControlOptions{Run: run}).Broker(BrokerOptions{MaxSteps: 100})
		if e.MaxSteps() != 20 {
			t.Errorf("got %d steps, want the plan's", e.MaxSteps())
		}
		r, err := e.Reserve(ctx, link.Spend{What: "model", Estimate: 5000})
		if err != nil {
			t.Fatal(err)
		}
		if r.Allowed {
			if s := end(t, e, 0, r.ID, 5000); !s.Allowed || s.Warning == "" {
				t.Errorf("got %+v", s)
			}
			if r, err := e.Reserve(ctx, link.Spend{Estimate: 1}); err != nil || r.Code != governance.CodeCost {
				t.Errorf("got %+v %v, want the run's hard stop", r, err)
			}
			r.Code = rings.CodeOK
		}
		if err := over(e); err != nil {
			t.Fatal(err)
		}
		n.restart()
		return r.Code
	}
	for i := range 10 {
		if got := spend(fmt.Sprint("r", i)); got != rings.CodeOK {
			t.Fatalf("run %d: got %s", i, got)
		}
	}
	if got := spend("r10"); got != governance.CodeCost {
		t.Errorf("got %s, want the day to be used", got)
	}
	u, err := n.Usage(ctx, "a")
	if err != nil || u[0].Cost != 50_000 || u[0].CostPerDay != 50_000 || u[0].Subject != "agent:a" {
		t.Errorf("got %+v %v", u, err)
	}
	n.now = n.now.Add(24 * time.Hour)
	if got := spend("r11"); got != rings.CodeOK {
		t.Errorf("got %s on the next day", got)
	}
	n.now = n.now.Add(-72 * time.Hour)
	if u, err := n.Usage(ctx, "a"); err != nil || u[0].Cost != 5_000 || u[0].Day != "2026-01-03" {
		t.Errorf("got %+v %v, want a clock set back to give nothing back", u, err)
	}
	warnings := 0
	for _, k := range n.log(audit.NodeChain) {
		if k == "quota_warning" {
			warnings++
		}
	}
	if warnings < 11 {
		t.Errorf("got %d warnings on record, want one for each run at least", warnings)
	}
}

func TestM18OneRecordForEachDecision(t *testing.T) {
	n := newNode(t)
	e := n.broker(BrokerOptions{})
	ctx := t.Context()
	for _, r := range []link.Record{
		{Kind: "tool", Name: "math", Allowed: true, Code: "ok", Count: 1, Took: time.Second},
		{Kind: "llm", Name: strings.Repeat("x", 5000), Code: "cost_exceeded", Count: -1, Cost: -5, Tokens: -1},
		{Kind: "egress", Name: "example.org:443", Allowed: true, Code: "ok", Sent: 1 << 60},
		{Kind: "dns", Name: "\xff", Code: "host_denied", Count: 17, Flags: make([]string, 1000)},
	} {
		if err := e.Record(ctx, r); err != nil {
			t.Errorf("%+v: %v", r.Kind, err)
		}
	}
	for _, r := range []link.Record{{}, {Kind: "tool"}, {Kind: "tool", Name: "x", Code: "NOT A CODE"}, {Kind: "other", Name: "x", Code: "ok"}, {Kind: "tool", Name: "x", Code: "ok", Args: "zz"}} {
		if err := e.Record(ctx, r); err == nil {
			t.Errorf("%+v was taken", r)
		}
	}
	over(e)
	if diff := cmp.Diff([]string{"ring_check", "tool_call", "tool_call", "egress", "egress"}, n.log(audit.NodeChain)); diff != "" {
		t.Error(diff)
	}
}

// M-8: an agent makes up names without number; the account tells some apart, counts all, and takes no address but an address.
func TestM8RefusalsOfARunAreBounded(t *testing.T) {
	n := newNode(t)
	e := n.broker(BrokerOptions{})
	record := func(r link.Record) {
		t.Helper()
		if err := e.Record(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	refused := link.Record{Kind: "egress", Code: "egress_denied", Detail: "not_listed", Count: 3}
	for i := range 500 {
		refused.Name = fmt.Sprintf("%d.%s:443", i, strings.Repeat("x", 300))
		record(refused)
		record(refused)
	}
	record(link.Record{Kind: "egress", Name: "down.org:443", Code: link.CodeUnavailable, Detail: "upstream_unreachable", Count: 1})
	record(link.Record{Kind: "tool", Name: "math", Code: "rate_limited", Count: 2})
	var s runtime.Status
	e.Account(&s)
	var total int64
	for _, r := range s.GatewayRefused {
		total += r.Count
		if len(r.Name) > 256 || r.Address != "" {
			t.Errorf("%+v", r)
		}
	}
	first, last := s.GatewayRefused[0], s.GatewayRefused[len(s.GatewayRefused)-1]
	if len(s.GatewayRefused) != maxRefused+2 || total != 500*6+2 || first.Code != "not_listed" || first.Count != 6 || last.Kind != "tool" {
		t.Errorf("%d kinds, %d refusals, first %+v, last %+v", len(s.GatewayRefused), total, first, last)
	}
	over(e)

	e = n.broker(BrokerOptions{})
	for _, address := range []string{"10.0.0.5", "fe80::1%`reboot`", "x; reboot", ""} {
		record(link.Record{Kind: "egress", Name: address + ":1", Code: "egress_denied", Detail: "private_address", Address: address, Count: 1})
	}
	e.Account(&s)
	for i, want := range []string{"10.0.0.5", "", "", ""} {
		if got := s.GatewayRefused[i].Address; got != want {
			t.Errorf("address %q, want %q", got, want)
		}
	}
	over(e)
}

// Refused system calls, tools and connections of one run are weighed together (H-24).
func TestH24RefusalsAddUp(t *testing.T) {
	n := newNode(t)
	adm := n.admit(Request{Agent: "a"})
	c := n.Control(adm, ControlOptions{Run: "r1", OnBreach: profiles.BreachKill})
	w := c.Watch(WatchOptions{})
	if err := w.Start(status("r1")); err != nil {
		t.Fatal(err)
	}
	e := c.Broker(BrokerOptions{MaxSteps: 9})
	defer over(e)
	if err := w.Refused(runtime.Refusal{At: n.now, Syscall: "mount", Verdict: "EPERM", Called: rings.Root}); err != nil {
		t.Fatal(err)
	}
	if err := e.Record(t.Context(), link.Record{Kind: "tool", Name: "shutdown", Code: "ring_denied", Count: 1, Weight: rings.Root}); err != nil {
		t.Fatal(err)
	}
	if n.agent("a").Quarantined != nil {
		t.Fatal("two attempts are no breach")
	}
	if err := e.Record(t.Context(), link.Record{Kind: "egress", Name: "x:1", Code: "ring_denied", Count: 1, Weight: rings.Standard}); err != nil {
		t.Fatal(err)
	}
	err := e.Record(t.Context(), link.Record{Kind: "egress", Name: "x:1", Code: "ring_denied", Count: 1, Weight: rings.Privileged})
	if err == nil || !strings.Contains(err.Error(), "ring breach") || !c.over() {
		t.Errorf("got %v, killed %v", err, c.over())
	}
	if n.agent("a").Quarantined == nil {
		t.Error("the agent is free")
	}
	if r, err := e.Reserve(t.Context(), link.Spend{}); err != nil || r.Allowed {
		t.Errorf("got %+v %v after the breach", r, err)
	}
}

func approvalOf(tool, args string) link.Approval {
	return link.Approval{Tool: tool, Args: json.RawMessage(args), Digest: strings.Repeat("ab", 32), Reason: "category D", Wait: time.Minute}
}

func TestM11ApprovalByAnotherProcess(t *testing.T) {
	for _, want := range []string{"approve", "deny"} {
		t.Run(want, func(t *testing.T) {
			n := newNode(t)
			n.score("a", 0.8, false)
			n.now = time.Now() // the other process has the real clock
			e := n.broker(BrokerOptions{})
			got := make(chan link.Approved, 1)
			go func() {
				a, err := e.Approve(t.Context(), approvalOf("webhook.send", `{"to":"x"}`))
				if err != nil {
					t.Error(err)
				}
				got <- a
			}()
			_, id := n.other(want)
			a := <-got
			if a.Allowed != (want == "approve") || a.ID != id || a.By != "uid:42" {
				t.Errorf("got %+v, want %s of %s", a, want, id)
			}
			if _, err := n.AnswerApproval(t.Context(), id, true, "uid:0"); !errors.Is(err, ErrLate) {
				t.Errorf("got %v, want no second answer", err)
			}
			if want != "approve" {
				return
			}
			// Used up: the same call asks again.
			again := approvalOf("webhook.send", `{"to":"x"}`)
			again.Wait = time.Millisecond
			if a, err := e.Approve(t.Context(), again); err != nil || a.Allowed || a.ID == id {
				t.Errorf("got %+v %v, want an approval to be good once", a, err)
			}
			over(e)
			if diff := cmp.Diff([]string{"score", "ring_check", "approval_request", "approval_decision", "approval_request", "approval_decision"}, n.log(audit.NodeChain)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// waiting returns the one call that waits, as soon as there is one.
func (n *node) waiting() Approval {
	n.t.Helper()
	for n.t.Context().Err() == nil {
		calls, err := n.Approvals(n.t.Context())
		if err != nil {
			n.t.Fatal(err)
		}
		for _, a := range calls {
			if a.State == ApprovalPending {
				return a
			}
		}
		time.Sleep(time.Millisecond)
	}
	n.t.Fatal("nothing waits")
	return Approval{}
}

func TestM11WhatEndsTheWait(t *testing.T) {
	for name, tt := range map[string]struct {
		wait time.Duration
		end  func(n *node, e *Broker, cancel context.CancelFunc)
		want ApprovalState
	}{
		"time":   {time.Nanosecond, func(*node, *Broker, context.CancelFunc) {}, ApprovalExpired},
		"caller": {time.Minute, func(_ *node, _ *Broker, cancel context.CancelFunc) { cancel() }, ApprovalCanceled},
		"run":    {time.Minute, func(_ *node, e *Broker, _ context.CancelFunc) { over(e) }, ApprovalCanceled},
		"quarantine": {time.Minute, func(n *node, _ *Broker, _ context.CancelFunc) {
			if _, err := n.Quarantine(n.t.Context(), "a", Cause{Code: "operator", Reason: "x"}); err != nil {
				n.t.Error(err)
			}
		}, ApprovalCanceled},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			e := n.broker(BrokerOptions{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got := make(chan link.Approved, 1)
			go func() {
				a := approvalOf("webhook.send", `{}`)
				a.Wait = tt.wait
				r, err := e.Approve(ctx, a)
				if err != nil {
					t.Error(err)
				}
				got <- r
			}()
			if name != "time" {
				n.waiting()
			}
			tt.end(n, e, cancel)
			a := <-got
			if a.Allowed {
				t.Errorf("got %+v", a)
			}
			kept, err := n.Approval(t.Context(), a.ID)
			if err != nil || kept.State != tt.want {
				t.Errorf("got %+v %v, want %s", kept, err, tt.want)
			}
			if _, err := n.AnswerApproval(t.Context(), a.ID, true, "uid:0"); !errors.Is(err, ErrLate) {
				t.Errorf("got %v, want a late answer refused", err)
			}
		})
	}
}

func TestM11StandingGrants(t *testing.T) {
	n := newNode(t)
	ctx := t.Context()
	e := n.broker(BrokerOptions{})
	ask := func(change func(*link.Approval)) bool {
		a := approvalOf("webhook.send", `{}`)
		a.Wait = 0
		change(&a)
		r, err := e.Approve(ctx, a)
		if err != nil {
			t.Fatal(err)
		}
		return r.Allowed
	}
	same := func(*link.Approval) {}
	if ask(same) {
		t.Fatal("allowed without a grant")
	}
	for _, g := range []StandingGrant{
		{Agent: "a", Tool: "webhook.send"}, {Agent: "a", Tool: "webhook.send", Expires: n.now.Add(MaxGrant + time.Second)},
		{Agent: "", Tool: "webhook.send", Expires: n.now.Add(time.Hour)}, {Agent: "a", Tool: "*", Expires: n.now.Add(time.Hour)},
		{Agent: "a", Tool: "webhook.send", Digest: "x", Expires: n.now.Add(time.Hour)},
	} {
		if _, err := n.GrantApproval(ctx, g); err == nil {
			t.Errorf("%+v was granted", g)
		}
	}
	g, err := n.GrantApproval(ctx, StandingGrant{Agent: "a", Tool: "webhook.send", Digest: strings.Repeat("ab", 32), By: "uid:0", Expires: n.now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if !ask(same) || ask(func(a *link.Approval) { a.Digest = strings.Repeat("cd", 32) }) || ask(func(a *link.Approval) { a.Tool = "webhook.sendx" }) {
		t.Error("want the grant for its tool and arguments only")
	}
	if _, err := n.RevokeApproval(ctx, g.ID, "uid:0"); err != nil || ask(same) {
		t.Errorf("got %v, want it revoked", err)
	}
	if _, err := n.RevokeApproval(ctx, g.ID, "uid:0"); !errors.Is(err, ErrNoApproval) {
		t.Errorf("got %v, want ErrNoApproval", err)
	}
	if _, err := n.GrantApproval(ctx, StandingGrant{Agent: "a", Tool: "webhook.send", By: "uid:0", Expires: n.now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if !ask(func(a *link.Approval) { a.Digest = strings.Repeat("cd", 32) }) {
		t.Error("want any arguments")
	}
	n.now = n.now.Add(-time.Second)
	if ask(same) {
		t.Error("it holds under a clock that was set back to before it was given")
	}
	n.now = n.now.Add(time.Second + time.Hour)
	if ask(same) {
		t.Error("it outlived its time")
	}
}

func TestM11Bounds(t *testing.T) {
	n := newNode(t)
	e := n.broker(BrokerOptions{})
	for _, a := range []link.Approval{{}, approvalOf("", "{}"), approvalOf("a b", "{}"), approvalOf("t", "{"), approvalOf("t", `"`+strings.Repeat("x", maxApprovalArgs)+`"`)} {
		if r, err := e.Approve(t.Context(), a); err == nil || r.Allowed {
			t.Errorf("got %+v %v", r, err)
		}
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan link.Approved, maxPendingRun+1)
	for range maxPendingRun + 1 {
		wg.Go(func() {
			r, err := e.Approve(ctx, approvalOf("t", "{}"))
			if err != nil {
				t.Error(err)
			}
			results <- r
		})
	}
	if r := <-results; r.Allowed || r.ID != "" {
		t.Errorf("got %+v, want one too many", r)
	}
	cancel()
	wg.Wait()
}

// An agent with many runs leaves places for those of others, half of what is free at least.
func TestM11PendingOfOneAgent(t *testing.T) {
	n := newNode(t)
	ask := func(agent, run string, k int) (err error) {
		e := n.Control(n.admit(Request{Agent: agent}), ControlOptions{Run: run}).Broker(BrokerOptions{MaxSteps: 1})
		t.Cleanup(func() { over(e) })
		for range k {
			if _, err = e.ask(t.Context(), approvalOf("t", "{}"), ""); err != nil {
				break
			}
		}
		return err
	}
	db, err := n.store()
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(t.Context(), func(tx *store.Tx) error {
		for i := range maxPendingNode/2 - 1 {
			a := Approval{ID: fmt.Sprintf("x%d", i), Run: fmt.Sprintf("many%d", i/maxPendingRun), Agent: "a", State: ApprovalPending, Expires: n.now.Add(time.Minute)}
			if err := store.PutJSON(tx.Bucket(approvalsBucket), a.ID, a); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := ask("a", "r1", 1); err != nil {
		t.Errorf("up to half: %v", err)
	}
	if err := ask("a", "r2", 1); !errors.Is(err, errTooManyOfAgent) {
		t.Errorf("got %v, want %v", err, errTooManyOfAgent)
	}
	if err := ask("b", "r3", maxPendingRun); err != nil {
		t.Errorf("another agent: %v", err)
	}
	e := n.Control(n.admit(Request{Agent: "a"}), ControlOptions{Run: "r4"}).Broker(BrokerOptions{MaxSteps: 1})
	t.Cleanup(func() { over(e) })
	if r, err := e.Approve(t.Context(), approvalOf("t", "{}")); err != nil || r.Allowed || r.Message != errTooManyOfAgent.Error() {
		t.Errorf("got %+v, %v", r, err)
	}
}

// What an agent asks an operator about is as long as it likes, and kept for a day; the next question reads what is kept, in a transaction
// that all runs of the node wait for. It reads no arguments; who looks at an approval has them, and what is forgotten has none.
func TestM11ArgumentsAreNotReadByTheNextQuestion(t *testing.T) {
	n := newNode(t)
	e := n.broker(BrokerOptions{})
	args := `{"text":"` + strings.Repeat("x", maxApprovalArgs-64) + `"}`
	const asked = maxKeptArgs/maxApprovalArgs + 16 // so that the oldest go
	for range asked {
		a := approvalOf("webhook.send", args)
		a.Wait = time.Nanosecond
		if r, err := e.Approve(t.Context(), a); err != nil || r.Allowed {
			t.Fatalf("got %+v %v, want that nobody answered", r, err)
		}
	}
	kept, err := n.Approvals(t.Context())
	if err != nil || len(kept) == 0 || len(kept) >= asked {
		t.Fatalf("got %d approvals, %v; want some of %d", len(kept), err, asked)
	}
	for _, a := range kept {
		one, err := n.Approval(t.Context(), a.ID)
		if err != nil || string(one.Args) != args || string(a.Args) != args {
			t.Errorf("approval %s: %d and %d bytes of arguments, %v; want %d", a.ID, len(a.Args), len(one.Args), err, len(args))
		}
	}
	err = n.view(t.Context(), func(tx *store.Tx) error {
		size, apart := 0, 0
		err := tx.Bucket(approvalsBucket).Each("", func(_ string, value []byte) error { size += len(value); return nil })
		err = errors.Join(err, tx.Bucket(approvalArgsBucket).Each("", func(string, []byte) error { apart++; return nil }))
		if size > len(kept)<<10 || apart != len(kept) {
			t.Errorf("a question reads %d bytes for %d approvals; arguments of %d are kept", size, len(kept), apart)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// What waits for an operator is read by no question either, nor all of it in one transaction by who lists it: an agent that has half of the
// node's places filled with arguments held the state for a tenth of a second with each further question, one that is refused too.
func TestM11WaitingArgumentsHoldUpNobody(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.75, false)
	args := json.RawMessage(`{"text":"` + strings.Repeat("x", maxApprovalArgs-64) + `"}`)
	const waiting = maxPendingNode / 2
	err := n.update(t.Context(), func(tx *store.Tx) error {
		for i := range waiting {
			a := Approval{ID: fmt.Sprintf("x%d", i), Run: fmt.Sprintf("many%d", i/maxPendingRun), Agent: "a", Args: args, State: ApprovalPending, Asked: n.now, Expires: n.now.Add(time.Minute)}
			if err := keepApproval(tx, a); err != nil {
				return err
			}
		}
		return keepApproval(tx, Approval{ID: "null", Run: "many0", Agent: "a", Args: json.RawMessage("null"), State: ApprovalPending, Asked: n.now, Expires: n.now.Add(time.Minute)})
	})
	if err != nil {
		t.Fatal(err)
	}
	e := n.Control(n.admit(Request{Agent: "a"}), ControlOptions{Run: "r"}).Broker(BrokerOptions{MaxSteps: 1})
	t.Cleanup(func() { over(e) })
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	_, err = e.ask(t.Context(), approvalOf("t", "{}"), "")
	goruntime.ReadMemStats(&after)
	if read := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, errTooManyOfAgent) || read > waiting*maxApprovalArgs/4 {
		t.Errorf("a question: %v, and %d bytes read, of %d that wait", err, read, waiting*maxApprovalArgs)
	}
	all, err := n.Approvals(t.Context())
	if err != nil || len(all) != waiting+1 {
		t.Fatalf("got %d, %v", len(all), err)
	}
	for _, a := range all {
		if want := map[bool]string{true: "null", false: string(args)}[a.ID == "null"]; string(a.Args) != want {
			t.Errorf("%s has %d bytes of arguments, want %d", a.ID, len(a.Args), len(want))
		}
	}
	next, err := n.addArgs(t.Context(), all, 0)
	if pages := waiting * maxApprovalArgs / argsPage; err != nil || next == 0 || next > 2*waiting/pages {
		t.Errorf("a transaction reads the arguments of %d, %v", next, err)
	}
}

// A caller that gives up is no state that can't be read: tunnels of other calls stay.
func TestM22CanceledCallerLowersNobody(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.8, false)
	e := n.broker(BrokerOptions{MaxSteps: 9})
	ring, changed := e.Ring()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		e.live.readMu.Lock()
		e.live.sure = false
		e.live.readMu.Unlock()
		if _, err := e.Check(ctx, tool("math")); err != nil {
			t.Error(err)
		}
	}
	select {
	case <-changed:
		t.Errorf("the ring changed from %v", ring)
	default:
	}
}

// Two supervisors of one team at once: together they never spend more than the day has.
func TestM19DayHoldsOverProcesses(t *testing.T) {
	n := newNode(t)
	n.set("a", func(s *AgentSettings) { s.Plan, s.Team = governance.Casual, "t" })
	var mu sync.Mutex
	var wg sync.WaitGroup
	total := int64(0)
	for i := range 2 {
		h, err := Open(Options{StateDir: n.dir, Now: func() time.Time { return n.now }})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		wg.Go(func() {
			for j := range 20 {
				adm, err := h.Admit(t.Context(), Request{Agent: "a"})
				if err != nil {
					t.Error(err)
					return
				}
				e := h.Control(adm, ControlOptions{Run: fmt.Sprint("r", i, "-", j)}).Broker(BrokerOptions{})
				for {
					r, err := e.Reserve(t.Context(), link.Spend{Estimate: 5000})
					if err != nil || !r.Allowed {
						break
					}
					end(t, e, 0, r.ID, 5000)
					mu.Lock()
					total += 5000
					mu.Unlock()
				}
				if err := over(e); err != nil {
					t.Error(err)
				}
				adm.Done()
			}
		})
	}
	wg.Wait()
	if total != 500_000 {
		t.Errorf("got %d spent, want exactly the day's 500000", total)
	}
}

func TestM19GrantFor(t *testing.T) {
	n := newNode(t)
	n.set("a", func(s *AgentSettings) { s.Plan, s.Stake = governance.Casual, 1000 })
	if g, err := n.GrantFor(t.Context(), "a"); err != nil || g.Limits.Time != 150*time.Second || g.Limits.Steps != 62 {
		t.Errorf("got %+v %v", g, err)
	}
	if g, err := n.GrantFor(t.Context(), ""); err != nil || g.Plan != governance.Operator {
		t.Errorf("got %+v %v", g, err)
	}
	// A file of plans that can't be understood refuses every run, the operator's too.
	file := filepath.Join(t.TempDir(), "plans.yaml")
	if err := os.WriteFile(file, []byte("plans: {casual: {}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := Open(Options{StateDir: n.dir, Plans: governance.Sources{Files: []string{file}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Request{{}, {Agent: "a"}} {
		if _, err := h.Admit(t.Context(), r); err == nil {
			t.Errorf("%+v was admitted", r)
		}
	}
	// A plan that is no longer defined gives nothing.
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("plans: {own: {why: x, parallel: 1, time: 60s, cost_per_run: 0, cost_per_day: 0, tokens_per_run: 0, tokens_per_day: 0, steps: 1, tools: {allow: []}}}")
	if _, err := h.SetAgent(t.Context(), "a", "uid:0", func(s *AgentSettings) { s.Plan = "own" }); err != nil {
		t.Fatal(err)
	}
	write("plans: {}")
	if _, err := h.Admit(t.Context(), Request{Agent: "a"}); code(t, err) != CodePlan {
		t.Errorf("got %v, want %s", err, CodePlan)
	}
}

// H-8: what is harder to undo takes more of the bucket, and counts more when it is refused.
func TestH8RiskWeighs(t *testing.T) {
	n := newNode(t)
	n.boot = func() time.Duration { return time.Hour } // no bucket fills meanwhile
	c := tool("math")
	c.Action.ReadOnly = false
	burst := map[rings.Reversibility]int{}
	for agent, r := range map[string]rings.Reversibility{"full": rings.Full, "partial": rings.Partial} {
		n.score(agent, 0.7, false)
		e := n.Control(n.admit(Request{Agent: agent}), ControlOptions{Run: "run-" + agent}).Broker(BrokerOptions{MaxSteps: 1000})
		defer over(e)
		c.Action.Reversibility = r
		for v := check(t, e, c); v.Allowed && burst[r] < 1000; v = check(t, e, c) {
			giveBack(t, e, v.Place)
			burst[r]++
		}
	}
	if burst[rings.Full] != 2*burst[rings.Partial] || burst[rings.Partial] == 0 {
		t.Errorf("a full bucket pays for %v calls, want half as many of PARTIAL", burst)
	}
	attempts := func(agent string, r rings.Reversibility) (k int) {
		e := n.Control(n.admit(Request{Agent: agent}), ControlOptions{Run: "run-" + agent}).Broker(BrokerOptions{MaxSteps: 1000})
		defer over(e)
		for ; n.agent(agent).Quarantined == nil && k < 100; k++ {
			_ = e.Record(t.Context(), link.Record{Kind: "tool", Name: "x", Code: link.CodeRing, Count: 1, Weight: rings.Privileged, Reversibility: r})
		}
		return k
	}
	if mild, grave := attempts("mild", rings.Partial), attempts("grave", rings.Irreversible); mild != 5 || grave != 3 {
		t.Errorf("held after %d refused calls of PARTIAL and %d of NONE, want 5 and 3", mild, grave)
	}
}

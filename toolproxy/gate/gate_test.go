// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/boundary"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/gate/gatetest"
	"agentrun/toolproxy/link"
)

func caller() link.Caller {
	return link.Caller{Run: "run-1", Agent: "agent-1", Team: "team-1", Role: "member", Plan: "premium", Mode: "public"}
}

func allow(context.Context, pdp.Request) pdp.Decision {
	return pdp.Decision{Verdict: rings.Allow, Code: pdp.CodeOK, Policy: "test.allow"}
}

func options(s link.Supervisor) gate.Options {
	return gate.Options{Supervisor: s, Caller: caller(), Policy: pdp.DeciderFunc(allow), MaxSteps: 100, MaxModelCalls: 100, Granted: gate.Granting(nil)}
}

func newGate(t testing.TB, o gate.Options) *gate.Gate {
	t.Helper()
	g, err := gate.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func reading() rings.Action {
	return rings.Action{ID: "tool.math.invoke", Name: "math", ExecuteAPI: "math", Reversibility: rings.Full, ReadOnly: true}
}

func call() gate.Call {
	return gate.Call{Kind: "tool", Tool: "math", Category: gate.CategoryA, Action: reading(), Args: telemetry.NewPlaintext(json.RawMessage(`{"a":1}`)), PlaintextFree: true}
}

func balanced(t testing.TB, s *gatetest.Supervisor, records int) {
	t.Helper()
	places, reservations, wrong := s.Held()
	if places != 0 || reservations != 0 || wrong != nil {
		t.Errorf("got %d places and %d reservations open, wrong %v, want none", places, reservations, wrong)
	}
	if got := len(s.Records()); got != records {
		t.Errorf("got %d records, want %d", got, records)
	}
}

// order is every authority of a call, each with how it is made to refuse.
func order() []struct {
	name   string
	code   rings.Code
	refuse func(*world)
} {
	deny := func(code rings.Code) *gate.Error { return &gate.Error{Code: code} }
	return []struct {
		name   string
		code   rings.Code
		refuse func(*world)
	}{
		{"check", gate.CodeQuarantined, func(w *world) {
			w.s.OnCheck = func(link.Check) (link.Verdict, error) {
				return link.Verdict{Code: gate.CodeQuarantined, Ring: rings.Sandbox}, nil
			}
		}},
		{"admit", gate.CodeToolRestricted, func(w *world) { w.admit = deny(gate.CodeToolRestricted) }},
		{"rate", gate.CodeRateLimited, func(w *world) { w.rate = deny(gate.CodeRateLimited) }},
		{"policy", gate.CodeCapabilityMissing, func(w *world) { w.policy = pdp.Denied(pdp.CodeCapabilityMissing, "", nil) }},
		{"arguments", gate.CodeBadArguments, func(w *world) { w.arguments = deny(gate.CodeBadArguments) }},
		{"approve", gate.CodeApproval, func(w *world) {
			w.s.OnApprove = func(context.Context, link.Approval) (link.Approved, error) { return link.Approved{}, nil }
		}},
		{"reserve", gate.CodeCost, func(w *world) {
			w.s.OnReserve = func(link.Spend) (link.Reservation, error) { return link.Reservation{Code: gate.CodeCost}, nil }
		}},
	}
}

// world is a gate whose authorities note that they were asked.
type world struct {
	s                      *gatetest.Supervisor
	mu                     sync.Mutex
	asked                  []string
	admit, rate, arguments *gate.Error
	policy                 pdp.Decision
	steps                  int
}

func newWorld() *world {
	return &world{s: gatetest.New(rings.Privileged), policy: allow(context.Background(), pdp.Request{}), steps: 10}
}

func (w *world) note(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, name)
}

func (w *world) enter(t testing.TB) (gate.Permit, *gate.Error) {
	t.Helper()
	check, reserve, approve := w.s.OnCheck, w.s.OnReserve, w.s.OnApprove
	w.s.OnCheck = func(c link.Check) (link.Verdict, error) {
		w.note("check")
		if check != nil {
			return check(c)
		}
		return link.Verdict{Allowed: true, Code: rings.CodeOK, Ring: rings.Privileged}, nil
	}
	w.s.OnReserve = func(s link.Spend) (link.Reservation, error) {
		w.note("reserve")
		if reserve != nil {
			return reserve(s)
		}
		return link.Reservation{Allowed: true}, nil
	}
	w.s.OnApprove = func(ctx context.Context, a link.Approval) (link.Approved, error) {
		w.note("approve")
		if approve != nil {
			return approve(ctx, a)
		}
		return link.Approved{Allowed: true, ID: "a1"}, nil
	}
	o := options(w.s)
	o.MaxSteps = w.steps
	o.Policy = pdp.DeciderFunc(func(context.Context, pdp.Request) pdp.Decision { w.note("policy"); return w.policy })
	c := call()
	c.Category = gate.CategoryD
	c.Admit = func(rings.Ring) *gate.Error { w.note("admit"); return w.admit }
	c.Rate = func() *gate.Error { w.note("rate"); return w.rate }
	c.Validate = func() *gate.Error { w.note("arguments"); return w.arguments }
	return newGate(t, o).Enter(t.Context(), c)
}

// Each authority refuses in turn, together with all that come after it: the first is the reason, and those after it are
// never asked.
func TestM9OrderOfAuthorities(t *testing.T) {
	all := order()
	var names []string
	for _, o := range all {
		names = append(names, o.name)
	}
	for i, first := range all {
		t.Run(first.name, func(t *testing.T) {
			w := newWorld()
			for _, o := range all[i:] {
				o.refuse(w)
			}
			permit, e := w.enter(t)
			if permit != nil || e == nil || e.Code != first.code {
				t.Fatalf("got %v, %v, want %s", permit, e, first.code)
			}
			if e.Next == "" && i != 1 && i != 2 && i != 4 { // those come from the caller as they are
				t.Errorf("%s: no next step", e.Code)
			}
			if d := cmp.Diff(names[:i+1], w.asked); d != "" {
				t.Errorf("asked (-want +got):\n%s", d)
			}
			balanced(t, w.s, 1)
			if r := w.s.Records()[0]; r.Allowed || r.Code != first.code || r.Count != 1 {
				t.Errorf("got record %+v, want one denial %s", r, first.code)
			}
		})
	}
}

func TestM9AllAgree(t *testing.T) {
	w := newWorld()
	p, e := w.enter(t)
	if e != nil {
		t.Fatal(e)
	}
	if len(w.s.Records()) != 0 {
		t.Error("recorded before its end")
	}
	if e := p.End(gate.Outcome{Cost: 5, Tokens: 7, Flags: []string{"b"}}); e != nil {
		t.Fatal(e)
	}
	if e := p.End(gate.Outcome{}); e == nil {
		t.Error("ended twice")
	}
	if e := p.Spent(1, 1); e == nil {
		t.Error("spent after its end")
	}
	balanced(t, w.s, 1)
	sum := sha256.Sum256([]byte(`{"a":1}`))
	want := link.Record{
		Kind: "tool", Name: "math", Args: hex.EncodeToString(sum[:]), Allowed: true, Code: rings.CodeOK, Rule: "test.allow",
		Cost: 5, Tokens: 7, Count: 1, Approval: "a1", Flags: []string{"b"},
	}
	got := w.s.Records()[0]
	got.Took = 0
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("record (-want +got):\n%s", d)
	}
}

func TestM3Steps(t *testing.T) {
	s := gatetest.New(rings.Sandbox)
	o := options(s)
	o.MaxSteps = 2
	asked := 0
	o.Policy = pdp.DeciderFunc(func(ctx context.Context, r pdp.Request) pdp.Decision { asked++; return allow(ctx, r) })
	g := newGate(t, o)
	for i, want := range []rings.Code{"", "", gate.CodeSteps, gate.CodeSteps} {
		p, e := g.Enter(t.Context(), call())
		if want == "" {
			if e != nil {
				t.Fatal(e)
			}
			p.End(gate.Outcome{})
		} else if e == nil || e.Code != want {
			t.Errorf("call %d: got %v, want %s", i, e, want)
		}
	}
	if asked != 2 {
		t.Errorf("got %d decisions, want 2", asked)
	}
	if used, limit := g.Steps(); used != 2 || limit != 2 {
		t.Errorf("got %d of %d steps, want 2 of 2", used, limit)
	}
	balanced(t, s, 4)
}

// F5: calls of models don't use up those of tools, nor the other way round, and each limit says which it is.
func TestM3ModelCallsAreCountedApart(t *testing.T) {
	o := options(gatetest.New(rings.Sandbox))
	o.MaxSteps, o.MaxModelCalls = 1, 2
	g := newGate(t, o)
	for i, row := range []struct{ kind, says string }{{"llm", ""}, {"tool", ""}, {"llm", ""}, {"llm", "all the model calls"}, {"tool", "all the calls"}} {
		c := call()
		c.Kind = row.kind
		p, e := g.Enter(t.Context(), c)
		switch {
		case e == nil:
			p.End(gate.Outcome{})
		case e.Code != gate.CodeSteps || row.says == "" || !strings.Contains(e.Message, row.says):
			t.Errorf("call %d: got %s %q, want %q", i, e.Code, e.Message, row.says)
		}
		if (e == nil) != (row.says == "") {
			t.Errorf("call %d of kind %s: got %v, want %q", i, row.kind, e, row.says)
		}
	}
}

func TestM3ZeroStepsAllowNone(t *testing.T) {
	o := options(gatetest.New(rings.Sandbox))
	o.MaxSteps = 0
	if _, e := newGate(t, o).Enter(t.Context(), call()); e == nil || e.Code != gate.CodeSteps {
		t.Errorf("got %v, want %s", e, gate.CodeSteps)
	}
}

func TestM9PolicyThatIsSlowOrBrokenDenies(t *testing.T) {
	for name, policy := range map[string]func(context.Context, pdp.Request) pdp.Decision{
		"hangs": func(context.Context, pdp.Request) pdp.Decision { select {} },
		"waits for its context": func(ctx context.Context, _ pdp.Request) pdp.Decision {
			<-ctx.Done()
			return allow(ctx, pdp.Request{})
		},
		"panics":         func(context.Context, pdp.Request) pdp.Decision { panic("broken") },
		"zero":           func(context.Context, pdp.Request) pdp.Decision { return pdp.Decision{} },
		"half an answer": func(context.Context, pdp.Request) pdp.Decision { return pdp.Decision{Verdict: rings.Allow} },
		"allows for a reason to deny": func(context.Context, pdp.Request) pdp.Decision {
			return pdp.Decision{Verdict: rings.Allow, Code: pdp.CodeNoRole}
		},
		"unknown reason": func(context.Context, pdp.Request) pdp.Decision { return pdp.Decision{Code: "because"} },
	} {
		t.Run(name, func(t *testing.T) {
			s := gatetest.New(rings.Sandbox)
			o := options(s)
			o.PolicyTimeout = 10 * time.Millisecond
			o.Policy = pdp.DeciderFunc(policy)
			_, e := newGate(t, o).Enter(t.Context(), call())
			if e == nil || e.Code != gate.CodeUnavailable || strings.Contains(e.Message, "broken") {
				t.Errorf("got %v, want %s", e, gate.CodeUnavailable)
			}
			balanced(t, s, 1)
		})
	}
}

func TestM9ReasonsOfThePolicyReachTheAgent(t *testing.T) {
	for policy, want := range map[rings.Code]rings.Code{
		pdp.CodeKeyInvalid: "key_invalid", pdp.CodeNoRole: "no_role", pdp.CodeRBACDenied: "rbac_denied", pdp.CodeACLBlock: "acl_block",
		pdp.CodeCapabilityMissing: gate.CodeCapabilityMissing, pdp.CodeConfidential: gate.CodeConfidential,
		pdp.CodeQuotaExceeded: gate.CodeQuota, pdp.CodeUnavailable: gate.CodeUnavailable, pdp.CodeTimeout: gate.CodeUnavailable,
	} {
		o := options(gatetest.New(rings.Sandbox))
		o.Policy = pdp.DeciderFunc(func(context.Context, pdp.Request) pdp.Decision { return pdp.Denied(policy, "", nil) })
		if _, e := newGate(t, o).Enter(t.Context(), call()); e == nil || e.Code != want || e.Message == "" || e.Next == "" {
			t.Errorf("%s: got %+v, want %s", policy, e, want)
		}
	}
}

func key(left time.Duration, may ...string) *link.Key {
	return &link.Key{ID: "k", May: may, Expires: time.Now().Add(left)}
}

// The real engine with its guards, and what the gate states about the run.
func TestM9BuiltinPolicies(t *testing.T) {
	engine, err := pdp.NewEngine(pdp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(*gate.Options, *gate.Call)
		want   rings.Code
	}{
		"all is well":       {func(*gate.Options, *gate.Call) {}, ""},
		"no agent, no team": {func(o *gate.Options, _ *gate.Call) { o.Caller.Agent, o.Caller.Team = "", "" }, ""},
		"no role":           {func(o *gate.Options, _ *gate.Call) { o.Caller.Role = "" }, ""},
		"a key":             {func(o *gate.Options, _ *gate.Call) { o.Caller.Key = key(time.Hour, "tool.math.invoke") }, ""},
		"a key that is over": {func(o *gate.Options, _ *gate.Call) {
			o.Caller.Key, o.Caller.Role = key(-time.Second), ""
		}, "key_invalid"},
		"a key and no role": {func(o *gate.Options, _ *gate.Call) {
			o.Caller.Key, o.Caller.Role = key(time.Hour), ""
		}, "no_role"},
		"a key for others": {func(o *gate.Options, _ *gate.Call) {
			o.Caller.Key = key(time.Hour, "agent.run.invoke", "tool.text.invoke")
		}, gate.CodeCapabilityMissing},
		"a key for more than was granted": {func(o *gate.Options, _ *gate.Call) {
			o.Caller.Key, o.Granted = key(time.Hour, "tool.math.invoke"), gate.Granting([]string{"text"})
		}, gate.CodeCapabilityMissing},
		"not granted":       {func(o *gate.Options, _ *gate.Call) { o.Granted = gate.Granting([]string{"text"}) }, gate.CodeCapabilityMissing},
		"no grants":         {func(o *gate.Options, _ *gate.Call) { o.Granted = nil }, gate.CodeCapabilityMissing},
		"plaintext, public": {func(_ *gate.Options, c *gate.Call) { c.PlaintextFree = false }, ""},
		"plaintext in a confidential team": {func(o *gate.Options, c *gate.Call) {
			o.Caller.Mode, c.PlaintextFree = "confidential", false
		}, gate.CodeConfidential},
		"no plaintext in a confidential team": {func(o *gate.Options, _ *gate.Call) { o.Caller.Mode = "confidential" }, ""},
	} {
		s := gatetest.New(rings.Sandbox)
		o, c := options(s), call()
		o.Policy = engine
		tt.change(&o, &c)
		p, e := newGate(t, o).Enter(t.Context(), c)
		switch {
		case e != nil && e.Code != tt.want, e == nil && tt.want != "":
			t.Errorf("%s: got %v, want %q", name, e, tt.want)
		case p != nil:
			p.End(gate.Outcome{})
		}
		balanced(t, s, 1)
	}
}

func TestM11TimeLimits(t *testing.T) {
	for _, tt := range []struct {
		kind     string
		category gate.Category
		timeout  time.Duration
		want     time.Duration
	}{
		{"tool", gate.CategoryA, 0, 2 * time.Second},
		{"tool", gate.CategoryB, 0, 3 * time.Second},
		{"tool", gate.CategoryC, 0, 5 * time.Second},
		{"llm", gate.CategoryC, 0, 60 * time.Second},
		{"tool", gate.CategoryD, 0, 10 * time.Second},
		{"tool", gate.CategoryA, time.Minute, time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := gatetest.New(rings.Privileged)
			c := call()
			c.Kind, c.Category, c.Timeout = tt.kind, tt.category, tt.timeout
			p, e := newGate(t, options(s)).Enter(t.Context(), c)
			if e != nil {
				t.Fatal(e)
			}
			before := time.Now()
			<-p.Context().Done()
			if got := time.Since(before); got != tt.want {
				t.Errorf("%s %s: got %v, want %v", tt.kind, tt.category, got, tt.want)
			}
			var cause *gate.Error
			if !errors.As(context.Cause(p.Context()), &cause) || cause.Code != gate.CodeToolTimeout {
				t.Errorf("got cause %v, want %s", context.Cause(p.Context()), gate.CodeToolTimeout)
			}
			p.End(gate.Outcome{Err: cause})
			balanced(t, s, 1)
		})
	}
}

func TestM11ApprovalWaitsNoLongerThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := gatetest.New(rings.Privileged)
		s.OnApprove = func(ctx context.Context, _ link.Approval) (link.Approved, error) {
			<-ctx.Done()
			return link.Approved{}, ctx.Err()
		}
		c := call()
		c.Category = gate.CategoryD
		before := time.Now()
		_, e := newGate(t, options(s)).Enter(t.Context(), c)
		if e == nil || e.Code != gate.CodeApproval {
			t.Errorf("got %v, want %s", e, gate.CodeApproval)
		}
		if got := time.Since(before); got != gate.DefaultApprovalWait {
			t.Errorf("waited %v, want %v", got, gate.DefaultApprovalWait)
		}
		balanced(t, s, 1)
	})
}

// What one call says goes before what holds for all, and the run's end before both: an agent that waited learns why.
func TestM11ApprovalWaitOfACall(t *testing.T) {
	for _, tt := range []struct {
		name             string
		gate, call, left time.Duration
		want             time.Duration
	}{
		{"default", 0, 0, 0, gate.DefaultApprovalWait},
		{"of the gate", time.Minute, 0, 0, time.Minute},
		{"of the call", time.Minute, 7 * time.Second, 0, 7 * time.Second},
		{"longer than the gate's", time.Minute, 4 * time.Minute, 0, 4 * time.Minute},
		{"the run has time", time.Minute, 0, time.Hour, time.Minute},
		{"the run ends before", time.Minute, 5 * time.Minute, 30 * time.Second, 29 * time.Second},
		{"the run is about to end", time.Minute, 0, time.Second, 500 * time.Millisecond},
		{"the run should be over", time.Minute, 0, -time.Second, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := gatetest.New(rings.Privileged)
				var asked time.Duration
				s.OnApprove = func(ctx context.Context, a link.Approval) (link.Approved, error) {
					asked = a.Wait
					<-ctx.Done()
					return link.Approved{}, ctx.Err()
				}
				o := options(s)
				o.ApprovalWait = tt.gate
				if tt.left != 0 {
					ends := time.Now().Add(tt.left)
					o.Ends = func() time.Time { return ends }
				}
				c := call()
				c.Approve, c.ApprovalWait = true, tt.call
				before := time.Now()
				_, e := newGate(t, o).Enter(t.Context(), c)
				if e == nil || e.Code != gate.CodeApproval {
					t.Errorf("got %v, want %s", e, gate.CodeApproval)
				}
				if got := time.Since(before); got != tt.want || asked != tt.want {
					t.Errorf("asked for %v and waited %v, want %v", asked, got, tt.want)
				}
				balanced(t, s, 1)
			})
		})
	}
	c := call()
	c.ApprovalWait = -1
	if _, e := newGate(t, options(gatetest.New(rings.Privileged))).Enter(t.Context(), c); e == nil || e.Code != gate.CodeBadRequest {
		t.Errorf("negative: got %v, want %s", e, gate.CodeBadRequest)
	}
}

// What the boundary calls suspicious is what a policy reads; what it did itself is no ground.
func TestM16FlagsReachThePolicy(t *testing.T) {
	set, err := pdp.Compile([]pdp.File{{Name: "flagged.cedar", Text: []byte(`@id("flagged-input")
forbid (principal, action == Action::"tool.invoke", resource) when { context.input == "suspicious" };`)}})
	if err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]rings.Code{
		boundary.FlagOverride: pdp.CodeACLBlock, boundary.FlagToolCall: pdp.CodeACLBlock, string(gate.CodeSuspicious): pdp.CodeACLBlock,
		boundary.FlagEscaped: "", boundary.FlagRole: "", boundary.FlagSecret: "",
	} {
		s := gatetest.New(rings.Privileged)
		o := options(s)
		o.Policy = set
		c := call()
		c.Flags = []string{flag}
		p, e := newGate(t, o).Enter(t.Context(), c)
		if p != nil {
			p.End(gate.Outcome{})
		}
		if want == "" && e != nil || want != "" && (e == nil || e.Code != want || e.Rule != "flagged-input") {
			t.Errorf("%s: got %v, want %q", flag, e, want)
		}
		if r := s.Records()[0]; !slices.Contains(r.Flags, flag) {
			t.Errorf("%s: got record %+v, want the flag in it", flag, r)
		}
	}
}

// THREATS, tool proxy: replayed approvals. What is asked about is the digest of these arguments, whatever is shown.
func TestM11ApprovalIsBoundToTheArguments(t *testing.T) {
	s := gatetest.New(rings.Privileged)
	sum := sha256.Sum256([]byte(`{"password":"hunter2hunter2","to":"bob"}`))
	approved := hex.EncodeToString(sum[:])
	s.OnApprove = func(_ context.Context, a link.Approval) (link.Approved, error) {
		if strings.Contains(string(a.Args), "hunter2") {
			t.Errorf("the operator was shown a secret: %s", a.Args)
		}
		return link.Approved{Allowed: a.Digest == approved, ID: "a1"}, nil
	}
	g := newGate(t, options(s))
	c := call()
	c.Approve = true
	for args, want := range map[string]bool{
		`{"password":"hunter2hunter2","to":"bob"}`:     true,
		`{"password":"hunter2hunter2","to":"mallory"}`: false,
		`{"password":"other2other2","to":"bob"}`:       false, // shown the same, and yet not the same
	} {
		c.Args = telemetry.NewPlaintext(json.RawMessage(args))
		p, e := g.Enter(t.Context(), c)
		if (e == nil) != want {
			t.Errorf("%s: got %v, want allowed %v", args, e, want)
		}
		if p != nil {
			p.End(gate.Outcome{})
		}
	}
	balanced(t, s, 3)
}

func TestM19HardStopInTheMiddleOfACall(t *testing.T) {
	s := gatetest.New(rings.Sandbox)
	s.OnSettle = func(settle link.Settle) (link.Reservation, error) {
		return link.Reservation{Allowed: settle.Cost <= 100, Code: gate.CodeCost}, nil
	}
	p, e := newGate(t, options(s)).Enter(t.Context(), call())
	if e != nil {
		t.Fatal(e)
	}
	if e := p.Spent(100, 1); e != nil {
		t.Fatal(e)
	}
	if e := p.Spent(101, 2); e == nil || e.Code != gate.CodeCost {
		t.Errorf("got %v, want %s", e, gate.CodeCost)
	}
	if p.Context().Err() == nil {
		t.Error("the call goes on beyond its budget")
	}
	if e := p.Spent(1, 1); e == nil {
		t.Error("spent after the stop")
	}
	if e := p.End(gate.Outcome{Cost: 101}); e == nil || e.Code != gate.CodeCost {
		t.Errorf("got %v, want %s: what wasn't paid isn't handed out", e, gate.CodeCost)
	}
	balanced(t, s, 1)
	if last := s.Settled()[2]; last.Cost != 101 {
		t.Errorf("got %+v, want the final cost", last)
	}
}

func TestM22LostRingEndsTheCall(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*gatetest.Supervisor)
		want   rings.Code
	}{
		"demoted":       {func(s *gatetest.Supervisor) { s.SetRing(rings.Sandbox) }, gate.CodeRing},
		"no ring":       {func(s *gatetest.Supervisor) { s.SetRing(rings.NoRing) }, gate.CodeRing},
		"the run ended": {func(s *gatetest.Supervisor) { s.EndRun() }, gate.CodeCanceled},
		"promoted":      {func(s *gatetest.Supervisor) { s.SetRing(rings.Privileged) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := gatetest.New(rings.Standard)
				c := call()
				c.Action.ReadOnly = false // ring 2
				p, e := newGate(t, options(s)).Enter(t.Context(), c)
				if e != nil {
					t.Fatal(e)
				}
				tt.change(s)
				synctest.Wait()
				e = p.End(gate.Outcome{})
				if tt.want == "" && e != nil || tt.want != "" && (e == nil || e.Code != tt.want) {
					t.Errorf("got %v, want %q: a result isn't handed out beyond the ring", e, tt.want)
				}
				balanced(t, s, 1)
			})
		})
	}
}

// H-7: whoever has made a call that can be undone doesn't end it by leaving, since what undoes it comes with its result. Leaving before it
// has passed does, and so does the run's end.
func TestH7CallOutlastsItsCaller(t *testing.T) {
	s := gatetest.New(rings.Sandbox)
	g := newGate(t, options(s))
	for _, stays := range []bool{true, false} {
		ctx, leave := context.WithCancel(t.Context())
		c := call()
		c.Stays = stays
		p, e := g.Enter(ctx, c)
		if e != nil {
			t.Fatal(e)
		}
		if leave(); (p.Context().Err() == nil) != stays {
			t.Errorf("stays %v: its caller has left, and the call's context says %v", stays, p.Context().Err())
		}
		if e := p.End(gate.Outcome{}); (e == nil) != stays {
			t.Errorf("stays %v: got %v", stays, e)
		}
		if _, e := g.Enter(ctx, c); e == nil || e.Code != gate.CodeCanceled {
			t.Errorf("stays %v: a caller who has left before got %v, want %s", stays, e, gate.CodeCanceled)
		}
	}
	c := call()
	c.Stays = true
	p, e := g.Enter(t.Context(), c)
	if e != nil {
		t.Fatal(e)
	}
	s.EndRun()
	<-p.Context().Done()
	if e := p.End(gate.Outcome{}); e == nil || e.Code != gate.CodeCanceled {
		t.Errorf("the run has ended: got %v, want %s", e, gate.CodeCanceled)
	}
	balanced(t, s, 5)
}

func TestM22QuarantineEndsAPendingApproval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := gatetest.New(rings.Privileged)
		asked := make(chan struct{})
		s.OnApprove = func(ctx context.Context, _ link.Approval) (link.Approved, error) {
			close(asked)
			<-ctx.Done()
			return link.Approved{}, ctx.Err()
		}
		c := call()
		c.Category = gate.CategoryD
		g := newGate(t, options(s))
		got := make(chan *gate.Error)
		go func() { _, e := g.Enter(t.Context(), c); got <- e }()
		<-asked
		s.OnCheck = func(link.Check) (link.Verdict, error) { return link.Verdict{Code: gate.CodeQuarantined}, nil }
		s.SetRing(rings.Sandbox)
		if e := <-got; e == nil || e.Code != gate.CodeQuarantined {
			t.Errorf("got %v, want %s", e, gate.CodeQuarantined)
		}
		balanced(t, s, 1)
	})
}

// What can't be recorded didn't happen: the agent gets no result.
func TestRecordThatFailsWithholdsTheResult(t *testing.T) {
	s := gatetest.New(rings.Sandbox)
	s.OnRecord = func(link.Record) error { return errors.New("disk full") }
	g := newGate(t, options(s))
	p, e := g.Enter(t.Context(), call())
	if e != nil {
		t.Fatal(e)
	}
	if e := p.End(gate.Outcome{}); e == nil || e.Code != gate.CodeUnavailable || strings.Contains(e.Message, "disk") {
		t.Errorf("got %v, want %s", e, gate.CodeUnavailable)
	}
	c := call()
	c.Validate = func() *gate.Error { return &gate.Error{Code: gate.CodeBadArguments} }
	if _, e := g.Enter(t.Context(), c); e == nil || e.Code != gate.CodeBadArguments {
		t.Errorf("got %v, want the denial to stand", e)
	}
	balanced(t, s, 0)
}

// Whatever breaks, and wherever: no call passes, each is recorded, no place stays taken.
func TestPlacesNeverLeak(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := gatetest.New(rings.Privileged)
		o := options(s)
		mishap := func(name string) int {
			return rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3}).Draw(t, name)
		}
		check, reserve, approve, settle, policy, validate := mishap("check"), mishap("reserve"), mishap("approve"), mishap("settle"), mishap("policy"), mishap("validate")
		broken := errors.New("link lost")
		s.OnCheck = func(link.Check) (link.Verdict, error) {
			switch check {
			case 1:
				return link.Verdict{}, broken
			case 2:
				return link.Verdict{Code: gate.CodeConcurrency}, nil
			}
			return link.Verdict{Allowed: true, Code: rings.CodeOK, Ring: rings.Privileged}, nil
		}
		s.OnReserve = func(link.Spend) (link.Reservation, error) {
			if reserve == 1 {
				return link.Reservation{}, broken
			}
			return link.Reservation{Allowed: reserve == 0}, nil
		}
		s.OnApprove = func(context.Context, link.Approval) (link.Approved, error) {
			switch approve {
			case 1:
				return link.Approved{}, broken
			case 2:
				panic("approve")
			}
			return link.Approved{Allowed: approve == 0}, nil
		}
		s.OnSettle = func(link.Settle) (link.Reservation, error) {
			if settle == 1 {
				return link.Reservation{}, broken
			}
			return link.Reservation{Allowed: settle == 0}, nil
		}
		o.Policy = pdp.DeciderFunc(func(ctx context.Context, r pdp.Request) pdp.Decision {
			switch policy {
			case 1:
				panic("policy")
			case 2:
				return pdp.Decision{}
			case 3:
				return pdp.Denied(pdp.CodeRBACDenied, "", nil)
			}
			return allow(ctx, r)
		})
		events := 0
		o.Observe = func(gate.Event) { events++ }
		c := call()
		c.Category = gate.CategoryD
		c.Validate = func() *gate.Error {
			switch validate {
			case 1:
				panic("validate")
			case 2:
				return &gate.Error{Code: gate.CodeBadArguments}
			}
			return nil
		}
		ctx, cancel := context.WithCancel(context.Background())
		if rapid.Bool().Draw(t, "given up") {
			cancel()
		}
		defer cancel()
		g, err := gate.New(o)
		if err != nil {
			t.Fatal(err)
		}
		p, e := g.Enter(ctx, c)
		if (p == nil) == (e == nil) {
			t.Fatalf("got %v, %v, want one of the two", p, e)
		}
		sound := (check == 0 || check == 3) && reserve == 0 && approve == 0 && policy == 0 && (validate == 0 || validate == 3) && ctx.Err() == nil
		if (p != nil) != sound {
			t.Fatalf("got permit %v, want %v (%v)", p != nil, sound, e)
		}
		if p != nil {
			e = p.End(gate.Outcome{Cost: 3})
			if (e == nil) != (settle == 0) {
				t.Errorf("got %v with settle %d", e, settle)
			}
		}
		places, reservations, wrong := s.Held()
		if places != 0 || reservations != 0 || wrong != nil || len(s.Records()) != 1 || events != 1 {
			t.Errorf("got %d places, %d reservations, %v, %d records, %d events", places, reservations, wrong, len(s.Records()), events)
		}
	})
}

func TestManyCallsAtOnce(t *testing.T) {
	s := gatetest.New(rings.Standard)
	o := options(s)
	o.MaxSteps = 150
	g := newGate(t, o)
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			p, e := g.Enter(t.Context(), call())
			if e != nil {
				return
			}
			if i%3 == 0 {
				s.SetRing(rings.Standard)
			}
			p.Spent(1, 1)
			p.End(gate.Outcome{Cost: 1})
		})
	}
	all.Wait()
	balanced(t, s, 200)
	allowed := 0
	for _, r := range s.Records() {
		if r.Allowed {
			allowed++
		}
	}
	if allowed != 150 {
		t.Errorf("got %d calls, want as many as steps: 150", allowed)
	}
}

func TestMalformedCallsAreRefusedBeforeAnybodyIsAsked(t *testing.T) {
	for name, change := range map[string]func(*gate.Call){
		"zero":              func(c *gate.Call) { *c = gate.Call{} },
		"no category":       func(c *gate.Call) { c.Category = "" },
		"no kind":           func(c *gate.Call) { c.Kind = "" },
		"name":              func(c *gate.Call) { c.Tool = "math.invoke\n" },
		"negative estimate": func(c *gate.Call) { c.Estimate = -1 },
	} {
		s := gatetest.New(rings.Privileged)
		c := call()
		change(&c)
		if _, e := newGate(t, options(s)).Enter(t.Context(), c); e == nil || e.Code != gate.CodeBadRequest {
			t.Errorf("%s: got %v, want %s", name, e, gate.CodeBadRequest)
		}
		if d := cmp.Diff([]string{"end"}, s.Asked()); d != "" {
			t.Errorf("%s: asked (-want +got):\n%s", name, d)
		}
	}
}

// A supervisor that says yes to what the ring doesn't reach is broken: the rule holds here too.
func TestH9TheRingHoldsWhateverTheSupervisorSays(t *testing.T) {
	for _, tt := range []struct {
		v    link.Verdict
		edit func(*rings.Action)
	}{
		{link.Verdict{Allowed: true, Code: rings.CodeOK}, func(*rings.Action) {}},
		{link.Verdict{Allowed: true, Code: rings.CodeOK, Ring: rings.Sandbox}, func(a *rings.Action) { a.ReadOnly = false }},
		{link.Verdict{Allowed: true, Code: rings.CodeOK, Ring: rings.Root}, func(a *rings.Action) { a.Admin = true }},
		{link.Verdict{Allowed: true, Ring: rings.Sandbox}, func(*rings.Action) {}},
		{link.Verdict{Allowed: true, Code: gate.CodeQuarantined, Ring: rings.Sandbox}, func(*rings.Action) {}},
	} {
		s := gatetest.New(rings.Sandbox)
		s.OnCheck = func(link.Check) (link.Verdict, error) { return tt.v, nil }
		c := call()
		tt.edit(&c.Action)
		if _, e := newGate(t, options(s)).Enter(t.Context(), c); e == nil {
			t.Errorf("%+v: passed", tt.v)
		}
		balanced(t, s, 1)
	}
}

func TestM13VerdictsHaveStableCodes(t *testing.T) {
	for from, want := range map[rings.Code]rings.Code{
		rings.CodeRateLimited: gate.CodeRateLimited, rings.CodeRateTableFull: gate.CodeRateLimited, gate.CodeConcurrency: gate.CodeConcurrency,
		rings.CodeInsufficientRing: gate.CodeRing, rings.CodeRing0Forbidden: gate.CodeRing, rings.CodeQuarantined: gate.CodeQuarantined,
		gate.CodeToolRestricted: gate.CodeToolRestricted, gate.CodeSteps: gate.CodeSteps, gate.CodeCanceled: gate.CodeCanceled, "": gate.CodeUnavailable, "new_code": gate.CodeUnavailable,
	} {
		s := gatetest.New(rings.Sandbox)
		s.OnCheck = func(link.Check) (link.Verdict, error) { return link.Verdict{Code: from, Retry: time.Second}, nil }
		_, e := newGate(t, options(s)).Enter(t.Context(), call())
		if e == nil || e.Code != want || e.Message == "" || e.Next == "" || e.Retry != time.Second {
			t.Errorf("%q: got %+v, want %s", from, e, want)
		}
	}
}

func TestMayListsWhatWouldPass(t *testing.T) {
	s := gatetest.New(rings.Sandbox)
	o := options(s)
	o.Policy = pdp.DeciderFunc(func(ctx context.Context, r pdp.Request) pdp.Decision {
		if r.Action == "tool.secret.invoke" {
			return pdp.Denied(pdp.CodeRBACDenied, "", nil)
		}
		return allow(ctx, r)
	})
	g := newGate(t, o)
	secret, writes, restricted := call(), call(), call()
	secret.Tool = "secret"
	writes.Action.ReadOnly = false
	restricted.Admit = func(rings.Ring) *gate.Error { return &gate.Error{} }
	var got []bool
	for _, c := range []gate.Call{call(), secret, writes, restricted, {}} {
		got = append(got, g.May(t.Context(), c))
	}
	if want := []bool{true, false, false, false, false}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if used, _ := g.Steps(); used != 0 || len(s.Asked()) != 0 {
		t.Errorf("got %d steps, asked %v, want none", used, s.Asked())
	}
}

// A list of tools takes no rate and asks about each of them. However often an agent asks for it, and hangs up, the policy hears of a
// tool once a second, in each ring; a call is decided anew.
func TestM10ListsAskThePolicyOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := gatetest.New(rings.Sandbox)
		o := options(s)
		asked := 0
		o.Policy = pdp.DeciderFunc(func(ctx context.Context, r pdp.Request) pdp.Decision {
			asked++
			time.Sleep(50 * time.Millisecond) // as far away as it may be
			if ctx.Err() != nil {
				return pdp.Gone(ctx.Err())
			}
			return allow(ctx, r)
		})
		g := newGate(t, o)
		gone, hangUp := context.WithTimeout(t.Context(), time.Millisecond)
		defer hangUp()
		var lists sync.WaitGroup
		for i := range 100 {
			ctx := t.Context()
			if i%2 == 1 {
				ctx = gone
			}
			lists.Go(func() { _ = g.May(ctx, call()) })
		}
		lists.Wait()
		if !g.May(t.Context(), call()) || asked != 1 {
			t.Errorf("the policy was asked %d times, want 1 and the tool listed", asked)
		}
		s.SetRing(rings.Standard)
		if !g.May(t.Context(), call()) || asked != 2 {
			t.Errorf("another ring: asked %d times, want 2", asked)
		}
		time.Sleep(time.Second)
		if !g.May(t.Context(), call()) || asked != 3 {
			t.Errorf("a second later: asked %d times, want 3", asked)
		}
		p, e := g.Enter(t.Context(), call())
		if e != nil || asked != 4 {
			t.Fatalf("a call: asked %d times, %v", asked, e)
		}
		if e := p.End(gate.Outcome{}); e != nil {
			t.Error(e)
		}
	})
}

func TestNewRefusesCallersThatCantBeAskedAbout(t *testing.T) {
	for name, change := range map[string]func(*gate.Options){
		"zero":          func(o *gate.Options) { *o = gate.Options{} },
		"no supervisor": func(o *gate.Options) { o.Supervisor = nil },
		"no policy":     func(o *gate.Options) { o.Policy = nil },
		"no run":        func(o *gate.Options) { o.Caller.Run = "" },
		"agent":         func(o *gate.Options) { o.Caller.Agent = "a b" },
		"no plan":       func(o *gate.Options) { o.Caller.Plan = "" },
		"no mode":       func(o *gate.Options) { o.Caller.Mode = "" },
	} {
		o := options(gatetest.New(rings.Sandbox))
		change(&o)
		if g, err := gate.New(o); err == nil || g != nil {
			t.Errorf("%s: got %v, %v, want an error", name, g, err)
		}
	}
}

func BenchmarkEnterEnd(b *testing.B) {
	s := gatetest.New(rings.Sandbox)
	o := options(s)
	o.MaxSteps = 1 << 60
	g := newGate(b, o)
	c := call()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p, e := g.Enter(b.Context(), c)
		if e != nil {
			b.Fatal(e)
		}
		p.End(gate.Outcome{})
		if i%1024 == 0 {
			s.Forget()
		}
	}
}

func TestM20EventsNameOnlyWhatIsKnown(t *testing.T) {
	s := gatetest.New(rings.Sandbox)
	o := options(s)
	o.TraceID = func(context.Context) string { return "4bf92f3577b34da6a3ce929d0e0e4736" }
	var got []gate.Event
	o.Observe = func(e gate.Event) { e.Took = 0; got = append(got, e) }
	g := newGate(t, o)
	p, e := g.Enter(t.Context(), call())
	if e != nil {
		t.Fatal(e)
	}
	p.End(gate.Outcome{Cost: 2, Err: &gate.Error{Code: gate.CodeToolFailed}})
	made := call()
	made.Tool = "made-up-4711"
	made.Admit = func(rings.Ring) *gate.Error { return &gate.Error{Code: gate.CodeToolUnknown} }
	g.Enter(t.Context(), made)
	want := []gate.Event{
		{Kind: "tool", Tool: "math", Category: "A", Allowed: true, Code: gate.CodeToolFailed, Ring: rings.Sandbox, Cost: 2},
		{Kind: "tool", Category: "A", Code: gate.CodeToolUnknown, Ring: rings.Sandbox},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}
	if r := s.Records(); r[0].TraceID == "" || r[1].Name != "made-up-4711" {
		t.Errorf("got records %+v, want the trace, and the name in the audit", r)
	}
}

func TestM13AnswersOfBudgetAndOperatorHaveStableCodes(t *testing.T) {
	for from, want := range map[rings.Code]rings.Code{
		gate.CodeCost: gate.CodeCost, gate.CodeQuota: gate.CodeQuota, gate.CodeCanceled: gate.CodeCanceled, gate.CodeUnavailable: gate.CodeUnavailable,
		"": gate.CodeCost, "new_code": gate.CodeCost,
	} {
		s := gatetest.New(rings.Sandbox)
		s.OnReserve = func(link.Spend) (link.Reservation, error) { return link.Reservation{Code: from}, nil }
		if _, e := newGate(t, options(s)).Enter(t.Context(), call()); e == nil || e.Code != want || e.Message == "" || e.Next == "" {
			t.Errorf("reserve %q: got %+v, want %s", from, e, want)
		}
	}
	for from, want := range map[rings.Code]rings.Code{
		gate.CodeQuarantined: gate.CodeQuarantined, gate.CodeCanceled: gate.CodeCanceled, "": gate.CodeApproval, "denied": gate.CodeApproval,
	} {
		s := gatetest.New(rings.Sandbox)
		s.OnApprove = func(context.Context, link.Approval) (link.Approved, error) { return link.Approved{Code: from}, nil }
		c := call()
		c.Approve = true
		if _, e := newGate(t, options(s)).Enter(t.Context(), c); e == nil || e.Code != want || e.Message == "" || e.Next == "" {
			t.Errorf("approve %q: got %+v, want %s", from, e, want)
		}
	}
}

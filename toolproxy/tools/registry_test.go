// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/internal/read"
	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/boundary"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

func TestM9PolicyIsAskedBeforeArgumentsAndArgumentsBeforeApproval(t *testing.T) {
	d := define("math", echo)
	d.Schema = json.RawMessage(`{"type":"object","required":["expression"],"properties":{"expression":{"type":"string"}},"additionalProperties":false}`)
	d.Approve = true
	w := newWorld(d)
	denied := false
	w.gate.Policy = pdp.DeciderFunc(func(context.Context, pdp.Request) pdp.Decision {
		if denied {
			return pdp.Denied(pdp.CodeRBACDenied, "", nil)
		}
		return pdp.Decision{Verdict: rings.Allow, Code: pdp.CodeOK}
	})
	w.s.OnApprove = func(context.Context, link.Approval) (link.Approved, error) { return link.Approved{}, nil }
	r := w.registry(t)
	invoke := func(args string) rings.Code {
		_, e := r.Invoke(t.Context(), "math", telemetry.NewPlaintext(json.RawMessage(args)))
		if e == nil {
			return ""
		}
		return e.Code
	}
	if got := invoke(`{"expression":1}`); got != gate.CodeBadArguments {
		t.Errorf("got %s, want %s", got, gate.CodeBadArguments)
	}
	if got := invoke(`{"expression":"1"}`); got != gate.CodeApproval {
		t.Errorf("got %s, want %s", got, gate.CodeApproval)
	}
	denied = true
	if got := invoke(`{"expression":1}`); got != pdp.CodeRBACDenied {
		t.Errorf("got %s, want %s", got, pdp.CodeRBACDenied)
	}
	if got := len(w.s.Records()); got != 3 {
		t.Errorf("got %d records, want 3", got)
	}
	w.balanced(t)
}

func TestM11WhitelistsAndBlacklists(t *testing.T) {
	for name, tt := range map[string]struct {
		config string
		want   rings.Code
	}{
		"ring allowed":   {"rings: {only: [3]}", ""},
		"ring missing":   {"rings: {only: [1, 2]}", gate.CodeToolRestricted},
		"ring forbidden": {"rings: {not: [3]}", gate.CodeToolRestricted},
		"plan allowed":   {"plans: {only: [casual, premium]}", ""},
		"plan forbidden": {"plans: {only: [premium], not: [premium]}", gate.CodeToolRestricted},
		"role missing":   {"roles: {only: [admin]}", gate.CodeToolRestricted},
		"off":            {"enabled: false", gate.CodeToolUnknown},
	} {
		config, err := tools.ParseConfig(section("echo:\n  " + tt.config + "\n"))
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(define("echo", echo))
		w.options.Config = config
		r := w.registry(t)
		_, e := r.Invoke(t.Context(), "echo", gate.Args{})
		if e == nil && tt.want != "" || e != nil && e.Code != tt.want {
			t.Errorf("%s: got %v, want %q", name, e, tt.want)
		}
		if listed := len(r.List(t.Context())) == 1; listed != (tt.want == "") {
			t.Errorf("%s: listed %v", name, listed)
		}
		if got := len(w.s.Records()); got != 1 {
			t.Errorf("%s: got %d records, want 1", name, got)
		}
	}
}

func TestM11RateOfATool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config, err := tools.ParseConfig(section("echo: {rate: {per_second: 2, burst: 3}}"))
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(define("echo", echo))
		w.options.Config = config
		r := w.registry(t)
		burst := func() (passed int, retry time.Duration) {
			for {
				_, e := r.Invoke(t.Context(), "echo", gate.Args{})
				if e != nil {
					if e.Code != gate.CodeRateLimited {
						t.Fatal(e)
					}
					return passed, e.Retry
				}
				passed++
			}
		}
		if n, retry := burst(); n != 3 || retry != 500*time.Millisecond {
			t.Errorf("got %d calls, retry %v, want 3 and 500ms", n, retry)
		}
		time.Sleep(time.Second)
		if n, _ := burst(); n != 2 {
			t.Errorf("after a second: got %d calls, want 2", n)
		}
		time.Sleep(time.Hour)
		if n, _ := burst(); n != 3 {
			t.Errorf("after an hour: got %d calls, want no more than the burst, 3", n)
		}
	})
}

func TestM11TimeLimitHoldsForToolsThatDontEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		d := define("hang", func(context.Context, tools.Call) (tools.Result, error) {
			<-release
			return tools.Result{Output: json.RawMessage(`1`)}, nil
		})
		w := newWorld(d)
		r := w.registry(t)
		for i := range 6 {
			before := time.Now()
			_, e := r.Invoke(t.Context(), "hang", gate.Args{})
			took := time.Since(before)
			if i < 4 && (e == nil || e.Code != gate.CodeToolTimeout || took != 2*time.Second) {
				t.Errorf("call %d: got %v after %v, want %s after 2s", i, e, took, gate.CodeToolTimeout)
			}
			if i >= 4 && (e == nil || e.Code != gate.CodeToolFailed || took != 0) {
				t.Errorf("call %d: got %v after %v, want %s at once: too many hang", i, e, took, gate.CodeToolFailed)
			}
			w.balanced(t)
		}
		close(release)
		synctest.Wait()
		if _, e := r.Invoke(t.Context(), "hang", gate.Args{}); e != nil {
			t.Errorf("got %v, want the tool back", e)
		}
	})
}

func TestM15PlaintextToolsRefuseInConfidentialMode(t *testing.T) {
	d := define("mail", echo)
	d.Plaintext = true
	w := newWorld(d, define("echo", echo))
	w.gate.Caller.Mode, w.options.Caller.Mode = "confidential", "confidential"
	modes := []string{}
	w.options.Filter = func(mode string, output json.RawMessage) (json.RawMessage, []string, error) {
		modes = append(modes, mode)
		return json.RawMessage(`"short"`), []string{"plaintext_removed"}, nil
	}
	r := w.registry(t)
	if _, e := r.Invoke(t.Context(), "mail", gate.Args{}); e == nil || e.Code != gate.CodeConfidential {
		t.Errorf("got %v, want %s", e, gate.CodeConfidential)
	}
	out, e := r.Invoke(t.Context(), "echo", telemetry.NewPlaintext(json.RawMessage(`{"text":"long"}`)))
	if e != nil || string(out) != `"short"` {
		t.Errorf("got %s, %v, want the filtered reply", out, e)
	}
	if !slices.Equal(modes, []string{"confidential"}) {
		t.Errorf("got modes %v", modes)
	}
	if d := cmp.Diff([]string{"plaintext_removed"}, w.s.Records()[1].Flags); d != "" {
		t.Errorf("flags (-want +got):\n%s", d)
	}
	if list := r.List(t.Context()); len(list) != 1 || list[0].Name != "echo" {
		t.Errorf("got %v, want echo only", list)
	}
}

func TestM13OutcomesOfTools(t *testing.T) {
	const secret = "sk-secret-of-upstream"
	for name, tt := range map[string]struct {
		f    toolFunc
		want rings.Code
	}{
		"upstream error with a secret": {func(context.Context, tools.Call) (tools.Result, error) {
			return tools.Result{}, errors.New("GET https://upstream?key=" + secret)
		}, gate.CodeToolFailed},
		"own error": {func(context.Context, tools.Call) (tools.Result, error) {
			return tools.Result{}, &gate.Error{Code: gate.CodeUnavailable, Message: "m", Next: "n"}
		}, gate.CodeUnavailable},
		"typed nil": {func(context.Context, tools.Call) (tools.Result, error) {
			var e *gate.Error
			return tools.Result{}, e
		}, gate.CodeToolFailed},
		"panic":     {func(context.Context, tools.Call) (tools.Result, error) { panic(secret) }, gate.CodeToolFailed},
		"no output": {func(context.Context, tools.Call) (tools.Result, error) { return tools.Result{}, nil }, gate.CodeToolFailed},
		"no JSON": {func(context.Context, tools.Call) (tools.Result, error) {
			return tools.Result{Output: json.RawMessage(`{`)}, nil
		}, gate.CodeToolFailed},
		"two of JSON": {func(context.Context, tools.Call) (tools.Result, error) {
			return tools.Result{Output: json.RawMessage(`1 2`)}, nil
		}, gate.CodeToolFailed},
		"endless": {func(_ context.Context, c tools.Call) (tools.Result, error) {
			return tools.Result{Output: json.RawMessage(`"` + strings.Repeat("a", int(c.Limit)) + `"`)}, nil
		}, gate.CodeTooLarge},
		"ok": {func(context.Context, tools.Call) (tools.Result, error) {
			return tools.Result{Output: json.RawMessage(`42`)}, nil
		}, ""},
	} {
		w := newWorld(define("t", tt.f))
		out, e := w.registry(t).Invoke(t.Context(), "t", gate.Args{})
		got := rings.Code("")
		if e != nil {
			got = e.Code
			if strings.Contains(e.Message+e.Next, secret) {
				t.Errorf("%s: the secret is in %q", name, e.Message)
			}
		}
		if got != tt.want || (e == nil) != (string(out) == "42") {
			t.Errorf("%s: got %s, %v, want %q", name, out, e, tt.want)
		}
		records := w.s.Records()
		if len(records) != 1 || !records[0].Allowed || (tt.want == "") != (records[0].Code == rings.CodeOK) {
			t.Errorf("%s: got records %+v, want one", name, records)
		}
		w.balanced(t)
	}
}

func TestFilterThatFailsWithholdsTheReply(t *testing.T) {
	for name, filter := range map[string]func(string, json.RawMessage) (json.RawMessage, []string, error){
		"error":   func(string, json.RawMessage) (json.RawMessage, []string, error) { return nil, nil, errors.New("x") },
		"panic":   func(string, json.RawMessage) (json.RawMessage, []string, error) { panic("x") },
		"nothing": func(string, json.RawMessage) (json.RawMessage, []string, error) { return nil, nil, nil },
		"grows": func(string, json.RawMessage) (json.RawMessage, []string, error) {
			return json.RawMessage(`"` + strings.Repeat("a", tools.DefaultMaxReply) + `"`), nil, nil
		},
	} {
		w := newWorld(define("echo", echo))
		w.options.Filter = filter
		if out, e := w.registry(t).Invoke(t.Context(), "echo", gate.Args{}); e == nil || out != nil {
			t.Errorf("%s: got %s, %v, want no reply", name, out, e)
		}
		w.balanced(t)
	}
}

func TestM19PriceIsReservedAndBooked(t *testing.T) {
	config, err := tools.ParseConfig(section("echo: {price: 70}"))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(define("echo", echo))
	w.options.Config = config
	var estimates []int64
	w.s.OnReserve = func(s link.Spend) (link.Reservation, error) {
		estimates = append(estimates, s.Estimate)
		return link.Reservation{Allowed: true}, nil
	}
	if _, e := w.registry(t).Invoke(t.Context(), "echo", gate.Args{}); e != nil {
		t.Fatal(e)
	}
	if !slices.Equal(estimates, []int64{70}) || w.s.Settled()[0].Cost != 70 || w.s.Records()[0].Cost != 70 {
		t.Errorf("got estimates %v, settled %+v, records %+v, want 70", estimates, w.s.Settled(), w.s.Records())
	}
}

func TestM19HardStopAtTheBudget(t *testing.T) {
	w := newWorld(define("echo", func(context.Context, tools.Call) (tools.Result, error) {
		return tools.Result{Output: json.RawMessage(`1`), Cost: 1000}, nil
	}))
	w.s.OnSettle = func(s link.Settle) (link.Reservation, error) {
		return link.Reservation{Allowed: s.Cost < 1000, Code: gate.CodeCost}, nil
	}
	if out, e := w.registry(t).Invoke(t.Context(), "echo", gate.Args{}); e == nil || e.Code != gate.CodeCost || out != nil {
		t.Errorf("got %s, %v, want %s", out, e, gate.CodeCost)
	}
	w.balanced(t)
}

// THREATS, tool proxy: names that are tried out are paced and recorded.
func TestUnknownToolsPassTheEntrance(t *testing.T) {
	w := newWorld()
	r := w.registry(t)
	if _, e := r.Invoke(t.Context(), "wallet", gate.Args{}); e == nil || e.Code != gate.CodeToolUnknown {
		t.Errorf("got %v, want %s", e, gate.CodeToolUnknown)
	}
	if got := w.s.Records(); len(got) != 1 || got[0].Code != gate.CodeToolUnknown || got[0].Allowed {
		t.Errorf("got %+v, want one denial", got)
	}
	w.s.OnCheck = func(link.Check) (link.Verdict, error) { return link.Verdict{Code: rings.CodeRateLimited}, nil }
	if _, e := r.Invoke(t.Context(), "wallet", gate.Args{}); e == nil || e.Code != gate.CodeRateLimited {
		t.Errorf("got %v, want %s", e, gate.CodeRateLimited)
	}
	for _, name := range []string{"", "a/b", "../x", strings.Repeat("a", 100), "a\n", "é"} {
		if _, e := r.Invoke(t.Context(), name, gate.Args{}); e == nil || e.Code != gate.CodeToolUnknown {
			t.Errorf("%q: got %v, want %s", name, e, gate.CodeToolUnknown)
		}
	}
}

// Tools of the configuration, built-in ones and those of a source wait as long as the configuration says.
func TestM11ApprovalWaitOfATool(t *testing.T) {
	const common = "description: d, category: A, read_only: true, approve: true"
	config, err := tools.ParseConfig(section("math: {approve: true, approval_wait: 5s}\nplain: {approve: true}\n" +
		"hook: {" + common + ", args: {type: object}, approval_wait: 1m, http: {url: u}}\n" +
		"docs: {" + common + ", approval_wait: 7s, mcp: {url: u}}"))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(define("math", echo), define("plain", echo))
	w.options.Config = config
	w.options.Factories = map[string]tools.Factory{"http": func(string, *read.Node) (tools.Tool, error) { return toolFunc(echo), nil }}
	w.options.Sources = map[string]tools.SourceFactory{"mcp": func(string, *read.Node) (tools.Source, error) {
		return &fakeSource{give: []tools.Definition{define("find", echo)}}, nil
	}}
	var asked time.Duration
	w.s.OnApprove = func(_ context.Context, a link.Approval) (link.Approved, error) {
		asked = a.Wait
		return link.Approved{}, nil
	}
	r := w.registry(t)
	if err := r.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]time.Duration{"math": 5 * time.Second, "plain": gate.DefaultApprovalWait, "hook": time.Minute, "docs.find": 7 * time.Second} {
		if _, e := r.Invoke(t.Context(), name, gate.Args{}); e == nil || e.Code != gate.CodeApproval || asked != want {
			t.Errorf("%s: got %v after asking for %v, want %s after %v", name, e, asked, gate.CodeApproval, want)
		}
	}
}

func TestM16SuspiciousInputReachesThePolicy(t *testing.T) {
	w := newWorld(define("echo", echo))
	w.options.Inspect = func(json.RawMessage) []string { return []string{boundary.FlagOverride} }
	var input pdp.Input
	w.gate.Policy = pdp.DeciderFunc(func(_ context.Context, r pdp.Request) pdp.Decision {
		input = r.Context.Input
		return pdp.Decision{Verdict: rings.Allow, Code: pdp.CodeOK}
	})
	if _, e := w.registry(t).Invoke(t.Context(), "echo", gate.Args{}); e != nil {
		t.Fatal(e)
	}
	if input != pdp.Suspicious || !slices.Contains(w.s.Records()[0].Flags, boundary.FlagOverride) {
		t.Errorf("got input %s, record %+v", input, w.s.Records()[0])
	}
}

type fakeSource struct {
	mu   sync.Mutex
	give []tools.Definition
	err  error
}

func (f *fakeSource) Definitions(context.Context) ([]tools.Definition, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.give, f.err
}

func (f *fakeSource) set(err error, give ...tools.Definition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.give, f.err = give, err
}

func names(r *tools.Registry) (names []string) {
	for _, l := range r.List(context.Background()) {
		names = append(names, l.Name)
	}
	return names
}

func TestM12OneServerThatFailsHidesNoOthersTools(t *testing.T) {
	config, err := tools.ParseConfig(section(`
good: {kind: mcp, category: B, read_only: true, mcp: {url: x}}
bad: {kind: mcp, category: B, read_only: true, mcp: {url: x}}
`))
	if err != nil {
		t.Fatal(err)
	}
	good, bad := &fakeSource{}, &fakeSource{err: errors.New("refused")}
	w := newWorld(define("echo", echo))
	w.options.Config = config
	w.options.Sources = map[string]tools.SourceFactory{"mcp": func(name string, _ *read.Node) (tools.Source, error) {
		return map[string]*fakeSource{"good": good, "bad": bad}[name], nil
	}}
	circle := define("circle", echo)
	circle.Schema = json.RawMessage(`{"type":"object","properties":{"a":{"$ref":"#"}}}`)
	good.set(nil, define("search", echo), circle)
	r := w.registry(t)
	err = r.Refresh(t.Context())
	if err == nil || !strings.Contains(err.Error(), "bad") || !strings.Contains(err.Error(), "circle") {
		t.Errorf("got %v, want an error about bad and circle", err)
	}
	if d := cmp.Diff([]string{"echo", "good.search"}, names(r)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	good.set(errors.New("gone"))
	bad.set(nil, define("late", echo))
	if err := r.Refresh(t.Context()); err == nil {
		t.Error("want an error about good")
	}
	if d := cmp.Diff([]string{"bad.late", "echo", "good.search"}, names(r)); d != "" {
		t.Errorf("a server that can't be asked keeps its tools (-want +got):\n%s", d)
	}
	good.set(nil)
	if err := r.Refresh(t.Context()); err != nil {
		t.Error(err)
	}
	if d := cmp.Diff([]string{"bad.late", "echo"}, names(r)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if _, e := r.Invoke(t.Context(), "bad.late", gate.Args{}); e != nil {
		t.Error(e)
	}
}

// slowSource says what it has when the test lets it.
type slowSource struct {
	asked, say chan struct{}
	err        error
}

func (s slowSource) Definitions(ctx context.Context) ([]tools.Definition, error) {
	s.asked <- struct{}{}
	select {
	case <-s.say:
		return []tools.Definition{define("find", echo)}, s.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A call of a server that has said nothing yet waits for its first word, and no longer than a call of it may take; one of
// a server that was heard doesn't wait for a name that it hasn't. What came of it passes the entrance like every call.
func TestM12ACallWaitsForASlowServersFirstWord(t *testing.T) {
	unreachable := &gate.Error{Code: gate.CodeUnavailable, Message: "not reached", Next: "later"}
	for _, c := range []struct {
		what, timeout, name string
		waits, speaks       bool
		err                 error
		want                rings.Code
		asked               int // how often the server is
	}{
		{"it speaks", "1m", "up.find", true, true, nil, "", 1},
		{"it speaks, of other tools", "1m", "up.other", true, true, nil, gate.CodeToolUnknown, 1},
		{"it says nothing within the call's limit", "1ms", "up.find", true, false, nil, gate.CodeUnavailable, 1},
		{"it can't be reached, and not by the call either", "1m", "up.find", true, true, unreachable, gate.CodeUnavailable, 2},
		{"the name is no server's", "1m", "upper.find", false, false, nil, gate.CodeToolUnknown, 1},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config, err := tools.ParseConfig(section(
					"up: {kind: mcp, category: A, read_only: true, timeout: " + c.timeout + ", mcp: {url: x}}"))
				if err != nil {
					t.Fatal(err)
				}
				slow := slowSource{make(chan struct{}, 2), make(chan struct{}), c.err}
				w := newWorld()
				w.options.Config = config
				w.options.Sources = map[string]tools.SourceFactory{
					"mcp": func(string, *read.Node) (tools.Source, error) { return slow, nil },
				}
				r := w.registry(t)
				ctx, cancel := context.WithCancel(t.Context())
				go r.Run(ctx)
				defer cancel()
				<-slow.asked // it is being connected to
				var output json.RawMessage
				var e *gate.Error
				back := make(chan struct{})
				go func() {
					output, e = r.Invoke(t.Context(), c.name, telemetry.NewPlaintext(json.RawMessage(`{"a":1}`)))
					close(back)
				}()
				synctest.Wait()
				select {
				case <-back:
					if c.waits {
						t.Error("the call didn't wait")
					}
				default:
				}
				if c.speaks {
					close(slow.say)
				}
				<-back
				var code rings.Code
				if e != nil {
					code = e.Code
				}
				if code != c.want || e == nil && string(output) != `{"a":1}` {
					t.Errorf("got %s, %v, want %q", output, e, c.want)
				}
				if n := 1 + len(slow.asked); n != c.asked {
					t.Errorf("the server was asked %d times, want %d", n, c.asked)
				}
				if len(w.s.Records()) == 0 && len(w.s.Asked()) == 0 {
					t.Error("the call passed no entrance")
				}
				w.balanced(t)
			})
		})
	}
}

// A server's word about its own tools weighs nothing: the operator said what they are.
func TestM12ServersDontClassifyTheirTools(t *testing.T) {
	config, err := tools.ParseConfig(section(`up: {kind: mcp, category: C, reversibility: none, mcp: {url: x}}`))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld()
	w.options.Config = config
	w.options.Sources = map[string]tools.SourceFactory{"mcp": func(string, *read.Node) (tools.Source, error) {
		return &fakeSource{give: []tools.Definition{define("delete", echo)}}, nil // says: reads only, category A
	}}
	r := w.registry(t)
	if err := r.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, e := r.Invoke(t.Context(), "up.delete", gate.Args{}); e == nil || e.Code != gate.CodeRing {
		t.Errorf("got %v, want %s", e, gate.CodeRing)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, change := range map[string]func(*tools.Options){
		"no entrance":  func(o *tools.Options) { o.Entrance = nil },
		"no filter":    func(o *tools.Options) { o.Filter = nil },
		"zero tool":    func(o *tools.Options) { o.Builtin = []tools.Definition{{}} },
		"twice":        func(o *tools.Options) { o.Builtin = []tools.Definition{define("a", echo), define("a", echo)} },
		"no action":    func(o *tools.Options) { o.Builtin[0].Action = rings.Action{} },
		"no category":  func(o *tools.Options) { o.Builtin[0].Category = "" },
		"no schema":    func(o *tools.Options) { o.Builtin[0].Schema = nil },
		"no built-in":  func(o *tools.Options) { o.Config = tools.Config{"b": {Kind: "builtin", Enabled: true}} },
		"no such kind": func(o *tools.Options) { o.Config = tools.Config{"b": {Kind: "http", Enabled: true}} },
	} {
		w := newWorld()
		g, err := gate.New(w.gate)
		if err != nil {
			t.Fatal(err)
		}
		o := tools.Options{Entrance: g, Filter: pass, Builtin: []tools.Definition{define("a", echo)}}
		change(&o)
		if r, err := tools.New(o); err == nil || r != nil {
			t.Errorf("%s: got %v, want an error", name, err)
		}
	}
}

func BenchmarkInvoke(b *testing.B) {
	w := newWorld(define("echo", echo))
	r := w.registry(b)
	args := json.RawMessage(`{"expression":"6*7"}`)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, e := r.Invoke(b.Context(), "echo", telemetry.NewPlaintext(args)); e != nil {
			b.Fatal(e)
		}
		if i%1024 == 0 {
			w.s.Forget()
		}
	}
}

func TestM12SourcesAreAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config, err := tools.ParseConfig(section(`up: {category: B, read_only: true, rate: {per_second: 0.0005, burst: 1}, mcp: {url: x}}`))
		if err != nil {
			t.Fatal(err)
		}
		up := &fakeSource{}
		up.set(nil, define("a", echo))
		w := newWorld()
		w.options.Config = config
		w.options.Sources = map[string]tools.SourceFactory{"mcp": func(string, *read.Node) (tools.Source, error) { return up, nil }}
		r := w.registry(t)
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx)
		synctest.Wait()
		if _, e := r.Invoke(t.Context(), "up.a", gate.Args{}); e != nil {
			t.Error(e)
		}
		up.set(nil, define("a", echo), define("b", echo))
		time.Sleep(6 * time.Minute)
		if d := cmp.Diff([]string{"up.a", "up.b"}, names(r)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if _, e := r.Invoke(t.Context(), "up.a", gate.Args{}); e == nil || e.Code != gate.CodeRateLimited {
			t.Errorf("got %v: asking again must not refill the bucket", e)
		}
		for _, now := range [][]tools.Definition{{define("b", echo)}, {define("a", echo), define("b", echo)}} {
			up.set(nil, now...)
			time.Sleep(6 * time.Minute)
		}
		if _, e := r.Invoke(t.Context(), "up.a", gate.Args{}); e == nil || e.Code != gate.CodeRateLimited {
			t.Errorf("got %v: a tool that was away must not come back with a full bucket", e)
		}
		cancel()
	})
}

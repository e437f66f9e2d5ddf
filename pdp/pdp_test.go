// SPDX-License-Identifier: Apache-2.0

package pdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/internal/read"
	"agentrun/rings"
)

// good is a request that the built-in policies allow.
func good() Request {
	return Request{
		Subject:  Subject{ID: "agent-1", Type: Agent},
		TeamID:   "red",
		Action:   ToolAction("math"),
		Resource: Resource{ID: "room-7", TeamID: "red", Mode: Public},
		KeyID:    "key-1",
		Context: Context{
			Ring: rings.Sandbox, RequiredRing: rings.Sandbox, Plan: "freemium", Role: "analyst", KeyValid: true,
			Capabilities: []string{RunAction, ToolAction("math")},
			Tool:         Tool{Category: "A", PlaintextFree: true},
			Input:        Clean, Quota: Quota{Used: 3, Limit: 10},
		},
	}
}

func run() Request {
	r := good()
	r.Action, r.Context.Tool = RunAction, Tool{}
	return r
}

func compile(t testing.TB, text string) *Set {
	t.Helper()
	var files []File
	if text != "" {
		files = []File{{"test.cedar", []byte(text)}}
	}
	s, err := Compile(files)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// keyless is a request of a run without a key, where none is demanded.
func keyless(r *Request) { r.KeyID, r.Context.KeyValid, r.Context.Keyless = "", false, true }

func TestM9OrderOfReasons(t *testing.T) {
	set := compile(t, `@id("only-analysts") permit (principal in Role::"analyst", action, resource);`)
	// Each step breaks one thing more, from the last reason of M-9 to the first: the newest one is always the one told.
	r := good()
	steps := []struct {
		want  rings.Code
		spoil func()
	}{
		{CodeOK, func() {}},
		{CodeQuotaExceeded, func() { r.Context.Quota.Used = r.Context.Quota.Limit }},
		{CodeConfidential, func() { r.Resource.Mode, r.Context.Tool.PlaintextFree = Confidential, false }},
		{CodeACLBlock, func() { r.Resource.TeamID = "blue" }},
		{CodeRBACDenied, func() { r.Context.Role = "guest" }},
		{CodeCapabilityMissing, func() { r.Context.Capabilities = []string{RunAction} }},
		{CodeNoRole, func() { r.Context.Role = "" }},
		{CodeKeyInvalid, func() { r.Context.KeyValid = false }},
	}
	for _, s := range steps {
		s.spoil()
		d := set.Decide(t.Context(), r)
		if d.Code != s.want || d.Allowed() != (s.want == CodeOK) || d.Revision != set.Revision() {
			t.Errorf("got %+v, want %s", d, s.want)
		}
	}
}

func TestM9BuiltinPolicies(t *testing.T) {
	set := compile(t, "")
	cases := []struct {
		name   string
		from   func() Request
		change func(*Request)
		want   rings.Code
		policy string
	}{
		{"call", good, func(*Request) {}, CodeOK, "default.grant"},
		{"run", run, func(*Request) {}, CodeOK, "default.grant"},
		{"user", good, func(r *Request) { r.Subject.Type = User }, CodeOK, "default.grant"},
		{"more privilege than needed", good, func(r *Request) { r.Context.Ring = rings.Privileged }, CodeOK, "default.grant"},
		{"last of the quota", good, func(r *Request) { r.Context.Quota.Used = 9 }, CodeOK, "default.grant"},
		{"confidential, free of plaintext", good, func(r *Request) { r.Resource.Mode = Confidential }, CodeOK, "default.grant"},
		{"confidential run", run, func(r *Request) { r.Resource.Mode = Confidential }, CodeOK, "default.grant"},
		{"no key", good, func(r *Request) { r.KeyID = "" }, CodeKeyInvalid, "base.key_invalid"},
		{"bad key", good, func(r *Request) { r.Context.KeyValid = false }, CodeKeyInvalid, "base.key_invalid"},
		{"none is needed", good, keyless, CodeOK, "default.grant"},
		{"none is needed for a run", run, keyless, CodeOK, "default.grant"},
		{"none is needed, and no role either", good, func(r *Request) { keyless(r); r.Context.Role = "" }, CodeOK, "default.grant"},
		{"none is needed, and the tool not granted", good, func(r *Request) { keyless(r); r.Context.Capabilities = nil }, CodeCapabilityMissing, "base.capability_missing"},
		{"none is needed, but there is a bad one", good, func(r *Request) { keyless(r); r.KeyID = "k" }, CodeKeyInvalid, "base.key_invalid"},
		{"none is needed, but one is said to be valid", good, func(r *Request) { r.KeyID = "" }, CodeKeyInvalid, "base.key_invalid"},
		{"no role", good, func(r *Request) { r.Context.Role = "" }, CodeNoRole, "base.no_role"},
		{"no capability", good, func(r *Request) { r.Context.Capabilities = nil }, CodeCapabilityMissing, "base.capability_missing"},
		{"another tool's", good, func(r *Request) { r.Context.Capabilities = []string{ToolAction("maths")} }, CodeCapabilityMissing, "base.capability_missing"},
		{"only tools", run, func(r *Request) { r.Context.Capabilities = []string{ToolAction("math")} }, CodeCapabilityMissing, "base.capability_missing"},
		{"another team", good, func(r *Request) { r.Resource.TeamID = "blue" }, CodeACLBlock, "base.other_team"},
		{"confidential, plaintext", good, func(r *Request) { r.Resource.Mode, r.Context.Tool.PlaintextFree = Confidential, false }, CodeConfidential, "base.confidential_tool"},
		{"quota", run, func(r *Request) { r.Context.Quota.Used = 10 }, CodeQuotaExceeded, "base.quota_exceeded"},
		{"no quota", good, func(r *Request) { r.Context.Quota = Quota{} }, CodeQuotaExceeded, "base.quota_exceeded"},
		{"ring", good, func(r *Request) { r.Context.RequiredRing = rings.Standard }, rings.CodeInsufficientRing, ""},
		{"ring 0", good, func(r *Request) { r.Context.Ring = rings.Root }, rings.CodeRing0Forbidden, ""},
	}
	used := map[string]bool{}
	for _, c := range cases {
		r := c.from()
		c.change(&r)
		d := set.Decide(t.Context(), r)
		if d.Code != c.want || d.Policy != c.policy || d.Allowed() != (c.want == CodeOK) || d.Message == "" {
			t.Errorf("%s: got %+v, want %s by %q", c.name, d, c.want, c.policy)
		}
		used[c.policy] = true
	}
	for id, p := range set.byID {
		if !used[string(id)] {
			t.Errorf("%s: no case shows what it is for", id)
		}
		if p.compiled.Annotations()["why"] == "" {
			t.Errorf("%s has no @why", id)
		}
	}
}

func TestM10OperatorPolicies(t *testing.T) {
	const text = `
@id("analysts") permit (principal in Role::"analyst", action == Action::"tool.invoke", resource);
@id("no-web") @reason("acl_block")
forbid (principal, action == Action::"tool.invoke", resource == Tool::"browser-lite") unless { principal in Team::"blue" };
forbid (principal, action == Action::"tool.invoke", resource) when { resource.category == "D" && context.plan == "freemium" };
@id("flagged") @reason("rbac_denied") forbid (principal, action, resource) when { context.input == "suspicious" };
`
	set := compile(t, text)
	if set.Len() != 4 || set.BuiltinGrant() {
		t.Errorf("%d policies, built-in grant %v, want 4 and none", set.Len(), set.BuiltinGrant())
	}
	call := func(tool string, change func(*Request)) Decision {
		r := good()
		r.Action = ToolAction(tool)
		r.Context.Capabilities = []string{RunAction, r.Action}
		change(&r)
		return set.Decide(t.Context(), r)
	}
	cases := []struct {
		name   string
		got    Decision
		want   rings.Code
		policy string
	}{
		{"permitted", call("math", func(*Request) {}), CodeOK, "analysts"},
		{"not a run", set.Decide(t.Context(), run()), CodeRBACDenied, ""},
		{"other role", call("math", func(r *Request) { r.Context.Role = "guest" }), CodeRBACDenied, ""},
		{"forbidden tool", call("browser-lite", func(*Request) {}), CodeACLBlock, "no-web"},
		{"but not to blue", call("browser-lite", func(r *Request) { r.TeamID, r.Resource.TeamID = "blue", "blue" }), CodeOK, "analysts"},
		{"category", call("x", func(r *Request) { r.Context.Tool.Category = "D" }), CodeACLBlock, "test.cedar:5"},
		{"reason of its own", call("math", func(r *Request) { r.Context.Input = Suspicious }), CodeRBACDenied, "flagged"},
	}
	for _, c := range cases {
		if c.got.Code != c.want || c.got.Policy != c.policy {
			t.Errorf("%s: got %+v, want %s by %q", c.name, c.got, c.want, c.policy)
		}
	}
}

// An operator may permit everything: the guards and the rings hold all the same.
func TestM9PermitLiftsNoGuard(t *testing.T) {
	set := compile(t, `permit (principal, action, resource);`)
	for name, spoil := range map[string]func(*Request){
		"ring":       func(r *Request) { r.Context.RequiredRing = rings.Privileged },
		"root":       func(r *Request) { r.Context.Ring = rings.Root },
		"capability": func(r *Request) { r.Context.Capabilities = nil },
		"key":        func(r *Request) { r.Context.KeyValid = false },
		"team":       func(r *Request) { r.Resource.TeamID = "blue" },
		"quota":      func(r *Request) { r.Context.Quota.Limit = 0 },
	} {
		r := good()
		spoil(&r)
		if d := set.Decide(t.Context(), r); d.Allowed() {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// In Cedar a forbid that can't be evaluated is passed over; here it refuses.
func TestM9BrokenForbidRefuses(t *testing.T) {
	set := compile(t, `@id("overflow") forbid (principal, action, resource) when { context.quota.limit * 9000000000000000000 < 0 };`)
	x := set.Explain(t.Context(), good())
	d := x.Decision
	if d.Allowed() || d.Code != CodeError || d.Policy != "overflow" || d.Cause == nil || len(x.Errors) != 1 {
		t.Errorf("got %+v", x)
	}
	// A permit that can't be evaluated only permits nothing.
	d = compile(t, `permit (principal, action, resource) when { context.quota.limit * 9000000000000000000 > 0 };`).Decide(t.Context(), good())
	if d.Code != CodeRBACDenied || d.Cause == nil {
		t.Errorf("got %+v", d)
	}
}

func TestM10ZeroValuesRefuse(t *testing.T) {
	var none *Engine
	var noSet *Set
	nothing := context.Context(nil)
	for name, d := range map[string]Decision{
		"decision":      {},
		"allow alone":   {Verdict: rings.Allow},
		"ok alone":      {Code: CodeOK},
		"request":       compile(t, "").Decide(t.Context(), Request{}),
		"engine":        (&Engine{}).Decide(t.Context(), good()),
		"nil engine":    none.Decide(t.Context(), good()),
		"set":           (&Set{}).Decide(t.Context(), good()),
		"nil set":       noSet.Decide(t.Context(), good()),
		"every of none": Every().Decide(t.Context(), good()),
		"every of nil":  Every(nil).Decide(t.Context(), good()),
		"guarded nil":   Guarded(nil).Decide(t.Context(), good()),
		"nil function":  DeciderFunc(nil).Decide(t.Context(), good()),
		"no context":    compile(t, "").Decide(nothing, good()),
	} {
		if d.Allowed() {
			t.Errorf("%s allows: %+v", name, d)
		}
	}
	if s := (&Engine{}).Poll(); s.Refused == nil {
		t.Error("an engine that nobody made says it is well")
	}
}

type yes struct{}

func (yes) Decide(context.Context, Request) Decision {
	return Decision{Verdict: rings.Allow, Code: CodeOK}
}

// THREATS, policy: "says yes to everything but the ring says no", and other ways not to answer.
func TestM9GuardAgainstTheDecider(t *testing.T) {
	expired, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	gone, stop := context.WithCancel(t.Context())
	stop()
	ringless := good()
	ringless.Context.RequiredRing = rings.Standard
	answers := func(d Decision) Decider {
		return DeciderFunc(func(context.Context, Request) Decision { return d })
	}
	cases := []struct {
		name string
		ctx  context.Context
		d    Decider
		r    Request
		want rings.Code
	}{
		{"yes", t.Context(), yes{}, good(), CodeOK},
		{"yes, not the ring", t.Context(), yes{}, ringless, rings.CodeInsufficientRing},
		{"yes to a nonsensical request", t.Context(), yes{}, Request{}, CodeMalformed},
		{"too late", expired, yes{}, good(), CodeTimeout},
		{"given up", gone, yes{}, good(), CodeUnavailable},
		{"panic", t.Context(), DeciderFunc(func(context.Context, Request) Decision { panic("x") }), good(), CodeError},
		{"allow with a reason to deny", t.Context(), answers(Decision{Verdict: rings.Allow, Code: CodeACLBlock}), good(), CodeMalformed},
		{"deny with ok", t.Context(), answers(Decision{Code: CodeOK}), good(), CodeMalformed},
		{"unknown verdict", t.Context(), answers(Decision{Verdict: 7, Code: CodeOK}), good(), CodeMalformed},
		{"nothing", t.Context(), answers(Decision{}), good(), CodeMalformed},
		{"every: both", t.Context(), Every(compile(t, ""), yes{}), good(), CodeOK},
		{"every: second refuses", t.Context(), Every(yes{}, answers(Denied(CodeACLBlock, "", nil))), good(), CodeACLBlock},
		{"every: third unreachable", t.Context(), Every(yes{}, yes{}, nil), good(), CodeUnavailable},
	}
	for _, c := range cases {
		if d := Guarded(c.d).Decide(c.ctx, c.r); d.Code != c.want || d.Allowed() != (c.want == CodeOK) {
			t.Errorf("%s: got %+v, want %s", c.name, d, c.want)
		}
	}
}

func TestM10RequestCheck(t *testing.T) {
	for name, spoil := range map[string]func(*Request){
		"subject.id":            func(r *Request) { r.Subject.ID = "agent\n" },
		"subject.type":          func(r *Request) { r.Subject.Type = "operator" },
		"team_id":               func(r *Request) { r.TeamID = "" },
		"action":                func(r *Request) { r.Action, r.Context.Tool = "tool.*.invoke", Tool{} },
		"resource.id":           func(r *Request) { r.Resource.ID = strings.Repeat("a", 257) },
		"resource.team_id":      func(r *Request) { r.Resource.TeamID = "rеd" }, // a Cyrillic е
		"resource.mode":         func(r *Request) { r.Resource.Mode = "Confidential" },
		"key_id":                func(r *Request) { r.KeyID = "key 1" },
		"context.ring":          func(r *Request) { r.Context.Ring = rings.NoRing },
		"context.required_ring": func(r *Request) { r.Context.RequiredRing = 9 },
		"context.plan":          func(r *Request) { r.Context.Plan = "" },
		"context.role":          func(r *Request) { r.Context.Role = "-" },
		"context.capabilities":  func(r *Request) { r.Context.Capabilities = make([]string, MaxCapabilities+1) },
		"context.tool.category": func(r *Request) { r.Context.Tool.Category = "E" },
		"context.tool":          func(r *Request) { r.Action = RunAction },
		"context.input":         func(r *Request) { r.Context.Input = "" },
		"context.quota":         func(r *Request) { r.Context.Quota.Used = -1 },
	} {
		r := good()
		spoil(&r)
		invalid, ok := errors.AsType[*read.InvalidError](r.Check())
		if !ok || len(invalid.Problems) != 1 || invalid.Problems[0].Path != name {
			t.Errorf("%s: got %v", name, invalid)
		}
		if d := compile(t, "").Decide(t.Context(), r); d.Code != CodeMalformed || d.Cause == nil {
			t.Errorf("%s: got %+v, want %s with its cause", name, d, CodeMalformed)
		}
	}
	r := good()
	r.Context.Capabilities = []string{"tool.*"}
	if err := r.Check(); err == nil || !strings.Contains(err.Error(), "tool.*") {
		t.Errorf("a wildcard capability: got %v", err)
	}
}

func TestM10ToolNames(t *testing.T) {
	for action, want := range map[string]string{
		"tool.math.invoke": "math", "tool.a.invoke.invoke": "a.invoke", "tool.getWeather_2.invoke": "getWeather_2",
		"tool..invoke": "", "tool.invoke": "", "tool.a:b.invoke": "", "tool.*.invoke": "", "tool.math.invoke\n": "",
		"Tool.math.invoke": "", "agent.run.invoke": "", "tool.math": "",
	} {
		if name, ok := ToolOf(action); ok != (want != "") || ok && name != want {
			t.Errorf("%q: got %q %v, want %q", action, name, ok, want)
		}
	}
}

func encode(t testing.TB, r Request) []byte {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestM10DecodeRequest(t *testing.T) {
	text := string(encode(t, good()))
	r, err := DecodeRequest([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(good(), r); diff != "" {
		t.Error(diff)
	}
	for name, bad := range map[string]string{
		"empty":      "",
		"null":       "null",
		"list":       "[]",
		"twice":      strings.Replace(text, `"key_id":`, `"key_id":"key-2","key_id":`, 1),
		"case":       strings.Replace(text, `"key_id":`, `"KEY_ID":`, 1),
		"unknown":    strings.Replace(text, `"key_id":`, `"admin":true,"key_id":`, 1),
		"bool":       strings.Replace(text, `"key_valid":true`, `"key_valid":"true"`, 1),
		"ring":       strings.Replace(text, `"ring":3`, `"ring":"1"`, 1),
		"fraction":   strings.Replace(text, `"used":3`, `"used":3.5`, 1),
		"float":      strings.Replace(text, `"used":3`, `"used":1e400`, 1),
		"NaN":        strings.Replace(text, `"used":3`, `"used":NaN`, 1),
		"not UTF-8":  strings.Replace(text, "room-7", "room\xff", 1),
		"two":        text + text,
		"long":       text + strings.Repeat(" ", MaxRequestJSON),
		"null field": strings.Replace(text, `"red"`, `null`, 1),
		"deep":       strings.Repeat("[", 20000),
	} {
		if bad == text {
			t.Fatalf("%s: the case is the good text", name)
		}
		if r, err := DecodeRequest([]byte(bad)); err == nil || !cmp.Equal(r, Request{}) {
			t.Errorf("%s: got %+v, %v", name, r, err)
		}
	}
}

// Whatever member of the request is left out, at any depth, the answer is no.
func TestM10MissingFieldRefuses(t *testing.T) {
	set := compile(t, "")
	var whole map[string]any
	if err := json.Unmarshal(encode(t, good()), &whole); err != nil {
		t.Fatal(err)
	}
	n := 0
	var walk func(m map[string]any)
	walk = func(m map[string]any) {
		for _, k := range slices.Collect(func(yield func(string) bool) {
			for k := range m {
				yield(k)
			}
		}) {
			v := m[k]
			delete(m, k)
			text, err := json.Marshal(whole)
			if err != nil {
				t.Fatal(err)
			}
			r, err := DecodeRequest(text)
			// Left out, these have their strictest value, and that is still allowed here.
			harmless := k == "used" || k == "plaintext_free" || k == "keyless" || k == "risk"
			if err == nil && set.Decide(t.Context(), r).Allowed() && !harmless {
				t.Errorf("without %s it is allowed", k)
			}
			n++
			m[k] = v
			if inner, ok := v.(map[string]any); ok {
				walk(inner)
			}
		}
	}
	walk(whole)
	if n < 20 {
		t.Errorf("only %d members were tried", n)
	}
}

func TestM10PolicyProblems(t *testing.T) {
	deep := "permit (principal, action, resource) when { " + strings.Repeat("(", 100) + "true" + strings.Repeat(")", 100) + " };"
	cases := []struct{ name, text, want string }{
		{"syntax", "\npermit (principal, action resource);", `p.cedar:2: column 35: ")": got resource`},
		{"unknown attribute", "// one\n\n" + `@id("a") forbid (principal, action, resource) when { context.rank > 1 };`, "p.cedar:3: a: attribute `rank`"},
		{"wrong type", `forbid (principal, action, resource) when { context.ring == "3" };`, "p.cedar:1"},
		{"unknown type", `permit (principal == Robot::"a", action, resource);`, "Robot"},
		{"unknown action", `permit (principal, action == Action::"tool.math.invoke", resource);`, "tool.math.invoke"},
		{"optional attribute", `forbid (principal, action, resource) when { context.role == "x" };`, "optional attribute `role`"},
		{"same id", `@id("a") permit (principal, action, resource); @id("a") forbid (principal, action, resource);`, "same id"},
		{"id of a guard", `@id("base.key_invalid") permit (principal, action, resource);`, "built-in"},
		{"id", `@id("a b") permit (principal, action, resource);`, "@id must be"},
		{"reason", `@reason("because") forbid (principal, action, resource);`, "none of"},
		{"reason ok", `@reason("ok") forbid (principal, action, resource);`, "none of"},
		{"permit with a reason", `@reason("acl_block") permit (principal, action, resource);`, "belongs to a forbid"},
		{"empty", "// nothing\n", "no policy"},
		{"deep", deep, "deeper than 64"},
		{"long", "permit (principal, action, resource) when { " + strings.Repeat("true && ", 4000) + "true };", "longer than 16 KiB"},
		{"string without end", `permit (principal == Agent::"a, action, resource);`, "p.cedar:1"},
		{"template", `permit (principal == ?principal, action, resource);`, "p.cedar:1"},
	}
	for _, c := range cases {
		set, err := Compile([]File{{"p.cedar", []byte(c.text)}})
		if _, ok := errors.AsType[*read.InvalidError](err); !ok || set != nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "p.cedar") {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func write(t testing.TB, name, text string) {
	t.Helper()
	// By rename, as documented: a reader sees the old or the new.
	next := filepath.Join(filepath.Dir(name), ".next")
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, name); err != nil {
		t.Fatal(err)
	}
}

const (
	openPolicy   = `@id("open") permit (principal, action, resource);`
	closedPolicy = `@id("closed") forbid (principal, action, resource);`
)

func TestM10HotReload(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.cedar")
	now := time.Unix(1000, 0)
	var told []string
	write(t, file, openPolicy)
	e, err := NewEngine(Options{Path: dir, Clock: func() time.Time { return now }, Notify: func(s Status) {
		told = append(told, fmt.Sprint(s.Policies, " ", s.Refused))
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := func(code rings.Code) {
		t.Helper()
		if d := e.Decide(t.Context(), good()); d.Code != code {
			t.Errorf("got %+v, want %s", d, code)
		}
	}
	tick := func() { now = now.Add(time.Second); e.Poll() }
	want(CodeOK)
	write(t, file, closedPolicy)
	want(CodeOK) // not looked at
	tick()
	want(CodeACLBlock)

	write(t, file, "permit (principal")
	tick()
	want(CodeACLBlock)
	tick()
	want(CodeACLBlock)
	if s := e.Status(); s.Refused == nil || !strings.Contains(s.Refused.Error(), file+":1") || !s.RefusedSince.Equal(time.Unix(1002, 0)) {
		t.Errorf("got %+v, want the fault with its place", s)
	}
	write(t, file, closedPolicy)
	tick()
	want(CodeACLBlock)
	if s := e.Status(); s.Refused != nil {
		t.Errorf("mended, but %v", s.Refused)
	}
	if err := os.Remove(file); err != nil { // as a lost mount looks
		t.Fatal(err)
	}
	tick()
	want(CodeACLBlock)
	now = time.Unix(10, 0) // the clock is set back
	write(t, file, openPolicy)
	e.Poll()
	want(CodeOK)

	wantTold := []string{"1 <nil>", "1 <nil>", "1 " + file + ":1: column 18: ", "1 <nil>", "1 " + dir + ": " + errNoPolicyFile.Error(), "1 <nil>"}
	if len(told) != len(wantTold) || !slices.EqualFunc(told, wantTold, strings.HasPrefix) {
		t.Errorf("got %q, want %q", told, wantTold)
	}
	if _, err := NewEngine(Options{Path: filepath.Join(dir, "none")}); err == nil {
		t.Error("an engine starts without its policies")
	}
}

func TestM10TouchedFileIsNoChange(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.cedar")
	write(t, file, closedPolicy)
	n := 0
	e, err := NewEngine(Options{Path: file, Notify: func(Status) { n++ }})
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, closedPolicy)
	e.Poll()
	if n != 1 {
		t.Errorf("told %d times, want once", n)
	}
	// The size and the modification time are the old ones' again; the change time gives it away.
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(closedPolicy, "closed", "closer", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	e.Poll()
	if n != 2 {
		t.Errorf("told %d times, want twice", n)
	}
}

// A decision sees the old set or the new one, whoever reloads at the same time.
func TestM10ReloadRace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.cedar")
	write(t, file, openPolicy)
	e, err := NewEngine(Options{Path: file})
	if err != nil {
		t.Fatal(err)
	}
	open := compileAs(t, file, openPolicy).Revision()
	closed := compileAs(t, file, closedPolicy).Revision()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 300 {
				d := e.Decide(t.Context(), good())
				if !(d.Allowed() && d.Revision == open || d.Code == CodeACLBlock && d.Revision == closed) {
					t.Errorf("got %+v", d)
				}
			}
		})
	}
	for i := range 50 {
		write(t, file, []string{closedPolicy, openPolicy}[i%2])
		e.Poll()
	}
	wg.Wait()
}

func compileAs(t *testing.T, name, text string) *Set {
	t.Helper()
	s, err := Compile([]File{{name, []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestM10PolicyFilesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.cedar")
	write(t, file, openPolicy)
	want := func(path, message string) {
		t.Helper()
		if s, err := Load(path); s != nil || err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: got %v, want %q", path, err, message)
		}
	}
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	want(dir, "everybody may write it")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	want(dir, "there is no .cedar file")
	if err := os.Mkdir(file, 0o755); err != nil {
		t.Fatal(err)
	}
	want(dir, "not a regular file")
	want("/dev/zero", "not a regular file")
	write(t, filepath.Join(dir, "b"), strings.Repeat(" ", MaxPolicyFile+1))
	want(filepath.Join(dir, "b"), "longer than 256 KiB")
}

func TestM10DecisionJSON(t *testing.T) {
	b, err := json.Marshal(Denied(CodeNoRole, "m", errors.New("secret")))
	if err != nil || string(b) != `{"allow":false,"reason":"no_role","message":"m"}` {
		t.Errorf("got %s, %v", b, err)
	}
}

// H-8: a policy decides by the risk of a call; one that isn't said counts as the worst.
func TestH8PoliciesSeeTheRisk(t *testing.T) {
	set := compile(t, `permit (principal, action, resource);
@id("risky") forbid (principal, action == Action::"tool.invoke", resource) when { context.risk > 60 };`)
	for risk, want := range map[int]bool{20: true, 60: true, 65: false, 95: false, 0: false, -1: false, 101: false} {
		r := good()
		r.Context.Risk = risk
		if got := set.Decide(t.Context(), r).Allowed(); got != want {
			t.Errorf("risk %d: allowed %v, want %v", risk, got, want)
		}
	}
}

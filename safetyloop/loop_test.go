// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/safetyloop/judge"
	"agentrun/telemetry"
)

func TestSettingsRefuseTheirZeroValues(t *testing.T) {
	if _, err := New(Settings{}); !errors.Is(err, ErrSetting) {
		t.Errorf("got %v, want ErrSetting", err)
	}
	good := newBench(t).set
	for field, change := range map[string]func(*Settings){
		"Mode": func(s *Settings) { s.Mode = Disabled + 1 }, "Tolerance": func(s *Settings) { s.Tolerance = 0 },
		"MaxSteps": func(s *Settings) { s.MaxSteps = 10001 }, "Confirm": func(s *Settings) { s.Confirm = 0 },
		"Store": func(s *Settings) { s.Store = nil }, "Judge": func(s *Settings) { s.Judge = nil },
		"Record": func(s *Settings) { s.Record = nil }, "Now": func(s *Settings) { s.Now = nil },
	} {
		s := good
		change(&s)
		if _, err := New(s); !errors.Is(err, ErrSetting) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

func TestS1RequestsAreReadStrictly(t *testing.T) {
	b := newBench(t)
	do := func(op string, raw string) Reply {
		return b.Do(t.Context(), Call{Caller: alice, Endpoint: endpointOf(op), Operation: op, Params: telemetry.NewPlaintext(json.RawMessage(raw))})
	}
	for name, c := range map[string]struct{ op, raw, code string }{
		"unknown operation":   {"drop_tables", `{}`, CodeNoOperation},
		"no operation":        {"", `{}`, CodeNoOperation},
		"unknown parameter":   {opStep, `{"element_name":"a","nextActionHint":"x","force":true}`, CodeUnknownParam},
		"other case":          {opStep, `{"Element_Name":"a","nextActionHint":"x"}`, CodeUnknownParam},
		"missing":             {opStep, `{"element_name":"a"}`, CodeMissingParam},
		"blank":               {opStep, `{"element_name":"a","nextActionHint":"  "}`, CodeMissingParam},
		"no parameters":       {opExecute, ``, CodeMissingParam},
		"null parameters":     {opExecute, `null`, CodeMissingParam},
		"wrong type":          {opStep, `{"element_name":7,"nextActionHint":"x"}`, CodeInvalidType},
		"null":                {opStep, `{"element_name":null,"nextActionHint":"x"}`, CodeInvalidType},
		"no such word":        {opStep, `{"element_name":"a","nextActionHint":"x","outcome":"great"}`, CodeInvalidType},
		"both spellings":      {opStep, `{"element_name":"a","nextActionHint":"x","next_action_hint":"y"}`, CodeInvalidType},
		"one name twice":      {opStep, `{"element_name":"a","nextActionHint":"x","nextActionHint":"y"}`, CodeInvalidType},
		"a list":              {opStep, `[]`, CodeInvalidType},
		"not JSON":            {opStep, `{"element_name":`, CodeInvalidType},
		"something behind":    {opStep, `{} {}`, CodeInvalidType},
		"risk out of range":   {opStep, `{"element_name":"a","nextActionHint":"x","riskScore":-1}`, CodeInvalidType},
		"risk in parts":       {opStep, `{"element_name":"a","nextActionHint":"x","riskScore":1.5}`, CodeInvalidType},
		"escape in a name":    {opStep, `{"element_name":"a\u001b[2J","nextActionHint":"x"}`, CodeInvalidType},
		"invisible in a name": {opStep, `{"element_name":"a\u200bb","nextActionHint":"x"}`, CodeInvalidType},
		"long name":           {opStep, `{"element_name":"` + strings.Repeat("a", MaxName+1) + `","nextActionHint":"x"}`, CodeTooLarge},
		"long hint":           {opStep, `{"element_name":"a","nextActionHint":"` + strings.Repeat("a", MaxHint+1) + `"}`, CodeTooLarge},
		"large":               {opStep, `{"findings":"` + strings.Repeat("a", MaxParams) + `"}`, CodeTooLarge},
	} {
		if r := do(c.op, c.raw); r.Success || r.Error.Code != c.code {
			t.Errorf("%s: got %+v, want %s", name, r.Error, c.code)
		}
	}
	d := b.wantCode(do(opStep, `{"zeal":1,"element_name":"a"}`), CodeUnknownParam)
	if diff := cmp.Diff([]string{"zeal"}, d["unknown_params"]); diff != "" || !slices.Contains(d["valid_params"].([]string), pHint) {
		t.Errorf("details: %v", d)
	}
	if d := b.wantCode(do(opStep, `{"element_name":"a"}`), CodeMissingParam); d["param_name"] != pHint {
		t.Errorf("details: %v", d)
	}
	for _, raw := range []string{
		`{"element_name":"a","nextActionHint":"x"}`, "\n{ \"element_name\" :\t\"a\" , \"nextActionHint\": \"x\", \"riskScore\" : 1 }\r\n", `{"elementName":"a","next_action_hint":"x","risk_score":1,"confidence":0.5,"findings":{"n":1},"step_description":"d","outcome":"success"}`,
		`{"element_name":"a","nextActionHint":"` + strings.Repeat("a", MaxHint) + `"}`,
	} {
		if r := do(opStep, raw); !r.Success {
			t.Errorf("%.60s: got %+v", raw, r.Error)
		}
	}
	if r := b.Do(t.Context(), Call{Endpoint: Read, Operation: opIntrospect}); r.Success {
		t.Error("a caller without a principal was answered")
	}
}

func TestS2EachOperationHasItsEndpoint(t *testing.T) {
	b := newBench(t)
	want := map[string]Endpoint{
		opIntrospect: Read, opStep: Create, opVerify: Create, opExecute: Execute, opComplete: Execute, opAbort: Execute, opConfirm: Execute,
	}
	if got := len(Operations()); got != 7 {
		t.Errorf("%d operations, want 7", got)
	}
	for op, right := range want {
		if got := endpointOf(op); got != right {
			t.Errorf("%s: got %v, want %v", op, got, right)
		}
		for _, e := range []Endpoint{NoEndpoint, Create, Read, Execute} {
			if e == right {
				continue
			}
			d := b.wantCode(b.Do(t.Context(), Call{Caller: alice, Endpoint: e, Operation: op}), CodeDenied)
			if d["required_endpoint"] != right.String() || d["required_tool"] != right.Tool() {
				t.Errorf("%s on %v: details %v", op, e, d)
			}
		}
	}
	if r := b.Do(t.Context(), Call{Caller: alice, Endpoint: Any, Operation: opIntrospect}); !r.Success {
		t.Errorf("on the single endpoint: %+v", r.Error)
	}
}

func TestS2ServerAsksForTheDefaultPermissions(t *testing.T) {
	b := newBench(t, func(s *Settings) { s.Confirm = ConfirmServer })
	run := []any{pElement, "a"}
	d := b.wantCode(b.call(alice, opExecute, run...), CodeConfirmation)
	token := d["confirmation_token"].(string)
	if d["level"] != confirmOnce || len(token) < 40 {
		t.Errorf("details %v", d)
	}
	if again := b.wantCode(b.call(alice, opExecute, run...), CodeConfirmation); again["confirmation_token"] != token {
		t.Error("a second token for the same call")
	}
	if p := b.Pending(t.Context()); len(p) != 1 || p[0].Token != token || p[0].Summary != `{"element_name":"a"}` {
		t.Errorf("pending: %+v", p)
	}
	b.wantOK(b.call(bob, opConfirm, pToken, token)) // auto-approved itself
	b.wantOK(b.call(alice, opExecute, append(run, pToken, token)...))
	b.wantCode(b.call(alice, opComplete, run...), CodeConfirmation) // each invocation

	// CREATE is asked for once a session.
	hint := []any{pElement, "a", pHint, "x"}
	token = b.wantCode(b.call(alice, opStep, hint...), CodeConfirmation)["confirmation_token"].(string)
	if err := b.Confirm(t.Context(), "uid:0", token); err != nil {
		t.Fatal(err)
	}
	b.wantOK(b.call(alice, opStep, append(hint, pToken, token)...))
	if !b.step(alice, "a", "another").Continue {
		t.Error("asked again in the same session")
	}
	b.wantCode(b.call(bob, opStep, hint...), CodeConfirmation) // another session

	// Nobody is asked to confirm what a deny pattern stops.
	if d := b.step(Caller{Principal: "new"}, "a", "deny"); !d.Stopped {
		t.Errorf("got %+v", d)
	}

	if r := b.call(operator, opExecute, run...); !r.Success {
		t.Errorf("an operator was asked: %+v", r.Error)
	}
	client := newBench(t)
	if r := client.call(alice, opExecute, run...); !r.Success {
		t.Errorf("confirm client: %+v", r.Error)
	}
}

func TestS3IntrospectionTells(t *testing.T) {
	b := newBench(t)
	data := b.wantOK(b.call(alice, opIntrospect))
	raw, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"execution_safety_loop":"enforcing"`, `"_protocol":{"name":"MCP-AQL","version":"1.0.0-draft"}`, `"maxAutonomousSteps":5`, `"riskTolerance":"moderate"`, `"name":"record_execution_step"`,
		`"nextActionHint"`, `"stopped":false`, `"mcpTool":"mcp_aql_create"`,
	} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("%s isn't in %.400s…", want, raw)
		}
	}
	if d := b.wantOK(b.call(alice, opIntrospect, pQuery, "operations", pName, opVerify)); d["operation"].(*Operation).Name != opVerify {
		t.Errorf("got %v", d)
	}
	if d := b.wantOK(b.call(alice, opIntrospect, pQuery, "operations", pName, "none")); d["operation"].(*Operation) != nil {
		t.Errorf("got %v, want null", d)
	}
	if d := b.wantOK(b.call(alice, opIntrospect, pQuery, "types", pName, "AutonomyDirective")); d["type"].(*typeInfo) == nil {
		t.Errorf("got %v", d)
	}
}

func TestS4EveryStepIsAnsweredByADirective(t *testing.T) {
	b := newBench(t)
	d := b.step(alice, "a", "score:10 read notes", pOutcome, "success", "findings", "none")
	if !d.Continue || d.Stopped || *d.StepsRemaining != 4 || d.NextStepRisk != tierAdvisory {
		t.Errorf("got %+v", d)
	}
	raw, err := json.Marshal(b.step(alice, "a", "deny"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"continue":false`, `"stopped":true`, `"factors":[`, `"notifications":[`} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("%s isn't in %s", want, raw)
		}
	}
}

func TestS6StagesInTheirOrder(t *testing.T) {
	type want struct {
		kind  kind
		stage string
	}
	for name, c := range map[string]struct {
		tolerance Tolerance
		before    int
		outcome   string
		hint      string
		want      want
	}{
		"limit before deny":            {Moderate, 5, "success", "deny", want{pause, "limit"}},
		"limit before failure":         {Moderate, 5, "failure", "x", want{pause, "limit"}},
		"failure before deny":          {Moderate, 0, "failure", "deny", want{pause, "outcome"}},
		"deny before score":            {Moderate, 0, "success", "deny score:1", want{halt, "pattern"}},
		"approval before danger":       {Moderate, 0, "", "approval score:99", want{pause, "pattern"}},
		"auto skips danger":            {Moderate, 0, "skipped", "auto score:99 vague", want{goOn, "pattern"}},
		"30 is advisory":               {Moderate, 0, "", "score:30", want{goOn, "none"}},
		"31 is confirm":                {Aggressive, 0, "", "score:31", want{pause, "tier"}},
		"60 is confirm":                {Aggressive, 0, "", "score:60", want{pause, "tier"}},
		"61 is verify":                 {Aggressive, 0, "", "score:61", want{mustVerify, "tier"}},
		"85 is verify":                 {Aggressive, 0, "", "score:85", want{mustVerify, "tier"}},
		"86 is danger":                 {Aggressive, 0, "", "score:86", want{halt, "tier"}},
		"26 is above conservative":     {Conservative, 0, "", "score:26", want{pause, "tolerance"}},
		"25 isn't":                     {Conservative, 0, "", "score:25", want{goOn, "none"}},
		"vague is at least confirm":    {Aggressive, 0, "", "vague", want{pause, "tier"}},
		"no judgement":                 {Aggressive, 0, "", "broken", want{pause, "judge"}},
		"a judgement that can't be":    {Aggressive, 0, "", "nonsense", want{pause, "judge"}},
		"verb at the end of long text": {Aggressive, 0, "", strings.Repeat("x ", 9000) + "score:99", want{halt, "tier"}},
	} {
		b := newBench(t, func(s *Settings) { s.Tolerance = c.tolerance })
		for range c.before {
			b.step(alice, "a", "x")
		}
		pairs := []any{}
		if c.outcome != "" {
			pairs = []any{pOutcome, c.outcome}
		}
		d := b.step(alice, "a", c.hint, pairs...)
		lines := b.account.lines()
		got := lines[len(lines)-1]
		if want := "step " + c.want.stage + " " + c.want.kind.String(); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
		if d.Continue != (c.want.kind == goOn) || d.Stopped != (c.want.kind == halt) {
			t.Errorf("%s: got %+v", name, d)
		}
		if strings.Contains(fmt.Sprint(d), "secret detail") {
			t.Errorf("%s: the judge's error is told: %v", name, d)
		}
	}
}

func TestS6AFailureHoldsUntilAHumanLetsGo(t *testing.T) {
	b := newBench(t)
	d := b.step(alice, "a", "next", pOutcome, "failure")
	token := meta(d, notePause, "confirmation_token")
	if d.Continue || token == "" {
		t.Fatalf("got %+v", d)
	}
	if b.step(alice, "a", "next").Continue || b.step(alice, "a", "next", pOutcome, "success").Continue || b.step(alice, "other", "next").Continue {
		t.Error("talked away by the next call")
	}
	b.wantOK(b.call(alice, opAbort, pElement, "a"))
	if b.step(alice, "a", "next").Continue {
		t.Error("talked away by a new execution that nobody approved")
	}
	if err := b.Confirm(t.Context(), "uid:0", token); err != nil {
		t.Fatal(err)
	}
	if !b.step(alice, "a", "next", pOutcome, "failure", pToken, token).Continue || !b.step(alice, "a", "more").Continue {
		t.Error("confirmed, and still paused")
	}
}

func TestS6StepLimitCountsAcrossNamesAndEnds(t *testing.T) {
	b := newBench(t)
	for i := range 5 {
		element := fmt.Sprint("name", i)
		if d := b.step(alice, element, "x"); !d.Continue || *d.StepsRemaining != 4-i {
			t.Fatalf("step %d: got %+v", i, d)
		}
		b.wantOK(b.call(alice, opComplete, pElement, element))
	}
	d := b.step(alice, "fresh", "go on")
	if d.Continue || *d.StepsRemaining != 0 {
		t.Fatalf("a sixth step under a new name: %+v", d)
	}
	if !b.step(bob, "fresh", "x").Continue {
		t.Error("another client's steps were counted")
	}
	token := meta(d, notePause, "confirmation_token")
	if err := b.Confirm(t.Context(), "uid:0", token); err != nil {
		t.Fatal(err)
	}
	if d := b.step(alice, "fresh", "go  on", pToken, token); !d.Continue || *d.StepsRemaining != 4 {
		t.Errorf("confirmed: got %+v", d)
	}
	if got := b.wantOK(b.call(alice, opExecute, pElement, "own", pSteps, 2)); got["maxAutonomousSteps"] != 2 {
		t.Errorf("got %v", got)
	}
	if d := b.step(alice, "own", "x"); *d.StepsRemaining != 1 {
		t.Errorf("an execution of its own: got %+v", d)
	}
	b.wantCode(b.call(alice, opExecute, pElement, "own"), CodeExists)
	if got := b.wantOK(b.call(alice, opExecute, pElement, "large", pSteps, 10000)); got["maxAutonomousSteps"] != 5 {
		t.Errorf("a caller raised its own limit: %v", got)
	}
	b.wantCode(b.call(alice, opComplete, pElement, "nobody"), CodeNoResource)
}

// operationsPass is a policy that lets every operation pass, and judges steps by words.
type operationsPass struct{ words }

func (o operationsPass) Judge(ctx context.Context, hint string) (Judgement, error) {
	if strings.Contains(hint, "execut") {
		return Judgement{Rule: RuleAutoApprove}, nil
	}
	return o.words.Judge(ctx, hint)
}

// A sandboxed agent is its own client: where nobody asks a human about execute_agent, it brings no new counter and forgets no failure.
func TestS15ExecuteAgentIsNoWayAroundAPause(t *testing.T) {
	for _, confirm := range []Confirm{ConfirmClient, ConfirmServer, ConfirmPolicy} {
		b := newBench(t, func(s *Settings) { s.Confirm, s.Judge = confirm, operationsPass{} })
		jail := Caller{Principal: "jail", Bound: true}
		call := func(operation string, pairs ...any) Reply {
			r := b.call(jail, operation, pairs...)
			if confirm == ConfirmServer && !r.Success && r.Error.Code == CodeConfirmation {
				token := r.Error.Details["confirmation_token"].(string)
				if err := b.Confirm(t.Context(), "uid:0", token); err != nil {
					t.Fatal(err)
				}
				r = b.call(jail, operation, append(pairs, pToken, token)...)
			}
			return r
		}
		step := func(element string, pairs ...any) Directive {
			t.Helper()
			return call(opStep, append([]any{pElement, element, pHint, "x"}, pairs...)...).Data.(Directive)
		}
		for range 5 {
			step("a")
		}
		if step("a").Continue {
			t.Fatal("no step limit")
		}
		human := confirm == ConfirmServer
		b.wantOK(call(opComplete, pElement, "a"))
		b.wantOK(call(opExecute, pElement, "a"))
		b.wantCode(call(opExecute, pElement, "a"), CodeExists)
		b.wantOK(call(opExecute, pElement, "b"))
		if a, other := step("a").Continue, step("b").Continue; a != human || other != human {
			t.Errorf("%v, begun anew behind the step limit: got %v and %v, want %v", confirm, a, other, human)
		}
		b.restart()
		step("a", pOutcome, outcomeFailure)
		b.wantOK(call(opExecute, pElement, "c", pSteps, 1))
		d := step("c")
		if d.Continue != human {
			t.Errorf("%v, begun anew behind a failure: got %+v", confirm, d)
		}
		if human && step("c").Continue {
			t.Error("the lower limit doesn't hold")
		}
	}
}

func TestS7TheCallerOnlyRaises(t *testing.T) {
	b := newBench(t)
	if d := b.step(alice, "a", "score:70", pRisk, 1); d.Continue || d.NextStepRisk != tierVerify {
		t.Errorf("lowered: %+v", d)
	}
	if d := b.step(bob, "a", "score:1", pRisk, 50); d.Continue || d.NextStepRisk != tierConfirm {
		t.Errorf("not raised: %+v", d)
	}
	for ring, tier := range map[rings.Ring]string{rings.NoRing: tierAdvisory, rings.Sandbox: tierAdvisory, rings.Standard: tierConfirm, rings.Privileged: tierConfirm, rings.Root: tierConfirm} {
		c := Caller{Principal: ring.String(), Ring: ring}
		if d := b.step(c, "a", "score:28"); d.NextStepRisk != tier {
			t.Errorf("%v: got %s, want %s", ring, d.NextStepRisk, tier)
		}
	}
	c := Caller{Principal: "unlucky"}
	for range 4 {
		b.step(c, "a", "x", pOutcome, "failure")
	}
	b.wantOK(b.call(c, opExecute, pElement, "b"))
	if d := b.step(c, "b", "score:20"); d.NextStepRisk != tierConfirm || !strings.Contains(fmt.Sprint(d.Factors), "recent_failures +20") {
		t.Errorf("failures weren't added: %+v", d)
	}
}

func TestS6SettingsOfAnAgent(t *testing.T) {
	own := map[string]Own{"strict": {Tolerance: Conservative, MaxSteps: 2}, "other": {Judge: always(RuleDeny)}, "bad": {Tolerance: 9, MaxSteps: -1}}
	b := newBench(t, func(s *Settings) { s.For = func(_ Caller, element string) Own { return own[element] } })
	if d := b.step(alice, "strict", "score:26"); d.Continue || *d.StepsRemaining != 2 {
		t.Errorf("got %+v", d)
	}
	if d := b.step(alice, "usual", "score:26"); !d.Continue || *d.StepsRemaining != 4 {
		t.Errorf("got %+v", d)
	}
	b.step(alice, "usual", "x")
	if d := b.step(alice, "strict", "x"); d.Continue {
		t.Error("two steps were made under another name, and a third went on")
	}
	own["strict"] = Own{MaxSteps: 3} // read anew
	if d := b.step(alice, "strict", "x"); !d.Continue {
		t.Errorf("got %+v", d)
	}
	if d := b.step(bob, "bad", "score:30"); !d.Continue || *d.StepsRemaining != 4 {
		t.Errorf("got %+v", d)
	}
	if got := b.wantOK(b.call(bob, opExecute, pElement, "other", pSteps, 1)); got["maxAutonomousSteps"] != 1 {
		t.Errorf("got %v", got)
	}
	if d := b.step(bob, "other", "auto"); !d.Stopped {
		t.Errorf("got %+v", d)
	}
}

type always Rule

func (a always) Judge(context.Context, string) (Judgement, error) {
	return Judgement{Rule: Rule(a)}, nil
}

func TestS14Modes(t *testing.T) {
	for word, want := range map[string]Mode{"enforcing": Enforcing, "monitoring": Monitoring, "logging": Logging, "disabled": Disabled} {
		got, err := judge.ModeOf(func(name string) (string, bool) { return word, name == "MCPAQL_SAFETY_LOOP" }, NoMode)
		if err != nil || got != want {
			t.Errorf("%s: got %v, %v", word, got, err)
		}
	}
	for _, word := range []string{"", "Disabled", "off", "enforcing "} {
		if got, err := judge.ModeOf(func(string) (string, bool) { return word, true }, Enforcing); err == nil || got != NoMode {
			t.Errorf("%q: got %v, want an error", word, got)
		}
	}
	if got, err := judge.ModeOf(func(string) (string, bool) { return "", false }, Logging); err != nil || got != Logging {
		t.Errorf("not set: got %v, %v", got, err)
	}

	b := newBench(t, func(s *Settings) {
		s.Mode, s.Confirm, s.Enforcer = Monitoring, ConfirmServer, &freezer{err: errors.New("called")}
	})
	for i, c := range []struct{ hint, tier, factor string }{
		{"deny", tierDanger, "monitoring: would be stop at stage pattern"}, {"score:90", tierDanger, "would be stop at stage tier"},
		{"score:70", tierVerify, "would be verify"}, {"approval", tierConfirm, "would be pause"}, {"score:2", tierAdvisory, "score 2"}, {"x", "", "would be pause at stage limit"},
	} {
		d := b.step(Caller{Principal: "m", Bound: true}, "a", c.hint)
		if !d.Continue || d.Stopped || d.NextStepRisk != c.tier || !strings.Contains(strings.Join(d.Factors, ";"), c.factor) {
			t.Errorf("monitoring %d %q: got %+v", i, c.hint, d)
		}
	}
	if blocks, err := b.Blocks(t.Context()); err != nil || len(blocks)+len(b.Challenges(t.Context())) != 0 {
		t.Errorf("monitoring left blocks or challenges: %v, %v", blocks, err)
	}

	b = newBench(t, func(s *Settings) {
		s.Mode, s.Judge, s.Store, s.Tolerance, s.MaxSteps, s.Confirm = Logging, nil, nil, 0, 0, 0
	})
	if d := b.step(alice, "a", "deny"); !d.Continue || cmp.Diff([]string{"logging only"}, d.Factors) != "" {
		t.Errorf("logging: got %+v", d)
	}
	b.wantOK(b.call(alice, opExecute, pElement, "a"))
	if diff := cmp.Diff([]string{"step none continue", "execute_agent ok"}, b.account.lines()); diff != "" {
		t.Errorf("logging recorded (-want +got)\n%s", diff)
	}

	b = newBench(t, func(s *Settings) { *s = Settings{Mode: Disabled, Now: s.Now} })
	if d := b.step(alice, "a", "deny"); !d.Continue || cmp.Diff([]string{"disabled"}, d.Factors) != "" {
		t.Errorf("disabled: got %+v", d)
	}
	b.wantCode(b.call(alice, "nothing"), CodeNoOperation)
	for _, m := range []Mode{Enforcing, Monitoring, Logging, Disabled} {
		b := newBench(t, func(s *Settings) { s.Mode = m })
		d := b.wantOK(b.call(alice, opIntrospect))
		if got := d["capabilities"].(map[string]any)["execution_safety_loop"]; got != m.String() {
			t.Errorf("introspection tells %v, want %v", got, m)
		}
	}
}

func TestWhatCannotBeRecordedIsRefused(t *testing.T) {
	full := errors.New("disk full at /var/secret")
	for name, call := range map[string]func(*bench) Reply{
		"step":    func(b *bench) Reply { return b.call(alice, opStep, pElement, "a", pHint, "x") },
		"pause":   func(b *bench) Reply { return b.call(alice, opStep, pElement, "a", pHint, "approval") },
		"verify":  func(b *bench) Reply { return b.call(alice, opStep, pElement, "a", pHint, "score:70") },
		"stop":    func(b *bench) Reply { return b.call(alice, opStep, pElement, "a", pHint, "deny") },
		"start":   func(b *bench) Reply { return b.call(alice, opExecute, pElement, "a") },
		"token":   func(b *bench) Reply { return b.call(alice, opConfirm, pToken, "conf_x") },
		"refusal": func(b *bench) Reply { return b.call(alice, "none") },
		"attempt": func(b *bench) Reply { return b.call(alice, opVerify, pChallenge, newID(), pCode, "x") },
		"logging": func(b *bench) Reply { b.Loop.set.Mode = Logging; return b.call(alice, opExecute, pElement, "a") },
		"watching": func(b *bench) Reply {
			b.Loop.set.Mode = Monitoring
			return b.call(alice, opStep, pElement, "a", pHint, "x")
		},
	} {
		b := newBench(t)
		b.account.fail(full)
		r := call(b)
		if r.Success || r.Error.Code != CodeInternal || strings.Contains(fmt.Sprint(r.Error), "secret") {
			t.Errorf("%s: got %+v, %v", name, r, r.Error)
		}
		if name == "stop" {
			b.account.fail(nil)
			if d := b.step(alice, "a", "x"); !d.Stopped {
				t.Error("a stop that couldn't be recorded didn't hold")
			}
		}
	}
	b := newBench(t)
	token := meta(b.step(bob, "a", "approval"), notePermission, "confirmation_token")
	d := b.step(alice, "a", "deny")
	id := meta(d, noteDanger, "verificationId")
	code := b.code(id)
	b.account.fail(full)
	b.wantCode(b.call(operator, opConfirm, pToken, token), CodeInternal)
	wantErr(t, b.Confirm(t.Context(), "uid:0", token), ErrRecord)
	if len(b.Pending(t.Context())) != 1 {
		t.Error("confirmed without a record")
	}
	if _, err := b.Show(t.Context(), "uid:0", id); !errors.Is(err, ErrRecord) {
		t.Errorf("show: got %v", err)
	}
	wantErr(t, b.Verify(t.Context(), "uid:0", id, code), ErrRecord)
	wantErr(t, b.Unblock(t.Context(), "uid:0", "alice/a", "x"), ErrRecord)
	wantErr(t, b.Blocked(t.Context(), alice), ErrBlocked)
	b.account.fail(nil)
	if err := b.Verify(t.Context(), "uid:0", id, code); err != nil {
		t.Errorf("after the audit came back: %v", err)
	}
}

// hangUp ends the client's request while it is judged.
type hangUp struct{ cancel func() }

func (h hangUp) Judge(ctx context.Context, _ string) (Judgement, error) {
	h.cancel()
	return Judgement{Rule: RuleDeny, Pattern: "*"}, ctx.Err()
}

func TestHangingUpStopsNoStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := newBench(t, func(s *Settings) { s.Judge = hangUp{cancel} })
	b.Do(ctx, Call{Caller: alice, Endpoint: Create, Operation: opStep, Params: telemetry.NewPlaintext(params(pElement, "a", pHint, "x"))})
	wantErr(t, b.Blocked(t.Context(), alice), ErrBlocked)
	if lines := b.account.lines(); ctx.Err() == nil || !b.account.has("step pattern stop") {
		t.Errorf("recorded: %q", lines)
	}
	b.wantCode(b.Do(ctx, Call{Caller: alice, Endpoint: Create, Operation: "none"}), CodeNoOperation)
}

func TestHintsAreInTheAuditAsDigestsOnly(t *testing.T) {
	b := newBench(t)
	b.step(alice, "a", "score:70 token=hunter2hunter2")
	if log := string(b.account.log.Lines()); strings.Contains(log, "hunter2") || !strings.Contains(log, `"hint":"`) {
		t.Errorf("log: %s", log)
	}
	var steps int
	for _, r := range b.account.list {
		if s, ok := r.(*audit.SafetyStep); ok {
			steps++
			if s.AgentID != "alice/a" || s.Tier != tierVerify || len(s.Factors) != 1 || s.ChallengeID == "" {
				t.Errorf("got %+v", s)
			}
		}
	}
	if steps != 1 {
		t.Errorf("%d steps recorded", steps)
	}
}

func TestClosedLoopRefuses(t *testing.T) {
	b := newBench(t)
	b.Close()
	b.wantCode(b.call(alice, opStep, pElement, "a", pHint, "x"), CodeInternal)
	wantErr(t, b.Intent(t.Context(), alice, "x", ""), ErrClosed)
}

func TestWordsOfSettings(t *testing.T) {
	for word, want := range map[string]int{"conservative": 25, "moderate": 50, "aggressive": 75} {
		if got, err := judge.ParseTolerance(word); err != nil || got.Score() != want || got.String() != word {
			t.Errorf("%s: got %v, %v", word, got, err)
		}
	}
	for word, want := range map[string]Confirm{"server": ConfirmServer, "client": ConfirmClient, "policy": ConfirmPolicy} {
		if got, err := judge.ParseConfirm(word); err != nil || got != want || got.String() != word {
			t.Errorf("%s: got %v, %v", word, got, err)
		}
	}
	for _, word := range []string{"", "Server", "none"} {
		_, err := judge.ParseConfirm(word)
		_, err2 := judge.ParseTolerance(word)
		wantErr(t, err, judge.ErrChoice)
		wantErr(t, err2, judge.ErrChoice)
	}
	if got := fmt.Sprintln(NoMode, NoTolerance, NoConfirm, NoEndpoint, Any, RuleInvalid, RuleDefault, RuleAutoApprove, RuleRequiresApproval, RuleDeny, Any.Tool()); got !=
		"no mode no tolerance nobody NONE ANY invalid default autoApprove requiresApproval deny mcp_aql\n" {
		t.Errorf("got %s", got)
	}
}

// S-2: in a sandbox an operator confirms what EXECUTE asks for, each time, or the policy does; nobody never. Reporting steps is
// confirmed by whoever started the run.
func TestS2ExecuteInASandboxIsConfirmed(t *testing.T) {
	jail := Caller{Principal: "jail", Bound: true}
	for _, tt := range []struct {
		confirm       Confirm
		element, want string
	}{
		{ConfirmServer, "plain", CodeConfirmation},
		{ConfirmServer, "auto", CodeConfirmation},
		{ConfirmPolicy, "plain", CodeConfirmation},
		{ConfirmPolicy, "approval", CodeConfirmation},
		{ConfirmPolicy, "broken", CodeConfirmation}, // nobody could judge it
		{ConfirmPolicy, "deny", CodeDenied},
		{ConfirmPolicy, "auto", ""},
	} {
		t.Run(tt.confirm.String()+" "+tt.element, func(t *testing.T) {
			b := newBench(t, func(s *Settings) { s.Confirm, s.OnlyOperators = tt.confirm, true })
			if !b.step(jail, tt.element, "x").Continue {
				t.Error("the first step waits for somebody")
			}
			b.call(jail, opComplete, pElement, tt.element)
			r := b.call(jail, opExecute, pElement, tt.element)
			if tt.want == "" {
				if !r.Success {
					t.Errorf("got %+v, want it to pass", r.Error)
				}
				return
			}
			details := b.wantCode(r, tt.want)
			if tt.want != CodeConfirmation {
				return
			}
			token := details["confirmation_token"].(string)
			b.wantCode(b.call(jail, opExecute, pElement, tt.element, pToken, token), CodeConfirmation)
			if err := b.Confirm(t.Context(), "uid:0", token); err != nil {
				t.Fatal(err)
			}
			if r := b.call(jail, opExecute, pElement, tt.element, pToken, token); !r.Success && r.Error.Code != CodeExists {
				t.Errorf("confirmed: got %+v", r.Error)
			}
		})
	}
}

// S-6: the table of docs/safety-loop.md: where the tolerances differ, and that moderate and aggressive don't.
func TestS6TolerancesByScore(t *testing.T) {
	for _, tolerance := range []Tolerance{Conservative, Moderate, Aggressive} {
		for score, want := range map[int]kind{0: goOn, 25: goOn, 26: goOn, 30: goOn, 31: pause, 50: pause, 51: pause, 60: pause, 61: mustVerify, 85: mustVerify, 86: halt} {
			if tolerance == Conservative && score > 25 && score <= 30 {
				want = pause
			}
			b := newBench(t, func(s *Settings) { s.Tolerance = tolerance })
			b.step(alice, "a", fmt.Sprintf("score:%d", score))
			lines := b.account.lines()
			if got := lines[len(lines)-1]; !strings.HasSuffix(got, " "+want.String()) {
				t.Errorf("%s, score %d: got %s, want %s", tolerance, score, got, want)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/safetyloop"
	"agentrun/safetyloop/judge"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// world is the routes behind a Mux, with a gate and a loop that do as they are told.
type world struct {
	mu     sync.Mutex
	gate   func() *gate.Error
	loop   func(context.Context, link.Safety) (json.RawMessage, error)
	judge  func(context.Context, string) (judge.Judgement, error)
	asked  []link.Safety
	hints  []string
	server *httptest.Server
	h      *Handler
}

func (w *world) AskSafety(context.Context) *gate.Error { return w.gate() }

func (w *world) Safety(ctx context.Context, s link.Safety) (json.RawMessage, error) {
	w.mu.Lock()
	w.asked = append(w.asked, s)
	w.mu.Unlock()
	if err := s.Check(); err != nil {
		return nil, err
	}
	return w.loop(ctx, s)
}

func (w *world) Judge(ctx context.Context, hint string) (judge.Judgement, error) {
	w.mu.Lock()
	w.hints = append(w.hints, hint)
	w.mu.Unlock()
	return w.judge(ctx, hint)
}

const goesOn = `{"success":true,"data":{"continue":true,"factors":["<a> & b"]}}`

func newWorld(t testing.TB, mode judge.Mode) *world {
	t.Helper()
	w := &world{
		gate: func() *gate.Error { return nil },
		loop: func(context.Context, link.Safety) (json.RawMessage, error) { return json.RawMessage(goesOn), nil },
		judge: func(context.Context, string) (judge.Judgement, error) {
			return judge.Judgement{Rule: judge.RuleDefault, Score: 7}, nil
		},
	}
	var err error
	if w.h, err = New(Options{Gate: w, Loop: w, Judge: w, Mode: mode}); err != nil {
		t.Fatal(err)
	}
	w.server = httptest.NewUnstartedServer(nil)
	w.server.Config = tools.NewServer(tools.NewMux(tools.MuxOptions{
		Mounts: map[egress.Family]http.Handler{egress.Safety: w.h}, Bodies: map[egress.Family]int64{egress.Safety: MaxBody}, Hosts: []string{w.server.Listener.Addr().String()},
	}))
	w.server.Start()
	t.Cleanup(w.server.Close)
	return w
}

func (w *world) do(t testing.TB, method, path, body string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

func (w *world) want(t testing.TB, path, body string, status int, answer string) {
	t.Helper()
	if got, _, text := w.do(t, "POST", path, body); got != status || !strings.Contains(text, answer) {
		t.Errorf("%s %.200s: got %d %.300s, want %d %s", path, body, got, text, status, answer)
	}
}

const create, lookup, execute = "/internal/safety/create", "/internal/safety/read", "/internal/safety/execute"

// What the agent sent goes to the loop as it is, with what is judged of its hint; nothing else is judged.
func TestS15StepsAreJudgedHereAndDecidedThere(t *testing.T) {
	w := newWorld(t, judge.Enforcing)
	step := &judge.Judgement{Rule: judge.RuleDefault, Score: 7, Factors: []judge.Factor{}}
	for _, c := range []struct {
		path, body string
		want       link.Safety
	}{
		{create, `{"operation":"record_execution_step","params":{"element_name":"a","nextActionHint":"x"}}`,
			link.Safety{Endpoint: "CREATE", Operation: "record_execution_step", Params: json.RawMessage(`{"element_name":"a","nextActionHint":"x"}`), Judgement: step, Judged: link.HintSum("x")}},
		{create, `{"params":{"next_action_hint":"\u0078\n","n":1.50},"operation":"record_execution_step"}`,
			link.Safety{Endpoint: "CREATE", Operation: "record_execution_step", Params: json.RawMessage(`{"next_action_hint":"\u0078\n","n":1.50}`), Judgement: step, Judged: link.HintSum("x\n")}},
		{create, `{"operation":"record_execution_step","params":{"nextActionHint":"x","next_action_hint":"y"}}`,
			link.Safety{Endpoint: "CREATE", Operation: "record_execution_step", Params: json.RawMessage(`{"nextActionHint":"x","next_action_hint":"y"}`)}},
		{create, `{"operation":"record_execution_step","params":{"nextActionHint":7}}`, link.Safety{Endpoint: "CREATE", Operation: "record_execution_step", Params: json.RawMessage(`{"nextActionHint":7}`)}},
		{create, `{"operation":"record_execution_step"}`, link.Safety{Endpoint: "CREATE", Operation: "record_execution_step"}},
		{create, `{"operation":"verify_challenge","params":{"nextActionHint":"x"}}`, link.Safety{Endpoint: "CREATE", Operation: "verify_challenge", Params: json.RawMessage(`{"nextActionHint":"x"}`)}},
		{execute, `{"operation":"record_execution_step","params":{"nextActionHint":"x"}}`, link.Safety{Endpoint: "EXECUTE", Operation: "record_execution_step", Params: json.RawMessage(`{"nextActionHint":"x"}`)}},
		{lookup, `{"operation":"introspect","params":null}`, link.Safety{Endpoint: "READ", Operation: "introspect"}},
	} {
		w.asked = nil
		w.want(t, c.path, c.body, 200, `{"success":true,"data":{"continue":true,`)
		if d := cmp.Diff([]link.Safety{c.want}, w.asked); d != "" {
			t.Errorf("%s: %s", c.body, d)
		}
	}
	if d := cmp.Diff([]string{"x", "x\n"}, w.hints); d != "" {
		t.Error(d)
	}
}

// One meaning or none: nothing of these reaches the loop, nor is anything judged.
func TestS1RequestsThatAreRefused(t *testing.T) {
	w := newWorld(t, judge.Enforcing)
	long := strings.Repeat("a", link.MaxSafetyParams)
	for body, want := range map[string]struct {
		status int
		code   string
	}{
		`{}`:                                     {400, judge.CodeMissingParam},
		`[]`:                                     {400, judge.CodeInvalidType},
		`7`:                                      {400, judge.CodeInvalidType},
		`{`:                                      {400, judge.CodeInvalidType},
		`{"operation":7}`:                        {400, judge.CodeInvalidType},
		`{"operation":null}`:                     {400, judge.CodeInvalidType},
		`{"operation":""}`:                       {404, judge.CodeNoOperation},
		`{"operation":"` + long[:65] + `"}`:      {404, judge.CodeNoOperation},
		`{"operation":"introspect","params":[]}`: {400, judge.CodeInvalidType},
		`{"operation":"introspect","principal":"x"}`:                                                      {400, judge.CodeUnknownParam},
		`{"operation":"introspect","judgement":{"rule":2,"score":0}}`:                                     {400, judge.CodeUnknownParam},
		`{"operation":"introspect","Params":{}}`:                                                          {400, judge.CodeUnknownParam},
		`{"operation":"introspect","operation":"verify_challenge"}`:                                       {400, judge.CodeInvalidType},
		`{"operation":"introspect","\u006fperation":"verify_challenge"}`:                                  {400, judge.CodeInvalidType},
		`{"operation":"record_execution_step","params":{"nextActionHint":"a"},"params":{}}`:               {400, judge.CodeInvalidType},
		`{"operation":"record_execution_step","params":{"nextActionHint":"a","nextActionHint":"b"}}`:      {400, judge.CodeInvalidType},
		`{"operation":"record_execution_step","params":{"nextActionHint":"a","\u006eextActionHint":"b"}}`: {400, judge.CodeInvalidType},
		`{"operation":"record_execution_step","params":{"nextActionHint":"a","findings":{"a":1,"a":2}}}`:  {400, judge.CodeInvalidType},
		"{\"operation\":\"record_execution_step\",\"params\":{\"nextActionHint\":\"a\xff\"}}":             {400, judge.CodeInvalidType},
		`{"operation":"record_execution_step","params":{"nextActionHint":"a\ud800"}}`:                     {400, judge.CodeInvalidType},
		`{"operation":"introspect"} {}`:                                                                   {400, judge.CodeInvalidType},
		`{"operation":"record_execution_step","params":{"nextActionHint":"` + long + `"}}`:                {413, judge.CodeTooLarge},
	} {
		w.want(t, create, body, want.status, `{"success":false,"error":{"code":"`+want.code+`"`)
	}
	w.want(t, create, strings.Repeat(" ", MaxBody+1), 413, `"too_large"`)
	w.want(t, create+"?x=1", `{"operation":"introspect"}`, 400, `"bad_request"`)
	w.want(t, "/internal/safety", `{}`, 404, `"not_found"`)
	w.want(t, "/internal/safety/delete", `{}`, 404, `"not_found"`)
	if status, h, body := w.do(t, "GET", create, ""); status != 405 || h.Get("Allow") != "POST" {
		t.Errorf("GET: got %d %s", status, body)
	}
	if status, _, body := w.do(t, "POST", create, ""); status != 400 || !strings.Contains(body, "Content-Type") {
		t.Errorf("no type: got %d %s", status, body)
	}
	if w.asked != nil || w.hints != nil {
		t.Errorf("got %v and %v, want nobody asked", w.asked, w.hints)
	}
}

const step = `{"operation":"record_execution_step","params":{"element_name":"a","nextActionHint":"x"}}`

// Without a judgement the loop pauses; without an answer the agent isn't told to go on.
func TestS15FailsClosed(t *testing.T) {
	for name, spoil := range map[string]func(*world){
		"judge's error": func(w *world) {
			w.judge = func(context.Context, string) (judge.Judgement, error) {
				return judge.Judgement{Rule: judge.RuleAutoApprove}, errors.New("gone")
			}
		},
		"judge's panic": func(w *world) { w.judge = func(context.Context, string) (judge.Judgement, error) { panic("x") } },
	} {
		w := newWorld(t, judge.Enforcing)
		spoil(w)
		w.want(t, create, step, 200, `"success":true`)
		if len(w.asked) != 1 || (w.asked[0].Judgement != nil || w.asked[0].Judged != "") {
			t.Errorf("%s: got %+v, want a step without a judgement", name, w.asked)
		}
	}
	for name, c := range map[string]struct {
		reply string
		err   error
		panic bool
		want  int
		code  string
	}{
		"refusal":        {reply: `{"success":false,"error":{"code":"CONFIRMATION_REQUIRED","message":"m","details":{"confirmation_token":"conf_x"}}}`, want: 403, code: "conf_x"},
		"lockout":        {reply: `{"success":false,"error":{"code":"RATE_LIMIT_EXCEEDED","message":"m"}}`, want: 429, code: judge.CodeRateLimit},
		"not there":      {reply: `{"success":false,"error":{"code":"NOT_FOUND_RESOURCE","message":"m"}}`, want: 404, code: "NOT_FOUND_RESOURCE"},
		"running":        {reply: `{"success":false,"error":{"code":"CONFLICT_ALREADY_EXISTS","message":"m"}}`, want: 409, code: "CONFLICT"},
		"error":          {err: link.ErrGone, want: 503, code: judge.CodeInternal},
		"panic":          {panic: true, want: 503, code: judge.CodeInternal},
		"nothing":        {reply: ``, want: 503, code: judge.CodeInternal},
		"null":           {reply: `null`, want: 503, code: judge.CodeInternal},
		"no error":       {reply: `{"success":false}`, want: 503, code: judge.CodeInternal},
		"no code":        {reply: `{"success":false,"error":{}}`, want: 503, code: judge.CodeInternal},
		"both":           {reply: `{"success":true,"error":{"code":"X","message":"m"},"data":{"continue":true}}`, want: 503, code: judge.CodeInternal},
		"stopped is 200": {reply: `{"success":true,"data":{"continue":false,"stopped":true,"factors":[]}}`, want: 200, code: `"stopped":true`},
	} {
		w := newWorld(t, judge.Enforcing)
		w.loop = func(context.Context, link.Safety) (json.RawMessage, error) {
			if c.panic {
				panic("secret")
			}
			return json.RawMessage(c.reply), c.err
		}
		status, _, body := w.do(t, "POST", create, step)
		if status != c.want || !strings.Contains(body, c.code) || strings.Contains(body, "secret") || !json.Valid([]byte(body)) {
			t.Errorf("%s: got %d %s, want %d %s", name, status, body, c.want, c.code)
		}
		if c.code == judge.CodeInternal && strings.Contains(body, `"continue":true`) {
			t.Errorf("%s: got %s", name, body)
		}
	}
}

// A gate's refusal comes in the loop's words, and the loop never hears of the request.
func TestS15GatesRefusals(t *testing.T) {
	for _, c := range []struct {
		refusal gate.Error
		status  int
		code    string
	}{
		{gate.Error{Code: gate.CodeQuarantined, Message: "m", Next: "n"}, 403, judge.CodeDenied},
		{gate.Error{Code: gate.CodeCanceled, Message: "m", Next: "n"}, 403, judge.CodeDenied},
		{gate.Error{Code: gate.CodeRateLimited, Message: "m", Next: "n", Retry: 1500 * time.Millisecond}, 429, judge.CodeRateLimit},
		{gate.Error{Code: gate.CodeUnavailable, Message: "m", Next: "n"}, 503, judge.CodeInternal},
	} {
		w := newWorld(t, judge.Enforcing)
		w.gate = func() *gate.Error { return &c.refusal }
		status, h, body := w.do(t, "POST", create, step)
		if status != c.status || !strings.Contains(body, `"code":"`+c.code+`"`) || !strings.Contains(body, `"reason":"`+string(c.refusal.Code)+`"`) || w.asked != nil || w.hints != nil {
			t.Errorf("%s: got %d %s", c.refusal.Code, status, body)
		}
		if retry := h.Get("Retry-After"); (retry == "2") != (c.refusal.Retry > 0) {
			t.Errorf("%s: got Retry-After %q", c.refusal.Code, retry)
		}
	}
}

// S-14: what isn't evaluated isn't judged.
func TestS14LoggingJudgesNothing(t *testing.T) {
	w := newWorld(t, judge.Logging)
	w.want(t, create, step, 200, `"success":true`)
	if w.hints != nil || w.asked[0].Judgement != nil {
		t.Errorf("got %v, %+v, want no judgement", w.hints, w.asked)
	}
	for name, o := range map[string]Options{
		"nothing": {}, "no mode": {Gate: w, Loop: w, Judge: w}, "no judge": {Gate: w, Loop: w, Mode: judge.Monitoring}, "no gate": {Loop: w, Judge: w, Mode: judge.Enforcing}, "no loop": {Gate: w, Judge: w, Mode: judge.Enforcing},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
}

// THREATS "policy": a step that is told and taken back at once would be a way to try out what stops.
func TestS15HangingUpTakesNothingBack(t *testing.T) {
	w := newWorld(t, judge.Enforcing)
	ctx, cancel := context.WithCancel(t.Context())
	w.judge = func(ctx context.Context, _ string) (judge.Judgement, error) {
		cancel()
		return judge.Judgement{Rule: judge.RuleDeny, Score: 100}, ctx.Err()
	}
	w.loop = func(ctx context.Context, _ link.Safety) (json.RawMessage, error) {
		return json.RawMessage(goesOn), ctx.Err()
	}
	a := w.h.do(ctx, judge.Create, []byte(step))
	if a.code != "" || len(w.asked) != 1 || w.asked[0].Judgement == nil {
		t.Errorf("got %s, %+v, want the step told with its judgement", a.body, w.asked)
	}
}

// What a judge finds in a hint at its bounds still fits the link.
func TestS15JudgementsFitTheLink(t *testing.T) {
	long := strings.Repeat("é", 40<<10)
	j := judge.Judgement{Rule: judge.RuleDeny, Pattern: long, Verb: long, Target: long, Score: 100}
	for range 100 {
		j.Factors = append(j.Factors, judge.Factor{Name: long, Detail: long})
	}
	s := link.Safety{Endpoint: "CREATE", Operation: stepOperation}
	got := fit(j)
	s.Judgement, s.Judged = &got, link.HintSum(long)
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	if got.Target != "" || got.Verb != "" {
		t.Errorf("a target of %d bytes: it is another one than was found", len(got.Target))
	}
	if b, err := json.Marshal(s); err != nil || len(b) > link.MaxFrame/2 {
		t.Errorf("got %d bytes, %v", len(b), err)
	}
}

// The words here are the loop's own.
func TestS1WordsAreTheLoops(t *testing.T) {
	for here, there := range map[string]string{
		judge.CodeUnknownParam: safetyloop.CodeUnknownParam, judge.CodeMissingParam: safetyloop.CodeMissingParam, judge.CodeInvalidType: safetyloop.CodeInvalidType, judge.CodeTooLarge: safetyloop.CodeTooLarge,
		judge.CodeNoOperation: safetyloop.CodeNoOperation, judge.CodeDenied: safetyloop.CodeDenied, judge.CodeRateLimit: safetyloop.CodeRateLimit, judge.CodeInternal: safetyloop.CodeInternal,
	} {
		if here != there {
			t.Errorf("got %s, want %s", here, there)
		}
	}
	for code, want := range map[string]int{
		safetyloop.CodeNoResource: 404, safetyloop.CodeExists: 409, safetyloop.CodeConfirmation: 403, safetyloop.CodeTokenInvalid: 403, safetyloop.CodeTokenExpired: 403, safetyloop.CodeTokenUsed: 403,
		safetyloop.CodeTokenMismatch: 403, "": 200, "WHATEVER": 403,
	} {
		if got := status(code); got != want {
			t.Errorf("%s: got %d, want %d", code, got, want)
		}
	}
	if !slices.ContainsFunc(safetyloop.Operations(), func(o safetyloop.Operation) bool {
		return o.Name == stepOperation && o.Endpoint == judge.Create.String()
	}) {
		t.Errorf("%s isn't an operation of CREATE", stepOperation)
	}
}

// S-2: what EXECUTE asks for is judged by its operation and element, which a policy may have patterns for; what isn't sure has no judgement.
func TestS2OperationsAreJudged(t *testing.T) {
	w := newWorld(t, judge.Enforcing)
	for _, tt := range []struct{ endpoint, body, hint string }{
		{"execute", `{"operation":"execute_agent","params":{"element_name":"planner"}}`, "execute_agent planner"},
		{"execute", `{"operation":"abort_execution","params":{"elementName":"planner"}}`, "abort_execution planner"},
		{"execute", `{"operation":"execute_agent","params":{"element_name":"a","elementName":"b"}}`, ""},
		{"execute", `{"operation":"execute_agent","params":{"element_name":["a"]}}`, ""},
		{"create", `{"operation":"verify_challenge","params":{"element_name":"a"}}`, ""},
	} {
		w.do(t, "POST", "/internal/safety/"+tt.endpoint, tt.body)
		got := w.asked[len(w.asked)-1]
		if (got.Judgement != nil) != (tt.hint != "") || tt.hint != "" && got.Judged != link.HintSum(tt.hint) {
			t.Errorf("%s: got %+v, want a judgement of %q", tt.body, got, tt.hint)
		}
	}
}

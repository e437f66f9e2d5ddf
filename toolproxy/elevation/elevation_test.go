// SPDX-License-Identifier: Apache-2.0

package elevation

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/gate/gatetest"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// world is the route behind Mux and gate, before a supervisor that grants.
type world struct {
	s      *gatetest.Supervisor
	gate   *gate.Gate
	asked  []link.Elevation
	mu     sync.Mutex
	policy func(pdp.Request) pdp.Decision
	clock  time.Time
	server *httptest.Server
}

func yes(pdp.Request) pdp.Decision { return pdp.Decision{Verdict: rings.Allow, Code: pdp.CodeOK} }

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{s: gatetest.New(rings.Sandbox), policy: yes, clock: now}
	w.s.OnElevate = func(_ context.Context, e link.Elevation) (link.Elevated, error) {
		w.mu.Lock()
		w.asked = append(w.asked, e)
		w.mu.Unlock()
		w.s.SetRing(e.Target)
		return link.Elevated{Granted: true, Code: rings.CodeOK, ID: "e1", Target: e.Target, Expires: now.Add(e.TTL), TTL: e.TTL}, nil
	}
	var err error
	w.gate, err = gate.New(gate.Options{
		Supervisor: w.s, MaxSteps: 1, Caller: link.Caller{Run: "run-1", Agent: "agent-1", Team: "team-1", Role: "member", Plan: "premium", Mode: "public"},
		Policy: pdp.DeciderFunc(func(_ context.Context, r pdp.Request) pdp.Decision { return w.policy(r) }),
		Alarm:  func(context.Context, gate.Violation) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.server = httptest.NewUnstartedServer(nil)
	w.server.Config = tools.NewServer(tools.NewMux(tools.MuxOptions{
		Mounts: map[egress.Family]http.Handler{egress.Elevation: New(Options{Gate: w.gate, Controls: w.s, Now: func() time.Time { return w.clock }})},
		Hosts:  []string{w.server.Listener.Addr().String()}, Record: w.s.Record,
	}))
	w.server.Start()
	t.Cleanup(w.server.Close)
	return w
}

func (w *world) do(t testing.TB, method, body string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.server.URL+"/internal/elevation", strings.NewReader(body))
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

func (w *world) want(t testing.TB, method, body string, status int, answer string) {
	t.Helper()
	if got, _, text := w.do(t, method, body); got != status || !strings.Contains(text, answer) {
		t.Errorf("%s %.100s: got %d %s, want %d %s", method, body, got, text, status, answer)
	}
}

const (
	granted = `{"ok":true,"output":{"elevation_id":"e1","target_ring":2,"expires_at":"2026-01-02T03:05:05Z","ttl_seconds":60}}`
	none    = `{"ok":true,"output":{"ring":3,"elevation":null}}`
)

func TestH13AgentAsksAndIsTold(t *testing.T) {
	w := newWorld(t)
	w.want(t, "GET", "", 200, none)
	w.want(t, "POST", `{"target_ring":2,"ttl_seconds":60,"reason":"push with token=ghp_0123456789abcdefghijABCDEFGHIJ012345","wait_seconds":30}`, 200, granted)
	w.want(t, "GET", "", 200, `{"ok":true,"output":{"ring":2,"elevation":{"elevation_id":"e1","target_ring":2,`)
	want := link.Elevation{Target: rings.Standard, TTL: time.Minute, Wait: 30 * time.Second}
	got := w.asked[0]
	if strings.Contains(got.Reason, "0123456789") || !strings.HasPrefix(got.Reason, "push with ") {
		t.Errorf("got reason %q, want it masked", got.Reason)
	}
	got.Reason = ""
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// A token of the rate, no place, no step, nothing reserved; the decision's record is the supervisor's.
	if d := cmp.Diff([]string{"check", "elevate"}, w.s.Asked()); d != "" {
		t.Error(d)
	}
	if used, _ := w.gate.Steps(); used != 0 || len(w.s.Records()) != 0 {
		t.Errorf("got %d steps and %v, want none", used, w.s.Records())
	}
	w.s.SetRing(rings.Sandbox) // revoked
	w.want(t, "GET", "", 200, none)
	w.s.SetRing(rings.Standard) // by an operator: another one, which isn't known here
	w.want(t, "GET", "", 200, `{"ring":2,"elevation":null}`)
	w.s.SetRing(rings.NoRing)
	w.want(t, "GET", "", 403, `"code":"run_ended"`)
}

// H-14: a check after the expiry shows none, whether the ring's change has come or not; long times are cut, none is the default.
func TestH14ExpiryAndTime(t *testing.T) {
	for said, want := range map[string]time.Duration{"60": time.Minute, "0": 0, "-5": 0, "3601": time.Hour, "9223372036854775807": time.Hour} {
		w := newWorld(t)
		w.want(t, "POST", `{"target_ring":2,"ttl_seconds":`+said+`}`, 200, `"ok":true`)
		if got := w.asked[0].TTL; got != want {
			t.Errorf("%s: got %v, want %v", said, got, want)
		}
		w.clock = now.Add(max(want, time.Nanosecond))
		w.want(t, "GET", "", 200, `"elevation":null`)
	}
}

func TestH13Refusals(t *testing.T) {
	for code, want := range map[rings.Code]struct {
		status int
		told   rings.Code
	}{
		rings.CodeInvalidTarget: {403, rings.CodeInvalidTarget}, rings.CodeRing0Forbidden: {403, rings.CodeRing0Forbidden},
		rings.CodeDuplicateElevation: {409, rings.CodeDuplicateElevation}, rings.CodeQuarantined: {403, rings.CodeQuarantined},
		rings.CodeInsufficientTrust: {403, rings.CodeInsufficientTrust}, rings.CodeNoConsensus: {403, rings.CodeNoConsensus},
		rings.CodeInvalidTTL: {400, rings.CodeInvalidTTL},
		gate.CodeRateLimited: {429, gate.CodeRateLimited}, gate.CodeApproval: {403, gate.CodeApproval}, gate.CodeCanceled: {403, gate.CodeCanceled},
		"": {503, gate.CodeUnavailable}, "Not A Word": {503, gate.CodeUnavailable}, rings.CodeOK: {503, gate.CodeUnavailable},
	} {
		w := newWorld(t)
		w.s.OnElevate = func(context.Context, link.Elevation) (link.Elevated, error) {
			return link.Elevated{Code: code, ID: "e1", Target: rings.Standard, Expires: now}, nil
		}
		status, _, text := w.do(t, "POST", `{"target_ring":2}`)
		var got struct {
			OK    bool
			Error gate.Error
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		if status != want.status || got.OK || got.Error.Code != want.told || got.Error.Message == "" || got.Error.Next == "" {
			t.Errorf("%s: got %d %s, want %v", code, status, text, want)
		}
		w.want(t, "GET", "", 200, none)
	}
	w := newWorld(t)
	w.s.OnElevate = func(context.Context, link.Elevation) (link.Elevated, error) {
		return link.Elevated{Code: "profile_fixed", Message: "profile strict can't be elevated", Next: "start another run"}, nil
	}
	w.want(t, "POST", `{"target_ring":2}`, 403, `{"code":"profile_fixed","message":"profile strict can't be elevated","next":"start another run"}`)
	for name, answer := range map[string]link.Elevated{
		"no id":   {Granted: true, Code: rings.CodeOK, Target: rings.Standard, Expires: now},
		"no ring": {Granted: true, Code: rings.CodeOK, ID: "e", Expires: now}, "no end": {Granted: true, Code: rings.CodeOK, ID: "e", Target: rings.Standard},
		"both": {Granted: true, Code: rings.CodeQuarantined, ID: "e", Target: rings.Standard, Expires: now},
	} {
		w.s.OnElevate = func(context.Context, link.Elevation) (link.Elevated, error) { return answer, nil }
		if status, _, text := w.do(t, "POST", `{"target_ring":2}`); status == 200 {
			t.Errorf("%s: got %s, want a refusal", name, text)
		}
	}
	w.s.OnElevate = func(context.Context, link.Elevation) (link.Elevated, error) {
		return link.Elevated{Granted: true}, errors.New("the audit is full")
	}
	w.want(t, "POST", `{"target_ring":2}`, 503, `"code":"unavailable"`)
	w.s.OnElevate = func(context.Context, link.Elevation) (link.Elevated, error) { panic("broke") }
	w.want(t, "POST", `{"target_ring":2}`, 503, `"code":"unavailable"`)
}

// The gate first, in M-9's order: whoever may not ask, the supervisor's elevations never hear of; it is on record once.
func TestM9GateDecidesWhoMayAsk(t *testing.T) {
	var seen pdp.Request
	for name, c := range map[string]struct {
		spoil  func(*world)
		status int
		code   string
	}{
		"quarantine": {func(w *world) {
			w.s.OnCheck = func(link.Check) (link.Verdict, error) { return link.Verdict{Code: rings.CodeQuarantined}, nil }
		}, 403, "quarantined"},
		"rate": {func(w *world) {
			w.s.OnCheck = func(link.Check) (link.Verdict, error) {
				return link.Verdict{Code: rings.CodeRateLimited, Retry: 90 * time.Second}, nil
			}
		}, 429, "rate_limited"},
		"zero answer": {func(w *world) {
			w.s.OnCheck = func(link.Check) (link.Verdict, error) { return link.Verdict{}, nil }
		}, 503, "unavailable"},
		"no ring": {func(w *world) {
			w.s.OnCheck = func(link.Check) (link.Verdict, error) { return link.Verdict{Allowed: true, Code: rings.CodeOK}, nil }
		}, 503, "unavailable"},
		"gone": {func(w *world) {
			w.s.OnCheck = func(link.Check) (link.Verdict, error) { return link.Verdict{}, link.ErrGone }
		}, 503, "unavailable"},
		"policy": {func(w *world) {
			w.policy = func(r pdp.Request) pdp.Decision {
				seen = r
				return pdp.Decision{Code: pdp.CodeACLBlock, Policy: "no-loans"}
			}
		}, 403, "acl_block"},
		"policy panics": {func(w *world) { w.policy = func(pdp.Request) pdp.Decision { panic("broke") } }, 503, "unavailable"},
	} {
		w := newWorld(t)
		c.spoil(w)
		status, header, text := w.do(t, "POST", `{"target_ring":1}`)
		if status != c.status || !strings.Contains(text, `"code":"`+c.code+`"`) {
			t.Errorf("%s: got %d %s, want %d %s", name, status, text, c.status, c.code)
		}
		if name == "rate" && header.Get("Retry-After") != "90" {
			t.Errorf("got Retry-After %q, want 90", header.Get("Retry-After"))
		}
		r := w.s.Records()
		if len(w.asked) != 0 || len(r) != 1 || r[0].Allowed || r[0].Name != "elevation" {
			t.Errorf("%s: got %d questions and %+v, want no question and one record", name, len(w.asked), r)
		}
	}
	if seen.Action != "agent.elevation.request" || seen.Resource.ID != "ring:1" || seen.Subject.ID != "agent-1" || seen.Check() != nil {
		t.Errorf("the policy was asked %+v, %v", seen, seen.Check())
	}
}

// THREATS, tool proxy: bodies that mean two things, and what is not the agent's to say.
func TestH13HostileBodies(t *testing.T) {
	w := newWorld(t)
	for _, body := range []string{
		`{}`, `null`, `[]`, `2`, `{"target_ring":2}{}`, `{"target_ring":2,"target_ring":1}`, `{"Target_Ring":2}`, `{"target_ring":"2"}`, `{"target_ring":2.0}`, `{"target_ring":4}`,
		`{"target_ring":-1}`, `{"target_ring":null}`, `{"target_ring":true}`, `{"target_ring":2,"trust_score":1}`, `{"target_ring":2,"agent":"other"}`, `{"target_ring":2,"ring":3}`,
		`{"target_ring":2,"ttl_seconds":1.5}`, `{"target_ring":2,"ttl_seconds":NaN}`, `{"target_ring":2,"ttl_seconds":1e999}`, `{"target_ring":2,"ttl_seconds":"60"}`,
		`{"target_ring":2,"wait_seconds":-1}`, `{"target_ring":2,"wait_seconds":301}`, `{"target_ring":2,"reason":"a\nb"}`, `{"target_ring":2,"reason":"\u001b]0;x\u0007"}`,
		`{"target_ring":2,"reason":"\u202ex"}`, `{"target_ring":2,"reason":"\ud800"}`, `{"target_ring":2,"reason":"` + strings.Repeat("x", 1025) + `"}`, "{\"target_ring\":2,\"reason\":\"\xff\"}",
	} {
		w.want(t, "POST", body, 400, `"code":"bad_request"`)
	}
	w.want(t, "POST", `{"target_ring":2,"reason":"`+strings.Repeat("x", maxBody)+`"}`, 413, `"code":"too_large"`)
	w.want(t, "PUT", `{"target_ring":2}`, 405, `"code":`)
	if len(w.asked) != 0 || len(w.s.Asked()) > len(w.s.Records()) {
		t.Errorf("got %v asked of the supervisor, want nothing", w.s.Asked())
	}
	w.want(t, "POST", `{"target_ring":0}`, 200, `"ok":true`) // form only: refusing ring 0 is the supervisor's (H-13)
}

// An agent that waits for an operator has one request under way, not as many as it likes.
func TestH13OneRequestAtATime(t *testing.T) {
	w := newWorld(t)
	began, end := make(chan struct{}), make(chan struct{})
	grant := w.s.OnElevate
	w.s.OnElevate = func(ctx context.Context, e link.Elevation) (link.Elevated, error) {
		close(began)
		<-end
		return grant(ctx, e)
	}
	var first sync.WaitGroup
	first.Go(func() { w.want(t, "POST", `{"target_ring":2,"ttl_seconds":60,"wait_seconds":300}`, 200, granted) })
	<-began
	w.want(t, "POST", `{"target_ring":2}`, 429, `"code":"concurrency_limit"`)
	w.want(t, "GET", "", 200, none)
	close(end)
	first.Wait()
	w.s.OnElevate = grant
	w.s.SetRing(rings.Sandbox)
	w.want(t, "POST", `{"target_ring":2,"ttl_seconds":60}`, 200, granted)
}

// The link says grant and ring in two messages; the agent is told when both are here, and not kept waiting for one that doesn't come.
func TestM22GrantIsToldWhenTheRingHolds(t *testing.T) {
	for name, late := range map[string]bool{"ring follows": false, "ring never comes": true} {
		w := newWorld(t)
		w.s.OnElevate = func(_ context.Context, e link.Elevation) (link.Elevated, error) {
			if !late {
				time.AfterFunc(5*time.Millisecond, func() { w.s.SetRing(e.Target) })
			}
			return link.Elevated{Granted: true, Code: rings.CodeOK, ID: "e1", Target: e.Target, Expires: now.Add(time.Minute), TTL: time.Minute}, nil
		}
		w.want(t, "POST", `{"target_ring":2,"ttl_seconds":60}`, 200, granted)
		want := `"ring":2,"elevation":{`
		if late {
			want = `"ring":3,"elevation":null`
		}
		if _, _, text := w.do(t, "GET", ""); !strings.Contains(text, want) {
			t.Errorf("%s: got %s, want %s", name, text, want)
		}
	}
}

func TestH23CriticalPolicyAboutElevations(t *testing.T) {
	w := newWorld(t)
	w.policy = func(pdp.Request) pdp.Decision {
		return pdp.Decision{Code: pdp.CodeACLBlock, Policy: "p", Critical: true}
	}
	w.want(t, "POST", `{"target_ring":2}`, 403, `"code":"acl_block"`)
	w.policy = yes
	w.want(t, "POST", `{"target_ring":2}`, 403, `"code":"run_ended"`)
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"target_ring":2,"ttl_seconds":60,"reason":"x","wait_seconds":1}`))
	f.Add([]byte(`{"target_ring":2,"target_ring":3}`))
	f.Add([]byte(`{"target_ring":1e0,"reason":"\u202e"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, refused := decode(text)
		if (refused == nil) == (e == link.Elevation{}) {
			t.Fatalf("got %+v and %v, want one of them", e, refused)
		}
		if refused == nil && (e.Check() != nil || e.TTL > rings.MaxElevation) {
			t.Fatalf("taken: %+v", e)
		}
	})
}

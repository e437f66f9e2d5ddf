// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"agentrun/telemetry"
)

// FuzzDo holds every answer to its form, whatever is asked: one of success and error, a code of the list, a directive with factors,
// JSON, and no code of a challenge anywhere.
func FuzzDo(f *testing.F) {
	for _, o := range Operations() {
		f.Add(o.Name, uint8(o.endpoint()), []byte(`{"element_name":"a","nextActionHint":"score:70","code":"x","challenge_id":"y","confirmation_token":"conf_z"}`))
		f.Add(o.Name, uint8(Any), []byte(`{"element_name":"a"}`))
	}
	f.Add(opStep, uint8(Create), []byte(`{"elementName":"a","next_action_hint":"score:90 vague","riskScore":1e2,"findings":[{}],"outcome":"failure"}`))
	f.Add(opVerify, uint8(Create), []byte(`{"challengeId":"1b4e28ba-2fa1-41d2-883f-0016d3cca427","code":"ABC"}`))
	f.Add("", uint8(9), []byte(`{"a":1,"a":2}`))
	codes := []string{
		CodeUnknownParam, CodeMissingParam, CodeInvalidType, CodeTooLarge, CodeNoOperation, CodeNoResource, CodeDenied, CodeConfirmation,
		CodeExists, CodeRateLimit, CodeInternal, CodeTokenInvalid, CodeTokenExpired, CodeTokenUsed, CodeTokenMismatch,
	}
	f.Fuzz(func(t *testing.T, op string, endpoint uint8, raw []byte) {
		for _, confirm := range []Confirm{ConfirmServer, ConfirmClient} {
			b := newBench(t, func(s *Settings) { s.Confirm, s.Channels = confirm, nil })
			id := meta(b.step(operator, "o", "score:70"), notePause, "verificationId")
			for range 2 {
				r := b.Do(t.Context(), Call{Caller: alice, Endpoint: Endpoint(endpoint), Operation: op, Params: telemetry.NewPlaintext(json.RawMessage(raw))})
				out, err := json.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				if r.Success != (r.Error == nil) || r.Error != nil && (!slices.Contains(codes, r.Error.Code) || r.Error.Message == "" || r.Data != nil) {
					t.Errorf("got %s", out)
				}
				if d, is := r.Data.(Directive); is && (d.Factors == nil || d.Continue && d.Stopped) {
					t.Errorf("got %s", out)
				}
				if strings.Contains(string(out), b.challenges[id].code.Reveal()) {
					t.Errorf("a code is in %s", out)
				}
				if len(out) > 2*MaxParams {
					t.Errorf("an answer of %d bytes", len(out))
				}
			}
		}
	})
}

// FuzzShown: what an operator reads moves no cursor and keeps its end.
func FuzzShown(f *testing.F) {
	f.Add("x\x1b[2Jy\u202ez\xff")
	f.Add(strings.Repeat("é\n", 99))
	f.Fuzz(func(t *testing.T, s string) {
		got := shown(s, 64)
		if len(got) > 64 && len(s) < 1e6 || strings.ContainsAny(got, "\x1b\n\r\x00\u202e\u200b") || shown(got, 64) != got {
			t.Errorf("got %q", got)
		}
	})
}

func TestTogether(t *testing.T) {
	b := newBench(t, func(s *Settings) { s.Enforcer = &freezer{}; s.MaxSteps = 7 })
	var went atomic.Int64
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			r := b.call(alice, opStep, pElement, fmt.Sprint("name", i%9), pHint, "x")
			if d, is := r.Data.(Directive); is && d.Continue {
				went.Add(1)
			}
		})
		wg.Go(func() {
			c := Caller{Principal: fmt.Sprint("jail", i%4), Bound: true}
			b.call(c, opStep, pElement, "a", pHint, []string{"deny", "score:70", "x", "calling t on x"}[i%4])
			_ = b.Intent(t.Context(), c, "t", "x")
			b.call(c, opIntrospect)
		})
		wg.Go(func() {
			for _, c := range b.Challenges(t.Context()) {
				shown, err := b.Show(t.Context(), "uid:0", c.ID)
				if err == nil {
					_ = b.Verify(t.Context(), "uid:0", c.ID, shown.Code.Reveal())
				}
			}
			for _, p := range b.Pending(t.Context()) {
				_ = b.Confirm(t.Context(), "uid:0", p.Token)
			}
			blocks, _ := b.Blocks(t.Context())
			for _, k := range blocks {
				_ = b.Unblock(t.Context(), "uid:0", k.Agent, "test")
			}
			_ = b.Sync(t.Context())
			b.Forget("jail1")
		})
	}
	wg.Wait()
	if went.Load() != 7 {
		t.Errorf("%d steps went on, want 7: the limit counts under every name", went.Load())
	}
	// Two right answers at once release once.
	id := meta(b.step(bob, "a", "score:70"), notePause, "verificationId")
	code := b.code(id)
	var ok atomic.Int64
	for range 10 {
		wg.Go(func() {
			if b.Verify(t.Context(), "uid:0", id, code) == nil {
				ok.Add(1)
			}
		})
		wg.Go(func() {
			if b.call(bob, opVerify, pChallenge, id, pCode, code).Success {
				ok.Add(1)
			}
		})
	}
	wg.Wait()
	if ok.Load() != 1 {
		t.Errorf("one code was good %d times", ok.Load())
	}
}

func TestLimitsRefuse(t *testing.T) {
	b := newBench(t)
	for i := range maxExecutions {
		b.wantOK(b.call(alice, opExecute, pElement, fmt.Sprint(i)))
	}
	b.wantCode(b.call(alice, opExecute, pElement, "more"), CodeRateLimit)
	b.wantCode(b.call(alice, opStep, pElement, "more", pHint, "x"), CodeRateLimit)
	for i := range maxOwnChallenges {
		b.step(bob, fmt.Sprint(i), "score:70")
	}
	if d := b.step(bob, "more", "score:70"); d.Continue || meta(d, notePause, "verificationId") != "" || !strings.Contains(fmt.Sprint(d.Factors), "too many challenges") {
		t.Errorf("got %+v", d)
	}
	if d := b.step(bob, "more", "deny"); !d.Stopped || meta(d, noteDanger, "verificationId") == "" {
		t.Errorf("a stop without a challenge: %+v", d)
	}
	for i := len(b.principals); i < maxPrincipals; i++ {
		b.step(Caller{Principal: fmt.Sprint("p", i)}, "a", "x")
	}
	newcomer := Caller{Principal: "newcomer"}
	b.wantCode(b.call(newcomer, opStep, pElement, "a", pHint, "x"), CodeRateLimit)
	b.clock.turn(idlePrincipal)
	b.step(newcomer, "a", "x")
	if b.principals["newcomer"] == nil || len(b.principals) != maxPrincipals {
		t.Errorf("%d principals", len(b.principals))
	}
	wantErr(t, b.Blocked(t.Context(), bob), ErrBlocked)

	// Who stands still is never forgotten: nobody else would know whom to resume.
	b = newBench(t, func(s *Settings) { s.Enforcer = &freezer{} })
	b.step(Caller{Principal: "jail", Bound: true}, "a", "deny")
	for i := range maxPrincipals {
		b.clock.turn(idlePrincipal)
		b.step(Caller{Principal: fmt.Sprint("p", i)}, "a", "x")
	}
	b.Forget("jail")
	if b.principals["jail"] == nil || len(b.principals) != maxPrincipals {
		t.Errorf("%d principals, the stopped one: %v", len(b.principals), b.principals["jail"])
	}
}

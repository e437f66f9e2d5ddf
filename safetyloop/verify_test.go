// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrun/audit"
	"agentrun/store"
	"agentrun/telemetry"
)

func TestS10Challenge(t *testing.T) {
	b := newBench(t)
	seen := map[string]bool{}
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	for range 10 {
		b.clock.turn(ChallengeTTL)
		id := meta(b.step(alice, "a", "score:70"), notePause, "verificationId")
		code := b.code(id)
		if !uuid.MatchString(id) || seen[id] || seen[code] {
			t.Errorf("challenge %s: not a new UUIDv4", id)
		}
		// 26 letters of an alphabet of 32 are 130 bits.
		if len(code) != 26 || strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
			t.Errorf("a code of %d characters", len(code))
		}
		seen[id], seen[code] = true, true
	}
	id := b.Challenges(t.Context())[0].ID
	code := b.code(id)
	for _, bad := range []string{"", "x", code[1:], code + "A", strings.Repeat("A", 26)} {
		wantErr(t, b.Verify(t.Context(), "uid:0", id, bad), ErrCode) // and it isn't burned
	}
	wantErr(t, b.Verify(t.Context(), "uid:0", newID(), code), ErrNotFound)
	if err := b.Verify(t.Context(), "uid:0", id, " "+strings.ToLower(code[:13])+"-"+code[13:]+"\n"); err != nil {
		t.Errorf("as people copy it: %v", err)
	}
	wantErr(t, b.Verify(t.Context(), "uid:0", id, code), ErrNotFound) // single use
	if _, err := b.Show(t.Context(), "uid:0", id); !errors.Is(err, ErrNotFound) {
		t.Errorf("show: got %v", err)
	}

	id = meta(b.step(bob, "a", "score:70"), notePause, "verificationId")
	code = b.code(id)
	b.clock.turn(ChallengeTTL)
	wantErr(t, b.Verify(t.Context(), "uid:0", id, code), ErrNotFound)
	id = meta(b.step(bob, "a", "score:70"), notePause, "verificationId")
	code = b.code(id)
	b.clock.turn(-time.Hour)
	wantErr(t, b.Verify(t.Context(), "uid:0", id, code), ErrNotFound) // made in the future: its five minutes would be an hour
}

// meddler does something while a record is written.
type meddler struct {
	*account
	do func(audit.Record)
}

func (m *meddler) Record(ctx context.Context, session string, r audit.Record) error {
	m.do(r)
	return m.account.Record(ctx, session, r)
}

func TestS10OneCodeTakesEffectOnce(t *testing.T) {
	m := &meddler{}
	b := newBench(t, func(s *Settings) { m.account = s.Record.(*account); s.Record = m })
	var id, code string
	var second error
	m.do = func(r audit.Record) {
		if c, is := r.(*audit.SafetyChallenge); is && c.Event == "verified" && second == nil {
			second = errors.New("under way")
			second = b.Verify(t.Context(), "uid:1", id, code)
		}
	}
	id = meta(b.step(alice, "a", "deny"), noteDanger, "verificationId")
	code = b.code(id)
	if err := b.Verify(t.Context(), "uid:0", id, code); err != nil {
		t.Fatal(err)
	}
	wantErr(t, second, ErrUsed)
}

func TestS10ChannelsGetTheCodeAndTheirErrorsDont(t *testing.T) {
	bad := &screen{err: errors.New("webhook said no")}
	good := &screen{}
	var mu sync.Mutex
	var seen []string
	b := newBench(t, func(s *Settings) {
		s.Channels = []Channel{bad, good}
		s.Observe = func(stage, verdict string) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, stage+" "+verdict)
		}
	})
	id := meta(b.step(alice, "a", "score:70 tell\x1b[2J them"), notePause, "verificationId")
	code := b.code(id)
	b.Close()
	for _, s := range []*screen{bad, good} {
		if len(s.shown) != 1 || s.shown[0].Code.Reveal() != code || s.shown[0].ID != id || strings.Contains(s.shown[0].Hint, "\x1b") || s.shown[0].Agent != "alice/a" {
			t.Errorf("shown: %d, %s", len(s.shown), s.shown)
		}
	}
	if all := strings.Join(seen, ";"); !strings.Contains(all, "channel error") || !strings.Contains(all, "channel shown") || strings.Contains(all, code) {
		t.Errorf("metrics: %v", seen)
	}
}

func TestS10HungChannelHoldsNobody(t *testing.T) {
	hang := make(chan struct{})
	b := newBench(t, func(s *Settings) { s.Channels = []Channel{hanging(hang)} })
	for i := range maxShowing + 5 {
		if meta(b.step(Caller{Principal: fmt.Sprint("p", i)}, "a", "score:70"), notePause, "verificationId") == "" {
			t.Fatal("no challenge")
		}
	}
	b.Close() // ends them
}

type hanging chan struct{}

func (h hanging) Show(ctx context.Context, _ Challenge) error {
	select {
	case <-h:
	case <-ctx.Done():
	}
	return ctx.Err()
}

func TestS11TenFailuresLockOut(t *testing.T) {
	b := newBench(t)
	id := meta(b.step(alice, "a", "deny"), noteDanger, "verificationId")
	guess := func(code string) Reply { return b.call(alice, opVerify, pChallenge, id, pCode, code) }
	for i := range 9 {
		b.wantCode(guess(fmt.Sprint("GUESS", i)), CodeDenied)
		b.clock.turn(time.Second)
	}
	b.wantCode(guess("TENTH"), CodeRateLimit)
	details := b.wantCode(guess(b.code(id)), CodeRateLimit)
	if details["limit"] != 10 || details["retry_after_seconds"] != 60 {
		t.Errorf("details %v", details)
	}
	// Not the operator's business: their challenge isn't burned. And it is the client that is locked out, under any name, and after
	// a restart.
	b.wantCode(b.call(bob, opVerify, pChallenge, id, pCode, "x"), CodeDenied)
	b.restart()
	id = meta(b.step(alice, "other", "x"), noteDanger, "verificationId")
	b.wantCode(guess(b.code(id)), CodeRateLimit)
	// Nor does the clock free anybody.
	b.clock.turn(-24 * time.Hour)
	id = meta(b.step(alice, "a", "x"), noteDanger, "verificationId")
	b.wantCode(guess(b.code(id)), CodeRateLimit)
	b.clock.turn(24*time.Hour + 59*time.Second)
	id = meta(b.step(alice, "a", "x"), noteDanger, "verificationId")
	b.wantCode(guess(b.code(id)), CodeRateLimit)
	b.clock.turn(time.Second)

	// It doubles.
	for i := range 10 {
		r := guess(fmt.Sprint("AGAIN", i))
		if want := map[bool]string{false: CodeDenied, true: CodeRateLimit}[i == 9]; r.Error == nil || r.Error.Code != want {
			t.Errorf("second round, attempt %d: got %+v, want %s", i, r.Error, want)
		}
	}
	b.clock.turn(119 * time.Second)
	b.wantCode(guess(b.code(id)), CodeRateLimit)
	b.clock.turn(time.Second)
	b.wantOK(guess(b.code(id)))
	n := 0
	for _, line := range b.account.lines() {
		if line == "challenge wrong_code" || line == "challenge locked_out" || line == "challenge refused" {
			n++
		}
	}
	if n != 26 { // 9+1, refused 1, bob's, 3 refused, 9+1, 1 refused
		t.Errorf("%d attempts recorded, want 26: %q", n, b.account.lines())
	}
}

func TestS11WindowSlides(t *testing.T) {
	b := newBench(t)
	for i := range 50 {
		r := b.call(alice, opVerify, pChallenge, newID(), pCode, "x")
		if r.Error == nil || r.Error.Code != CodeDenied {
			t.Fatalf("attempt %d: got %+v", i, r.Error)
		}
		b.clock.turn(7 * time.Second) // 9 in 60 s
	}
	a := attempts{}
	var total time.Duration
	for range 30 {
		got := noOutcome
		for got != lockedOut {
			got = a.fail(int64(total) + 1)
		}
		lockout := time.Duration(a.Locked - a.Latest)
		if lockout > maxLockout || lockout < time.Minute {
			t.Errorf("lockout %d: %v", a.Level, lockout)
		}
		total += lockout
		a.Failures, a.Locked = nil, 0
	}
	if a.Level != 30 {
		t.Errorf("level %d", a.Level)
	}
	a.fail(int64(total + 2*forgiveAfter))
	if a.Level != 0 {
		t.Error("never forgiven")
	}
	before := attempts{Failures: []int64{5e9}, Latest: int64(time.Hour)}
	before.fail(0)
	if before.Latest != int64(time.Hour) {
		t.Errorf("the clock went backwards: %+v", before)
	}
}

func TestS11UncountedAttemptsVerifyNothing(t *testing.T) {
	disk := &breaking{Store: store.NewMemory()}
	b := newBench(t, func(s *Settings) { s.Store = disk })
	id := meta(b.step(alice, "a", "score:70"), notePause, "verificationId")
	code := b.code(id)
	disk.writing = true
	b.wantCode(b.call(alice, opVerify, pChallenge, id, pCode, code), CodeInternal)
	disk.writing = false
	err := disk.Update(t.Context(), func(tx *store.Tx) error { return tx.Bucket(attemptsBucket).Put("alice", []byte(`{"latest":`)) })
	if err != nil {
		t.Fatal(err)
	}
	b.wantCode(b.call(alice, opVerify, pChallenge, id, pCode, code), CodeInternal)
}

func TestS11OldFailuresAreClearedAtTheStart(t *testing.T) {
	b := newBench(t)
	b.call(alice, opVerify, pChallenge, newID(), pCode, "x")
	b.clock.turn(2 * forgiveAfter)
	b.call(bob, opVerify, pChallenge, newID(), pCode, "x")
	b.restart()
	var left []string
	err := b.set.Store.View(t.Context(), func(tx *store.Tx) error {
		return store.EachJSON(tx.Bucket(attemptsBucket), "", func(who string, _ attempts) error { left = append(left, who); return nil })
	})
	if err != nil || fmt.Sprint(left) != "[bob]" {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestS12Tokens(t *testing.T) {
	b := newBench(t, func(s *Settings) { s.Confirm = ConfirmServer })
	ask := func(c Caller, op string, pairs ...any) string {
		t.Helper()
		return b.wantCode(b.call(c, op, pairs...), CodeConfirmation)["confirmation_token"].(string)
	}
	one := ask(alice, opExecute, pElement, "a", "parameters", map[string]any{"goal": "tidy"})
	again := func(c Caller, pairs ...any) Reply { return b.call(c, opExecute, append(pairs, pToken, one)...) }

	b.wantCode(again(alice, pElement, "a", "parameters", map[string]any{"goal": "tidy"}), CodeConfirmation) // nobody confirmed it
	if d := b.wantCode(b.call(alice, opConfirm, pToken, one), CodeDenied); d["reason"] != "self_approval" {
		t.Errorf("self-approval: %v", d)
	}
	b.wantCode(b.call(bob, opConfirm, pToken, "conf_guess"), CodeTokenInvalid)
	b.wantCode(b.call(bob, opConfirm, pToken, one, pOperation, opAbort), CodeTokenMismatch)
	b.wantOK(b.call(bob, opConfirm, pToken, one, pOperation, opExecute))
	b.wantCode(b.call(bob, opConfirm, pToken, one), CodeTokenUsed)

	b.wantCode(again(alice, pElement, "a", "parameters", map[string]any{"goal": "destroy"}), CodeTokenMismatch)
	b.wantCode(again(alice, pElement, "b"), CodeTokenMismatch)
	b.wantCode(b.call(alice, opAbort, pElement, "a", pToken, one), CodeTokenMismatch)
	b.wantCode(again(bob, pElement, "a", "parameters", map[string]any{"goal": "tidy"}), CodeTokenInvalid) // another's
	b.wantCode(b.call(alice, opExecute, pElement, "a", pToken, "conf_"+strings.Repeat("0", 48)), CodeTokenInvalid)
	b.wantOK(again(alice, pElement, "a", "parameters", map[string]any{"goal": "tidy"}))
	b.wantCode(again(alice, pElement, "a", "parameters", map[string]any{"goal": "tidy"}), CodeTokenUsed)

	late := ask(alice, opExecute, pElement, "late")
	b.clock.turn(TokenTTL)
	b.wantCode(b.call(bob, opConfirm, pToken, late), CodeTokenExpired)
	wantErr(t, b.Confirm(t.Context(), "uid:0", late), ErrExpired)
	b.wantCode(b.call(alice, opExecute, pElement, "late", pToken, late), CodeTokenExpired)
	late = confirmFor(b, alice, opExecute, pElement, "late")
	b.clock.turn(TokenTTL)
	b.wantCode(b.call(alice, opExecute, pElement, "late", pToken, late), CodeTokenExpired)
	b.clock.turn(2 * TokenTTL)
	ask(bob, opExecute, pElement, "x")
	b.wantCode(b.call(alice, opExecute, pElement, "late", pToken, late), CodeTokenInvalid) // forgotten
	wantErr(t, b.Confirm(t.Context(), "uid:0", late), ErrNotFound)

	// Bounded, and full refuses.
	mallory := Caller{Principal: "mallory"}
	for i := range maxTokens {
		ask(mallory, opExecute, pElement, fmt.Sprint(i))
	}
	b.wantCode(b.call(mallory, opExecute, pElement, "more"), CodeRateLimit)
	ask(alice, opExecute, pElement, "others go on")

	if strings.Contains(string(b.account.log.Lines()), "conf_") {
		t.Error("a token is in the audit")
	}
	only := newBench(t, func(s *Settings) { s.Confirm, s.OnlyOperators = ConfirmServer, true })
	token := only.wantCode(only.call(alice, opExecute, pElement, "a"), CodeConfirmation)["confirmation_token"].(string)
	only.wantCode(only.call(bob, opConfirm, pToken, token), CodeDenied)
	only.wantOK(only.call(operator, opConfirm, pToken, token))
}

func TestS12AConfirmedStepIsThisStepOnce(t *testing.T) {
	b := newBench(t)
	d := b.step(alice, "a", "score:50 delete  /Data")
	token := meta(d, notePause, "confirmation_token")
	if d.Continue || token == "" {
		t.Fatalf("got %+v", d)
	}
	if p := b.Pending(t.Context()); len(p) != 1 || p[0].Summary != "score:50 delete  /Data" || p[0].Agent != "alice/a" || !strings.Contains(p[0].Reason, "test +50") {
		t.Errorf("pending: %+v", p)
	}
	if b.step(alice, "a", "score:50 delete /Data", pToken, token).Continue {
		t.Error("not confirmed, and it went on")
	}
	b.wantOK(b.call(bob, opConfirm, pToken, token))
	for _, c := range [][]any{{"a", "score:50 delete /data"}, {"a", "score:50 delete /Data/x"}, {"b", "score:50 delete /Data"}, {"a", "score:50 delete\n/Data"}, {"a", "score:50\u2028delete /Data"}, {"a", "score:50\u00a0delete /Data"}, {"a", "score:50\vdelete /Data"}} {
		b.wantCode(b.call(alice, opStep, pElement, c[0], pHint, c[1], pToken, token), CodeTokenMismatch)
	}
	if !b.step(alice, "a", " score:50\tdelete /Data\n", pToken, token).Continue {
		t.Error("confirmed, and still paused")
	}
	b.wantCode(b.call(alice, opStep, pElement, "a", pHint, "score:50 delete /Data", pToken, token), CodeTokenUsed)

	// The confirmation of a session isn't one of the step that asked for it.
	server := newBench(t, func(s *Settings) { s.Confirm = ConfirmServer })
	session := confirmFor(server, alice, opStep, pElement, "a", pHint, "approval")
	server.call(alice, opVerify, pChallenge, newID(), pCode, "x", pToken, confirmFor(server, alice, opVerify, pChallenge, newID(), pCode, "x"))
	sessionOf(server, alice)
	server.wantCode(server.call(alice, opStep, pElement, "a", pHint, "approval", pToken, session), CodeTokenMismatch)

	// A confirmation answers neither the verify tier nor a stop.
	token = meta(b.step(alice, "a", "approval score:70"), notePermission, "confirmation_token")
	if err := b.Confirm(t.Context(), "uid:0", token); err != nil {
		t.Fatal(err)
	}
	if d := b.step(alice, "a", "approval score:70", pToken, token); d.Continue || meta(d, notePause, "verificationId") == "" {
		t.Errorf("got %+v", d)
	}
	token = meta(b.step(bob, "a", "approval score:99"), notePermission, "confirmation_token")
	if err := b.Confirm(t.Context(), "uid:0", token); err != nil {
		t.Fatal(err)
	}
	if d := b.step(bob, "a", "approval score:99", pToken, token); !d.Stopped {
		t.Errorf("got %+v", d)
	}
}

// TestHostileClient plays the attacks of issue 6 one after the other, with everything that the attacker sees kept: none of it may
// let it go on, and none of it may hold a code.
func TestHostileClient(t *testing.T) {
	dir := t.TempDir()
	b := newBench(t, func(s *Settings) {
		s.Confirm, s.Enforcer, s.MaxSteps, s.Store = ConfirmServer, &freezer{}, 100, onDisk(t, dir)
	})
	mallory := Caller{Principal: "mallory"}
	var seen []Reply
	call := func(c Caller, e Endpoint, op string, pairs ...any) Reply {
		r := b.Do(t.Context(), Call{Caller: c, Endpoint: e, Operation: op, Params: telemetry.NewPlaintext(params(pairs...))})
		seen = append(seen, r)
		return r
	}
	refusedAll := func(what string, rs ...Reply) {
		t.Helper()
		for _, r := range rs {
			if d, is := r.Data.(Directive); r.Success && (!is || d.Continue) {
				t.Errorf("%s: got %+v", what, r.Data)
			}
		}
	}
	first := []any{pElement, "m", pHint, "x"}
	session := call(mallory, Create, opStep, first...)
	token := session.Error.Details["confirmation_token"].(string)
	refusedAll("self-approval", call(mallory, Execute, opConfirm, pToken, token), call(mallory, Any, opConfirm, "confirmationToken", token),
		call(mallory, Create, opStep, append(first, pToken, token)...))
	refusedAll("wrong endpoint", call(mallory, Read, opStep, first...), call(mallory, Create, opExecute, pElement, "m"), call(mallory, Create, opConfirm, pToken, token))
	if err := b.Confirm(t.Context(), "uid:0", token); err != nil {
		t.Fatal(err)
	}
	b.wantOK(call(mallory, Create, opStep, append(first, pToken, token)...))
	if r := call(mallory, Create, opStep, append(first, pToken, token)...); r.Success {
		t.Errorf("replayed: got %+v", r.Data)
	}

	hidden := strings.Repeat("harmless words ", 700) + "deny"
	r := call(mallory, Create, opStep, pElement, "m", pHint, hidden)
	d, _ := r.Data.(Directive)
	id := meta(d, noteDanger, "verificationId")
	if len(hidden) < 10_000 || !d.Stopped || id == "" {
		t.Fatalf("the verb at the end of %d characters: got %+v", len(hidden), r)
	}
	code := b.code(id)
	refusedAll("renamed", call(mallory, Create, opStep, pElement, "n", pHint, "x"), call(mallory, Execute, opExecute, pElement, "n"))
	refusedAll("second execution", call(mallory, Execute, opExecute, pElement, "m"), call(mallory, Execute, opAbort, pElement, "m"))
	b.Forget("mallory") // a new connection of the same credential
	refusedAll("reconnected", call(mallory, Create, opStep, pElement, "m", pHint, "auto"))
	b.set.Store = onDisk(t, dir)
	b.restart()
	refusedAll("after a restart", call(mallory, Create, opStep, pElement, "m", pHint, "auto"))
	refusedAll("old challenge", call(mallory, Create, opVerify, pChallenge, id, pCode, code))
	seen = append(seen, call(mallory, Create, opStep, pElement, "m", pHint, "x"))
	id = meta(seen[len(seen)-1].Data.(Directive), noteDanger, "verificationId")
	code2 := b.code(id)

	accomplice := Caller{Principal: "accomplice"}
	sessionOf(b, accomplice)
	refusedAll("foreign code", call(accomplice, Create, opVerify, pChallenge, id, pCode, code2))
	sessionOf(b, mallory)
	for range 30 {
		refusedAll("flood", call(mallory, Create, opVerify, pChallenge, id, pCode, "AAAAAAAAAAAAAAAAAAAAAAAAAA"))
	}
	refusedAll("right, but locked out", call(mallory, Create, opVerify, pChallenge, id, pCode, code2))
	b.clock.turn(ChallengeTTL)
	refusedAll("expired code", call(mallory, Create, opVerify, pChallenge, id, pCode, code2))
	refusedAll("codes in wrong places", call(mallory, Create, opVerify, pChallenge, code2, pCode, id), call(mallory, Create, opVerify, pChallenge, id, pCode, 7))

	for _, c := range b.Challenges(t.Context()) {
		seen = append(seen, succeed(c))
	}
	for i, r := range seen {
		raw, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if text := string(raw) + fmt.Sprintf("%v %+v %#v", r, r.Data, r.Error); strings.Contains(text, code) || strings.Contains(text, code2) {
			t.Errorf("reply %d holds a code", i)
		}
	}
	if log := string(b.account.log.Lines()); strings.Contains(log, code) || strings.Contains(log, code2) {
		t.Error("the audit holds a code")
	}
	// The human lets it go at last.
	if err := b.Unblock(t.Context(), "uid:0", "mallory/m", "enough"); err != nil {
		t.Fatal(err)
	}
	if r := call(mallory, Create, opStep, pElement, "m", pHint, "x"); !r.Success || !r.Data.(Directive).Continue {
		t.Errorf("released: got %+v", r)
	}
}

// sessionOf confirms CREATE for a principal as an operator would.
func sessionOf(b *bench, c Caller) {
	b.t.Helper()
	_, leave, err := b.take(b.t.Context(), c)
	if err != nil {
		b.t.Fatal(err)
	}
	leave()
	b.mu.Lock()
	b.principals[c.Principal].confirmed = true
	b.mu.Unlock()
}

// TestS10NoTraceOfTheCode looks for codes in everything that leaves a loop, but for Show and Channels.
func TestS10NoTraceOfTheCode(t *testing.T) {
	var metrics strings.Builder
	b := newBench(t, func(s *Settings) {
		s.Observe = func(stage, verdict string) { metrics.WriteString(stage + verdict) }
		s.Channels = nil
	})
	verify := b.call(alice, opStep, pElement, "a", pHint, "score:70")
	danger := b.call(bob, opStep, pElement, "a", pHint, "deny")
	ids := []string{meta(verify.Data.(Directive), notePause, "verificationId"), meta(danger.Data.(Directive), noteDanger, "verificationId")}
	codes := []string{b.code(ids[0]), b.code(ids[1])}
	var out strings.Builder
	add := func(things ...any) {
		for _, x := range things {
			raw, _ := json.Marshal(x)
			out.Write(raw)
			fmt.Fprintf(&out, "%v %+v %#v %s %q %d %x\n", x, x, x, x, x, x, x)
			slog.New(slog.NewTextHandler(&out, nil)).Info("x", "x", x)
			slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "x", x)
		}
	}
	add(verify, danger, b.Loop, b.call(alice, opIntrospect), b.call(alice, opStep, pElement, "a", pHint, "x"), b.Pending(t.Context()))
	for i, id := range ids {
		shown, err := b.Show(t.Context(), "uid:0", id)
		if err != nil || shown.Code.Reveal() != codes[i] {
			t.Fatal(err)
		}
		add(shown, &shown, []Challenge{shown}, map[string]Challenge{"c": shown}, struct{ Inner Challenge }{shown})
		add(b.challenges[id].Challenge, fmt.Errorf("wrapped %v", shown))
		add(b.Verify(t.Context(), "uid:0", id, "wrong"), b.Confirm(t.Context(), "uid:0", codes[i]))
		_, err = b.Show(t.Context(), "uid:0", strings.ToLower(codes[i]))
		add(err, b.Verify(t.Context(), "uid:0", codes[i], id))
		// An agent that knows a code and puts it everywhere gets it back nowhere.
		add(b.call(alice, opVerify, pChallenge, codes[i], pCode, codes[i]), b.call(alice, opVerify, pChallenge, newID(), pCode, codes[i]),
			b.call(alice, opConfirm, pToken, codes[i]), b.call(alice, opVerify, pChallenge, id, pCode, []string{codes[i]}))
	}

	add(b.Unblock(t.Context(), "uid:0", "nobody", "x"), b.Blocked(t.Context(), bob), b.Challenges(t.Context()))
	blocks, err := b.Blocks(t.Context())
	add(blocks, err)
	// An operator who confirms a verify_challenge reads what it is, and not the code in it.
	b.Loop.set.Confirm = ConfirmServer
	add(b.call(alice, opVerify, pChallenge, ids[0], pCode, codes[0]))
	pending := b.Pending(t.Context())
	add(pending)
	if len(pending) != 1 || !strings.Contains(pending[0].Summary, ids[0]) {
		t.Errorf("pending: %+v", pending)
	}
	_ = b.set.Store.View(t.Context(), func(tx *store.Tx) error {
		for _, bucket := range []string{blocksBucket, attemptsBucket} {
			_ = tx.Bucket(bucket).Each("", func(k string, v []byte) error { out.WriteString(k + string(v)); return nil })
		}
		return nil
	})
	out.WriteString(metrics.String())
	out.Write(b.account.log.Lines())
	text := strings.ToUpper(out.String())
	for _, code := range codes {
		for _, form := range []string{code, code[:13], code[13:], fmt.Sprintf("%X", code), strings.ToUpper(fmt.Sprintf("%x", []byte(code)))} {
			if i := strings.Index(text, form); i >= 0 {
				t.Errorf("a code is in …%s…", text[max(0, i-200):min(len(text), i+60)])
			}
		}
	}
	if len(text) < 10_000 {
		t.Errorf("only %d bytes were looked at", len(text))
	}
}

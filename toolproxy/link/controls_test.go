// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/rings"
)

// controlled is a supervisor whose ring can change.
type controlled struct {
	*world
	elevate func(context.Context, Elevation) (Elevated, error)
	alarm   func(context.Context, Alarm) error
}

func (c controlled) Elevate(ctx context.Context, e Elevation) (Elevated, error) {
	return c.elevate(ctx, e)
}

func (c controlled) Alarm(ctx context.Context, a Alarm) error { return c.alarm(ctx, a) }

// strictControls fails the test if something reaches the supervisor that isn't in form.
func strictControls(t testing.TB, w *world) Supervisor {
	return controlled{w,
		func(_ context.Context, e Elevation) (Elevated, error) {
			if err := e.Check(); err != nil {
				t.Errorf("%+v reached the supervisor: %v", e, err)
			}
			return Elevated{}, nil
		},
		func(_ context.Context, a Alarm) error {
			if err := a.Check(); err != nil {
				t.Errorf("%+v reached the supervisor: %v", a, err)
			}
			return nil
		}}
}

func TestH13ElevationOverTheLink(t *testing.T) {
	asked := make(chan Elevation, 1)
	granted := Elevated{Granted: true, Code: rings.CodeOK, ID: "e1", Target: rings.Standard, Expires: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), TTL: time.Minute}
	refused := Elevated{Code: rings.CodeDuplicateElevation, Message: "has one", Next: "wait"}
	answers := make(chan Elevated, 2)
	answers <- granted
	answers <- refused
	alarms := make(chan Alarm, 1)
	l := linked(t, controlled{newWorld(),
		func(_ context.Context, e Elevation) (Elevated, error) { asked <- e; return <-answers, nil },
		func(_ context.Context, a Alarm) error { alarms <- a; return nil }})
	q := Elevation{Target: rings.Standard, TTL: time.Hour, Reason: "déployer", Wait: time.Second}
	for _, answer := range []Elevated{granted, refused} {
		a, err := l.Elevate(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(answer, a); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(q, <-asked); d != "" {
			t.Error(d)
		}
	}
	want := Alarm{Reason: rings.KillPolicyViolation, Action: "tool.shell.invoke", Detail: "policy no-shell"}
	if err := l.Alarm(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, <-alarms); d != "" {
		t.Error(d)
	}
}

// A grant that doesn't say what was granted is none.
func TestH13HalfAGrantIsNone(t *testing.T) {
	whole := Elevated{Granted: true, Code: rings.CodeOK, ID: "e1", Target: rings.Standard, Expires: time.Unix(1, 0)}
	for name, spoil := range map[string]func(*Elevated){
		"code": func(e *Elevated) { e.Code = rings.CodeQuarantined }, "id": func(e *Elevated) { e.ID = "" },
		"ring": func(e *Elevated) { e.Target = rings.NoRing }, "expiry": func(e *Elevated) { e.Expires = time.Time{} },
	} {
		half := whole
		spoil(&half)
		l := linked(t, controlled{world: newWorld(), elevate: func(context.Context, Elevation) (Elevated, error) { return half, nil }})
		if a, err := l.Elevate(t.Context(), Elevation{Target: rings.Standard}); err == nil || a.Granted {
			t.Errorf("without %s: got %+v, %v, want an error", name, a, err)
		}
	}
}

func TestM22NoControlsWithoutAController(t *testing.T) {
	l := linked(t, newWorld())
	if a, err := l.Elevate(t.Context(), Elevation{Target: rings.Standard}); err == nil || a.Granted {
		t.Errorf("got %+v, %v, want an error", a, err)
	}
	if err := l.Alarm(t.Context(), Alarm{Reason: rings.KillCircuitBreaker}); err == nil {
		t.Error("an alarm that nobody hears was taken")
	}
	if _, err := l.Budget(t.Context()); err != nil {
		t.Errorf("the link ended: %v", err)
	}
}

// THREATS, elevation and supervisor: what a gateway that was taken over may send.
func TestH23HostileControls(t *testing.T) {
	l := linked(t, strictControls(t, newWorld()))
	long := strings.Repeat("x", MaxReason+1)
	for what, body := range map[op][]string{
		opElevate: {
			`{}`, `null`, `[]`, `{"target_ring":null}`, `{"target_ring":"2"}`, `{"target_ring":4}`, `{"target_ring":-1}`, `{"target_ring":2.0}`, `{"target_ring":1e0}`,
			`{"target_ring":2,"ttl":-1}`, `{"target_ring":2,"ttl":1e300}`, `{"target_ring":2,"ttl":9223372036854775808}`, `{"target_ring":2,"ttl":"NaN"}`,
			`{"target_ring":2,"wait":-1}`, `{"target_ring":2,"wait":300000000001}`, `{"target_ring":2,"reason":"a\nb"}`, `{"target_ring":2,"reason":"\u001b[2J"}`,
			`{"target_ring":2,"reason":"\u202eabc"}`, `{"target_ring":2,"reason":"` + long + `"}`, `{"target_ring":2,"trust_score":1}`, `{"target_ring":2,"agent":"other"}`,
		},
		opAlarm: {
			`{}`, `null`, `{"reason":""}`, `{"reason":"manual"}`, `{"reason":"session_timeout"}`, `{"reason":"ring_breach"}`, `{"reason":7}`,
			`{"reason":"circuit_breaker","action":"a b"}`, `{"reason":"circuit_breaker","action":"` + strings.Repeat("x", MaxAction+1) + `"}`,
			`{"reason":"circuit_breaker","detail":"` + long + `"}`, `{"reason":"circuit_breaker","detail":"a\u0000"}`, `{"reason":"circuit_breaker","agent":"other"}`,
		},
	} {
		for _, text := range body {
			if a, _, err := l.ask(t.Context(), what, json.RawMessage(text), nil); err == nil {
				t.Errorf("%s %.80s: got %s, want an error", what, text, a.Body)
			}
		}
	}
	for _, e := range []Elevation{{}, {Target: rings.Standard, TTL: -1}, {Target: rings.Standard, Wait: MaxWait + 1}} {
		if _, err := l.Elevate(t.Context(), e); !errors.Is(err, ErrControl) {
			t.Errorf("%+v: got %v, want %v", e, err, ErrControl)
		}
	}
	if err := l.Alarm(t.Context(), Alarm{Reason: rings.KillManual}); !errors.Is(err, ErrControl) {
		t.Errorf("got %v, want %v", err, ErrControl)
	}
}

func FuzzDecodeControl(f *testing.F) {
	f.Add([]byte(`{"target_ring":2,"ttl":60000000000,"reason":"deploy","wait":1}`))
	f.Add([]byte(`{"reason":"circuit_breaker","action":"tool.shell.invoke","detail":"x"}`))
	f.Add([]byte(`{"target_ring":2}{}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if e, err := decode[Elevation](text); err == nil {
			if !e.Target.Valid() || e.TTL < 0 || e.Wait < 0 || e.Wait > MaxWait || len(e.Reason) > MaxReason || strings.ContainsAny(e.Reason, "\x00\x1b\r\n\u202e") {
				t.Errorf("taken: %+v", e)
			}
		}
		if a, err := decode[Alarm](text); err == nil {
			if (a.Reason != rings.KillCircuitBreaker && a.Reason != rings.KillPolicyViolation) || len(a.Detail) > MaxDetail || strings.ContainsAny(a.Action+a.Detail, "\x00\x1b\r\n") {
				t.Errorf("taken: %+v", a)
			}
		}
	})
}

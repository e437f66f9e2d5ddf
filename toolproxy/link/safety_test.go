// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentrun/safetyloop/judge"
)

// looped is a supervisor with a safety loop.
type looped struct {
	*world
	safety  func(context.Context, Safety) (json.RawMessage, error)
	intent  func(tool, target string) error
	blocked error
}

func (l looped) Safety(ctx context.Context, s Safety) (json.RawMessage, error) {
	return l.safety(ctx, s)
}
func (l looped) Intent(_ context.Context, tool, target string) error { return l.intent(tool, target) }
func (l looped) Blocked(context.Context) error                       { return l.blocked }

func aJudgement() *judge.Judgement {
	return &judge.Judgement{Rule: judge.RuleDeny, Pattern: "rm *", Score: 91, Vague: true, Verb: "delete", Target: "/data", Factors: []judge.Factor{{Name: "verb_delete", Points: 40, Detail: "rm <é>"}}}
}

func TestS15SafetyOverTheLink(t *testing.T) {
	asked := make(chan Safety, 1)
	want := json.RawMessage(`{"success":true,"data":{"continue":false}}`)
	l := linked(t, looped{world: newWorld(), safety: func(_ context.Context, s Safety) (json.RawMessage, error) { asked <- s; return want, nil }})
	for _, q := range []Safety{
		{Endpoint: "CREATE", Operation: "record_execution_step", Params: json.RawMessage(`{"nextActionHint":"rm /data"}`), Judgement: aJudgement(), Judged: HintSum("rm /data")},
		{Endpoint: "READ", Operation: "introspect"},
		// A hint of the length that S-5 allows, of what JSON in JSON would make six times as long.
		{Endpoint: "ANY", Operation: "x", Params: json.RawMessage(`{"nextActionHint":"` + strings.Repeat("<", MaxSafetyParams-24) + `"}`)},
	} {
		got, err := l.Safety(t.Context(), q)
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: got %s, %v, want %s", q.Operation, got, err, want)
		}
		if d := cmp.Diff(q, <-asked); d != "" {
			t.Errorf("%s reached the supervisor otherwise (-want +got):\n%.400s", q.Operation, d)
		}
	}
}

// An answer that is none isn't passed on, and one that doesn't fit ends no link.
func TestS15AnswersThatAreNone(t *testing.T) {
	answers := make(chan json.RawMessage, 1)
	l := linked(t, looped{world: newWorld(), safety: func(context.Context, Safety) (json.RawMessage, error) { return <-answers, nil }})
	for _, text := range []string{``, `null`, `[]`, `{}`, `7`, `{"data":{"continue":true}}`, `{"success":null}`, `{"success":1}`, `{"success":true`, `{"success":true,"data":"` + strings.Repeat("<", 40<<10) + `"}`} {
		answers <- json.RawMessage(text)
		if got, err := l.Safety(t.Context(), Safety{Endpoint: "READ", Operation: "introspect"}); err == nil {
			t.Errorf("%.60s: got %.60s, want an error", text, got)
		}
	}
	if _, err := l.Budget(t.Context()); err != nil {
		t.Errorf("the link ended: %v", err)
	}
}

func TestS15IntentAndBlocked(t *testing.T) {
	sup := looped{world: newWorld(), intent: func(tool, target string) error {
		switch {
		case tool == "write_file" && target == "/data/a":
			return nil
		case tool == "write_file":
			return fmt.Errorf("tool: %w", ErrNoIntent)
		case tool == "stopped":
			return fmt.Errorf("tool: %w", ErrStopped)
		}
		return errors.New("disk full")
	}}
	l := linked(t, sup)
	for _, tt := range []struct {
		tool, target string
		want         error
	}{{"write_file", "/data/a", nil}, {"write_file", "", ErrNoIntent}, {"stopped", "", ErrStopped}} {
		if err := l.Intent(t.Context(), tt.tool, tt.target); !errors.Is(err, tt.want) {
			t.Errorf("%s %s: got %v, want %v", tt.tool, tt.target, err, tt.want)
		}
	}
	if err := l.Intent(t.Context(), "other", ""); err == nil || errors.Is(err, ErrNoIntent) || errors.Is(err, ErrStopped) {
		t.Errorf("got %v, want another error", err)
	}
	if err := l.Blocked(t.Context()); err != nil {
		t.Errorf("got %v, want nil", err)
	}
	for _, want := range []error{ErrStopped, errors.New("unreadable")} {
		sup.blocked = want
		if err := linked(t, sup).Blocked(t.Context()); err == nil || errors.Is(want, ErrStopped) != errors.Is(err, ErrStopped) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

func TestS15NoLoopRefuses(t *testing.T) {
	l := linked(t, newWorld())
	if _, err := l.Safety(t.Context(), Safety{Endpoint: "READ", Operation: "introspect"}); err == nil {
		t.Error("a loop that isn't there answered")
	}
	if l.Intent(t.Context(), "x", "") == nil || l.Blocked(t.Context()) == nil {
		t.Error("a loop that isn't there let a call go on")
	}
}

// THREATS, supervisor: what a gateway that was taken over may send.
func TestS15HostileSafety(t *testing.T) {
	l := linked(t, looped{world: newWorld(),
		safety: func(_ context.Context, s Safety) (json.RawMessage, error) {
			t.Errorf("%+v reached the supervisor", s)
			return json.RawMessage(`{"success":true}`), nil
		},
		intent: func(tool, target string) error { t.Errorf("%.80q reached the supervisor", tool+target); return nil }})
	sum := HintSum("x")
	long := strings.Repeat("x", MaxSafetyTarget+1)
	for what, bodies := range map[op][]string{
		opSafety: {
			`{}`, `null`, `[]`, `{"endpoint":"CREATE"}`, `{"operation":"x"}`, `{"endpoint":"create","operation":"x"}`, `{"endpoint":"NONE","operation":"x"}`,
			`{"endpoint":"READ","operation":"` + long + `"}`, `{"endpoint":"READ","operation":"x","params":{}}`, `{"endpoint":"READ","operation":"x","params":"!"}`,
			`{"endpoint":"READ","operation":"x","params":"` + base64.StdEncoding.EncodeToString(make([]byte, MaxSafetyParams+1)) + `"}`,
			`{"endpoint":"READ","operation":"x","agent":"other"}`, `{"endpoint":"READ","operation":"x","caller":{"Principal":"other"}}`, `{"endpoint":"READ","operation":"x"}{}`,
			`{"endpoint":"CREATE","operation":"x","judgement":{"rule":1,"score":1}}`, `{"endpoint":"CREATE","operation":"x","judged":"` + sum + `"}`,
			`{"endpoint":"CREATE","operation":"x","judged":"ab","judgement":{"rule":1,"score":1}}`,
			`{"endpoint":"CREATE","operation":"x","judged":"` + sum + `","judgement":{"rule":0,"score":1}}`,
			`{"endpoint":"CREATE","operation":"x","judged":"` + sum + `","judgement":{"rule":5,"score":1}}`,
			`{"endpoint":"CREATE","operation":"x","judged":"` + sum + `","judgement":{"rule":1,"score":-1}}`,
			`{"endpoint":"CREATE","operation":"x","judged":"` + sum + `","judgement":{"rule":1,"score":101}}`,
			`{"endpoint":"CREATE","operation":"x","judged":"` + sum + `","judgement":{"rule":1,"score":1,"verb":"` + long + `"}}`,
			`{"endpoint":"CREATE","operation":"x","judged":"` + sum + `","judgement":{"rule":1,"score":1,"factors":[` + strings.Repeat(`{},`, maxFactors) + `{}]}}`,
			`{"endpoint":"CREATE","operation":"x","judged":"` + sum + `","judgement":{"rule":1,"score":1,"allow":true}}`,
		},
		opIntent: {`{}`, `null`, `{"tool":""}`, `{"tool":"` + long + `"}`, `{"tool":"x","target":"` + long + `"}`, `{"tool":"x","agent":"other"}`, `{"tool":7}`},
	} {
		for _, text := range bodies {
			a, _, err := l.ask(t.Context(), what, json.RawMessage(text), nil)
			if err == nil {
				t.Errorf("%s %.90s: got %.90s, want an error", what, text, a.Body)
			}
		}
	}
	for _, s := range []Safety{{}, {Endpoint: "READ"}, {Endpoint: "READ", Operation: "x", Judgement: aJudgement()}} {
		if _, err := l.Safety(t.Context(), s); !errors.Is(err, ErrSafety) {
			t.Errorf("%+v: got %v, want %v", s, err, ErrSafety)
		}
	}
	if err := l.Intent(t.Context(), "", "x"); !errors.Is(err, ErrSafety) {
		t.Errorf("got %v, want %v", err, ErrSafety)
	}
}

func FuzzDecodeSafety(f *testing.F) {
	f.Add([]byte(`{"endpoint":"CREATE","operation":"record_execution_step","params":"e30=","judged":"` + HintSum("x") + `","judgement":{"rule":1,"score":42,"factors":[{"name":"verb_write","points":20,"detail":"x"}],"verb":"write","target":"/a"}}`))
	f.Add([]byte(`{"endpoint":"READ","operation":"introspect"}`))
	f.Add([]byte(`{"tool":"write_file","target":"/a"}`))
	f.Add([]byte(`{"endpoint":"ANY","operation":"x","params":"e30="}{}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if a, err := decode[safetyAsk](text); err == nil {
			s := a.safety()
			if s.Check() != nil || len(s.Params) > MaxSafetyParams || (s.Judgement == nil) != (s.Judged == "") || s.Judgement != nil && (s.Judgement.Score < 0 || s.Judgement.Score > 100 || s.Judgement.Rule == judge.RuleInvalid) {
				t.Errorf("taken: %+v", s)
			}
		}
		if a, err := decode[intentAsk](text); err == nil && (a.Tool == "" || len(a.Tool+a.Target) > 2*MaxSafetyTarget) {
			t.Errorf("taken: %+v", a)
		}
	})
}

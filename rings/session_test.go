// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func config(mode ConsistencyMode) SessionConfig {
	return SessionConfig{SessionID: "s-1", MaxParticipants: 3, MinParticipants: 2, ConsistencyMode: mode}
}

func TestH29SessionConfig(t *testing.T) {
	full := func(id, maximum, minimum, mode string) string {
		return fmt.Sprintf(`{"session_id":%s,"max_participants":%s,"min_participants":%s,"consistency_mode":%s}`, id, maximum, minimum, mode)
	}
	long, longer := strings.Repeat("a", 256), strings.Repeat("a", 257)
	for _, tt := range []struct {
		text string
		bad  []string // nil: valid
	}{
		{full(`"s-1"`, "10", "1", `"eventual"`), nil},
		{full(`"_"`, "1", "1", `"strong"`), nil},
		{full(`"`+long+`"`, "100", "100", `"causal"`), nil},
		{full(`"`+longer+`"`, "10", "1", `"eventual"`), []string{"session_id"}},
		{full(`"s-1\n"`, "10", "1", `"eventual"`), []string{"session_id"}},
		{full(`"s/1"`, "10", "1", `"eventual"`), []string{"session_id"}},
		{full(`""`, "0", "0", `"Strong"`), []string{"session_id", "max_participants", "min_participants", "consistency_mode"}},
		{full(`1`, "101", "1", `"strong"`), []string{"session_id", "max_participants"}},
		{full(`"s"`, "true", "1", `"strong"`), []string{"max_participants", "min_participants"}},
		{full(`"s"`, "2", "true", `"strong"`), []string{"min_participants"}},
		{full(`"s"`, "2", "3", `"strong"`), []string{"min_participants"}},
		{full(`"s"`, "2.0", "1", `"strong"`), []string{"max_participants", "min_participants"}},
		{full(`"s"`, "1e1", "1", `"strong"`), []string{"max_participants", "min_participants"}},
		{full(`"s"`, `"10"`, "1", `"strong"`), []string{"max_participants", "min_participants"}},
		{full(`"s"`, "9223372036854775808", "1", `"strong"`), []string{"max_participants", "min_participants"}},
		{full(`"s"`, "10", "-1", `"strong"`), []string{"min_participants"}},
		{full(`"s"`, "10", "null", `null`), []string{"min_participants", "consistency_mode"}},
		{`{"session_id":"s"}`, []string{"max_participants", "min_participants", "consistency_mode"}},
		{strings.Replace(full(`"s"`, "2", "1", `"strong"`), "{", `{"Session_ID":"x",`, 1), []string{"Session_ID"}},
		{strings.Replace(full(`"s"`, "2", "1", `"strong"`), "{", `{"session_id":"x",`, 1), []string{"session_id"}},
		{`[]`, []string{""}}, {``, []string{""}}, {`null`, []string{""}}, {`{} {}`, []string{""}}, {"{\"\xff\":1}", []string{""}},
		{`{"session_id":`, []string{""}}, {strings.Repeat("[", 20_000), []string{""}},
	} {
		c, err := DecodeSessionConfig([]byte(tt.text))
		if (err == nil) != (tt.bad == nil) || (err == nil) != (c.Check() == nil) {
			t.Errorf("%.100s: got %+v, %v", tt.text, c, err)
			continue
		}
		got := map[string]bool{}
		for _, p := range paths(err) {
			got[p] = true
		}
		want := map[string]bool{}
		for _, p := range tt.bad {
			want[p] = true
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%.100s: fields (-want +got):\n%s\n%v", tt.text, diff, err)
		}
	}
}

func FuzzDecodeSessionConfig(f *testing.F) {
	f.Add([]byte(`{"session_id":"s-1","max_participants":10,"min_participants":1,"consistency_mode":"causal"}`))
	f.Add([]byte(`{"session_id":"s-1","session_id":true}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := DecodeSessionConfig(text)
		if err != nil {
			if c != (SessionConfig{}) {
				t.Fatalf("%+v beside %v", c, err)
			}
			return
		}
		if err := c.Check(); err != nil {
			t.Fatalf("decoded what isn't valid: %v", err)
		}
		again, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if c2, err := DecodeSessionConfig(again); err != nil || c2 != c {
			t.Fatalf("%+v, %v after %+v", c2, err, c)
		}
	})
}

func newSession(t *testing.T, mode ConsistencyMode) *Session {
	t.Helper()
	s, err := NewSession(config(mode), newHandClock().Now)
	must(t, err)
	return s
}

func TestH29Life(t *testing.T) {
	s := newSession(t, Strong)
	if err := s.Activate(); !errors.Is(err, ErrTransition) {
		t.Errorf("activate what is created: %v", err)
	}
	must(t, s.Join("a"))
	if s.State() != SessionHandshaking {
		t.Errorf("after the first join: %v", s.State())
	}
	if err := s.Activate(); !errors.Is(err, ErrTooFew) {
		t.Errorf("activate with one of two: %v", err)
	}
	if err := s.Join("a"); !errors.Is(err, ErrJoined) {
		t.Errorf("join twice: %v", err)
	}
	if err := s.Join("a\n"); !errors.Is(err, ErrIdentifier) {
		t.Errorf("join with a bad id: %v", err)
	}
	must(t, s.Join("b"), s.Activate(), s.Join("c"))
	if err := s.Join("d"); !errors.Is(err, ErrSessionFull) {
		t.Errorf("join a full session: %v", err)
	}
	must(t, s.Leave("c"))
	if err := s.Leave("c"); !errors.Is(err, ErrNotParticipant) {
		t.Errorf("leave twice: %v", err)
	}
	if err := s.Archive(); !errors.Is(err, ErrTransition) {
		t.Errorf("archive what is active: %v", err)
	}
	must(t, s.Terminate())
	if err := s.Join("e"); !errors.Is(err, ErrTransition) {
		t.Errorf("join what is terminating: %v", err)
	}
	must(t, s.Archive())
	if err := s.Leave("a"); !errors.Is(err, ErrTransition) {
		t.Errorf("leave what is archived: %v", err)
	}
}

// Every transition from every state: the listed ones and no other.
func TestH29Transitions(t *testing.T) {
	legal := map[SessionState][]SessionState{
		SessionCreated:     {SessionHandshaking, SessionTerminating},
		SessionHandshaking: {SessionActive, SessionTerminating},
		SessionActive:      {SessionTerminating},
		SessionTerminating: {SessionArchived},
	}
	steps := map[SessionState]func(*Session) error{
		SessionHandshaking: (*Session).Handshake, SessionActive: (*Session).Activate, SessionTerminating: (*Session).Terminate, SessionArchived: (*Session).Archive,
	}
	for from := SessionCreated; from <= SessionArchived; from++ {
		for to, step := range steps {
			rec := SessionRecord{Config: config(Strong), State: from}
			if from != SessionCreated {
				rec.Participants = []Participant{{Agent: "a"}, {Agent: "b"}}
			}
			s, err := RestoreSession(rec, time.Now)
			must(t, err)
			err = step(s)
			want := false
			for _, l := range legal[from] {
				want = want || l == to
			}
			if (err == nil) != want || want != (s.State() == to && from != to) {
				t.Errorf("%v to %v: got %v, in %v, want legal = %v", from, to, err, s.State(), want)
			}
			if err != nil && !errors.Is(err, ErrTransition) {
				t.Errorf("%v to %v: %v isn't ErrTransition", from, to, err)
			}
		}
	}
}

func TestH29ZeroSessionRefuses(t *testing.T) {
	var s Session
	for what, err := range map[string]error{
		"join": s.Join("a"), "leave": s.Leave("a"), "handshake": s.Handshake(), "activate": s.Activate(),
		"terminate": s.Terminate(), "archive": s.Archive(), "work": s.works("a"),
	} {
		if !errors.Is(err, ErrTransition) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := NewSession(SessionConfig{}, time.Now); err == nil {
		t.Error("a session of the zero configuration")
	}
}

func TestH29Record(t *testing.T) {
	s := newSession(t, Causal)
	must(t, s.Join("a"), s.Join("b"), s.Activate())
	text, err := json.Marshal(s.Record())
	must(t, err)
	var rec SessionRecord
	must(t, json.Unmarshal(text, &rec))
	restored, err := RestoreSession(rec, time.Now)
	must(t, err)
	if diff := cmp.Diff(s.Record(), restored.Record()); diff != "" {
		t.Errorf("after a restart (-before +after):\n%s", diff)
	}
	for name, bad := range map[string]func(*SessionRecord){
		"config":  func(r *SessionRecord) { r.Config.MinParticipants = 0 },
		"state":   func(r *SessionRecord) { r.State = 9 },
		"none":    func(r *SessionRecord) { r.State = NoSessionState },
		"created": func(r *SessionRecord) { r.State = SessionCreated },
		"twice":   func(r *SessionRecord) { r.Participants = append(r.Participants, r.Participants[0]) },
		"full": func(r *SessionRecord) {
			r.Participants = append(r.Participants, Participant{Agent: "c"}, Participant{Agent: "d"})
		},
		"id": func(r *SessionRecord) { r.Participants = append(r.Participants, Participant{Agent: ""}) },
	} {
		r := s.Record()
		bad(&r)
		if _, err := RestoreSession(r, time.Now); err == nil {
			t.Errorf("%s: restored", name)
		}
	}
	if err := json.Unmarshal([]byte(`{"state":"ACTIVE"}`), &rec); err == nil {
		t.Error("a state that is none was read")
	}
}

// However agents join and leave, a session is never over its bounds and never goes back.
func TestH29Bounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := NewSession(config(Strong), time.Now)
		if err != nil {
			t.Fatal(err)
		}
		before := s.State()
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			agent := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "agent")
			step := rapid.SampledFrom([]func() error{
				func() error { return s.Join(agent) }, func() error { return s.Join(agent) }, func() error { return s.Leave(agent) },
				s.Handshake, s.Activate, s.Terminate, s.Archive,
			}).Draw(t, "step")
			err := step()
			after := s.State()
			if after < before || err != nil && after != before {
				t.Fatalf("from %v to %v with %v", before, after, err)
			}
			rec := s.Record()
			if err := rec.check(); err != nil {
				t.Fatalf("%+v: %v", rec, err)
			}
			if before != SessionActive && after == SessionActive && len(rec.Participants) < rec.Config.MinParticipants {
				t.Fatalf("active with %d", len(rec.Participants))
			}
			before = after
		}
	})
}

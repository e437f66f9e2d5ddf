// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/toolproxy/link"
)

func (s *site) issue(agent string, ttl time.Duration, may ...string) (AgentKey, Token) {
	s.t.Helper()
	k, token, err := s.IssueKey(s.t.Context(), "uid:0", agent, may, ttl)
	if err != nil {
		s.t.Fatal(err)
	}
	return k, token
}

// M-9: a key is good for its agent, on its node, for its time, until it is revoked. Whatever is wrong with it is a refusal
// on record, and the text of no key is in any of it.
func TestM9KeyIsGood(t *testing.T) {
	other := newSite(t)
	other.score("x", 0.5, false)
	_, foreign := other.issue("a", time.Hour, "agent.run")
	for _, tt := range []struct {
		name  string
		agent string
		do    func(s *site, k AgentKey, token Token) Token
		want  string // empty: it is good
	}{
		{"as it was issued", "a", func(_ *site, _ AgentKey, t Token) Token { return t }, ""},
		{"with the line end of a file", "a", func(_ *site, _ AgentKey, t Token) Token { return NewToken(t.Reveal() + "\r\n") }, ""},
		{"in its last moment", "a", func(s *site, _ AgentKey, t Token) Token { s.clock.pass(time.Hour - 1); return t }, ""},
		{"of another agent", "b", func(_ *site, _ AgentKey, t Token) Token { return t }, "is agent a's"},
		{"without agent", "", func(_ *site, _ AgentKey, t Token) Token { return t }, "is agent a's"},
		{"expired", "a", func(s *site, _ AgentKey, t Token) Token { s.clock.pass(time.Hour); return t }, "has expired"},
		{"the clock was set back", "a", func(s *site, _ AgentKey, t Token) Token { s.clock.pass(-time.Minute); return t }, "a time before that"},
		{"revoked", "a", func(s *site, k AgentKey, t Token) Token {
			for range 2 {
				if _, err := s.RevokeKey(s.t.Context(), k.ID, "uid:0"); err != nil {
					s.t.Error(err)
				}
			}
			return t
		}, "was revoked"},
		{"of another node", "a", func(*site, AgentKey, Token) Token { return foreign }, "hasn't signed it"},
		{"the state is an older one", "a", func(s *site, _ AgentKey, t Token) Token {
			s.restart()
			if err := os.Rename(filepath.Join(s.dir, stateFile), filepath.Join(s.dir, "lost")); err != nil {
				s.t.Fatal(err)
			}
			return t
		}, "isn't in this node's state"},
		{"nothing signs any more", "a", func(s *site, _ AgentKey, t Token) Token {
			if err := os.Remove(filepath.Join(s.dir, keysDir, "agent.key")); err != nil {
				s.t.Fatal(err)
			}
			return t
		}, "hasn't signed it"},
		{"signed by the key of checkpoints", "a", func(s *site, k AgentKey, _ Token) Token {
			by, _, err := audit.LoadOrCreateKey(filepath.Join(s.dir, keysDir))
			if err != nil {
				s.t.Fatal(err)
			}
			t, err := sealed(by, k)
			if err != nil {
				s.t.Fatal(err)
			}
			return t
		}, "hasn't signed it"},
		{"changed", "a", func(_ *site, _ AgentKey, t Token) Token {
			signed, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(t.Reveal(), keyPrefix))
			if err != nil {
				panic(err)
			}
			signed = []byte(strings.Replace(string(signed), "agent.run", "agent.ruin", 1))
			return NewToken(keyPrefix + base64.RawURLEncoding.EncodeToString(signed))
		}, "hasn't signed it"},
		{"words", "a", func(*site, AgentKey, Token) Token { return NewToken("open sesame") }, "no key of this version"},
		{"too long", "a", func(*site, AgentKey, Token) Token { return NewToken(keyPrefix + strings.Repeat("A", MaxKeyText)) }, "no key of this version"},
		{"the zero value", "a", func(*site, AgentKey, Token) Token { return Token{} }, "no key of this version"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.score("x", 0.5, false)
			k, token := s.issue("a", time.Hour, "agent.run.invoke", "tool.math")
			shown := tt.do(s, k, token)
			got, err := s.UseKey(t.Context(), shown, Request{Agent: tt.agent, Run: "r1"}, rings.Sandbox)
			denied, _ := errors.AsType[*DeniedError](err)
			switch {
			case tt.want == "":
				if diff := cmp.Diff(k, got); diff != "" || err != nil {
					t.Errorf("got %v\n%s", err, diff)
				}
			case denied == nil || denied.Code != link.CodeKeyInvalid || !strings.Contains(denied.Reason, tt.want) || denied.Hint == "" || got.ID != "":
				t.Errorf("got %+v, %v, want key_invalid: %s", got, err, tt.want)
			case strings.Contains(err.Error(), token.Reveal()):
				t.Error("the key is in the error")
			}
			kinds := s.log("node")
			if last := kinds[len(kinds)-1]; (tt.want == "") != (last == "agent_key") || (tt.want != "") != (last == "ring_check") {
				t.Errorf("on record: %v", kinds)
			}
		})
	}
}

// M-21: a key carries runs and tools by their names, nothing else.
func TestM21WhatAKeyMayCarry(t *testing.T) {
	s := newSite(t)
	many := make([]string, maxMay+1)
	for i := range many {
		many[i] = fmt.Sprintf("tool.t%d", i)
	}
	for _, tt := range []struct {
		agent string
		may   []string
		ttl   time.Duration
		want  []string // nil: refused
	}{
		{"a", []string{"tool.math", "agent.run.invoke", "tool.math.invoke"}, time.Hour, []string{"agent.run.invoke", "tool.math.invoke"}},
		{"a", []string{"agent.run"}, time.Second, []string{"agent.run.invoke"}},
		{"a", []string{"tool.mcp.server.x"}, MaxKeyTTL, []string{"tool.mcp.server.x.invoke"}},
		{"a", many[1:], time.Hour, append([]string{}, sorted(many[1:])...)},
		{"a", many, time.Hour, nil},
		{"a", nil, time.Hour, nil},
		{"a", []string{""}, time.Hour, nil},
		{"a", []string{"tool.*"}, time.Hour, nil},
		{"a", []string{"tool."}, time.Hour, nil},
		{"a", []string{"tool.a:b"}, time.Hour, nil},
		{"a", []string{"agent.elevation.request"}, time.Hour, nil},
		{"a", []string{"agent.elevation.request.invoke"}, time.Hour, nil},
		{"a", []string{"tool.x\ny"}, time.Hour, nil},
		{"", []string{"tool.math"}, time.Hour, nil},
		{"a b", []string{"tool.math"}, time.Hour, nil},
		{"a", []string{"tool.math"}, 0, nil},
		{"a", []string{"tool.math"}, -time.Hour, nil},
		{"a", []string{"tool.math"}, MaxKeyTTL + 1, nil},
	} {
		k, token, err := s.IssueKey(t.Context(), "uid:0", tt.agent, tt.may, tt.ttl)
		if diff := cmp.Diff(tt.want, k.May); diff != "" || (err == nil) != (tt.want != nil) || err != nil && (!errors.Is(err, ErrKey) || token.Given()) {
			t.Errorf("%q %.60q %v: got %v %v\n%s", tt.agent, tt.may, tt.ttl, err, token.Given(), diff)
		}
		if len(token.Reveal()) > MaxKeyText {
			t.Errorf("a key of %d bytes", len(token.Reveal()))
		}
	}
	if _, err := s.RevokeKey(t.Context(), "nosuch", "uid:0"); !errors.Is(err, ErrNoKey) {
		t.Errorf("got %v", err)
	}
}

func sorted(names []string) []string {
	may, _ := capabilities(names)
	return may
}

// M-9: in the middle of a run its key expires, or is revoked by another process: the run is in ring 3 by itself, and each of
// its calls is refused. No clock that is set back gives a key more time.
func TestM9KeyEndsInTheMiddle(t *testing.T) {
	for name, end := range map[string]func(s *site, k AgentKey){
		"revoked": func(s *site, k AgentKey) {
			elsewhere := s.another()
			defer elsewhere.Close()
			if _, err := elsewhere.RevokeKey(s.t.Context(), k.ID, "uid:0"); err != nil {
				s.t.Fatal(err)
			}
		},
		"expired":                         func(s *site, _ AgentKey) { s.clock.pass(time.Hour) },
		"expired, the clock was set back": func(s *site, _ AgentKey) { s.clock.move(-24*time.Hour, time.Hour) },
		"expired, the clock was set on":   func(s *site, _ AgentKey) { s.clock.move(time.Hour, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.score("a", 0.8, false)
			k, _ := s.issue("a", time.Hour, "agent.run")
			adm, err := s.Admit(t.Context(), Request{Agent: "a", Ring: rings.Standard})
			if err != nil {
				t.Fatal(err)
			}
			adm.Key = &k
			c := s.Control(adm, ControlOptions{Run: "r1", Processes: s.crew, Elevatable: func(rings.Ring) error { return nil }, Warn: func(err error) { t.Log(err) }})
			b := c.Broker(BrokerOptions{MaxSteps: 9})
			t.Cleanup(func() { b.Close(); c.Close(); adm.Done() })
			check := func(egress bool) rings.Code {
				v, err := b.Check(t.Context(), link.Check{Action: runIn(rings.Sandbox), Egress: egress})
				if err != nil {
					t.Fatal(err)
				}
				return v.Code
			}
			wantRing(t, c, rings.Standard)
			if got := check(false); got != rings.CodeOK {
				t.Fatalf("before: got %s", got)
			}
			end(s, k)
			falls(t, c, rings.Sandbox)
			if call, egress := check(false), check(true); call != link.CodeKeyInvalid || egress != link.CodeKeyInvalid {
				t.Errorf("a call: %s, a connection: %s; want key_invalid", call, egress)
			}
			if _, err := c.Elevate(t.Context(), to(rings.Standard)); code(t, err) != link.CodeKeyInvalid {
				t.Errorf("elevated: %v", err)
			}
		})
	}
}

// Printing what holds a key, however that is done, shows none of it.
func TestM9KeyIsNotPrinted(t *testing.T) {
	const secret = "agentrun-key-v1.c2VjcmV0"
	holder := struct {
		Key  Token
		More []Token
	}{NewToken(secret), []Token{NewToken(secret)}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{holder, &holder, holder.Key, holder.More} {
			if out := fmt.Sprintf(verb, v); strings.Contains(out, "c2Vj") || strings.Contains(out, fmt.Sprintf("%x", "c2Vj")) {
				t.Errorf("%s of %T shows it: %s", verb, v, out)
			}
		}
	}
}

// Keys that expired a week ago are forgotten; till then they are listed.
func TestKeysAreListed(t *testing.T) {
	s := newSite(t)
	first, _ := s.issue("a", time.Hour, "agent.run")
	s.clock.pass(time.Hour + keepKeys)
	second, _ := s.issue("b", time.Hour, "agent.run")
	third, _ := s.issue("a", time.Hour, "agent.run")
	got, err := s.Keys(t.Context())
	if diff := cmp.Diff([]AgentKey{third, second}, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if got := first.State(s.clock.now()) + " " + second.State(s.clock.now()); got != "expired valid" {
		t.Errorf("got %s", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// answering is a supervisor that gives these answers, one after the other.
type answering struct {
	answers []link.ContextAnswer
	asked   []link.ContextRequest
}

func (a *answering) Context(_ context.Context, q link.ContextRequest) (link.ContextAnswer, error) {
	a.asked = append(a.asked, q)
	if len(a.answers) == 0 {
		return link.ContextAnswer{}, errors.New("the supervisor is gone")
	}
	next := a.answers[0]
	a.answers = a.answers[1:]
	return next, nil
}

func value(s string) []link.ContextValue { return []link.ContextValue{{Agent: "a", Value: []byte(s)}} }

// H-32: what the tools ask for, and what an agent hears of a refusal; the clock of a key's first page is the one that a write names.
func TestH32ContextTools(t *testing.T) {
	for name, tt := range map[string]struct {
		tool, args string
		answers    []link.ContextAnswer
		want       string // of the output, or a code
	}{
		"get":           {"context.get", `{"key":"k"}`, []link.ContextAnswer{{Allowed: true, Values: value("v"), Version: 3}}, `"value":"v"`},
		"get nothing":   {"context.get", `{"key":"k"}`, []link.ContextAnswer{{Allowed: true}}, `{"values":[]}`},
		"get in pages":  {"context.get", `{"key":"k"}`, []link.ContextAnswer{{Allowed: true, Values: value("1"), More: true, Clock: rings.VectorClock{"a": 1}}, {Allowed: true, Values: value("2"), Clock: rings.VectorClock{"a": 2}}}, `"clock":{"a":1}`},
		"get no text":   {"context.get", `{"key":"k"}`, []link.ContextAnswer{{Allowed: true, Values: value("\xff")}}, string(gate.CodeToolRestricted)},
		"put":           {"context.put", `{"key":"k","value":"v","version":2}`, []link.ContextAnswer{{Allowed: true, Version: 3, Standing: 1}}, `{"values":1,"version":3}`},
		"put late":      {"context.put", `{"key":"k","value":"v"}`, []link.ContextAnswer{{Allowed: true, Conflict: rings.Late, Standing: 1}}, `"conflict":"late"`},
		"put too long":  {"context.put", `{"key":"k","value":"` + strings.Repeat("é", 32769) + `"}`, nil, string(gate.CodeBadArguments)},
		"stale":         {"context.put", `{"key":"k","value":"v"}`, []link.ContextAnswer{{Refused: link.ContextVersion}}, string(gate.CodeBadArguments)},
		"wrong mode":    {"context.put", `{"key":"k","value":"v"}`, []link.ContextAnswer{{Refused: link.ContextWrong}}, string(gate.CodeBadArguments)},
		"full":          {"context.put", `{"key":"k","value":"v"}`, []link.ContextAnswer{{Refused: link.ContextFull}}, string(gate.CodeQuota)},
		"large":         {"context.get", `{"key":"k"}`, []link.ContextAnswer{{Refused: link.ContextLarge}}, string(gate.CodeTooLarge)},
		"zero answer":   {"context.get", `{"key":"k"}`, []link.ContextAnswer{{}}, string(gate.CodeUnavailable)},
		"no supervisor": {"context.list", `{}`, nil, string(gate.CodeUnavailable)},
		"list":          {"context.list", `{"after":"a"}`, []link.ContextAnswer{{Allowed: true, Keys: []link.ContextKey{{Key: "b", Bytes: 1, Values: 1}}, More: true}}, `"more":true`},
	} {
		t.Run(name, func(t *testing.T) {
			to := &answering{answers: tt.answers}
			for _, d := range Definitions(Options{Context: to}) {
				if d.Name != tt.tool {
					continue
				}
				want := rings.Sandbox
				if tt.tool == "context.put" {
					want = rings.Standard
				}
				if got := d.Action.RequiredRing(); got != want {
					t.Errorf("it requires %v, want %v", got, want)
				}
				r, err := d.Tool.Call(t.Context(), tools.Call{Args: telemetry.NewPlaintext(json.RawMessage(tt.args)), Limit: 1 << 20})
				got := string(r.Output)
				if e, ok := errors.AsType[*gate.Error](err); ok {
					got = string(e.Code)
				}
				if !strings.Contains(got, tt.want) {
					t.Errorf("got %s, %v, want %s", got, err, tt.want)
				}
				return
			}
			t.Error("no such tool")
		})
	}
	for _, d := range Definitions(Options{}) {
		if strings.HasPrefix(d.Name, "context.") {
			t.Errorf("a run without session has %s", d.Name)
		}
	}
}

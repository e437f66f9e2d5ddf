// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"time"
)

// introspect tells what there is and how the loop is set (S-3). It is the only answer that isn't recorded: it decides nothing.
func (l *Loop) introspect(ctx context.Context, c Caller, v values) Reply {
	data := map[string]any{
		"_protocol":    map[string]any{"name": "MCP-AQL", "version": protocolVersion},
		"capabilities": map[string]any{"execution_safety_loop": l.set.Mode.String()},
	}
	query, name := v.text(pQuery), v.text(pName)
	if query == "" || query == "capabilities" {
		data["safety_loop"] = l.options(ctx, c)
	}
	if query == "" || query == "operations" {
		if name == "" {
			data["operations"] = Operations()
		} else {
			data["operation"] = operation(name) // null for none, as the draft has it
		}
	}
	if query == "" || query == "types" {
		if name == "" || query == "" {
			data["types"] = types()
		} else {
			data["type"] = typeNamed(name)
		}
	}
	return succeed(data)
}

func (l *Loop) options(ctx context.Context, c Caller) map[string]any {
	own := l.own(c, "")
	options := map[string]any{
		"mode":                  l.set.Mode.String(),
		"maxAutonomousSteps":    own.MaxSteps,
		"riskTolerance":         own.Tolerance.String(),
		"riskToleranceScore":    own.Tolerance.Score(),
		"confirm":               l.set.Confirm.String(),
		"onlyOperatorsConfirm":  l.set.OnlyOperators,
		"stages":                []string{"step_limit", "previous_outcome", "patterns", "safety_tier", "risk_tolerance"},
		"tiers":                 map[string]string{tierAdvisory: "0-30", tierConfirm: "31-60", tierVerify: "61-85", tierDanger: "86-100"},
		"challengeSeconds":      int(ChallengeTTL / time.Second),
		"confirmationSeconds":   int(TokenTTL / time.Second),
		"failedVerifications":   map[string]int{"limit": maxFailures, "windowSeconds": int(failureWindow / time.Second)},
		"maxParamsBytes":        MaxParams,
		"maxHintBytes":          MaxHint,
		"maxExecutionsPerAgent": maxExecutions,
	}
	if l.set.Mode == Enforcing {
		state := map[string]any{"stopped": false}
		if err := l.Blocked(ctx, c); err != nil {
			state["stopped"], state["reason"] = true, "The agent is stopped"
			if errors.Is(err, ErrUnread) {
				state["reason"] = ErrUnread.Error()
			} else if ch := l.waiting(c.Principal, challengeDanger, ""); ch != nil {
				state["verificationId"] = ch.ID
			}
		}
		options["caller"] = state
	}
	return options
}

type typeInfo struct {
	Name        string      `json:"name"`
	Kind        string      `json:"kind"`
	Description string      `json:"description"`
	Values      []string    `json:"values,omitempty"`
	Fields      []Parameter `json:"fields,omitempty"`
	Members     []string    `json:"members,omitempty"`
}

//go:embed types.json
var typeTable []byte

// types are those of types.json, in its order; TestTypes holds that it can be read.
func types() (all []typeInfo) {
	_ = json.Unmarshal(typeTable, &all)
	return all
}

func typeNamed(name string) *typeInfo {
	for _, t := range types() {
		if t.Name == name {
			return &t
		}
	}
	return nil
}

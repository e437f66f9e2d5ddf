// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"slices"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// Access is who may call a tool: what Only has and Not hasn't. An empty Only is everyone.
type Access[T comparable] struct {
	Only []T `yaml:"only"`
	Not  []T `yaml:"not"`
}

func (a Access[T]) admits(v T) bool {
	return !slices.Contains(a.Not, v) && (len(a.Only) == 0 || slices.Contains(a.Only, v))
}

// rules are a tool's own, for the caller of this gateway.
type rules struct {
	rings Access[int]
	plans Access[string]
	roles Access[string]
}

func (r rules) admit(who link.Caller, ring rings.Ring) *gate.Error {
	var what string
	switch {
	case !ring.Valid() || !r.rings.admits(ring.Value()):
		what = "ring"
	case !r.plans.admits(who.Plan):
		what = "plan"
	case !r.roles.admits(who.Role):
		what = "role"
	default:
		return nil
	}
	return &gate.Error{
		Code: gate.CodeToolRestricted, Message: "this tool isn't open to the run's " + what,
		Next: "do without this tool; GET /internal/tools lists those you may call", Rule: "M-11: " + what,
	}
}

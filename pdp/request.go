// SPDX-License-Identifier: Apache-2.0

package pdp

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"agentrun/internal/read"
	"agentrun/rings"
)

// Request is the question of M-10. Its zero value, and every field's, leads to a refusal.
type Request struct {
	Subject  Subject  `json:"subject"`
	TeamID   string   `json:"team_id"` // the subject's team
	Action   string   `json:"action"`  // "agent.run.invoke", "agent.elevation.request" or "tool.<name>.invoke"
	Resource Resource `json:"resource"`
	KeyID    string   `json:"key_id"` // empty: no key, refused as key_invalid unless Context.Keyless
	Context  Context  `json:"context"`
}

// Subject is who asks.
type Subject struct {
	ID   string      `json:"id"` // an identifier, see rings.CheckAgentID
	Type SubjectType `json:"type"`
}

// SubjectType tells agents from people, so that neither can borrow the other's id.
type SubjectType string

const (
	Agent SubjectType = "agent"
	User  SubjectType = "user"
)

// Resource is what the action works upon: the team's room, document, memory, or the run itself.
type Resource struct {
	ID     string `json:"id"`
	TeamID string `json:"team_id"` // the team it belongs to
	Mode   Mode   `json:"mode"`
}

// Mode is a team's mode (M-15).
type Mode string

const (
	Public       Mode = "public"
	Confidential Mode = "confidential"
)

// Context is what the supervisor knows about the call. All of it is stated by the caller of Decide, nothing by the agent.
type Context struct {
	Ring         rings.Ring `json:"ring"`          // the ring that the subject lives in now
	RequiredRing rings.Ring `json:"required_ring"` // the least privileged ring that may do this
	Risk         int        `json:"risk"`          // of a tool call, in percent (H-8); 0 for runs and elevations
	Plan         string     `json:"plan"`          // an identifier, for instance "freemium" (M-19)
	Role         string     `json:"role"`          // empty: none, refused as no_role unless Keyless
	KeyValid     bool       `json:"key_valid"`     // the key exists, isn't expired or revoked, and is the subject's
	Keyless      bool       `json:"keyless"`       // no key was presented, and the node's configuration demands none
	Capabilities []string   `json:"capabilities"`  // granted: "agent.run.invoke", "tool.math.invoke"; exact names, no wildcards
	Tool         Tool       `json:"tool"`          // of tool.<name>.invoke; the zero value for runs
	Input        Input      `json:"input"`
	Quota        Quota      `json:"quota"`
}

// Tool is what the registry says of the tool that is called.
type Tool struct {
	Category      Category `json:"category"`       // M-11
	PlaintextFree bool     `json:"plaintext_free"` // neither takes nor returns plaintext of messages (M-15)
}

// Category of a tool (M-11). The zero value is none.
type Category string

// Input says what the injection check thought of the arguments (M-16). The zero value is no answer, and refuses.
type Input string

const (
	Clean      Input = "clean"
	Suspicious Input = "suspicious"
)

// Quota in the unit of the caller, the same for both: calls, tokens, millionths of a coin. The zero value is used up.
type Quota struct {
	Used  int64 `json:"used"`
	Limit int64 `json:"limit"`
}

// RunAction is the action of starting a run. The action of a tool call is ToolAction(name).
const RunAction = "agent.run.invoke"

// ElevationAction is the action of asking for a ring on loan (H-13), on the resource RingResource names. That it is allowed
// grants no ring: the supervisor decides about that.
const ElevationAction = "agent.elevation.request"

// RingResource is the id of the resource that a ring is: "ring:2".
func RingResource(r rings.Ring) string {
	if !r.Valid() {
		return ""
	}
	return fmt.Sprintf("ring:%d", r.Value())
}

const (
	toolPrefix  = "tool."
	toolSuffix  = ".invoke"
	maxToolName = 128
)

// Bounds of a request. A set of capabilities is hashed for each decision, so its size is a cost the caller can be made to
// pay; quotas leave policies room to multiply by a percentage without overflow, which would refuse.
const (
	MaxRequestJSON  = 64 << 10 // bytes
	MaxCapabilities = 256
	MaxQuota        = 1 << 53
)

// ToolAction returns the action of calling the tool name, and the name of the capability for it.
func ToolAction(name string) string { return toolPrefix + name + toolSuffix }

// ToolOf returns the name within "tool.<name>.invoke"; ok is false for any other action. The first prefix and the last
// suffix count, so that a tool named "a.invoke" can't pass for "a".
func ToolOf(action string) (name string, ok bool) {
	rest, found := strings.CutPrefix(action, toolPrefix)
	name, ends := strings.CutSuffix(rest, toolSuffix)
	return name, found && ends && CheckToolName(name) == nil
}

// ErrToolName is what a malformed tool name gives.
var ErrToolName = errors.New("malformed tool name")

// CheckToolName returns nil for what is an identifier (H-29) of at most 128 bytes without a colon.
func CheckToolName(name string) error {
	if rings.CheckAgentID(name) != nil || len(name) > maxToolName || strings.Contains(name, ":") {
		return fmt.Errorf("%.64q: %w", name, ErrToolName)
	}
	return nil
}

// Check returns nil or a *read.InvalidError with each field that can't be understood. An empty key, role or list of capabilities is
// understood: it is refused with a reason of its own.
func (r Request) Check() error {
	var ps read.Problems
	r.checkNames(&ps)
	r.checkAction(&ps)
	r.Context.check(&ps)
	return ps.Err()
}

func (r Request) checkNames(ps *read.Problems) {
	name := func(path, id string) {
		if rings.CheckAgentID(id) != nil {
			ps.Add(path, "%.64q is no identifier", id)
		}
	}
	optional := func(path, id string) {
		if id != "" {
			name(path, id)
		}
	}
	name("subject.id", r.Subject.ID)
	if t := r.Subject.Type; t != Agent && t != User {
		ps.Add("subject.type", `%.32q is neither "agent" nor "user"`, string(t))
	}
	name("team_id", r.TeamID)
	name("resource.id", r.Resource.ID)
	name("resource.team_id", r.Resource.TeamID)
	if m := r.Resource.Mode; m != Public && m != Confidential {
		ps.Add("resource.mode", `%.32q is neither "public" nor "confidential"`, string(m))
	}
	optional("key_id", r.KeyID)
	name("context.plan", r.Context.Plan)
	optional("context.role", r.Context.Role)
}

func (r Request) checkAction(ps *read.Problems) {
	category := r.Context.Tool.Category
	switch _, tool := ToolOf(r.Action); {
	case tool:
		if len(category) != 1 || category < "A" || category > "D" {
			ps.Add("context.tool.category", "%.32q is not A, B, C or D", string(category))
		}
	case r.Action != RunAction && r.Action != ElevationAction:
		ps.Add("action", "%.64q is none of %s, %s and tool.<name>.invoke", r.Action, RunAction, ElevationAction)
	case r.Context.Tool != Tool{}:
		ps.Add("context.tool", "a run is no tool, nor is an elevation")
	case r.Action == ElevationAction && !ringResource(r.Resource.ID):
		ps.Add("resource.id", "%.64q is no ring: want ring:0 to ring:3", r.Resource.ID)
	}
}

func ringResource(id string) bool {
	return slices.ContainsFunc([]rings.Ring{rings.Root, rings.Privileged, rings.Standard, rings.Sandbox}, func(r rings.Ring) bool { return RingResource(r) == id })
}

func (c Context) check(ps *read.Problems) {
	if !c.Ring.Valid() {
		ps.Add("context.ring", "%v", rings.ErrRing)
	}
	if !c.RequiredRing.Valid() {
		ps.Add("context.required_ring", "%v", rings.ErrRing)
	}
	if c.Risk < 0 || c.Risk > 100 {
		ps.Add("context.risk", "%d is not within 0 and 100", c.Risk)
	}
	if len(c.Capabilities) > MaxCapabilities {
		ps.Add("context.capabilities", "%d of them, at most %d are allowed", len(c.Capabilities), MaxCapabilities)
	} else {
		c.checkCapabilities(ps)
	}
	if c.Input != Clean && c.Input != Suspicious {
		ps.Add("context.input", `%.32q is neither "clean" nor "suspicious"`, string(c.Input))
	}
	for _, n := range []int64{c.Quota.Used, c.Quota.Limit} {
		if n < 0 || n > MaxQuota {
			ps.Add("context.quota", "%d is not within 0 and %d", n, int64(MaxQuota))
		}
	}
}

// A capability that no action can ask for is a mistake or a trick ("tool.*.invoke"): it is refused rather than passed over,
// for whoever granted it believes that it means something.
func (c Context) checkCapabilities(ps *read.Problems) {
	for _, granted := range c.Capabilities {
		if _, tool := ToolOf(granted); !tool && granted != RunAction && granted != ElevationAction {
			ps.Add("context.capabilities", "%.64q is none of %s, %s and tool.<name>.invoke", granted, RunAction, ElevationAction)
			return
		}
	}
}

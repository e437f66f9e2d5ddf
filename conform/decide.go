// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"time"

	"agentrun/internal/read"
	"agentrun/rings"
	"agentrun/rings/paths"
)

func assign(f *fields) (any, error) {
	score, consensus := f.number("eff_score"), f.bool("has_consensus")
	ring, err := rings.Assign(score, consensus)
	if err != nil {
		return nil, fault(InvalidScore, "assign: %v", err)
	}
	return map[string]rings.Ring{"ring": ring}, nil
}

func shouldDemote(f *fields) (any, error) {
	current, score, consensus := f.ring("current_ring"), f.number("eff_score"), f.bool("has_consensus")
	if !current.Valid() {
		return nil, fault(InvalidRing, "should_demote: current_ring: %v", rings.ErrRing)
	}
	return map[string]bool{"demote": rings.ShouldDemote(current, score, consensus)}, nil
}

func classify(f *fields) (any, error) {
	admin, reversibility, readOnly := f.bool("is_admin"), f.text("reversibility"), f.bool("is_read_only")
	ring, err := rings.Classify(admin, rings.Reversibility(reversibility), readOnly)
	if err != nil {
		return nil, fault(InvalidValue, "%v", err)
	}
	return map[string]rings.Ring{"required_ring": ring}, nil
}

// validity is the answer of everything that is validated field by field.
type validity struct {
	Valid  bool      `json:"valid"`
	Errors []problem `json:"errors"`
}

// problem has both, also of the value as a whole.
type problem struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

func validityOf(err error) (any, error) {
	v := validity{Valid: err == nil, Errors: []problem{}}
	if invalid, ok := errors.AsType[*read.InvalidError](err); ok {
		for _, p := range invalid.Problems {
			v.Errors = append(v.Errors, problem{p.Path, p.Message})
		}
	} else if err != nil {
		return nil, err
	}
	return v, nil
}

func validateAction(f *fields) (any, error) {
	_, err := rings.DecodeAction(f.whole())
	return validityOf(err)
}

func sessionConfig(f *fields) (any, error) {
	_, err := rings.DecodeSessionConfig(f.whole())
	return validityOf(err)
}

func check(f *fields) (any, error) {
	ring, score, consensus := f.ring("agent_ring"), f.number("eff_score"), f.bool("has_consensus")
	raw, _ := f.must("action")
	action, err := rings.DecodeAction(raw)
	if err == nil {
		return rings.Check(ring, score, consensus, action), nil
	}
	// It has no valid id, so it is denied whatever else there is. What could be read of it says which ring it would need.
	r := rings.Check(ring, score, consensus, rough(raw))
	if r.Code == rings.CodeInvalidAction {
		r.Reason = strings.Join(read.Lines(err), "; ")
	}
	return r, nil
}

// rough reads what classifies an action that isn't valid.
func rough(raw json.RawMessage) rings.Action {
	f := readFields("action", raw)
	word, _ := text(f.left["reversibility"])
	return rings.Action{
		Reversibility: rings.Reversibility(word),
		ReadOnly:      string(f.left["is_read_only"]) == "true",
		Admin:         string(f.left["is_admin"]) == "true",
	}
}

func constraints(f *fields) (any, error) {
	ring := f.ring("ring")
	return rings.ConstraintsOf(ring), nil
}

func resource(f *fields) (any, error) {
	ring, name := f.ring("ring"), f.text("resource")
	return map[string]bool{"allowed": rings.ResourceAllowed(ring, rings.Resource(name)).Allowed()}, nil
}

func identifier(f *fields) (any, error) {
	kind := f.text("kind")
	raw, _ := f.must("value")
	var valid func(string) error
	switch kind {
	case "agent_id":
		valid = rings.CheckAgentID
	case "action_id":
		valid = rings.CheckActionID
	case "session_id":
		valid = rings.CheckSessionID
	default:
		return nil, fault(InvalidValue, "identifier: kind %.64q is none of agent_id, action_id, session_id", kind)
	}
	value, isText := text(raw) // what is no string is no identifier (H-29)
	return map[string]bool{"valid": isText && valid(value) == nil}, nil
}

func pathAccess(f *fields) (any, error) {
	session, base, path := f.text("session_id"), f.text("base"), f.text("path")
	d := paths.Model{Base: base, Exists: f.texts("exists", false)}.Allowed(session, path)
	return struct {
		Allowed bool       `json:"allowed"`
		Reason  rings.Code `json:"reason"`
	}{d.Allowed(), d.Code}, nil
}

// began is when the clock of those operations stands still that have no times in their cases.
func began() time.Time { return time.Unix(0, 0).UTC() }

func elevate(f *fields) (any, error) {
	r := rings.ElevationRequest{
		Current: f.ring("current_ring"), Target: f.ring("target_ring"),
		TrustScore: f.number("trust_score"), HasConsensus: f.bool("has_consensus"),
	}
	if f.given("ttl_seconds") {
		r.TTLSeconds = f.number("ttl_seconds")
	}
	granted, d := rings.NewElevations(rings.ElevationOptions{Now: began}).Request(r)
	return struct {
		Granted bool       `json:"granted"`
		Reason  rings.Code `json:"reason"`
		TTL     float64    `json:"ttl_seconds"`
	}{d.Allowed(), d.Code, math.Max(0, granted.TTL().Seconds())}, nil
}

// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"

	"agentrun/audit"
	"agentrun/governance"
	"agentrun/rings"
	"agentrun/store"
)

// The modes of a team (M-15).
const (
	ModePublic       = "public"
	ModeConfidential = "confidential"
)

// AgentSettings are what an operator says about an agent besides its score. They lie in a bucket of their own: an agentrun
// that doesn't know them has no broker to hold to them, and still reads the scores.
type AgentSettings struct {
	Plan  string `json:"plan,omitempty"`  // of governance; empty: the operator's
	Role  string `json:"role,omitempty"`  // likewise; empty: none
	Team  string `json:"team,omitempty"`  // whose plan it is; empty: the agent's own
	Stake int64  `json:"stake,omitempty"` // raises quotas (M-19)
	Mode  string `json:"mode,omitempty"`  // public or confidential (M-15); empty: public
	// SelfElevation lets the agent have the elevations that it earns (H-13) when it asks for them itself. Else an operator is
	// asked for each.
	SelfElevation bool `json:"self_elevation,omitempty"`
	// Substitute is the agent that takes over what this one was at when it is killed (H-21); empty: that is undone.
	Substitute string `json:"substitute,omitempty"`
}

// ErrSetting is a setting that can't be.
var ErrSetting = errors.New("impossible setting")

func (s AgentSettings) check(id string, plans governance.Plans) error {
	for _, name := range []string{s.Team, s.Role, s.Substitute} {
		if name != "" && rings.CheckAgentID(name) != nil {
			return fmt.Errorf("%w: %.80q is no name", ErrSetting, name)
		}
	}
	switch {
	case s.Stake < 0 || s.Stake > governance.MaxQuota:
		return fmt.Errorf("%w: stake %d: want 0 to %d", ErrSetting, s.Stake, governance.MaxQuota)
	case s.Substitute == id:
		return fmt.Errorf("%w: an agent can't stand in for itself", ErrSetting)
	case s.Mode != "" && s.Mode != ModePublic && s.Mode != ModeConfidential:
		return fmt.Errorf("%w: mode %.80q: want public or confidential", ErrSetting, s.Mode)
	}
	_, err := plans.Grant(s.Plan, s.Role, s.Stake)
	return err
}

// subject is whose runs at once and whose day are counted together: the team's, if the agent has one, because a plan is bought
// by whoever starts the agents, and counted by agent it would grow with every name they give one. Else the agent's.
func (s AgentSettings) subject(agent string) string {
	switch {
	case s.Team != "":
		return "team:" + s.Team
	case agent != "":
		return "agent:" + agent
	default:
		return "operator"
	}
}

// SetAgent changes an agent's settings. change gets the present ones. The new ones are on disk in the audit before they hold;
// runs that live keep theirs, but for SelfElevation, which is looked up whenever it is needed. by is the operator.
func (h *Hypervisor) SetAgent(ctx context.Context, id, by string, change func(*AgentSettings)) (now Agent, err error) {
	if err := rings.CheckAgentID(id); err != nil {
		return Agent{}, err
	}
	plans, err := governance.Load(h.opt.Plans)
	if err != nil {
		return Agent{}, err
	}
	err = h.update(ctx, func(tx *store.Tx) error {
		if now, err = agent(tx, id); err != nil {
			return err
		}
		s := now.AgentSettings
		change(&s)
		if err := s.check(id, plans); err != nil {
			return err
		}
		now.AgentSettings = s
		r := &audit.AgentSettings{
			AgentID: id, By: claimedBy(by), Mode: s.Mode, Plan: s.Plan, Role: s.Role, SelfElevation: s.SelfElevation, Stake: s.Stake, Substitute: s.Substitute, Team: s.Team,
		}
		if err := h.record("", true, r); err != nil {
			return err
		}
		return store.PutJSON(tx.Bucket(settingsBucket), id, s)
	})
	if err != nil {
		return Agent{}, fmt.Errorf("settings of agent %.256s: %w", id, err)
	}
	return now, nil
}

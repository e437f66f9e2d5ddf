// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

	"github.com/urfave/cli/v2"

	"agentrun/profiles"
	"agentrun/runtime"
	"agentrun/safetyloop"
	"agentrun/supervisor"
)

// safetyFlags are about the execution safety loop of a run (S-15).
func safetyFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "safety", Usage: "the run's safety loop: `enforcing|monitoring|logging|disabled` (default: the profile's, then " + safetyloop.EnvMode + ", then disabled)"},
		&cli.BoolFlag{Name: "require-intent", Usage: "refuse tool calls that no approved step of the agent names; with --safety enforcing or monitoring"},
	}
}

// safetySpec has flags and environment speak to the profile, in the order of S-14.
func safetySpec(by *caller, r *supervisor.Request, p *profiles.Safety) (bad []runtime.Problem) {
	problem := func(flag, message string) { bad = append(bad, runtime.Problem{Field: flag, Message: message}) }
	why := func(s string) {
		if p.Why == "" {
			p.Why = s
		}
	}
	switch {
	case r.Safety != nil:
		p.Mode = *r.Safety
		if _, err := safetyloop.ParseMode(string(p.Mode)); err != nil {
			problem("--safety", err.Error())
		}
		why("--safety")
	case p.Mode == "" && !r.NoGateway:
		mode, err := safetyloop.ModeOf(by.lookupEnv, safetyloop.Disabled)
		if err != nil {
			problem("the caller's environment", err.Error())
		}
		if err == nil && mode != safetyloop.Disabled {
			p.Mode = profiles.SafetyMode(mode.String())
			why(safetyloop.EnvMode)
		}
	}
	if r.RequireIntent != nil {
		p.RequireIntent = *r.RequireIntent
	}
	if p.RequireIntent && !slices.Contains([]profiles.SafetyMode{profiles.SafetyEnforcing, profiles.SafetyMonitoring}, p.Mode) {
		problem("--require-intent", "no step is approved that a call could match: want --safety enforcing or monitoring, or a profile that says so")
	}
	if r.NoGateway && (p.On() || r.RequireIntent != nil && *r.RequireIntent) {
		problem("--no-gateway", "the safety loop is reached by the tool proxy, and there would be none: want --safety disabled beside it")
	}
	return bad
}

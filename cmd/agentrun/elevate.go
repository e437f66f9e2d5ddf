// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/profiles"
	"agentrun/rings"
)

// maxReason is control's bound.
const maxReason = 1024

func (l *liveVerbs) elevate() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "elevate",
		Usage:     "lend a run a ring for a while",
		ArgsUsage: "REF",
		Description: `The agent's score and consensus decide, as they are now: ring 2 needs 0.50, ring 1 needs 0.85 and consensus. It is on record before
it counts, and ends by itself: at its time, with the run, at a revoke, in quarantine, or when the score no longer earns it.

   agentrun elevate planner --to 2 --ttl 60s --reason "apply the patch of ticket 81"
   agentrun elevate planner --to 2 --reason x --dry-run

Exit code: 0; 1 refused; 2 usage.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "ring `2|1`"},
			&cli.StringFlag{Name: "ttl", Usage: "how long, `1s–3600s`", DefaultText: "300s"},
			&cli.StringFlag{Name: "reason", Usage: "`WHY`, for the audit"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only say what the decision would be"},
			jsonFlag(),
		},
		Action: l.elevateAction,
	})
}

func (l *liveVerbs) elevateAction(c *cli.Context) error {
	req, err := elevation(c)
	if err != nil {
		return err
	}
	doing := "elevate %s to " + req.Target.String()
	r, e, err := one(l, c, doing, func(ctx context.Context, r liveRun) (control.Elevation, error) {
		return r.by.Elevate(ctx, r.ID, req, operatorName())
	})
	if err != nil {
		return err
	}
	left := leftText(e.ExpiresAt.Sub(e.GrantedAt))
	if req.DryRun {
		return printResult(c, e, "%s would be in %s for %s\n", r.label(), e.Target, left)
	}
	return printResult(c, e, "%s is in %s until %s (%s): elevation %s\n",
		r.label(), e.Target, e.ExpiresAt.UTC(), left, e.ID)
}

func elevation(c *cli.Context) (control.ElevateRequest, error) {
	const example = `agentrun elevate REF --to 2 --ttl 60s --reason "what for"`
	req := control.ElevateRequest{Reason: c.String("reason"), DryRun: c.Bool("dry-run")}
	switch n, err := strconv.Atoi(c.String("to")); {
	case c.String("to") == "":
		return req, usagef(example, "--to is missing: which ring?")
	case err == nil && n == 0:
		return req, usagef(example, "--to 0: ring 0 is never a process's (H-12)")
	case err != nil || n < 1 || n > 2:
		return req, usagef(example, "--to %.64q: a run can be elevated to ring 2 or 1", c.String("to"))
	default:
		req.Target, _ = rings.RingOf(n)
	}
	if c.IsSet("ttl") {
		ttl, err := profiles.ParseDuration(c.String("ttl"))
		if err != nil {
			return req, usagef(example, "--ttl: %w", err)
		}
		req.TTL = time.Duration(ttl)
		if req.TTL < time.Second || req.TTL > rings.MaxElevation {
			return req, usagef(example, "--ttl %v is outside the range 1s to 3600s", ttl)
		}
	}
	return req, checkReason("--reason", req.Reason, example)
}

// checkReason looks at what an operator writes for others to read.
func checkReason(flag, text, example string) error {
	switch {
	case text == "":
		return usagef(example, "%s is missing: it is for the audit, and whoever reads it", flag)
	case len(text) > maxReason || !utf8.ValidString(text):
		return usagef(example, "%s: want at most %d bytes of UTF-8 text", flag, maxReason)
	}
	return nil
}

func (l *liveVerbs) revoke() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "revoke",
		Usage:     "end a run's elevation now",
		ArgsUsage: "REF",
		Description: `When it returns, the run is back in its own ring.

   agentrun revoke planner
   agentrun revoke planner --id 4qk2m7x1

Exit code: 0; 1 not done, or there is no such elevation; 2 usage.`,
		Flags: []cli.Flag{&cli.StringFlag{Name: "id", Usage: "only if this is its elevation's `ID`"}, jsonFlag()},
		Action: func(c *cli.Context) error {
			if c.IsSet("id") && c.String("id") == "" {
				return usagef("leave the flag out to end whichever there is", "--id is empty")
			}
			const doing, did = "revoke the elevation of", "has no elevation any more"
			return l.each(c, 1, doing, did, func(ctx context.Context, r liveRun) error {
				return r.by.Revoke(ctx, r.ID, c.String("id"), operatorName())
			})
		},
	})
}

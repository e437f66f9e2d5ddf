// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"agentrun/governance"
	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/verb"
)

func usageCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "usage",
		Usage: "what agents used today, and what their plans leave",

		HideHelpCommand: true,
		Description: `A day is counted in UTC, and by team for agents that have one. What running agents have borrowed counts as used until they end.

   agentrun usage
   agentrun usage --agent planner-1 --json`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "agent", Usage: "`ID` of one agent (default: all, and the operator's own runs)"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON; amounts in millionths, -1 is unlimited"},
		},
		Action: g.onNode(usageAction),
	}
}

func usageAction(c *cli.Context, h *hypervisor.Hypervisor, _ []string) error {
	usage, err := h.Usage(c.Context, c.String("agent"))
	if err != nil {
		return planHint(err)
	}
	const heads = "AGENT\tCOUNTED AS\tPLAN\tSTAKE\tRUNS\tCOST\tOF\tTOKENS\tOF\tDAY"
	return printList(c, usage, heads, usage, func(u hypervisor.AgentUsage) []any {
		return []any{
			orDash(u.Agent), u.Subject, u.Plan, "×" + u.Multiplier, quota(u.Parallel), governance.FormatAmount(u.Cost),
			governance.FormatAmount(u.CostPerDay), u.Tokens, quota(u.TokensPerDay), u.Day,
		}
	})
}

func quota(n int64) string {
	if n == governance.Unlimited {
		return "unlimited"
	}
	return strconv.FormatInt(n, 10)
}

// agentSetCommand belongs to agent; what it sets is what the plans are about.
func agentSetCommand(g *global) *cli.Command {
	return &cli.Command{
		Name: "set", ArgsUsage: "ID",
		Usage: "set an agent's plan, role, team, stake, mode, substitute and whether it may elevate itself",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "plan", Usage: "`NAME` of a plan: freemium, casual, premium, platformium, or one of plans.yaml; empty: none"},
			&cli.StringFlag{Name: "role", Usage: "`NAME` of a role, which narrows the plan; empty: none"},
			&cli.StringFlag{Name: "team", Usage: "`NAME` of the team whose plan it is; empty: the agent's own"},
			&cli.Int64Flag{Name: "stake", Usage: "`N`: quotas are raised at 1000, 5000 and 20000"},
			&cli.StringFlag{Name: "mode", Usage: "`public|confidential`: whether the agent gets plaintext"},
			&cli.StringFlag{Name: "substitute", Usage: "`AGENT` that takes over the saga steps it was at when it is killed; empty: none, they are undone"},
			&cli.BoolFlag{Name: "self-elevation", Usage: "let it have the elevations that its score earns when it asks itself (=false: an operator is asked for each)"},
			jsonFlag(),
		},
		Action: verb.Action(g.agentSet),
	}
}

func (g *global) agentSet(c *cli.Context, a []string) error {
	settings := []string{"plan", "role", "team", "stake", "mode", "substitute", "self-elevation"}
	if !slices.ContainsFunc(settings, c.IsSet) {
		return hinted.New(errors.New("nothing to set"), "agentrun agent set --plan casual "+a[0])
	}
	return g.node(func(h *hypervisor.Hypervisor) error {
		now, err := h.SetAgent(c.Context, a[0], operatorName(), func(s *hypervisor.AgentSettings) {
			for flag, field := range map[string]*string{"plan": &s.Plan, "role": &s.Role, "team": &s.Team, "mode": &s.Mode, "substitute": &s.Substitute} {
				if c.IsSet(flag) {
					*field = c.String(flag)
				}
			}
			if c.IsSet("stake") {
				s.Stake = c.Int64("stake")
			}
			if c.IsSet("self-elevation") {
				s.SelfElevation = c.Bool("self-elevation")
			}
		})
		if err != nil {
			return planHint(err)
		}
		return printAgent(c, now)
	})
}

func planHint(err error) error {
	switch {
	case errors.Is(err, governance.ErrPlan), errors.Is(err, governance.ErrRole):
		return hinted.New(err, "plans are freemium, casual, premium, platformium, operator, and those of /etc/agentrun/plans.yaml")
	case errors.Is(err, hypervisor.ErrSetting):
		return hinted.New(err, "agentrun agent set --help")
	}
	return err
}

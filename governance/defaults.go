// SPDX-License-Identifier: Apache-2.0

package governance

import (
	"time"
)

// Builtin returns what plans.yaml says. It is written out here because parsing YAML takes longer than the rest of an
// admission; a test holds the two in step. The caller may change what it gets.
func Builtin() Plans {
	all := Tools{Allow: []string{"*"}}
	plan := func(why string, parallel int64, l Limits) Plan {
		return Plan{Why: why, Parallel: parallel, Limits: l, Tools: all}
	}
	return Plans{
		Plans: map[string]Plan{
			Freemium: plan("one run at a time, to try it; an upset agent costs next to nothing", 1, Limits{
				Time: 60 * time.Second, CostPerRun: 5_000, CostPerDay: 50_000, TokensPerRun: 20_000, TokensPerDay: 100_000, Steps: 20,
			}),
			Casual: plan("a person who works with a few agents in turn", 3, Limits{
				Time: 120 * time.Second, CostPerRun: 20_000, CostPerDay: 500_000, TokensPerRun: 100_000, TokensPerDay: 1_000_000, Steps: 50,
			}),
			Premium: plan("a team whose agents work side by side", 10, Limits{
				Time: 300 * time.Second, CostPerRun: 100_000, CostPerDay: 5_000_000, TokensPerRun: 500_000, TokensPerDay: 10_000_000, Steps: 200,
			}),
			Platformium: plan("a product that runs agents for its own users", 20, Limits{
				Time: 300 * time.Second, CostPerRun: 500_000, CostPerDay: 50_000_000, TokensPerRun: 2_000_000, TokensPerDay: 100_000_000, Steps: 1000,
			}),
			Operator: plan("runs without a plan are the operator's own, who pays for them; the ring limits steps and time", Unlimited, unlimited()),
		},
		Roles: map[string]Role{
			"reader": {Why: "looks things up and changes nothing outside", Limits: unlimited(),
				Tools: &Tools{Allow: []string{"*"}, Deny: []string{"webhook.*", "browser.*", "system.*", "task.*"}}},
		},
	}
}

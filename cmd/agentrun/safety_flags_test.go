// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"agentrun/profiles"
)

// The flag goes before the profile, the profile before the environment; a word that is no mode is an error from wherever it comes, and
// what can't hold is refused by the name of what asked for it.
func TestS14WhoSetsTheModeOfARun(t *testing.T) {
	for _, tt := range []struct {
		args, env string
		profile   profiles.Safety
		want      string // mode, why and require_intent, or the problem's field
	}{
		{"", "", profiles.Safety{}, "  false"},
		{"", "monitoring", profiles.Safety{}, "monitoring MCPAQL_SAFETY_LOOP false"},
		{"", "disabled", profiles.Safety{Mode: "enforcing", Why: "p"}, "enforcing p false"},
		{"--safety disabled", "enforcing", profiles.Safety{Mode: "enforcing", Why: "p"}, "disabled p false"},
		{"--safety enforcing --require-intent", "off", profiles.Safety{}, "enforcing --safety true"},
		{"--require-intent=false", "", profiles.Safety{Mode: "enforcing", Why: "p", RequireIntent: true}, "enforcing p false"},
		{"", "off", profiles.Safety{}, "the caller's environment"},
		{"--safety off", "", profiles.Safety{}, "--safety"},
		{"--require-intent", "", profiles.Safety{}, "--require-intent"},
		{"--require-intent --safety logging", "", profiles.Safety{}, "--require-intent"},
		{"--no-gateway --safety enforcing", "", profiles.Safety{}, "--no-gateway"},
		{"--no-gateway", "", profiles.Safety{Mode: "enforcing", Why: "p"}, "--no-gateway"},
		{"--no-gateway --safety disabled", "", profiles.Safety{Mode: "enforcing", Why: "p"}, "disabled p false"},
		{"--no-gateway", "enforcing", profiles.Safety{}, "  false"},
	} {
		t.Setenv("MCPAQL_SAFETY_LOOP", tt.env)
		if tt.env == "" {
			os.Unsetenv("MCPAQL_SAFETY_LOOP")
		}
		p, got := tt.profile, ""
		app := &cli.App{Flags: append(safetyFlags(), &cli.BoolFlag{Name: "no-gateway"}), Action: func(c *cli.Context) error {
			by := &caller{}
			bad := safetySpec(by, requestOf(by, c), &p)
			got = fmt.Sprint(p.Mode, " ", p.Why, " ", p.RequireIntent)
			if len(bad) > 0 {
				got = bad[0].Field
			}
			return nil
		}}
		if err := app.Run(append([]string{"agentrun"}, strings.Fields(tt.args)...)); err != nil {
			t.Fatal(err)
		}
		if got != tt.want {
			t.Errorf("%q, environment %q, profile %+v: got %q, want %q", tt.args, tt.env, tt.profile, got, tt.want)
		}
	}
}

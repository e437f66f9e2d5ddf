// SPDX-License-Identifier: Apache-2.0

package policycmd

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"
)

func TestArgs(t *testing.T) {
	for _, tt := range []struct{ in, want []string }{
		{[]string{"check", "--json", "x"}, []string{"p", "policy", "check", "--json", "--", "x"}},
		{[]string{"check", "--json=false", "--", "--json"}, []string{"p", "policy", "check", "--json=false", "--", "--json"}},
		{[]string{"explain", "--request", "-", "--policy", ""}, []string{"p", "policy", "explain", "--policy=", "--request=-", "--"}},
		{[]string{"test", "a", "b"}, []string{"p", "policy", "test", "--", "a", "b"}},
		{[]string{"check", "h"}, []string{"p", "policy", "check", "--", "h"}},
		{[]string{"schema"}, []string{"p", "policy", "schema", "--"}},
	} {
		var got []string
		app := &cli.App{Name: "agentrun", Commands: []*cli.Command{New(All(func(c *cli.Context) error { got = Args("p", c); return nil }), nil)}}
		if err := app.Run(append([]string{"agentrun", "policy"}, tt.in...)); err != nil {
			t.Errorf("%v: %v", tt.in, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%v: -want +got:\n%s", tt.in, diff)
		}
	}
}

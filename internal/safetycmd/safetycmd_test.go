// SPDX-License-Identifier: Apache-2.0

package safetycmd_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"agentrun/internal/safetycmd"
)

// What one program was asked for is what the other one gets, flag by flag.
func TestArgumentsArePassedOn(t *testing.T) {
	var got []string
	common := safetycmd.Common{StateDir: "/s", RunDir: "/r", LogLevel: "info", LogFormat: "json"}
	record := func(c *cli.Context) error { got = safetycmd.Args(common, c); return nil }
	usage := func(_ *cli.Context, err error, _ bool) error { return errors.Join(errors.New("usage"), err) }
	app := func(do cli.ActionFunc) *cli.App {
		return &cli.App{Commands: []*cli.Command{safetycmd.New(safetycmd.All(do), usage)}, DisableSliceFlagSeparator: true}
	}
	typed := []string{"agentrun", "safety", "serve", "--stdio", "--policy", "a b.yaml", "--allow-host", "x,y", "--allow-host", "z", "--max-steps", "7", "--idle", "5m"}
	if err := app(record).Run(typed); err != nil {
		t.Fatal(err)
	}
	want := []string{safetycmd.Program, "--state-dir=/s", "--run-dir=/r", "--log-level=info", "--log-format=json", "safety", "serve",
		"--allow-host=x,y", "--allow-host=z", "--idle=5m0s", "--max-steps=7", "--policy=a b.yaml", "--stdio", "--"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	first := got
	if err := app(record).Run(append([]string{"agentrun"}, first[5:]...)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(first, got); d != "" {
		t.Errorf("passed on twice (-want +got):\n%s", d)
	}
	if err := app(record).Run([]string{"agentrun", "safety", "serve", "--nonsense"}); err == nil {
		t.Error("an unknown flag was taken")
	}
}

// SPDX-License-Identifier: Apache-2.0

// Command agentrun-safety is the execution safety loop as a program of its own: `agentrun safety` hands over to it. It serves MCP
// clients that needn't know of sandboxes, and operators over its control socket.
package main

import (
	"context"
	"os"

	"github.com/urfave/cli/v2"

	"agentrun/internal/safetycmd"
	"agentrun/internal/verb"
	"agentrun/safetyloop"
	"agentrun/safetyloop/policy"
)

// version is set by the Makefile.
var version = "dev"

func main() { os.Exit(run(context.Background(), os.Args)) }

func run(ctx context.Context, args []string) int {
	if len(args) > 1 && args[1] == safetyloop.ShowCode {
		return report(os.Stderr, showCode(ctx, args[1:]))
	}
	s := &settings{}
	app := &cli.App{
		Name: safetycmd.Program, HelpName: "agentrun", Usage: "it is started by agentrun safety", Version: version,
		// Standard output is the client's from the first byte on.
		Writer: os.Stderr, ErrWriter: os.Stderr,
		Flags: s.common.Flags(),
		Commands: []*cli.Command{safetycmd.New(safetycmd.Actions{
			Serve: verb.Action(s.serve), Check: verb.Action(check), Test: verb.Action(test),
			Schema: verb.Action(schema), Token: verb.Action(token),
		}, usageError)},
		HideHelpCommand:           true,
		DisableSliceFlagSeparator: true,
		ExitErrHandler:            func(*cli.Context, error) {},
		OnUsageError:              usageError,
	}
	return report(os.Stderr, app.RunContext(ctx, args))
}

func schema(*cli.Context, []string) error {
	_, err := os.Stdout.Write(policy.Schema())
	return err
}

// settings are those that all subcommands share.
type settings struct{ common safetycmd.Common }

// SPDX-License-Identifier: Apache-2.0

// Package safetycmd is what `agentrun safety` looks like: its subcommands, flags and help. Two programs need it: agentrun,
// which hands over, and agentrun-safety, which does the work. One description can't come apart.
//
//	command := safetycmd.New(safetycmd.Actions{Serve: serve, …}, usageError)
//	err := unix.Exec(path, safetycmd.Args(common, c), environ)
//
// It decides nothing and has no errors. What it does not protect against: it passes on what was typed, as it was typed.
package safetycmd

import (
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/internal/verb"
)

// Program does the work.
const Program = "agentrun-safety"

// Actions do the work of the subcommands. All must be set.
type Actions struct {
	Serve, Check, Test, Schema, Token cli.ActionFunc
}

// All are Actions that do the same.
func All(do cli.ActionFunc) Actions { return Actions{do, do, do, do, do} }

// Common are the global flags that Program needs.
type Common struct{ StateDir, RunDir, LogLevel, LogFormat string }

// Flags of Program itself, before "safety".
func (o *Common) Flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "state-dir", Destination: &o.StateDir, Required: true},
		&cli.StringFlag{Name: "run-dir", Destination: &o.RunDir, Required: true},
		&cli.StringFlag{Name: "log-level", Destination: &o.LogLevel, Value: "warn"},
		&cli.StringFlag{Name: "log-format", Destination: &o.LogFormat, Value: "text"},
	}
}

// New gives the command; usage is told of flags that can't be parsed.
func New(do Actions, usage cli.OnUsageErrorFunc) *cli.Command {
	return verb.NoWords(&cli.Command{
		Name:  "safety",
		Usage: "the execution safety loop, for any MCP client (docs/safety-dongle.md)",
		Description: `Agents report what they are about to do and are told whether they may. Codes go to operators alone: agentrun challenges.

   agentrun safety serve --stdio --policy policy.yaml
   agentrun safety serve --http 127.0.0.1:7077 --tokens tokens.yaml --policy policy.yaml
   agentrun safety check --policy policy.yaml "rm -rf /srv/www"
   agentrun safety test --policy policy.yaml cases.yaml`,
		Subcommands: []*cli.Command{
			{Name: "serve", Usage: "serve MCP clients", OnUsageError: usage, Flags: serveFlags(), Action: do.Serve,
				Description: `   agentrun safety serve --stdio --policy policy.yaml
   agentrun safety serve --http 127.0.0.1:7077 --tokens tokens.yaml --show-codes-on /dev/tty2

Ends with 0 when its client hangs up, or on SIGTERM, SIGINT and SIGHUP.`},
			{Name: "check", Usage: "explain the verdict about a hint, stage by stage", ArgsUsage: "HINT", OnUsageError: usage,
				Flags: append(judgingFlags(), asJSON()), Action: do.Check},
			{Name: "test", Usage: "judge hints and compare; 1 if a judgement isn't the one a case wants", ArgsUsage: "FILE", OnUsageError: usage,
				Flags: append(judgingFlags(), asJSON()), Action: do.Test},
			{Name: "schema", Usage: "the JSON Schema of policy files", OnUsageError: usage, Action: do.Schema},
			{Name: "token", Usage: "make a token for --tokens: the token on stdout, its line for the file on stderr", ArgsUsage: "NAME", OnUsageError: usage,
				Flags: []cli.Flag{&cli.StringFlag{Name: "role", Usage: "`agent|operator`; operators may confirm what agents wait for", Value: "agent"}}, Action: do.Token},
		},
	})
}

func asJSON() cli.Flag { return &cli.BoolFlag{Name: "json", Usage: "print JSON"} }

// judgingFlags are what a verdict depends on.
func judgingFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "policy", Usage: "policy `FILE`, JSON or YAML (default: no patterns, the score alone)"},
		&cli.StringFlag{Name: "tolerance", Usage: "`conservative|moderate|aggressive`: a score above 25, 50, 75 pauses", DefaultText: "the policy's, else moderate"},
		&cli.StringFlag{Name: "mode", Usage: "`enforcing|monitoring|logging|disabled`", DefaultText: "MCPAQL_SAFETY_LOOP, else the policy's, else enforcing"},
		&cli.StringFlag{Name: "workspace", Usage: "`DIR` outside of which paths weigh more"},
	}
}

func serveFlags() []cli.Flag {
	return append(append(judgingFlags(), channelFlags()...),
		&cli.BoolFlag{Name: "stdio", Usage: "serve one client on stdin and stdout"},
		&cli.StringFlag{Name: "http", Usage: "serve clients over streamable HTTP at `ADDRESS:PORT`, path /mcp"},
		&cli.StringFlag{Name: "tokens", Usage: "`FILE` of bearer tokens, mode 0600; required where --http isn't a loopback address"},
		&cli.StringSliceFlag{Name: "allow-host", Usage: "`NAME` that a request's Host may have beside localhost and addresses"},
		&cli.StringSliceFlag{Name: "allow-origin", Usage: "`ORIGIN` that a browser's request may have, as https://app.example"},
		&cli.DurationFlag{Name: "idle", Usage: "end a session after `TIME` of silence", Value: 30 * time.Minute},
		&cli.IntFlag{Name: "max-steps", Usage: "pause after `N` steps without a human, 1 to 10000", DefaultText: "the policy's, else 20"},
		&cli.StringFlag{Name: "confirm", Usage: "who confirms starts and ends: `server|client|policy`", DefaultText: "the policy's, else server"},
		&cli.BoolFlag{Name: "peers-confirm", Usage: "let agents with tokens of their own confirm for each other; else operators alone"},
		&cli.StringFlag{Name: "endpoints", Usage: "tools: `crude|single`, three or one", Value: "crude"},
		&cli.StringFlag{Name: "principal", Usage: "`NAME` of callers without a token; blocks are kept under it", Value: "local"},
		&cli.StringFlag{Name: "name", Usage: "`NAME` of the control socket: safety-NAME", DefaultText: "a random one"},
	)
}

// Args are the arguments with which Program does what c was asked to, c being the context of a subcommand's action.
func Args(o Common, c *cli.Context) []string {
	global := []string{
		Program, "--state-dir=" + o.StateDir, "--run-dir=" + o.RunDir, "--log-level=" + o.LogLevel,
		"--log-format=" + o.LogFormat, "safety",
	}
	return append(global, verb.Passed(c)...)
}

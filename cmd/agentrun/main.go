// SPDX-License-Identifier: Apache-2.0

// Command agentrun runs untrusted agents in privilege rings.
package main

import (
	"cmp"
	"context"
	"os"
	goruntime "runtime"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/internal/rootless"
	"agentrun/internal/thread"
	"agentrun/internal/verb"
	"agentrun/supervisor"
)

// version is set by the Makefile.
var version = "dev"

// The main goroutine keeps the main thread for itself: Go can't end it, and some threads have to end with their goroutine, for their
// parent-death signal or their priority.
func init() { goruntime.LockOSThread() }

func main() {
	if err := arrive(); err != nil {
		os.Exit(report(os.Stderr, err))
	}
	code := run(context.Background(), os.Args)
	if err := rootless.Left(); err != nil {
		code = cmp.Or(code, report(os.Stderr, err))
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	by := supervisor.OwnCaller()
	if len(args) > 0 && args[len(args)-1] == completeFlag && completeFlags(by.Stdout, newApp(), args) {
		return 0
	}
	g := &global{caller: by, runs: len(args) > 1 && args[1] == "exec", unheaded: !mayAskForHelp(args)}
	g.kills = g.unheaded && len(args) > 1 && args[1] == "kill"
	if g.runs {
		_ = thread.EaseMonitor()
		_ = thread.QuietChildren()
	}
	app := g.app()
	err := app.RunContext(ctx, flagsFirst(app, args))
	return report(by.Stderr, cmp.Or(err, g.unknown))
}

func newApp() *cli.App { return (&global{caller: supervisor.OwnCaller()}).app() }

func (g *global) app() *cli.App {
	commands := g.commands()
	complete(commands)
	return &cli.App{
		Compiled: time.Unix(1, 0), // or the library looks at our file, for a time that nothing prints
		Name:     "agentrun",
		Usage:    "run untrusted agents in privilege rings",
		Version:  version,
		Description: `Starts a program in a sandbox whose walls follow from its ring, and removes every trace of it.

   agentrun exec -- agent.py                         ring 3: no network, no subprocesses, read-only files
   agentrun exec --ring 2 --workspace . -- make test  may write the workspace and start programs
   agentrun host claude                              a coding agent in this folder; its key stays outside
   agentrun plan --ring 1 -- bash                    what would be applied, without starting anything
   agentrun doctor                                   what this host offers, and what is missing`,
		Reader: g.caller.Stdin, Writer: g.caller.Stdout, ErrWriter: g.caller.Stderr,
		Flags:                  quick(g.flags()),
		Before:                 g.load,
		Commands:               commands,
		EnableBashCompletion:   true,
		HideHelpCommand:        true,
		UseShortOptionHandling: true,
		// Paths may hold commas; a flag is given once for each value.
		DisableSliceFlagSeparator: true,
		ExitErrHandler:            func(*cli.Context, error) {}, // report decides about output and exit code
		OnUsageError:              usageError,
		CommandNotFound: func(c *cli.Context, name string) {
			g.unknown = unknownCommand(c, name) // the library has no way to return it
		},
	}
}

// mayBeEmpty are the commands whose flags may be: agent set takes away by it, and of those with the flags of exec a request tells each.
// Of a flag that these have twice the last counts, but for --policy.
var mayBeEmpty = map[string]bool{"set": true, "exec": true, "plan": true, "create": true}

// complete fills in what holds for every command. Those about live runs have said already what they do.
func complete(commands []*cli.Command) {
	for _, c := range commands {
		if c.OnUsageError == nil {
			c.OnUsageError = usageError
		}
		if c.Action != nil && !mayBeEmpty[c.Name] {
			c.Action = verb.Filled(c.Flags, c.OnUsageError, c.Action)
			c.Flags = once(c.Flags)
		}
		verb.NoWords(c) // an agent, a sandbox or a program may be called h or help
		complete(c.Subcommands)
	}
}

// commands are all there are, or the one of a run or a kill, which the others would only slow down; a daemon carries out but a run's for its
// callers.
func (g *global) commands() []*cli.Command {
	if g.creates {
		return []*cli.Command{createCommand(g)}
	}
	if g.served || g.runs {
		return []*cli.Command{execCommand(g)}
	}
	if g.kills {
		return []*cli.Command{liveOf(g).kill()}
	}
	return append([]*cli.Command{
		execCommand(g), hostCommand(g), homeCommand(g), imageCommand(g), serveCommand(g), planCommand(g), profileCommand(g), doctorCommand(g), gcCommand(g),
		auditCommand(g), historyCommand(g), agentCommand(g), sessionCommand(g), approvalsCommand(g), usageCommand(g),
		operatorCommand(g), keyCommand(g), metricsCommand(g), sagaCommand(g), policyCommand(), safetyCommand(g), challengesCommand(g), undoCommand(g),
		conformCommand(), completionCommand(),
	}, slices.Concat(changesCommands(g), sandboxCommands(g), liveOf(g).commands())...)
}

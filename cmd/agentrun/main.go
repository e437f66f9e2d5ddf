// SPDX-License-Identifier: Apache-2.0

// Command agentrun runs untrusted agents in privilege rings.
package main

import (
	"cmp"
	"context"
	"os"
	goruntime "runtime"
	"time"

	"github.com/moby/sys/capability"
	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // makes the namespaces before Go starts threads
	"github.com/urfave/cli/v2"

	"agentrun/internal/rootless"
	"agentrun/runtime"
	"agentrun/supervisor"
)

// version is set by the Makefile.
var version = "dev"

// libcontainer starts this binary a second time, as the first process in the new namespaces, with
// "init" and its sockets in the environment. That has to come before anything else of ours; without
// those sockets "init" is just an unknown command.
func init() {
	if len(os.Args) > 1 && os.Args[1] == "init" && os.Getenv("_LIBCONTAINER_INITPIPE") != "" {
		runtime.DieWithSupervisor()
		// libcontainer reads /proc/sys/kernel/cap_last_cap when it drops capabilities, and by then it sees
		// the sandbox's /proc, which has no sys (subset=pid). The library keeps what it read once.
		_, _ = capability.LastCap()
		libcontainer.Init()
	}
}

// The main goroutine keeps the main thread for itself. libcontainer joins the sandbox's mount namespace on
// a thread it throws away, but Go can't throw the main thread away: a goroutine of that kind that
// happened to run on it would leave /proc/self pointing into the sandbox for as long as we live. Seen
// once in some hundred starts. Our own such threads come from internal/thread.
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
	if completeFlags(by.Stdout, newApp(), args) {
		return 0
	}
	g := &global{caller: by}
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

// complete fills in what holds for every command. Those about live runs have said already what they do.
func complete(commands []*cli.Command) {
	for _, c := range commands {
		if c.OnUsageError == nil {
			c.OnUsageError = usageError
		}
		c.HideHelpCommand = c.HideHelpCommand || len(c.Subcommands) > 0
		complete(c.Subcommands)
	}
}

// commands are all there are; a daemon carries out but one for its callers.
func (g *global) commands() []*cli.Command {
	if g.served {
		return []*cli.Command{execCommand(g)}
	}
	return append([]*cli.Command{
		execCommand(g), hostCommand(g), homeCommand(g), serveCommand(g), planCommand(g), profileCommand(g), doctorCommand(g), gcCommand(g),
		auditCommand(g), historyCommand(g), agentCommand(g), sessionCommand(g), approvalsCommand(g), usageCommand(g),
		operatorCommand(g), keyCommand(g), metricsCommand(g), sagaCommand(g), policyCommand(), safetyCommand(g), challengesCommand(g), undoCommand(g),
		conformCommand(), completionCommand(),
	}, append(changesCommands(g), liveOf(g).commands()...)...)
}

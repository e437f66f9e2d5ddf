// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/control"
	"agentrun/internal/hinted"
	"agentrun/profiles"
	"agentrun/runtime"
)

// joinFlags are those of exec that mean something with --in: the run has all else already.
var joinFlags = []string{"in", "t", "tty", "d", "detach", "i", "interactive", "env", "cwd", "timeout", "memory", "cpus", "pids", "no-daemon", envFD}

// join is exec --in: a further command in a live run.
func (l *liveVerbs) join(c *cli.Context) error {
	const example = "agentrun exec --in REF [-t] [-d] [--env K=V] [--cwd DIR] [--timeout T] [--memory SIZE] [--cpus N] [--pids N] -- COMMAND [ARG…]"
	for _, name := range c.LocalFlagNames() {
		if !slices.Contains(joinFlags, name) {
			return usagef(example, "--%s: with --in the run has its own", name)
		}
	}
	env, err := passedEnv(c)
	if err != nil {
		return err
	}
	ask := control.ExecRequest{
		Command: c.Args().Slice(), Env: append(c.StringSlice("env"), env...), Cwd: c.String("cwd"), TTY: c.Bool("t"), Detach: c.Bool("d"),
	}
	switch {
	case c.String("in") == "" || len(c.String("in")) > maxRef:
		return usagef(example, "--in %.64q names no run: want an id, the beginning of one, or a name", c.String("in"))
	case len(ask.Command) == 0:
		return usagef(example, "which command? It stands behind --")
	case ask.TTY && ask.Detach:
		return usagef(example, "-t and -d: a detached command has no terminal")
	}
	if c.IsSet("timeout") {
		limit, err := profiles.ParseDuration(c.String("timeout"))
		if err != nil || limit <= 0 {
			return usagef(example, "--timeout %.64q: want a time above 0", c.String("timeout"))
		}
		ask.Timeout = time.Duration(limit)
	}
	if c.IsSet("cpus") || c.IsSet("memory") || c.IsSet("pids") {
		if ask.Limits, err = newLimits(c); err != nil {
			return err
		}
	}
	j := joining{l: l, ref: c.String("in"), ask: ask, in: strings.NewReader("")}
	if ask.TTY || c.Bool("i") || !isTerminal(os.Stdin) {
		j.in = os.Stdin
	}
	return j.run(c.Context)
}

func (l *liveVerbs) shell() *cli.Command {
	return l.agentsVerb(&cli.Command{
		Name:      "shell",
		Usage:     "open a shell in a live run",
		ArgsUsage: "REF",
		Description: `The same as exec --in REF -t with bash, or sh where there is none. It has the run's walls, ring and limits: in ring 3 it
starts no programs.

   agentrun shell planner

Exit code: the shell's; 125 if agentrun can't tell, or the command line is wrong.`,
		Action: func(c *cli.Context) error {
			a, err := refs(c, 1, 1)
			if err != nil {
				return err
			}
			j := joining{l: l, ref: a[0], in: os.Stdin, ask: control.ExecRequest{TTY: true}}
			for _, shell := range []string{"bash", "sh"} {
				j.ask.Command = []string{shell}
				if err = j.start(c.Context); codeOf(err) != control.CodeNoCommand {
					break
				}
			}
			return asCommand(err)
		},
	})
}

// joining is a command that is to be run in a live run.
type joining struct {
	l   *liveVerbs
	ref string
	ask control.ExecRequest
	in  io.Reader
}

func (j *joining) run(ctx context.Context) error { return asCommand(j.start(ctx)) }

// start gives the command's exit code as an exitError.
func (j *joining) start(ctx context.Context) error {
	found, cancel := context.WithTimeout(ctx, answerTime)
	r, err := j.l.findOne(found, j.ref)
	cancel()
	if err != nil {
		return err
	}
	on := attached{
		doing: "enter " + r.label(), in: j.in, out: os.Stdout, err: os.Stderr,
		connect: func(ctx context.Context, conn io.ReadWriter) error {
			return r.by.Exec(ctx, r.ID, j.ask, operatorName(), conn)
		},
	}
	if j.ask.TTY && isTerminal(os.Stdin) {
		if size, err := unix.IoctlGetWinsize(int(os.Stdin.Fd()), unix.TIOCGWINSZ); err == nil {
			j.ask.Rows, j.ask.Columns = int(size.Row), int(size.Col)
		}
		restore, err := on.rawTerminal()
		if err != nil {
			return err
		}
		defer restore()
	}
	return on.serve(ctx)
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*control.Error](err); ok {
		return e.Code
	}
	return ""
}

// asCommand says of a command that isn't in the sandbox what exec says, and ends as that does.
func asCommand(err error) error {
	e, ok := errors.AsType[*control.Error](err)
	if !ok || e.Code != control.CodeNoCommand && e.Code != control.CodeNoProgram {
		return err
	}
	complain(hinted.New(errors.New(oneLine(e.Message)), oneLine(e.Hint)))
	if e.Code == control.CodeNoCommand {
		return exitError(runtime.ExitNotFound)
	}
	return exitError(runtime.ExitNotExecutable)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

func (l *liveVerbs) freeze() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "freeze",
		Usage:     "stop every process of a run where it is",
		ArgsUsage: "REF…",
		Description: `A frozen run keeps its memory and its open files; its time limits go on. Nothing is frozen unless every REF is a live run.

   agentrun freeze planner
   agentrun freeze k3x7 p5d8 --json

Exit code: 0 all are frozen; 1 one isn't; 2 usage.`,
		Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			return l.each(c, manyRefs, "freeze", "is frozen", func(ctx context.Context, r liveRun) error {
				return r.by.Freeze(ctx, r.ID, operatorName())
			})
		},
	})
}

func (l *liveVerbs) thaw() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "thaw",
		Usage:     "let a frozen run go on",
		ArgsUsage: "REF…",
		Description: `   agentrun thaw planner
   agentrun ps -q --state frozen | xargs agentrun thaw

Exit code: 0 all go on; 1 one doesn't; 2 usage.`,
		Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			return l.each(c, manyRefs, "thaw", "goes on", func(ctx context.Context, r liveRun) error {
				return r.by.Thaw(ctx, r.ID, operatorName())
			})
		},
	})
}

func (l *liveVerbs) signal() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "signal",
		Usage:     "send a signal to the first process of a run",
		ArgsUsage: "REF…",
		Description: `The agent may ignore it. What ends a run for certain is kill; what stops it is freeze.

   agentrun signal planner
   agentrun signal planner --signal HUP

Exit code: 0 sent to all; 1 not to one; 2 usage.`,
		Flags: []cli.Flag{&cli.StringFlag{Name: "signal", Usage: "`NAME` or number", Value: "TERM"}, jsonFlag()},
		Action: func(c *cli.Context) error {
			sig, err := signalOf(c.String("signal"))
			if err != nil {
				return err
			}
			did := "got " + cmp.Or(unix.SignalName(sig), "signal "+strconv.Itoa(int(sig)))
			return l.each(c, manyRefs, "signal", did, func(ctx context.Context, r liveRun) error {
				return r.by.Signal(ctx, r.ID, int(sig), operatorName())
			})
		},
	})
}

// signalOf takes KILL and STOP for mistakes: the verbs for what they do put it on record, and leave nothing half done.
func signalOf(text string) (unix.Signal, error) {
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	sig := unix.SignalNum(name)
	if n, err := strconv.Atoi(text); err == nil && n > 0 && n <= 64 { // real-time signals have no names here
		sig = unix.Signal(n)
	}
	switch sig {
	case 0:
		return 0, usagef("as TERM, SIGHUP or 10", "--signal %.32q is no signal", text)
	case unix.SIGKILL:
		return 0, usagef("agentrun kill REF ends every process of the run, on record", "--signal %s", text)
	case unix.SIGSTOP, unix.SIGCONT:
		return 0, usagef("agentrun freeze REF and agentrun thaw REF do this to every process of the run", "--signal %s", text)
	}
	return sig, nil
}

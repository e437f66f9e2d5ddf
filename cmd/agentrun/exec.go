// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"agentrun/supervisor"
)

func execCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:      "exec",
		Usage:     "run a program in a sandbox",
		ArgsUsage: "[--] COMMAND [ARG…]",
		Description: `COMMAND is a name in the sandbox's PATH, an absolute path inside, or a file in the workspace. A script
starts by its shebang line or, by extension, with python3, node or sh. Without --workspace the current
folder is shown read-only if COMMAND is a file in it.

   agentrun exec -- agent.py --task 7
   agentrun exec --ring 2 --workspace ~/project --timeout 120s -- make test
   agentrun exec --profile strict -- /usr/bin/python3 /workspace/solve.py
   agentrun exec --ring 2 -t -- bash
   agentrun exec -d --timeout 300s -- agent.py
   agentrun exec --in planner -- ls -l

A daemon (agentrun serve) takes the run over if one listens; --no-daemon or AGENTRUN_NO_DAEMON=1 runs it alone.

Exit code: the agent's own; 124 time limit, 125 agentrun failed, 126 not executable, 127 not found,
128+n ended by signal n, 137 killed or out of memory.`,
		Flags:  quick(g.headed(execFlags())),
		Before: allFlagsAreParsed,
		Action: func(c *cli.Context) error { return execAction(g, c) },
	}
}

func execAction(g *global, c *cli.Context) error {
	if c.IsSet("in") {
		return joinAction(g, c)
	}
	r := requestOf(g.caller, c)
	if g.served && (c.IsSet(envFD) || c.IsSet("hold-for")) { // descriptors, which would be the daemon's
		return errors.New("--env-fd, --hold-for: agentrun-oci's, of a run in a process of its own (--no-daemon)")
	}
	env, err := passedEnv(c)
	if err != nil {
		return err
	}
	r.Env = append(r.Env, env...)
	if err := checkDetach(r); err != nil {
		return err
	}
	if err := g.pullMissing(c, r); err != nil {
		return err
	}
	if g.served { // by the daemon, which reads the flags of many
		g.request = r
		return nil
	}
	if err := g.handOver(c); err != nil {
		return err
	}
	if r.Detach && g.detachedFD == 0 {
		return detachAlone()
	}
	if err := g.enter(); err != nil {
		return err
	}
	host := supervisor.Alone{Node: &g.Node, Lives: g.detachedFD}
	code, err := supervisor.Run(c.Context, &g.Node, g.caller, host, r)
	if err != nil {
		return err
	}
	return exitError(code)
}

// joinAction is another command than exec: what takes runs over doesn't take it (internal/handoff).
func joinAction(g *global, c *cli.Context) error {
	if g.served {
		return usagef("agentrun exec --in REF finds the run by itself", "--in: it can't be handed over")
	}
	l := liveOf(g)
	join := l.agentsVerb(&cli.Command{Action: l.join})
	return join.Action(c)
}

// execFlags are those that shape a sandbox, and those about input, output and the end.
func execFlags() []cli.Flag {
	return append(specFlags(), group(groupEnd,
		&cli.StringFlag{Name: "in", Usage: "run COMMAND in the live run `REF`, beside its own; of the other flags only -t, -i, -d, --env, --cwd, --timeout, --memory, --cpus and --pids go with it"},
		&cli.BoolFlag{Name: "i", Aliases: []string{"interactive"}, Usage: "pass stdin on even from a terminal (without: only what is piped in)"},
		&cli.StringFlag{Name: "status-file", Usage: "write how it ended to `FILE`, as JSON"},
		&cli.BoolFlag{Name: "json", Usage: "print how it ended on stderr, as one line of JSON"},
		&cli.StringFlag{Name: "metrics-addr", Usage: "serve the run's metrics (Prometheus) on `HOST:PORT` of the host, loopback unless the configuration says otherwise"},
		&cli.BoolFlag{Name: "d", Aliases: []string{"detach"}, Usage: "print the run's id once it has started, and leave it running; its output goes to a file of the state folder"},
		&cli.StringFlag{Name: supervisor.SandboxFlag, Hidden: true},
		&cli.StringFlag{Name: "hold", Hidden: true},
		&cli.IntFlag{Name: "hold-for", Hidden: true},
		&cli.StringFlag{Name: "bundle-config", Hidden: true},
		&cli.StringFlag{Name: "cgroup-above", Hidden: true},
		&cli.IntFlag{Name: envFD, Hidden: true},
		&cli.StringFlag{Name: "pull", Usage: "with --image: `missing` pulls one that isn't there first", DefaultText: "never"},
		&cli.BoolFlag{Name: "no-daemon", Usage: "run alone, even if a daemon listens"},
		&cli.StringFlag{Name: "idle-pause", Usage: "with -d: pause the run when it has done next to nothing for `TIME`, 1s or more; exec --in, cp and signal let it go on", DefaultText: "never"},
		&cli.DurationFlag{Name: "quarantine-timeout", Usage: "kill the run when its agent has been in quarantine for `TIME`", DefaultText: "never"},
	)...)
}

const (
	envFD  = "env-fd"
	maxEnv = 4 << 20 // as much as a bundle has
)

// passedEnv are the variables that agentrun-oci passes by a descriptor, with a zero byte between them: whoever chose them didn't choose that
// they stand in a command line, which each user of the host may read (proc_pid_cmdline(5)).
func passedEnv(c *cli.Context) ([]string, error) {
	fd := c.Int(envFD)
	if !c.IsSet(envFD) {
		return nil, nil
	}
	if fd <= 2 {
		return nil, fmt.Errorf("--%s: %d is a standard stream", envFD, fd)
	}
	f := os.NewFile(uintptr(fd), envFD) //nolint:gosec // a descriptor
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxEnv+1))
	if err == nil && len(text) > maxEnv {
		err = fmt.Errorf("more than %d bytes", maxEnv)
	}
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", envFD, err)
	}
	if len(text) == 0 {
		return nil, nil
	}
	return strings.Split(string(text), "\x00"), nil
}

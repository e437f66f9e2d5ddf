// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

	"github.com/urfave/cli/v2"

	"agentrun/config"
	"agentrun/safetyloop/judge"
	"agentrun/supervisor"
)

// The groups of flags in the help of exec and plan.
const (
	groupWho    = "who it is"
	groupFiles  = "files"
	groupEnv    = "environment"
	groupLimits = "limits"
	groupOut    = "way out"
	groupEnd    = "input, output, end"
)

// group puts flags under a heading of the help: forty in one list are read by nobody.
func group(name string, flags ...cli.Flag) []cli.Flag {
	for _, f := range flags {
		switch f := f.(type) {
		case *cli.StringFlag:
			f.Category = name
		case onceString:
			f.Category = name
		case *cli.StringSliceFlag:
			f.Category = name
		case *cli.BoolFlag:
			f.Category = name
		case *cli.IntFlag:
			f.Category = name
		case *cli.DurationFlag:
			f.Category = name
		}
	}
	return flags
}

// specFlags are what exec and plan share: everything that shapes a sandbox.
func specFlags() []cli.Flag {
	return slices.Concat(
		group(groupWho,
			&cli.IntFlag{Name: "ring", Usage: "privilege ring `1|2|3`", Value: supervisor.DefaultRing, DefaultText: "the agent's own, without --agent 3"},
			&cli.StringFlag{Name: "profile", Usage: "profile `NAME` (default: that of the ring)"},
			&cli.StringFlag{Name: "agent", Usage: "agent `ID` the run belongs to"},
			&cli.StringFlag{Name: "key-file", Usage: "`FILE` with the agent's key (default: the key in " + supervisor.EnvKey + ", if there is one)"},
			&cli.StringFlag{Name: "session", Usage: "session `ID` the run belongs to"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` for this run"},
			&cli.StringFlag{Name: "on-breach", Usage: "what becomes of a run whose refused calls amount to a breach: `quarantine|freeze|kill|record` (default: the profile's, else quarantine)"},
			&cli.BoolFlag{Name: "best-effort", Usage: "go on without protections this host can't give, and say which"},
		),
		group(groupFiles,
			&cli.StringFlag{Name: "workspace", Usage: "`DIR` shown as /workspace: read-only in ring 3, writable in rings 2 and 1"},
			&cli.StringFlag{Name: "workspace-mode", Usage: "rings 2 and 1: `direct|overlay`; overlay keeps the changes apart until agentrun apply", DefaultText: "direct"},
			&cli.StringFlag{Name: "rootfs", Usage: "`DIR` used as the root instead of the host's /usr, read-only"},
			&cli.StringFlag{Name: "image", Usage: "root, variables and command of the image `NAME`, which agentrun image pull or import has brought"},
			&cli.BoolFlag{Name: "no-entrypoint", Usage: "with --image: run COMMAND itself, and not by the image's entrypoint"},
			&cli.StringSliceFlag{Name: "ro-bind", KeepSpace: true, Usage: "show a host path, read-only: `SRC[:DST]`"},
			&cli.StringSliceFlag{Name: "bind", KeepSpace: true, Usage: "show a host path, writable (rings 2 and 1): `SRC[:DST]`"},
			&cli.StringSliceFlag{Name: "tmpfs", KeepSpace: true, Usage: "an empty folder in memory, beside the scratch: `PATH[:SIZE]`"},
			&cli.StringFlag{Name: "home", Usage: "keep HOME under this `NAME` for the next run that says so (rings 2 and 1); one run at a time"},
			&cli.StringFlag{Name: "keep", Usage: "ring 1: write what changed in the root to `FILE` (OCI layer, tar)"},
		),
		group(groupEnv,
			&cli.StringSliceFlag{Name: "env", KeepSpace: true, Usage: "set a variable: `NAME=VALUE`"},
			&cli.StringSliceFlag{Name: "env-pass", Usage: "take a variable from the caller: `NAME`"},
			&cli.StringFlag{Name: "cwd", Usage: "working directory inside, `DIR` (default: /workspace, else /tmp/sandbox)"},
		),
		group(groupLimits,
			&cli.StringFlag{Name: "cpus", Usage: "processors, `0.01–1`"},
			&cli.StringFlag{Name: "memory", Usage: "memory without swap, `4M–1G`"},
			&cli.StringFlag{Name: "pids", Usage: "processes and threads, `N`"},
			&cli.StringFlag{Name: "timeout", Usage: "wall-clock time, `1ms–300s`; none where the node's ranges have it"},
			&cli.StringFlag{Name: "cpu-time", Usage: "processor time of all processes together, `TIME`"},
			&cli.StringFlag{Name: "scratch-size", Usage: "size of /tmp/sandbox, `SIZE`"},
			&cli.StringFlag{Name: "max-output", Usage: "bytes of stdout and stderr together, `SIZE`"},
			&cli.StringFlag{Name: "max-steps", Usage: "tool calls, `N`"},
		),
		group(groupEnd,
			&cli.BoolFlag{Name: "t", Aliases: []string{"tty"}, Usage: "give the agent a terminal of its own"},
		),
		group(groupOut, wayOutFlags()...), group(groupOut, safetyFlags()...),
	)
}

// wayOutFlags shape the way out of a sandbox (M-7, M-8).
func wayOutFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "allow", Usage: "ring 2: let connections to `HOST[:PORT]` out, as example.com, *.example.com, example.com:8443, or preset:npm to read a registry"},
		&cli.StringSliceFlag{Name: "tool", Usage: "give only these tools, by `NAME` (default: all that ring, plan and role have)"},
		&cli.StringFlag{Name: "expect", Usage: "don't start unless the agent's plan has room for `cost=0.01,tokens=20000,steps=10`"},
		onceString{&cli.StringFlag{Name: "policy", Usage: "ask the Cedar policies in `FILE` or folder too, about the start and each call"}},
		&cli.StringFlag{Name: "gateway", Usage: "tools, egress rules, models and secrets from `FILE` (default: the node's, as " + config.GatewayPath + ", if there is one)"},
		&cli.BoolFlag{Name: "no-gateway", Usage: "no way out at all, not even tools; policies are asked about the start all the same"},
	}
}

// safetyFlags are about the execution safety loop of a run (S-15).
func safetyFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "safety", Usage: "the run's safety loop: `enforcing|monitoring|logging|disabled` " +
			"(default: the profile's, then " + judge.EnvMode + ", then disabled)"},
		&cli.BoolFlag{Name: "require-intent", Usage: "refuse tool calls that no approved step of the agent names; with --safety enforcing or monitoring"},
	}
}

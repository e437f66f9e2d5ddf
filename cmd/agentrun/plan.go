// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"agentrun/profiles"
	"agentrun/runtime"
	"agentrun/supervisor"
)

func planCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:      "plan",
		Usage:     "print what exec would apply, without starting anything",
		ArgsUsage: "[--] COMMAND [ARG…]",
		Description: `Takes the flags of exec that shape the sandbox. The digest is the same for the same profile, flags and host.

   agentrun plan --ring 2 --workspace . -- make test
   agentrun plan --json -- agent.py | jq .root_view`,
		Flags: append(specFlags(), &cli.BoolFlag{Name: "json", Usage: "print JSON"}),
		Action: func(c *cli.Context) error {
			if err := g.enter(); err != nil {
				return err
			}
			plan, err := supervisor.Plan(c.Context, &g.Node, g.caller, requestOf(g.caller, c))
			if err != nil {
				return err
			}
			plan.ID, plan.Cgroup = "", "" // belong to a run, and there is none
			if c.Bool("json") {
				return printJSON(plan)
			}
			out := bufio.NewWriter(os.Stdout)
			if err := printPlan(out, plan); err != nil {
				return err
			}
			return out.Flush()
		},
	}
}

func printPlan(out io.Writer, p *runtime.Plan) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	row := func(k, format string, args ...any) {
		for i, a := range args {
			if text, ok := a.(string); ok {
				args[i] = oneLine(text)
			}
		}
		fmt.Fprintf(w, "%s\t"+format+"\n", append([]any{k}, args...)...)
	}
	row("digest", "%s", p.Digest)
	row("ring", "%d (profile %s)", p.Ring, p.Profile)
	if p.Image != nil {
		row("image", "%s, %s", p.Image.Ref, p.Image.ID)
	}
	row("command", "%s as %s", p.Command.Exe, strings.Join(p.Command.Args, " "))
	row("cwd", "%s", p.Cwd)
	row("user", "%d inside, outside one that no other live run has", p.UID)
	row("namespaces", "%s", strings.Join(p.Namespaces, " "))
	row("network", "%s; the namespace has loopback only", p.Network)
	if x := p.Wayout; x != nil {
		ports := fmt.Sprint(x.Capture)
		if x.AllPorts {
			ports = "all of TCP and UDP"
		}
		row("way out", "tools at %s, proxy at %s, names at %s, captured ports %s", x.Tools, x.Proxy, x.DNS, ports)
	} else {
		row("way out", "none, not even tools")
	}
	if s := p.Safety; s != nil {
		row("safety loop", "%s, tolerance %s, %d steps, operations confirmed by the %s, tool calls need an approved step: %v, on a stop: %s", s.Mode,
			cmp.Or(s.Tolerance, profiles.SafetyModerate), cmp.Or(s.MaxSteps, profiles.DefaultSafetySteps), cmp.Or(s.Confirm, profiles.SafetyServer),
			s.RequireIntent, cmp.Or(s.OnStop, profiles.SafetyFreeze))
	}
	row("subprocess", "%v", p.Subprocess)
	row("limits", "cpu %g, memory %d MiB, pids %d, timeout %s, cpu time %s, output %d MiB, scratch %d MiB",
		p.Limits.CPU, p.Limits.Memory>>20, p.Limits.PIDs, p.Limits.Timeout, p.Limits.CPUTime, p.Limits.MaxOutput>>20, p.Limits.ScratchSize>>20)
	for _, r := range p.Rlimits {
		note := ""
		if r.Clamped {
			note = " (the host allows no more)"
		}
		row("rlimit", "%s %d%s", r.Name, r.Value, note)
	}
	row("cgroup", "%s", p.CgroupMode)
	row("seccomp", "%d rules, everything else %s; see agentrun profile show %s", p.Seccomp.Rules, p.Seccomp.Unlisted, p.Profile)
	row("landlock", "ABI %d, %d rules", p.LandlockABI, len(p.Landlock.Rules))
	for _, m := range p.Missing {
		row("MISSING", "%s: %s", m.Name, m.Loses)
	}
	for _, e := range p.Entries {
		mode := "ro"
		switch {
		case e.Kind == "dir" || e.Kind == "link" || e.Kind == "file":
			mode = ""
		case e.Writable || e.Kind == "tmpfs" || e.Kind == "overlay" || e.Kind == "devpts" || e.Kind == "again":
			mode = "rw"
		}
		row("view", "%s\t%s\t%s\t%s\t%s", e.Kind, mode, e.Target, e.Source, e.Why)
	}
	for i, s := range p.Steps {
		row("step", "%d. %s: %s", i+1, s.Name, s.Why)
	}
	return w.Flush()
}

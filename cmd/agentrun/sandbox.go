// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/internal/hinted"
	"agentrun/internal/verb"
	"agentrun/profiles"
	"agentrun/supervisor"
	"agentrun/supervisor/sandboxes"
)

func sandboxCommands(g *global) []*cli.Command {
	commands := []*cli.Command{
		createCommand(g),
		{
			Name: "start", Usage: "start a kept sandbox", ArgsUsage: "NAME",
			Description: `A run like any other, by the flags that create was given: admitted, in the ring that its agent has by now, and named NAME, so that
exec --in, shell, cp and all other verbs find it. Variables that --env-pass names are taken from the caller's environment.

   agentrun start dev`,
			Flags: []cli.Flag{&cli.BoolFlag{Name: "again", Hidden: true}}, Action: verb.Action(g.start),
		},
		{
			Name: "stop", Usage: "stop kept sandboxes; their files stay", ArgsUsage: "NAME…",
			Description: `Its first process gets SIGTERM, and after the grace time everything in it is killed. It isn't started again by itself.

   agentrun stop dev
   agentrun stop dev try-1 --grace 1m`,
			Flags: []cli.Flag{
				&cli.DurationFlag{Name: "grace", Usage: "`TIME` between SIGTERM and the kill", Value: 10 * time.Second},
			},
			Action: verb.Action(g.stop),
		},
		{
			Name: "rm", Usage: "remove kept sandboxes, with their files", ArgsUsage: "NAME…",
			Description: `   agentrun rm dev
   agentrun rm -f dev try-1   also if they are running`,
			Flags:  []cli.Flag{&cli.BoolFlag{Name: "f", Aliases: []string{"force"}, Usage: "kill it first if it is running"}},
			Action: verb.Action(g.remove),
		},
		{
			Name: "rename", Usage: "give a kept sandbox that isn't running another name", ArgsUsage: "NAME NEW",
			Description: `   agentrun rename dev old`, Action: verb.Action(g.rename),
		},
		{
			Name: "keep", Usage: "say until when a kept sandbox is kept", ArgsUsage: "NAME TIME",
			Description: `TIME from now; none: until agentrun rm. When it is over agentrun gc removes the sandbox, unless it is running.

   agentrun keep dev 7d
   agentrun keep dev none`,
			Action: verb.Action(g.keepFor),
		},
	}
	commands = append(commands, append(snapshotCommands(g), commitCommand(g))...)
	for _, c := range commands {
		c.Category = "kept sandboxes"
		if c.Name != "create" {
			c.BashComplete = g.completeSandboxes
		}
	}
	return commands
}

func createCommand(g *global) *cli.Command {
	return &cli.Command{
		Name: "create", Usage: "make a sandbox that outlives its runs", ArgsUsage: "--name NAME [-- COMMAND [ARG…]]",
		Description: `Takes the flags of exec that shape a sandbox, checks them as plan does, and starts nothing. From one start to the next it keeps HOME
(rings 2 and 1) and what changed in the root's folders (ring 1); scratch, /etc and processes are new at each start. Without
COMMAND it waits for what exec --in and shell run in it. Each start lasts as long as the node gives a run, unless --timeout
says less.

   agentrun create --name dev --ring 2 --workspace ~/project
   agentrun create --name web --ring 2 --restart on-failure -- python3 -m http.server 8000
   agentrun create --name try --ring 1 --keep-for 7d --quota 2G

   agentrun start dev && agentrun shell dev`,
		Flags: append(specFlags(),
			&cli.StringFlag{Name: "restart", Usage: "start it again when its run has ended: `no|on-failure|always`; always also after the daemon's restart", Value: string(sandboxes.RestartNo)},
			&cli.StringFlag{Name: "idle-pause", Usage: "pause its runs when they have done next to nothing for `TIME`, as exec --idle-pause", DefaultText: "never"},
			&cli.StringFlag{Name: "keep-for", Usage: "let agentrun gc remove it after `TIME`, as 7d", DefaultText: "never"},
			&cli.StringFlag{Name: "quota", Usage: "refuse a start when it keeps more than `SIZE`", DefaultText: sandboxes.DefaultQuota.String()},
			jsonFlag(),
		),
		Action: g.create,
	}
}

func (g *global) create(c *cli.Context) error {
	r := requestOf(g.caller, c)
	k := sandboxes.Sandbox{Name: r.Name, By: operatorName(), Restart: sandboxes.Restart(c.String("restart")), Words: keptWords(c)}
	if err := createFlags(c, r, &k); err != nil {
		return err
	}
	if g.served { // by the daemon, over its API
		g.request, g.sandbox = r, &k
		return nil
	}
	if err := g.enter(); err != nil {
		return err
	}
	k, timeout, err := g.CreateSandbox(c.Context, g.caller, r, k)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(k)
	}
	_, err = fmt.Printf("created %s: ring %d, each start lasts %s, kept in %s\n", k.Name, k.Ring, timeout, g.Sandboxes().Of(k.Name))
	return err
}

// keptWords are the flags of exec that each start has.
func keptWords(c *cli.Context) []string {
	own := []string{"name", "n", "restart", "keep-for", "quota", "json", "image", "no-entrypoint"}
	words := verb.Passed(c)[1:]
	return slices.DeleteFunc(slices.Clone(words[:slices.Index(words, "--")]), func(w string) bool {
		name, _, _ := strings.Cut(strings.TrimPrefix(w, "--"), "=")
		return slices.Contains(own, name)
	})
}

// createFlags are those that are about the sandbox and no run.
func createFlags(c *cli.Context, r *supervisor.Request, k *sandboxes.Sandbox) error {
	const example = "agentrun create --name dev --ring 2"
	bad := func(err error) error { return usageError(c, hinted.New(err, example), false) }
	switch {
	case k.Name == "":
		return bad(errors.New("--name: how is the sandbox to be called?"))
	case r.Home != "":
		return bad(errors.New("--home: a kept sandbox has a home of its own"))
	case r.Keep != "":
		return bad(errors.New("--keep: a kept sandbox keeps its root itself"))
	case r.TTY:
		return bad(errors.New("-t: its first command has no terminal; agentrun shell and exec --in -t have one"))
	}
	if err := sandboxes.CheckName(k.Name); err != nil {
		return bad(fmt.Errorf("--name: %w", err))
	}
	if !slices.Contains(k.Restart.Choices(), string(k.Restart)) {
		return bad(fmt.Errorf("--restart: %.64q is none of %s", k.Restart, strings.Join(k.Restart.Choices(), ", ")))
	}
	if c.IsSet("quota") {
		var err error
		if k.Quota, err = profiles.ParseSize(c.String("quota")); err != nil || k.Quota <= 0 {
			return bad(fmt.Errorf("--quota: %.64q is no size", c.String("quota")))
		}
	}
	if c.IsSet("keep-for") {
		until, err := keepTime("--keep-for", c.String("keep-for"))
		if err != nil {
			return bad(err)
		}
		k.Until = until
	}
	return nil
}

// keepTime reads for how long from now; the zero time: for good.
func keepTime(what, text string) (time.Time, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok && days != "" && strings.Trim(days, "0123456789") == "" && len(days) < 6 {
		n := 0
		for _, d := range days {
			n = 10*n + int(d-'0')
		}
		text = fmt.Sprintf("%dh", 24*n)
	}
	d, err := profiles.ParseDuration(text)
	switch {
	case err != nil, d == 0:
		return time.Time{}, fmt.Errorf("%s: %.64q is no time; want one as 12h, 7d or none", what, text)
	case d == profiles.NoLimit:
		return time.Time{}, nil
	}
	return time.Now().Add(time.Duration(d)).UTC(), nil
}

// start becomes the exec that the sandbox is: a daemon takes it over, and each flag is checked, as anybody's.
func (g *global) start(c *cli.Context, a []string) error {
	k, words, err := g.WantSandbox(a[0], operatorName(), c.Bool("again"))
	if err == nil {
		err = os.Chdir(k.Dir)
	}
	if here, herr := g.caller.Getwd(); err == nil && here != k.Dir {
		err = cmp.Or(herr, fmt.Errorf("start %s: %s leads to %s by now", k.Name, k.Dir, here))
	}
	if err != nil {
		return err
	}
	args := slices.Concat([]string{os.Args[0]}, g.Flags(), []string{"exec"}, words)
	// The file of this process, not what stands at its path by now.
	return os.NewSyscallError("execve", unix.Exec("/proc/self/exe", args, g.caller.Environ))
}

func (g *global) stop(c *cli.Context, a []string) error {
	return each(a, func(name string) error {
		ran, err := g.StopSandbox(c.Context, name, operatorName(), c.Duration("grace"), g.FindRun)
		switch {
		case err != nil:
		case ran:
			_, err = fmt.Println("stopped", name)
		default:
			_, err = fmt.Println(name, "isn't running")
		}
		return err
	})
}

func (g *global) remove(c *cli.Context, a []string) error {
	if err := g.enter(); err != nil { // an ordinary user's may hold files of the user's other ids
		return err
	}
	return each(a, func(name string) error {
		err := g.RemoveSandbox(c.Context, name, operatorName(), c.Bool("f"), g.FindRun)
		if err == nil {
			_, err = fmt.Println("removed", name)
		}
		return err
	})
}

// each does it with every name; what goes wrong with one is told, and keeps it from none of the others.
func each(names []string, do func(string) error) (wrong error) {
	for _, name := range names {
		switch err := do(name); {
		case wrong == nil:
			wrong = err
		case err != nil:
			wrong = fmt.Errorf("%w; %w", wrong, err)
		}
	}
	return wrong
}

func (g *global) rename(_ *cli.Context, a []string) error {
	err := g.RenameSandbox(a[0], a[1], operatorName())
	if err == nil {
		_, err = fmt.Println("renamed", a[0], "to", a[1])
	}
	return err
}

func (g *global) keepFor(_ *cli.Context, a []string) error {
	until, err := keepTime("TIME", a[1])
	if err == nil {
		_, err = g.KeepSandbox(a[0], operatorName(), until)
	}
	switch {
	case err != nil:
	case until.IsZero():
		_, err = fmt.Println(a[0], "is kept until agentrun rm")
	default:
		_, err = fmt.Println(a[0], "is kept until", until.Format(time.RFC3339))
	}
	return err
}

func (g *global) completeSandboxes(c *cli.Context) {
	dirs, _ := filepath.Glob(filepath.Join(g.Sandboxes().Of("*"), "sandbox.json"))
	for _, d := range dirs {
		fmt.Fprintln(c.App.Writer, filepath.Base(filepath.Dir(d)))
	}
}

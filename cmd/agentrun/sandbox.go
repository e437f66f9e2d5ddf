// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/control"
	"agentrun/governance"
	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/verb"
	"agentrun/profiles"
	"agentrun/runtime"
	"agentrun/supervisor"
	"agentrun/supervisor/sandboxes"
)

// sandboxFlag has an exec be a start of a kept sandbox.
const sandboxFlag = "of-sandbox"

// idle is the main command of a sandbox that was created without one: further ones are run in it by exec --in.
var idle = []string{"sleep", "infinity"}

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
			Name: "stop", Usage: "stop a kept sandbox; its files stay", ArgsUsage: "NAME",
			Description: `Its first process gets SIGTERM, and after the grace time everything in it is killed. It isn't started again by itself.

   agentrun stop dev
   agentrun stop dev --grace 1m`,
			Flags: []cli.Flag{
				&cli.DurationFlag{Name: "grace", Usage: "`TIME` between SIGTERM and the kill", Value: 10 * time.Second},
			},
			Action: verb.Action(g.stop),
		},
		{
			Name: "rm", Usage: "remove a kept sandbox, with its files", ArgsUsage: "NAME",
			Description: `   agentrun rm dev
   agentrun rm -f dev   also if it is running`,
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
	commands = append(commands, snapshotCommands(g)...)
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
	if err := g.enter(); err != nil {
		return err
	}
	r := requestOf(g.caller, c)
	k := sandboxes.Sandbox{Name: r.Name, By: operatorName(), Created: time.Now().UTC(), Restart: sandboxes.Restart(c.String("restart"))}
	if err := createFlags(c, r, &k); err != nil {
		return err
	}
	var err error
	if k.Dir, err = g.caller.Abs("."); err != nil {
		return err
	}
	folder, limits := g.Sandboxes(), runtime.PlanLimits{}
	err = folder.Create(k, func(s *sandboxes.Sandbox) error {
		plan, err := g.planned(c, r, s)
		if err != nil {
			return err
		}
		s.Ring, limits = plan.Ring, plan.Limits
		return g.onRecord(hypervisor.SandboxLife{Change: "created", Name: s.Name})
	})
	if errors.Is(err, sandboxes.ErrExists) {
		err = hinted.New(fmt.Errorf("create %s: %w", k.Name, err), "agentrun start "+k.Name+" starts it; agentrun rm "+k.Name+" removes it")
	}
	if err != nil {
		return err
	}
	if k, err = folder.Load(k.Name); err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(k)
	}
	_, err = fmt.Printf("created %s: ring %d, each start lasts %s, kept in %s\n", k.Name, k.Ring, limits.Timeout, folder.Of(k.Name))
	return err
}

// planned finds out whether a start would be refused, and writes down what each is.
func (g *global) planned(c *cli.Context, r *supervisor.Request, k *sandboxes.Sandbox) (*runtime.Plan, error) {
	if len(r.Command) == 0 {
		r.Command = idle
	}
	r.Sandbox, r.Draft = k.Name, k
	plan, err := supervisor.Plan(c.Context, &g.Node, g.caller, r)
	if err != nil {
		return nil, err
	}
	own := []string{"name", "n", "restart", "keep-for", "quota", "json"}
	words := verb.Passed(c)[1:]
	words = words[:slices.Index(words, "--")]
	k.Words = slices.DeleteFunc(slices.Clone(words), func(w string) bool {
		name, _, _ := strings.Cut(strings.TrimPrefix(w, "--"), "=")
		return slices.Contains(own, name)
	})
	if most := g.Ranges; !c.IsSet("timeout") && r.Agent == "" && r.Session == "" {
		most.Plan = governance.Operator
		in := most.Of(plan.Ring)
		plan.Limits.Timeout = in.Timeout.Max
		k.Words = append(k.Words, fmt.Sprintf("--timeout=%v", in.Timeout.Max))
		if !c.IsSet("cpu-time") {
			k.Words = append(k.Words, fmt.Sprintf("--cpu-time=%v", in.CPUTime.Max))
		}
	}
	k.Words = slices.Concat(k.Words, []string{"--"}, r.Command)
	return plan, nil
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

// onRecord puts there what the operator does with a sandbox.
func (g *global) onRecord(l hypervisor.SandboxLife) error {
	l.By = operatorName()
	return g.node(func(h *hypervisor.Hypervisor) error { return h.RecordSandbox(l) })
}

// known turns what is wrong with a sandbox's name into an error with a way out.
func known(doing, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sandboxes.ErrNone):
		err = hinted.New(err, "agentrun ps --all lists those there are; agentrun create makes one")
	case errors.Is(err, sandboxes.ErrBusy):
		err = hinted.New(err, "agentrun stop "+name+" stops it")
	}
	return fmt.Errorf("%s %.64q: %w", doing, name, err)
}

// start becomes the exec that the sandbox is: a daemon takes it over, and each flag is checked, as anybody's.
func (g *global) start(c *cli.Context, a []string) error {
	name, again := a[0], c.Bool("again")
	k, err := g.Sandboxes().Load(name)
	if err != nil {
		return known("start", name, err)
	}
	if g.Sandboxes().Live(name) {
		return hinted.New(fmt.Errorf("start %s: %w already", name, sandboxes.ErrBusy), "agentrun shell "+name+" opens a shell in it")
	}
	if err := os.Chdir(k.Dir); err != nil {
		return fmt.Errorf("start %s: the folder it was created in: %w", name, err)
	}
	_, err = g.Sandboxes().Change(name, func(k *sandboxes.Sandbox) error {
		if again && !k.Wanted {
			return errors.New("it was stopped meanwhile")
		}
		if again {
			return nil
		}
		k.Wanted, k.Restarts = true, 0
		return g.onRecord(hypervisor.SandboxLife{Change: "started", Name: name, Run: k.Run})
	})
	if err != nil {
		return known("start", name, err)
	}
	args := slices.Concat([]string{os.Args[0]}, g.Flags(), []string{"exec", "--detach", "--name=" + name, "--" + sandboxFlag + "=" + name}, k.Words)
	// The file of this process, not what stands at its path by now.
	return os.NewSyscallError("execve", unix.Exec("/proc/self/exe", args, g.caller.Environ))
}

// ended waits until no run has the sandbox.
func (g *global) ended(name string, most time.Duration) bool {
	for end := time.Now().Add(most); g.Sandboxes().Live(name); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func (g *global) stop(c *cli.Context, a []string) error {
	name := a[0]
	k, err := g.Sandboxes().Change(a[0], func(k *sandboxes.Sandbox) error {
		k.Wanted = false
		return g.onRecord(hypervisor.SandboxLife{Change: "stopped", Name: name, Run: k.Run})
	})
	if err != nil {
		return known("stop", name, err)
	}
	if !g.Sandboxes().Live(name) {
		_, err = fmt.Println(name, "isn't running")
		return err
	}
	l := liveOf(g)
	ctx, cancel := context.WithTimeout(c.Context, answerTime)
	defer cancel()
	if r, err := l.findOne(ctx, k.Run); err == nil {
		_ = r.by.Signal(ctx, r.ID, int(syscall.SIGTERM), operatorName()) // one that has just ended has none to hear it
	}
	if !g.ended(name, c.Duration("grace")) {
		if err := g.kill(c.Context, name); err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
	}
	_, err = fmt.Println("stopped", name)
	return err
}

// kill ends a sandbox's run and returns when its supervisor has let go of what it keeps.
func (g *global) kill(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	k, err := g.Sandboxes().Load(name) // a start that was under way has got its run by now
	if err != nil {
		return err
	}
	r, err := liveOf(g).findOne(ctx, k.Run)
	if err == nil {
		_, err = r.by.Kill(ctx, control.Selector{ID: r.ID}, "its sandbox is stopped", operatorName())
	}
	if !g.ended(name, answerTime) {
		return errors.Join(err, sandboxes.ErrBusy)
	}
	return nil
}

func (g *global) remove(c *cli.Context, a []string) error {
	name := a[0]
	if err := g.enter(); err != nil { // an ordinary user's may hold files of the user's other ids
		return err
	}
	k, err := g.Sandboxes().Load(name)
	if err == nil && g.Sandboxes().Live(name) {
		if !c.Bool("f") {
			return hinted.New(fmt.Errorf("rm %s: %w", name, sandboxes.ErrBusy), "agentrun rm -f "+name+" kills it first")
		}
		if k, err = g.Sandboxes().Change(name, func(k *sandboxes.Sandbox) error { k.Wanted = false; return nil }); err == nil {
			err = g.kill(c.Context, name)
		}
	}
	if err == nil {
		err = g.onRecord(hypervisor.SandboxLife{Change: "removed", Name: name, Run: k.Run})
	}
	if err == nil {
		err = g.Sandboxes().Remove(name)
	}
	if err != nil {
		return known("rm", name, err)
	}
	_, err = fmt.Println("removed", name)
	return err
}

func (g *global) rename(_ *cli.Context, a []string) error {
	k, err := g.Sandboxes().Load(a[0])
	if err == nil {
		err = sandboxes.CheckName(a[1])
	}
	if err == nil {
		err = g.onRecord(hypervisor.SandboxLife{Change: "renamed", Name: a[0], To: a[1], Run: k.Run})
	}
	if err == nil {
		err = g.Sandboxes().Rename(a[0], a[1])
	}
	if err != nil {
		return known("rename", a[0], err)
	}
	_, err = fmt.Println("renamed", a[0], "to", a[1])
	return err
}

func (g *global) keepFor(_ *cli.Context, a []string) error {
	until, err := keepTime("TIME", a[1])
	if err != nil {
		return err
	}
	_, err = g.Sandboxes().Change(a[0], func(k *sandboxes.Sandbox) error {
		k.Until = until
		return g.onRecord(hypervisor.SandboxLife{Change: "kept", Name: a[0], Run: k.Run})
	})
	if err != nil {
		return known("keep", a[0], err)
	}
	if until.IsZero() {
		_, err = fmt.Println(a[0], "is kept until agentrun rm")
		return err
	}
	_, err = fmt.Println(a[0], "is kept until", until.Format(time.RFC3339))
	return err
}

func (g *global) completeSandboxes(c *cli.Context) {
	dirs, _ := filepath.Glob(filepath.Join(g.Sandboxes().Of("*"), "sandbox.json"))
	for _, d := range dirs {
		fmt.Fprintln(c.App.Writer, filepath.Base(filepath.Dir(d)))
	}
}

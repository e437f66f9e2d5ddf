// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/fsjail"
	"agentrun/hypervisor"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/supervisor"
	"agentrun/supervisor/live"
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

A daemon (agentrun serve) takes the run over if one listens; --no-daemon or AGENTRUN_NO_DAEMON=1 runs it alone.

Exit code: the agent's own; 124 time limit, 125 agentrun failed, 126 not executable, 127 not found,
128+n ended by signal n, 137 killed or out of memory.`,
		Flags: quick(append(specFlags(),
			&cli.BoolFlag{Name: "i", Aliases: []string{"interactive"}, Usage: "pass stdin on even from a terminal (without: only what is piped in)"},
			&cli.StringFlag{Name: "status-file", Usage: "write how it ended to `FILE`, as JSON"},
			&cli.BoolFlag{Name: "json", Usage: "print how it ended on stderr, as one line of JSON"},
			&cli.StringFlag{Name: "metrics-addr", Usage: "serve the run's metrics (Prometheus) on `HOST:PORT` of the host, loopback unless the configuration says otherwise"},
			&cli.BoolFlag{Name: "d", Aliases: []string{"detach"}, Usage: "print the run's id once it has started, and leave it running; its output goes to a file of the state folder"},
			&cli.BoolFlag{Name: "no-daemon", Usage: "run alone, even if a daemon listens"},
			&cli.BoolFlag{Name: "kill-on-breach", Usage: "kill the run when its refused calls amount to a breach (without: quarantine the agent, which puts the run into ring 3)"},
			&cli.DurationFlag{Name: "quarantine-timeout", Usage: "kill the run when its agent has been in quarantine for `TIME`", DefaultText: "never"},
		)),
		Before:       allFlagsAreParsed,
		Action:       func(c *cli.Context) error { return execAction(g, c) },
		OnUsageError: usageError,
	}
}

func execAction(g *global, c *cli.Context) error {
	by := g.caller
	by.flagsAreRead()
	r := requestOf(by, c)
	if err := checkDetach(r); err != nil {
		return err
	}
	if err := g.handOver(c); err != nil {
		return err
	}
	if r.Detach && by.detach == nil {
		return detachAlone()
	}
	if err := g.enter(); err != nil {
		return err
	}
	h, err := hypervisor.Open(g.hypervisor())
	if err != nil {
		return err
	}
	defer closeNode(g, h)
	if by.home != nil && r.Session == "" {
		h.Expect("") // a run that isn't refused is recorded there; alone, one that is refused must leave nothing
	}
	host := g.host()
	defer host.Close()
	release := func() {}
	plan, adm, err := prepare(c.Context, g, r, h, host, func() {
		if host.Cold() {
			release = runtime.Warm()
		}
	})
	defer func() { release() }()
	defer func() { adm.Done() }()
	defer host.Cool()
	if err != nil {
		status := runtime.Status{
			Name: r.Name, Agent: r.Agent, Session: r.Session, Ring: r.RingOr3(), Profile: r.Profile,
			State: runtime.Failed, Refused: map[string]uint64{}, Events: []runtime.Event{},
		}
		// A refusal is an outcome too: whoever waits for the status file must not wait for ever.
		status.Error, status.Hint = err.Error(), hint(err)
		status.ExitCode = report(io.Discard, err)
		serr := g.openStatusFile(r, h)
		if serr == nil {
			serr = tellStatus(g, r, status)
		}
		if serr != nil && !errors.Is(err, errStatusFile) {
			return fmt.Errorf("%w (and %w)", err, serr)
		}
		return err
	}
	for _, m := range plan.Missing {
		tell(by.stderr, "best effort: running without "+m.Name+": "+m.Loses, "")
	}
	o := live.RunOptions{KillOnBreach: r.KillOnBreach, QuarantineTimeout: r.QuarantineTimeout, Hooks: g.hooks}
	if r.Detach {
		o.Output = g.outputs().File(plan.ID)
	}
	v, settle, err := host.Begin(h, adm, plan, o)
	if err != nil {
		return err
	}
	defer settle()
	ctx, end := context.WithCancelCause(c.Context)
	defer end(nil)
	out, ask, err := wayOut(g, r, v, h, adm, func(err error) { end(&runtime.PolicyError{Reason: err.Error()}) })
	if err != nil {
		return err
	}
	if ask != nil {
		defer func() {
			if err := ask.Close(); err != nil {
				g.log.Warn("closing the account of the tool proxy", "err", err)
			}
		}()
	}
	if out != nil {
		file, err := g.gatewayFile(r)
		if err != nil {
			return err
		}
		defer g.outputs().Keep(plan.ID, file.Logs)
	}
	told := &outcome{g: g, early: by.settled != nil && plan.Keep == "" && !plan.TTY && !r.Account()}
	status, err := start(ctx, g, r, host, v, out, told.watch(h.Watch(adm, hypervisor.WatchOptions{
		Control:      v.Control,
		KillOnBreach: r.KillOnBreach,
		SignLater:    told.early, // our closing of the node does
		Warn:         func(err error) { g.log.Warn("audit", "err", err) },
	})))
	if err != nil {
		return err
	}
	if err := tellStatus(g, r, status); err != nil {
		return err
	}
	for _, l := range status.Leftovers {
		tell(by.stderr, "left behind: "+l, "")
	}
	told.say(status)
	return exitError(status.ExitCode)
}

// outcome says once how a run ended, to whoever asked for it.
type outcome struct {
	runtime.Observer
	g     *global
	early bool // as soon as it is on record, not when the last of the run is taken down
	said  sync.Once
}

func (o *outcome) watch(by runtime.Observer) runtime.Observer {
	if !o.early {
		return by
	}
	o.Observer = by
	return o
}

// End is the observer's.
func (o *outcome) End(s runtime.Status) error {
	err := o.Observer.End(s)
	if err == nil {
		o.say(s)
		o.g.caller.settled(s.ExitCode)
	}
	return err
}

func (o *outcome) say(s runtime.Status) {
	o.said.Do(func() {
		w := o.g.caller.stderr
		switch s.State {
		case runtime.Failed:
			tell(w, s.Error, s.Hint)
		case runtime.Exited, runtime.Signaled:
		default:
			tell(w, string(s.State)+": "+s.Reason, "")
		}
	})
}

// prepare does everything that can fail without having started anything; the last of it is the admission, which is on record. It
// waits for room once the request is known to make sense, and calls admitted when there is.
func prepare(ctx context.Context, g *global, r *supervisor.Request, h *hypervisor.Hypervisor, host supervisor.Host, admitted func()) (*runtime.Plan, hypervisor.Admission, error) {
	none := hypervisor.Admission{}
	spec, req, err := specOf(ctx, g, r, h)
	if err == nil {
		err = spec.Check()
	}
	if denied, ok := errors.AsType[*hypervisor.DeniedError](err); ok {
		// Asked again, on record this time.
		if _, err := h.Admit(ctx, req); err != nil {
			return nil, none, err
		}
		return nil, none, denied
	}
	if err != nil {
		return nil, none, err
	}
	if err := host.Admit(ctx, int64(spec.Limits.Memory)); err != nil {
		return nil, none, err
	}
	admitted()
	if err := g.openStatusFile(r, h); err != nil {
		return nil, none, err
	}
	if spec.Keep != "" {
		if err := writable(spec.Keep, shownBy(r, h)); err != nil {
			return nil, none, fmt.Errorf("--keep: %w", err)
		}
	}
	plan, err := newPlan(g, h, spec)
	if denied, ok := errors.AsType[*hypervisor.DeniedError](err); ok {
		ring, _ := rings.RingOf(spec.Profile.Ring)
		err = h.Refuse(req, ring, denied)
	}
	if err != nil {
		return nil, none, err
	}
	host.Take(plan)
	adm, err := h.Admit(ctx, req)
	if err == nil && adm.Ring.Value() != plan.Ring {
		err = fmt.Errorf("the ring of agent %s changed to %d while the run was planned for ring %d", req.Agent, adm.Ring.Value(), plan.Ring)
	}
	if err == nil {
		err = checkGateway(g, r, plan, h, adm, req)
	}
	return plan, adm, err
}

// newPlan is runtime's, of host paths that the session may see and that no kill handler is run from.
func newPlan(g *global, h *hypervisor.Hypervisor, spec runtime.Spec) (*runtime.Plan, error) {
	plan, err := runtime.NewPlan(spec)
	if err == nil {
		g.hooks, err = g.kill.ForRun(plan)
	}
	if err != nil {
		return nil, err
	}
	return plan, h.CheckPaths(spec.Session, plan.HostPaths())
}

var errStatusFile = errors.New("--status-file")

// writable finds out before the run whether a file can be written after it.
func writable(name string, shown []string) error {
	o, err := fsjail.OpenOutput(name, shown)
	if err != nil {
		return err
	}
	return errors.Join(o.Try(), o.Close())
}

// openStatusFile opens its folder while no code of the agent has run: see fsjail.Output.
func (g *global) openStatusFile(r *supervisor.Request, h *hypervisor.Hypervisor) (err error) {
	by := g.caller
	if r.StatusFile == "" || by.status != nil {
		return nil
	}
	if by.status, err = fsjail.OpenOutput(r.StatusFile, shownBy(r, h)); err == nil {
		err = by.status.Try()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errStatusFile, err)
	}
	return nil
}

// shownBy are the host's folders that a request shows to its run, whatever else is wrong with it.
func shownBy(r *supervisor.Request, h *hypervisor.Hypervisor) []string {
	list := []string{r.Workspace}
	if rings.CheckSessionID(r.Session) == nil {
		list = append(list, h.Workspace(r.Session))
	}
	for _, b := range r.Binds {
		list = append(list, b.Source)
	}
	return list
}

func start(ctx context.Context, g *global, r *supervisor.Request, host supervisor.Host, v *live.Run, out *runtime.Exit, observer runtime.Observer) (runtime.Status, error) {
	plan := v.Plan
	by := g.caller
	host.Collect(ctx)
	opt := runtime.Options{
		RunDir: g.runDir, Exit: out, Stdout: by.stdout, Stderr: by.stderr, Signals: by.signals(), Observer: observer,
		CacheDir:     g.filterCache(),
		AccountFirst: by.settled != nil,
		ApplyTime:    g.live.ApplyTime,
		OnCacheError: g.noFilterCache,
		OnStep:       func(name string, took time.Duration) { g.log.Debug("launch", "step", name, "took", took) },
	}
	var letGo func(runtime.Status)
	if r.Detach {
		log, err := g.outputs().Create(plan.ID)
		if err != nil {
			return runtime.Status{}, err
		}
		defer log.Close()
		opt.Stdout, opt.Stderr = log, log
		var end context.CancelCauseFunc
		ctx, end = context.WithCancelCause(ctx)
		defer end(nil)
		letGo = func(s runtime.Status) {
			if err := tellDetached(g, r, s, log); err != nil {
				end(err)
			}
		}
	} else if by.tty == nil || r.Interactive || plan.TTY {
		opt.Stdin = by.stdin
	}
	opt.OnStart = func(s runtime.Status) {
		g.log.Info("started", "id", s.ID, "ring", s.Ring, "launch", s.LaunchTime, "plan", s.PlanDigest)
		host.Started()
		if letGo != nil {
			letGo(s)
		}
	}
	if plan.TTY && by.tty != nil {
		defer by.tty.follow(&opt)()
	}
	v.Follow(&opt)
	status := runtime.Run(ctx, plan, opt)
	v.Over(status)
	return status, nil
}

// filterCache is where compiled filters are kept.
func (g *global) filterCache() string { return filepath.Join(g.stateDir, "seccomp") }

func (g *global) noFilterCache(err error) { g.log.Info("compiled filters are not kept", "err", err) }

// tellStatus writes the status where it was asked for.
func tellStatus(g *global, r *supervisor.Request, s runtime.Status) error {
	if r.JSON && !r.Detach {
		b, err := json.Marshal(s)
		if err != nil {
			return err
		}
		fmt.Fprintf(g.caller.stderr, "%s\n", visible(string(b)))
	}
	if f := g.caller.status; f != nil {
		defer f.Close()
		if err := s.WriteFile(f); err != nil {
			return fmt.Errorf("--status-file: %w", err)
		}
	}
	return nil
}

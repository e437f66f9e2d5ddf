// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/containerd/console"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/hypervisor"
	"agentrun/rings"
	"agentrun/runtime"
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

Exit code: the agent's own; 124 time limit, 125 agentrun failed, 126 not executable, 127 not found,
128+n ended by signal n, 137 killed or out of memory.`,
		Flags: append(specFlags(),
			&cli.BoolFlag{Name: "i", Aliases: []string{"interactive"}, Usage: "pass stdin on even from a terminal (without: only what is piped in)"},
			&cli.StringFlag{Name: "status-file", Usage: "write how it ended to `FILE`, as JSON"},
			&cli.BoolFlag{Name: "json", Usage: "print how it ended on stderr, as one line of JSON"},
			&cli.StringFlag{Name: "metrics-addr", Usage: "serve the run's metrics (Prometheus) on `HOST:PORT` of the host, loopback unless the configuration says otherwise"},
			&cli.BoolFlag{Name: "kill-on-breach", Usage: "end the run when its refused calls amount to a breach (without: quarantine the agent, end the run if above ring 3)"},
		),
		Action:       func(c *cli.Context) error { return execAction(g, c) },
		OnUsageError: usageError,
	}
}

func execAction(g *global, c *cli.Context) error {
	h, err := hypervisor.Open(g.hypervisor())
	if err != nil {
		return err
	}
	defer closeNode(g, h)
	release := func() {}
	plan, adm, err := prepare(g, c, h, func() { release = runtime.Warm() })
	defer func() { release() }()
	defer func() { adm.Done() }()
	if err != nil {
		status := runtime.Status{
			Name: c.String("name"), Agent: c.String("agent"), Session: c.String("session"), Ring: c.Int("ring"), Profile: c.String("profile"),
			State: runtime.Failed, Refused: map[string]uint64{}, Events: []runtime.Event{},
		}
		// A refusal is an outcome too: whoever waits for the status file must not wait for ever.
		status.Error, status.Hint = err.Error(), hint(err)
		status.ExitCode = report(io.Discard, err)
		if serr := tell(c, status); serr != nil && !errors.Is(err, errStatusFile) {
			return fmt.Errorf("%w (and %w)", err, serr)
		}
		return err
	}
	for _, m := range plan.Missing {
		fmt.Fprintf(os.Stderr, "agentrun: best effort: running without %s: %s\n", m.Name, m.Loses)
	}
	ctx, end := context.WithCancelCause(c.Context)
	defer end(nil)
	out, ask, err := wayOut(g, c, plan, h, adm, func(err error) { end(&runtime.PolicyError{Reason: err.Error()}) })
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
		file, err := readGatewayFile(c.String("gateway"))
		if err != nil {
			return err
		}
		defer g.keepLogs(plan.ID, file.Telemetry.Logs)
	}
	status, err := start(ctx, g, c, plan, out, h.Watch(adm, hypervisor.WatchOptions{
		KillOnBreach: c.Bool("kill-on-breach"),
		Warn:         func(err error) { g.log.Warn("audit", "err", err) },
	}))
	if err != nil {
		return err
	}
	if err := tell(c, status); err != nil {
		return err
	}
	for _, l := range status.Leftovers {
		fmt.Fprintf(os.Stderr, "agentrun: left behind: %s\n", l)
	}
	switch status.State {
	case runtime.Failed:
		fmt.Fprintf(os.Stderr, "agentrun: %s\n", status.Error)
		if status.Hint != "" {
			fmt.Fprintf(os.Stderr, "hint: %s\n", status.Hint)
		}
	case runtime.Exited, runtime.Signaled:
	default:
		fmt.Fprintf(os.Stderr, "agentrun: %s: %s\n", status.State, status.Reason)
	}
	return exitError(status.ExitCode)
}

// prepare does everything that can fail without having started anything; the last of it is the admission, which is on
// record. warm is called once the flags are known to make sense.
func prepare(g *global, c *cli.Context, h *hypervisor.Hypervisor, warm func()) (*runtime.Plan, hypervisor.Admission, error) {
	none := hypervisor.Admission{}
	spec, req, err := specOf(g, c, h)
	if err == nil {
		err = spec.Check()
	}
	if denied, ok := errors.AsType[*hypervisor.DeniedError](err); ok {
		// Asked again, on record this time.
		if _, err := h.Admit(c.Context, req); err != nil {
			return nil, none, err
		}
		return nil, none, denied
	}
	if err != nil {
		return nil, none, err
	}
	warm()
	if c.IsSet("status-file") {
		if err := writable(c.String("status-file")); err != nil {
			return nil, none, fmt.Errorf("%w: %w", errStatusFile, err)
		}
	}
	if spec.Keep != "" {
		if err := writable(spec.Keep); err != nil {
			return nil, none, fmt.Errorf("--keep: %w", err)
		}
	}
	plan, err := newPlan(h, spec)
	if denied, ok := errors.AsType[*hypervisor.DeniedError](err); ok {
		ring, _ := rings.RingOf(spec.Profile.Ring)
		err = h.Refuse(req, ring, denied)
	}
	if err != nil {
		return nil, none, err
	}
	adm, err := h.Admit(c.Context, req)
	if err == nil && adm.Ring.Value() != plan.Ring {
		err = fmt.Errorf("the ring of agent %s changed to %d while the run was planned for ring %d", req.Agent, adm.Ring.Value(), plan.Ring)
	}
	if err == nil {
		err = checkGateway(g, c, plan, h, adm, req)
	}
	return plan, adm, err
}

// newPlan is runtime's, of host paths that the session may see.
func newPlan(h *hypervisor.Hypervisor, spec runtime.Spec) (*runtime.Plan, error) {
	plan, err := runtime.NewPlan(spec)
	if err != nil {
		return nil, err
	}
	return plan, h.CheckPaths(spec.Session, plan.HostPaths())
}

var errStatusFile = errors.New("--status-file")

// writable finds out before the run whether a file can be written after it.
func writable(name string) error {
	if name == "" {
		return errors.New("is empty")
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", name)
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".agentrun-*")
	if err != nil {
		return err
	}
	f.Close()
	return os.Remove(f.Name())
}

func start(ctx context.Context, g *global, c *cli.Context, plan *runtime.Plan, out *runtime.Exit, observer runtime.Observer) (runtime.Status, error) {
	if removed, err := runtime.Collect(c.Context, g.runDir); err != nil {
		g.log.Warn("cleaning up after crashed runs", "removed", len(removed), "err", err)
	} else if len(removed) > 0 {
		g.log.Info("cleaned up after crashed runs", "removed", removed)
	}
	signals := make(chan os.Signal, 16)
	// Caught to the end of the process: one more SIGTERM while the run is settled would end us before its account is written.
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	opt := runtime.Options{
		RunDir: g.runDir, Exit: out, Stdout: os.Stdout, Stderr: os.Stderr, Signals: signals, Observer: observer,
		CacheDir:     filepath.Join(g.stateDir, "seccomp"),
		OnCacheError: func(err error) { g.log.Info("compiled filters are not kept", "err", err) },
		OnStep:       func(name string, took time.Duration) { g.log.Debug("launch", "step", name, "took", took) },
		OnStart: func(s runtime.Status) {
			time.AfterFunc(tidyAfter, tidy)
			g.log.Info("started", "id", s.ID, "ring", s.Ring, "launch", s.LaunchTime, "plan", s.PlanDigest)
		},
	}
	terminal := isTerminal(os.Stdin)
	if !terminal || c.Bool("i") || plan.TTY {
		opt.Stdin = os.Stdin
	}
	if plan.TTY && terminal {
		restore, err := ownTerminal(&opt)
		if err != nil {
			return runtime.Status{}, err
		}
		defer restore()
	}
	return runtime.Run(ctx, plan, opt), nil
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// ownTerminal puts the caller's terminal into raw mode, so that keys such as Ctrl-C act on the agent's
// terminal, and keeps the agent's as large as the caller's. The two are never the same device.
func ownTerminal(opt *runtime.Options) (restore func(), err error) {
	caller, err := console.ConsoleFromFile(os.Stdin)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	winch := make(chan os.Signal, 1)
	opt.OnTTY = func(master *os.File) {
		resize := func() {
			if size, err := caller.Size(); err == nil {
				_ = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Height, Col: size.Width})
			}
		}
		resize()
		signal.Notify(winch, unix.SIGWINCH)
		go func() {
			for range winch {
				resize()
			}
		}()
		// The caller's terminal goes on translating line ends in this mode; once is enough.
		_ = console.ClearONLCR(master.Fd())
		_ = caller.SetRaw()
	}
	return func() {
		signal.Stop(winch)
		close(winch)
		_ = caller.Reset()
	}, nil
}

// tell writes the status where it was asked for.
func tell(c *cli.Context, s runtime.Status) error {
	if c.Bool("json") {
		b, err := json.Marshal(s)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s\n", b)
	}
	if f := c.String("status-file"); f != "" {
		if err := s.WriteFile(f); err != nil {
			return fmt.Errorf("--status-file: %w", err)
		}
	}
	return nil
}

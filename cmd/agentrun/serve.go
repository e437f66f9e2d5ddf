// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"

	"agentrun/internal/read"
	"agentrun/internal/thread"
	"agentrun/supervisor"
	"agentrun/supervisor/daemon"
)

func serveCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "supervise many sandboxes in one process",
		Description: `Runs in the foreground. While it does, agentrun exec hands its runs over: same output, signals and exit
codes, less work for each. SIGTERM: no new runs, those there are get SIGTERM and the grace time; a second
one kills them at once. SIGHUP: read the configuration again. Under systemd it says when it is ready.

   agentrun serve
   agentrun serve --max-sandboxes 100 --queue-timeout 30s`,
		Flags:  serveFlags(),
		Action: func(c *cli.Context) error { return serveAction(g, c) },
	}
}

func serveAction(g *global, c *cli.Context) error {
	if c.NArg() > 0 {
		return usageError(c, fmt.Errorf("serve takes no arguments, got %q", c.Args().First()), false)
	}
	settings, err := withServeFlags(g.serve, c).Settings()
	if err != nil {
		return err
	}
	metrics, err := withServeFlags(g.serve, c).Metrics()
	if err != nil {
		return err
	}
	// Runs leave much garbage and little that lives: to collect a quarter as often spares a tenth of a start's processor time, and takes
	// some megabytes.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	_ = thread.EaseMonitor()
	_ = thread.QuietChildren()
	s := new(clients)
	return daemon.Serve(c.Context, daemon.Options{
		Node: &g.Node, Settings: settings, Metrics: metrics, Read: s.read, ReadCreate: s.readCreate,
		Reload: func() (daemon.Settings, error) {
			cfg, err := readConfig(g.caller, c.String("config"))
			if err != nil {
				return daemon.Settings{}, err
			}
			return withServeFlags(cfg.Serve, c).Settings()
		},
		Current: func() (*supervisor.Node, error) {
			now := &global{caller: g.caller, said: g.said}
			err := now.settle()
			return &now.Node, err
		},
	})
}

// clients are the daemon's. The flag library keeps state in variables of its own, so it reads one command
// line at a time.
type clients struct {
	reading sync.Mutex

	mu    sync.Mutex
	known map[string]line // by what stands before the command
}

// line is what the flags of an exec ask for. Callers say the same again and again, and to read it takes the library an eighth of the time that a
// start has its caller wait before the launch.
type line struct {
	said    globalFlags
	request supervisor.Request // without its command
}

// read tells what a client's command line asks for. What the library prints is kept until it has let go of
// its lock: a client that doesn't read its output must not hold up the others.
func (s *clients) read(ctx context.Context, by *supervisor.Caller, args []string) daemon.Asked {
	key, command := lineOf(by.Dir, args)
	if l, ok := s.line(key); ok {
		g := &global{caller: by, served: true, said: l.said}
		if err := g.settle(); err != nil {
			return daemon.Asked{Code: report(by.Stderr, err)}
		}
		l.request.Command = slices.Clone(command)
		return daemon.Asked{Node: &g.Node, Request: &l.request}
	}
	g := &global{caller: by, served: true, unheaded: !mayAskForHelp(args)}
	asked := s.ask(ctx, g, args)
	if key != "" && asked.Request != nil && slices.Equal(asked.Request.Command, command) {
		s.keep(key, line{g.said, *asked.Request})
	}
	return asked
}

// lineOf is what the flags of a command line count for, and the command behind them; no key: only the library can tell where they end, as
// behind a flag, whose value may be the first "--". Words hold no zero byte, and relative paths among them count from dir.
func lineOf(dir string, args []string) (key string, command []string) {
	end := slices.Index(args, "--")
	if end < 1 || strings.HasPrefix(args[end-1], "-") && !strings.Contains(args[end-1], "=") {
		return "", nil
	}
	return dir + "\x00" + strings.Join(args[:end], "\x00"), args[end+1:]
}

const (
	maxLines = 64
	maxLine  = 1 << 10 // bytes
)

func (s *clients) line(key string) (line, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.known[key]
	return l, ok
}

// keep keeps a line that two requests can be made of: whatever is a list they would share, variables may be secrets, and to ask for a hold
// changes the caller. What pointers lead to nobody writes.
func (s *clients) keep(key string, l line) {
	if len(key) > maxLine || l.request.Hold != "" {
		return
	}
	l.request.Command = nil
	for _, f := range reflect.ValueOf(l.request).Fields() {
		if k := f.Kind(); (k == reflect.Slice || k == reflect.Map) && f.Len() > 0 {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || len(s.known) >= maxLines {
		s.known = map[string]line{}
	}
	s.known[key] = l
}

// readCreate is read of agentrun create, which only the API has the daemon do.
func (s *clients) readCreate(ctx context.Context, by *supervisor.Caller, args []string) daemon.Asked {
	return s.ask(ctx, &global{caller: by, served: true, creates: true}, args)
}

func (s *clients) ask(ctx context.Context, g *global, args []string) daemon.Asked {
	by := g.caller
	var printed, complaints bytes.Buffer
	err := s.parse(ctx, g, args, &printed, &complaints)
	if err = cmp.Or(err, g.unknown); err == nil && g.request != nil {
		return daemon.Asked{Node: &g.Node, Request: g.request, Sandbox: g.sandbox}
	}
	_, _ = by.Stdout.Write(printed.Bytes())
	_, _ = by.Stderr.Write(complaints.Bytes())
	return daemon.Asked{Code: report(by.Stderr, err)}
}

func (s *clients) parse(ctx context.Context, g *global, args []string, printed, complaints *bytes.Buffer) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	app := g.app()
	app.Writer, app.ErrWriter = printed, complaints
	return app.RunContext(ctx, flagsFirst(app, args))
}

func serveFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "max-sandboxes", Usage: "at most `N` runs at once; more wait", DefaultText: "as many as there is memory for"},
		&cli.IntFlag{Name: "queue", Usage: "at most `N` that wait; more are refused", DefaultText: fmt.Sprint(daemon.DefaultQueue)},
		&cli.DurationFlag{Name: "queue-timeout", Usage: "wait at most `TIME`, then refuse", DefaultText: daemon.DefaultQueueTimeout.String()},
		&cli.DurationFlag{Name: "grace", Usage: "`TIME` between SIGTERM to the agents and their end, when the daemon ends, at most 5s", DefaultText: daemon.MaxGrace.String()},
		&cli.StringFlag{Name: "memory-reserve", Usage: "`SIZE` of memory that is left to the host", DefaultText: "256M"},
		&cli.IntFlag{Name: "pool-max", Usage: "keep at most `N` sandboxes ready for who asks next; 0: none", DefaultText: fmt.Sprint(daemon.DefaultPoolMax)},
		&cli.StringFlag{Name: "metrics-addr", Usage: "serve the node's metrics (Prometheus) on `HOST:PORT`, loopback unless --metrics-anywhere", DefaultText: "on the control socket alone"},
		&cli.BoolFlag{Name: "metrics-anywhere", Usage: "let the metrics be read by whoever can connect to their address"},
		&cli.Float64Flag{Name: "memory-share", Usage: "promise what live runs may still take `N` times over, 1 to 1000; with 1 no byte twice", DefaultText: fmt.Sprint(daemon.DefaultMemoryShare)},
	}
}

// withServeFlags lays the flags of serve over the file.
func withServeFlags(s daemon.Config, c *cli.Context) daemon.Config {
	lay(c, "max-sandboxes", &s.MaxSandboxes, c.Int)
	lay(c, "queue", &s.Queue, c.Int)
	lay(c, "queue-timeout", &s.QueueTimeout, c.Duration)
	lay(c, "grace", &s.Grace, c.Duration)
	lay(c, "memory-reserve", &s.MemoryReserve, func(flag string) read.Word { return read.Word(c.String(flag)) })
	lay(c, "pool-max", &s.PoolMax, func(flag string) *int { return given(c, flag, c.Int) })
	lay(c, "metrics-addr", &s.MetricsAddr, c.String)
	lay(c, "metrics-anywhere", &s.MetricsAnywhere, c.Bool)
	lay(c, "memory-share", &s.MemoryShare, func(flag string) *float64 { return given(c, flag, c.Float64) })
	return s
}

// lay puts the value of a flag that was given over another.
func lay[T any](c *cli.Context, flag string, over *T, value func(string) T) {
	if c.IsSet(flag) {
		*over = value(flag)
	}
}

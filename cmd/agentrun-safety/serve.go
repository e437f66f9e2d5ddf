// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/internal/hinted"
	"agentrun/internal/verb"
	"agentrun/rings"
	"agentrun/safetyloop"
	"agentrun/safetyloop/desk"
	"agentrun/safetyloop/judge"
	"agentrun/safetyloop/mcpaql"
	"agentrun/store"
)

// serveOptions are the flags of serve, looked at.
type serveOptions struct {
	judging
	stdio        bool
	http         string
	tokens       string
	hosts        []string
	origins      []string
	idle         time.Duration
	maxSteps     int
	confirm      safetyloop.Confirm
	peers        bool
	endpoints    mcpaql.Endpoints
	principal    string
	name         string
	terminal     string
	webhook, key string
}

const defaultSteps = 20

func serveFlags(c *cli.Context) (o serveOptions, err error) {
	hint := c.Command.HelpName + " --help lists the flags"
	o = serveOptions{
		stdio: c.Bool("stdio"), http: c.String("http"), tokens: c.String("tokens"), hosts: c.StringSlice("allow-host"), origins: c.StringSlice("allow-origin"),
		idle: c.Duration("idle"), peers: c.Bool("peers-confirm"), maxSteps: c.Int("max-steps"), principal: c.String("principal"), name: c.String("name"),
		terminal: c.String("show-codes-on"), webhook: c.String("webhook"), key: c.String("webhook-key"),
	}
	if o.judging, err = judgingFlags(c); err != nil {
		return o, err
	}
	var errs []error
	flag := func(name string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", name, err))
		}
	}
	if c.IsSet("confirm") {
		o.confirm, err = judge.ParseConfirm(c.String("confirm"))
		flag("confirm", err)
	}
	o.endpoints, err = mcpaql.ParseEndpoints(c.String("endpoints"))
	flag("endpoints", err)
	flag("principal", rings.CheckAgentID(o.principal))
	if o.name == "" {
		o.name = randomName()
	}
	if len(o.name) > 64 {
		flag("name", errors.New("longer than 64 bytes"))
	}
	if c.IsSet("max-steps") && (o.maxSteps < 1 || o.maxSteps > 10000) {
		flag("max-steps", fmt.Errorf("%d: want 1 to 10000", o.maxSteps))
	}
	if o.idle < time.Second || o.idle > 24*time.Hour {
		flag("idle", fmt.Errorf("%v: want 1s to 24h", o.idle))
	}
	switch {
	case o.stdio == (o.http != ""):
		errs = append(errs, errors.New("want one of --stdio and --http"))
	case o.stdio && (o.tokens != "" || len(o.hosts)+len(o.origins) > 0):
		errs = append(errs, errors.New("--tokens, --allow-host and --allow-origin go with --http"))
	}
	if o.webhook == "" && o.key != "" {
		flag("webhook-key", errors.New("it goes with --webhook"))
	}
	if err := errors.Join(errs...); err != nil {
		return o, hinted.New(err, hint)
	}
	return o, nil
}

// randomName is no secret: it keeps the sockets of several loops apart.
func randomName() string { return fmt.Sprintf("%d-%s", os.Getpid(), strings.ToLower(rand.Text()[:6])) }

func (s *settings) serve(c *cli.Context, _ []string) (err error) {
	o, err := serveFlags(c)
	if err != nil {
		return err
	}
	log, err := verb.Log(os.Stderr, s.common.LogLevel, s.common.LogFormat)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	// A client that is gone is the end of stdio, not a signal in the middle of a write.
	signal.Ignore(syscall.SIGPIPE)
	d := &dongle{o: o, log: log}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.open(ctx, s.common.StateDir, s.common.RunDir); err != nil {
		return err
	}
	return d.run(ctx)
}

// dongle is one safety loop with its clients' side and its operators' side.
type dongle struct {
	o       serveOptions
	log     *slog.Logger
	metrics desk.Metrics

	out     *os.File // of stdio
	closing []io.Closer
	judge   *hintJudge
	loop    *safetyloop.Loop
	desk    net.Listener
	web     net.Listener
	tokens  atomic.Pointer[mcpaql.Tokens]
	seen    os.FileInfo // of the tokens file, as it was read; nil: it couldn't be
}

// open makes everything that can be wrong, in the order in which it is taken apart again. Nobody is served before all of it is there.
func (d *dongle) open(ctx context.Context, stateDir, runDir string) (err error) {
	if err := harden(); err != nil {
		return err
	}
	if d.o.stdio {
		if d.out, err = takeStdout(); err != nil {
			return err
		}
	}
	if d.o.tokens != "" {
		if err := d.readTokens(); err != nil {
			return withHint("agentrun safety token NAME makes one", "--tokens: %w", err)
		}
	}
	db, err := store.Open(stateDir, store.Options{})
	if err != nil {
		return err
	}
	d.closing = append(d.closing, db)
	record := newRecorder(stateDir)
	d.closing = append(d.closing, record)
	if d.judge, err = d.o.openJudge(d.log); err != nil {
		return err
	}
	channels, err := d.channels()
	if err != nil {
		return err
	}
	d.loop, err = safetyloop.New(safetyloop.Settings{
		Mode: d.judge.mode, Tolerance: d.judge.tolerance, MaxSteps: cmp.Or(d.o.maxSteps, d.judge.maxSteps), Confirm: cmp.Or(d.o.confirm, d.judge.confirm), OnlyOperators: !d.o.peers,
		Store: db, Record: record, Judge: d.judge, Channels: channels, Now: time.Now, Observe: d.metrics.Observe,
	})
	if err != nil {
		return err
	}
	d.closing = append(d.closing, closer(func() error { d.loop.Close(); return nil }))
	if d.desk, err = control.Listen(runDir, "safety-"+d.o.name, control.Access{}); err != nil {
		return err
	}
	if d.o.http != "" {
		if d.web, err = (&net.ListenConfig{}).Listen(ctx, "tcp", d.o.http); err != nil {
			return withHint("--http 127.0.0.1:0 takes a free port", "--http: %w", errors.Join(err, d.desk.Close()))
		}
	}
	return nil
}

type closer func() error

func (c closer) Close() error { return c() }

func (d *dongle) close() error {
	var errs []error
	for i := len(d.closing) - 1; i >= 0; i-- {
		errs = append(errs, d.closing[i].Close())
	}
	return errors.Join(errs...)
}

// channels show codes beside the control socket, which always does.
func (d *dongle) channels() (list []safetyloop.Channel, err error) {
	if d.o.terminal != "" {
		t, err := openTerminal(d.o.terminal, d.o.stdio)
		if err != nil {
			return nil, err
		}
		d.closing, list = append(d.closing, t), append(list, told{t, d.log})
	}
	if d.o.webhook != "" {
		h, err := newWebhook(d.o.webhook, d.o.key)
		if err != nil {
			return nil, err
		}
		d.closing, list = append(d.closing, h), append(list, told{h, d.log})
	}
	return list, nil
}

// told says in the log that a channel doesn't work. The error has no code.
type told struct {
	safetyloop.Channel
	log *slog.Logger
}

func (t told) Show(ctx context.Context, c safetyloop.Challenge) error {
	err := t.Channel.Show(ctx, c)
	if err != nil {
		t.log.Warn("a channel could not show a challenge", "challenge", c.ID, "err", err)
	}
	return err
}

// run serves until the client hangs up or a signal comes. The operators' side begins first and ends last: there is no moment in
// which a code could be asked of nobody.
func (d *dongle) run(ctx context.Context) error {
	operators, leave := context.WithCancel(context.WithoutCancel(ctx))
	var serving sync.WaitGroup
	defer serving.Wait()
	defer leave()
	server := &control.Server{
		Controller: noRuns{}, Version: version, More: append(desk.Routes(d.loop), d.metrics.Route(nil)),
		Report: func(err error) { d.log.Error("control socket", "err", err) },
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	serving.Go(func() {
		if err := server.Serve(operators, d.desk); err != nil {
			stop(fmt.Errorf("control socket: %w", err)) // without operators nobody could be let go on again
		}
	})
	serving.Go(func() { d.watch(ctx) })
	d.log.Info("safety loop serves", "socket", "safety-"+d.o.name, "mode", d.judge.mode, "http", d.o.http)
	err := d.serveClients(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	return err
}

func (d *dongle) serveClients(ctx context.Context) error {
	s, err := mcpaql.New(mcpaql.Options{Loop: d.loop, Endpoints: d.o.endpoints, Version: version, Log: d.log})
	if err != nil {
		return err
	}
	if d.o.stdio {
		return s.ServeStdio(ctx, os.Stdin, d.out, safetyloop.Caller{Principal: d.o.principal})
	}
	o := mcpaql.HTTPOptions{Listens: d.web.Addr().String(), Principal: d.o.principal, Hosts: d.o.hosts, Origins: d.o.origins, Idle: d.o.idle}
	if d.o.tokens != "" {
		o.Tokens = d.tokens.Load
	}
	h, err := s.Handler(o)
	if err != nil {
		return hinted.New(err, "agentrun safety token NAME makes a token, --tokens FILE has them")
	}
	fmt.Fprintf(os.Stderr, "agentrun: the safety loop is at http://%s/mcp\n", d.web.Addr())
	return mcpaql.Serve(ctx, d.web, h)
}

// tokensPoll is how often the file is looked at: a token that was taken out is refused within it.
const tokensPoll = 2 * time.Second

func (d *dongle) watch(ctx context.Context) {
	if d.o.tokens == "" {
		return
	}
	t := time.NewTicker(tokensPoll)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			d.lookAtTokens()
		}
	}
}

// lookAtTokens reads the file anew if it has changed. One that can't be read may be one that a token was just taken out of: then
// nobody is let in.
func (d *dongle) lookAtTokens() {
	if info, err := os.Stat(d.o.tokens); err == nil && d.seen != nil && os.SameFile(info, d.seen) && info.ModTime().Equal(d.seen.ModTime()) && info.Size() == d.seen.Size() {
		return
	}
	if err := d.readTokens(); err != nil {
		if d.seen != nil {
			d.log.Error("tokens file: nobody is let in until it can be read", "err", err)
		}
		d.seen = nil
		d.tokens.Store(&mcpaql.Tokens{})
		return
	}
	d.log.Info("the tokens file was read anew")
}

func (d *dongle) readTokens() error {
	info, err := os.Stat(d.o.tokens)
	if err != nil {
		return err
	}
	t, err := mcpaql.LoadTokens(d.o.tokens)
	if err != nil {
		return err
	}
	d.seen = info
	d.tokens.Store(t)
	return nil
}

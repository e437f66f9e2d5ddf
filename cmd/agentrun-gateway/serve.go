// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"agentrun/internal/confine"
	"agentrun/netns"
	"agentrun/telemetry/otel"
	"agentrun/telemetry/runlog"
	"agentrun/telemetry/scrape"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

const (
	linkFD = 3 // inherited; the sockets follow

	// Connections of the agent to the tool gateway at once: those of a forward proxy are its own business.
	maxToolConnections = 256

	// What is left to say when the run is over has to be said by then; the supervisor waits a little longer.
	farewell = 2 * time.Second

	// sourcePatience is how long the agent's first word waits for MCP servers to say which tools they have.
	sourcePatience = 2 * time.Second

	exitOK = 0
)

// serveMain serves one run. It is started by agentrun and by nobody else: who it serves, where and how, comes over the link.
func serveMain() int {
	if err := serve(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", gatewayName, err)
		return exitFailed
	}
	return exitOK
}

func serve() error {
	l, err := link.Connect(os.NewFile(linkFD, "link"))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the process ends
	start := l.Start()
	if start.Version != version {
		return fmt.Errorf("agentrun is version %s and this is %s: install both anew", start.Version, version)
	}
	sockets, err := inherit(start.Sockets)
	if err != nil {
		return err
	}
	s, err := readSettings(start.Config, os.LookupEnv)
	if err != nil {
		return err
	}
	commands, err := s.commands()
	if err != nil {
		return err
	}
	log, file, err := otel.Logger(s.telemetry.Logs, start.LogDir, start.Caller.Run, s.SecretValues())
	if err != nil {
		return err
	}
	scrapes, err := scrapeSocket(start.Metrics, s.telemetry.Metrics)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	g, err := assemble(ctx, start, s, l, log)
	if err != nil {
		return err
	}
	drop := confine.Options{UID: start.UID, GID: start.UID, Read: g.reader, BestEffort: start.BestEffort}
	if err := errors.Join(confine.Drop(drop)); err != nil {
		return err
	}
	if err := confine.Verify(drop); err != nil {
		return err
	}
	// Here the hostile begins: from the hello on, the supervisor takes no more commands, and not a byte was read before.
	if err := l.Hello(commands); err != nil {
		return err
	}
	log.Info("gateway serves", "ring", start.Ring.Value(), "config", s.Path)
	var serving sync.WaitGroup
	ended := make(chan error, 1)
	g.background(ctx, &serving)
	select {
	case <-g.registry.Asked(): // the first list has the tools of MCP servers
	case <-time.After(sourcePatience): // those of one that is slower come later; a call of them waits (tools.Registry)
	}
	servers := g.listen(sockets, scrapes, &serving, func(err error) {
		select {
		case ended <- err:
		default:
		}
	})
	outcome, err := untilEnd(l, ended)
	cancel()
	g.close(servers, log)
	if file != nil {
		err = errors.Join(err, file.Finish(outcome))
	}
	return err
}

// untilEnd waits for the end of the run, which the supervisor tells, or for what ends the gateway before it. The log of what didn't
// end well is kept longer (M-18).
func untilEnd(l *link.Client, broken <-chan error) (runlog.Outcome, error) {
	select {
	case <-l.Ended():
		if !l.EndedWell() {
			return runlog.Failed, nil
		}
		return runlog.Succeeded, nil
	case <-l.Gone():
		return runlog.Failed, errors.New("the supervisor is gone")
	case err := <-broken:
		return runlog.Failed, err
	}
}

// socket is an inherited one, by its name on the link.
type socket struct {
	name string
	file *os.File
}

func inherit(names []string) ([]socket, error) {
	var list []socket
	for i, name := range names {
		fd := linkFD + 1 + i
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			return nil, fmt.Errorf("inherited socket %s: %w", name, err)
		}
		unix.CloseOnExec(fd)
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("inherited socket %s: %w", name, err)
		}
		list = append(list, socket{name, os.NewFile(uintptr(fd), name)})
	}
	return list, nil
}

// scrapeSocket is made before the drop, which forbids any other.
func scrapeSocket(flag string, c otel.Metrics) (net.Listener, error) {
	addr := cmp.Or(flag, c.Addr)
	if addr == "" {
		return nil, nil
	}
	l, err := scrape.Listen(addr, c.Anywhere)
	if errors.Is(err, unix.EADDRINUSE) && flag == "" {
		return nil, nil // another run's gateway has the address of the configuration
	}
	return l, err
}

// background are the things that happen by themselves.
func (g *gateway) background(ctx context.Context, serving *sync.WaitGroup) {
	serving.Go(func() { g.policy.Watch(ctx) })
	serving.Go(func() { g.registry.Run(ctx) })
}

// listen serves each socket on a goroutine. A listener that ends by itself ends the gateway: half a way out would be a riddle.
func (g *gateway) listen(sockets []socket, scrapes net.Listener, serving *sync.WaitGroup, ended func(error)) []*http.Server {
	server := tools.NewServer(g.mux)
	servers := []*http.Server{server}
	run := func(name string, serve func() error) {
		serving.Go(func() {
			if err := serve(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
				ended(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	stream := func(s socket, serve func(net.Listener) error) {
		l, err := net.FileListener(s.file)
		s.file.Close()
		if err != nil {
			ended(fmt.Errorf("%s: %w", s.name, err))
			return
		}
		run(s.name, func() error { return serve(l) })
	}
	var answers []*os.File
	for _, s := range sockets {
		if s.name == link.SocketAnswers {
			answers = append(answers, s.file)
		}
	}
	run("gateway by the proxy", func() error { return server.Serve(netutil.LimitListener(g.inside, maxToolConnections)) })
	for _, s := range sockets {
		switch s.name {
		case link.SocketTools, link.SocketUnix:
			stream(s, func(l net.Listener) error { return server.Serve(netutil.LimitListener(l, maxToolConnections)) })
		case link.SocketProxy:
			stream(s, g.forward.ServeProxy)
		case link.SocketCapture:
			stream(s, g.forward.ServeCapture)
		case link.SocketDNS:
			stream(s, g.forward.ServeDNSStream)
		case link.SocketDNSUDP:
			packets, err := netns.PacketConn(s.file)
			if err != nil {
				ended(err)
				continue
			}
			run(s.name, func() error { return g.forward.ServeDNS(packets) })
		case link.SocketUDP:
			relay, err := netns.NewRelay(s.file, answers...)
			if err != nil {
				ended(err)
				continue
			}
			run(s.name, func() error { return g.forward.ServeDatagrams(relay) })
		case link.SocketAnswers: // with the one above
		case link.SocketFD:
			conn, err := net.FileConn(s.file)
			s.file.Close()
			if err != nil {
				ended(fmt.Errorf("%s: %w", s.name, err))
				continue
			}
			only := patient(g.mux)
			servers = append(servers, only)
			run(s.name, func() error { return only.Serve(newOne(conn)) })
		default:
			ended(fmt.Errorf("socket %q: unknown", s.name))
		}
	}
	if scrapes != nil {
		run("metrics", func() error { return g.metrics.Serve(scrapes) })
	}
	return servers
}

// patient serves the one connection of an agent that can make no other: a pause must not cost it the tools for the rest of its
// run. Its only client can keep no place from another one, and the run's end ends it; bodies have their time from the Mux.
func patient(h http.Handler) *http.Server {
	s := tools.NewServer(h)
	s.ReadHeaderTimeout, s.IdleTimeout = 0, 0
	return s
}

// close ends everything and puts the last records. The agent is dead, or its supervisor is.
func (g *gateway) close(servers []*http.Server, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	for _, s := range servers {
		_ = s.Close()
	}
	calls, over := context.WithTimeout(ctx, farewell/2)
	defer over()
	g.registry.Finish(calls)
	if err := g.forward.Close(); err != nil {
		log.Error("egress records", "err", err)
	}
	g.mux.Close()
	for _, s := range g.sources {
		_ = s.Close()
	}
	g.span.End(otel.Outcome{Code: "ok"})
	if err := g.tracer.Shutdown(ctx); err != nil {
		log.Warn("spans were not exported", "err", err)
	}
	g.policy.Close()
}

// within is a listener whose connections are made in this process: the one that an agent without sockets inherited, and those that the
// forward proxy makes to the gateway.
type within struct {
	conns chan net.Conn
	done  chan struct{}
	close func()
	addr  net.Addr
}

func newWithin(addr net.Addr) *within {
	done := make(chan struct{})
	return &within{make(chan net.Conn, 1), done, sync.OnceFunc(func() { close(done) }), addr}
}

func newOne(conn net.Conn) *within {
	w := newWithin(conn.LocalAddr())
	w.conns <- conn
	return w
}

func (w *within) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case w.conns <- far:
		return near, nil
	case <-w.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (w *within) Accept() (net.Conn, error) {
	select {
	case conn := <-w.conns:
		return conn, nil
	case <-w.done:
		return nil, net.ErrClosed
	}
}

func (w *within) Close() error { w.close(); return nil }

func (w *within) Addr() net.Addr { return w.addr }

// pipeAddr is where connections within this process come from.
type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

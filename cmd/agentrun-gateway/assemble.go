// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"agentrun/internal/read"
	"agentrun/telemetry"
	"agentrun/telemetry/metrics"
	"agentrun/telemetry/otel"
	"agentrun/toolproxy/boundary"
	"agentrun/toolproxy/breaker"
	"agentrun/toolproxy/builtin"
	"agentrun/toolproxy/cmdtool"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/elevation"
	"agentrun/toolproxy/forward"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/httptool"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/llm"
	"agentrun/toolproxy/mcpserver"
	"agentrun/toolproxy/mcptool"
	"agentrun/toolproxy/names"
	"agentrun/toolproxy/router"
	"agentrun/toolproxy/safety"
	"agentrun/toolproxy/tools"
	"agentrun/toolproxy/webtool"
)

// settings are gateway.yaml, read by the packages that its sections belong to.
type settings struct {
	gatewayConfig
	egress    forward.Config
	tools     tools.Config
	search    webtool.Search
	llm       llm.Config
	router    router.Config
	policy    policyConfig
	safety    safetyConfig
	breaker   breaker.Config
	telemetry otel.Config
}

// readSettings reads the file and the secrets it names, and tells everything that is wrong with it.
func readSettings(file link.Config, environ func(string) (string, bool)) (settings, error) {
	c := divide(file)
	s := settings{gatewayConfig: c}
	errs := make([]error, 10)
	s.secrets, errs[0] = readSecrets(c.Secrets, environ)
	s.egress, errs[1] = forward.ParseConfig(c.Egress)
	s.tools, errs[2] = tools.ParseConfig(c.Tools)
	s.llm, errs[3] = llm.ParseConfig(c.LLM)
	s.router, errs[4] = router.ParseConfig(c.Router)
	s.policy, errs[5] = parsePolicyConfig(c.Policy)
	s.safety, errs[6] = parseSafetyConfig(c.Safety)
	s.breaker, errs[7] = breaker.ParseConfig(c.Breaker)
	s.telemetry, errs[8] = otel.ParseConfig(c.Telemetry)
	s.search, errs[9] = webtool.ParseSearch(c.Search)
	if err := c.root.Done(errs...); err != nil {
		return settings{}, err
	}
	return s, nil
}

// commands are the operator's programs, for the supervisor: it starts no other.
func (s settings) commands() ([]link.Command, error) {
	list := cmdtool.CodeCommands()
	var errs []error
	for name, spec := range s.tools {
		var more []link.Command
		var err error
		switch spec.Kind {
		case "command":
			more, err = cmdtool.Commands(name, spec.Node)
		case "mcp":
			more, err = mcptool.Commands(name, spec.Node)
		}
		list, errs = append(list, more...), append(errs, err)
	}
	return list, errors.Join(errs...)
}

// bodies are the sizes of requests' bodies that aren't the Mux's own.
func (s settings) bodies() map[egress.Family]int64 {
	return map[egress.Family]int64{egress.LLMChat: s.llm.Limits.Body, egress.LLMEmbeddings: s.llm.Limits.Body, egress.Safety: safety.MaxBody}
}

// gateway is everything behind the listeners of one run.
type gateway struct {
	policy   *policyDecider
	tracer   *otel.Tracer
	span     *otel.Span
	metrics  *metrics.Metrics
	registry *tools.Registry
	sources  []*mcptool.Source
	mux      *tools.Mux
	forward  *forward.Proxy
	inside   *within  // connections of the forward proxy to the mux
	reader   []string // paths that are read again after the drop
}

// assemble builds it for one run. Everything that reads a file or a secret happens here, before the drop; nothing connects.
func assemble(ctx context.Context, start link.Start, s settings, supervisor link.Supervisor, log *slog.Logger) (*gateway, error) {
	g := &gateway{}
	if start.OfTool {
		s.tools = nil
	}
	var resolver forward.Resolver
	if start.Names != (link.Names{}) {
		own := names.New(start.Names.Resolv, start.Names.Hosts)
		resolver = own
		if first := own.First(); first != nil { // for the operator's own servers: the host's resolver may be out of reach in an engine's network
			net.DefaultResolver = first
		}
	}
	var err error
	if g.tracer, err = otel.New(s.telemetry, otel.Options{Secret: s.Secret, Version: version}); err != nil {
		return nil, err
	}
	c := start.Caller
	g.span = g.tracer.Run(start.Trace, otel.RunInfo{Run: c.Run, Agent: c.Agent, Session: c.Session, Team: c.Team, Plan: c.Plan, Ring: start.Ring})
	g.metrics = metrics.New(metrics.Options{Tools: toolNames(s.tools), DroppedSpans: g.tracer.Dropped})
	if g.policy, err = newPolicyDecider(s.policy, start.Policy, s.Secret, log); err != nil {
		return nil, err
	}
	g.reader = g.policy.Readable()
	loop, err := guard(start, s, supervisor, log)
	if err != nil {
		return nil, err
	}
	g.reader = append(g.reader, loop.readable()...)
	alarms := &alarms{to: controlsOf(supervisor), log: log}
	options := gate.Options{
		Supervisor: waiting{supervisor, g.metrics}, Caller: c, Policy: timed(g.policy, g.metrics), MaxSteps: start.MaxSteps, MaxModelCalls: start.MaxModelCalls, Ends: endsOf(supervisor),
		Granted: gate.Granting(start.Tools), Log: log, Observe: g.observe, TraceID: traceID, Alarm: alarms.violation,
	}
	loop.require(&options)
	entrance, err := gate.New(options)
	if err != nil {
		return nil, err
	}
	shedding := breaker.New(breaker.Options{Entrance: entrance, Config: s.breaker, Log: log, Alarm: func(detail string) { alarms.tripped(ctx, detail) }})
	spans := spanned{outer{shedding}, g.span}
	models, err := llm.New(llm.Options{Config: s.llm, Entrance: spans, Caller: c, Secret: s.Secret, Log: log,
		Trace: func(ctx context.Context, h http.Header) { spanOf(ctx).Inject(h) }})
	if err != nil {
		return nil, err
	}
	own := builtin.Options{Memory: memoryOf(c, supervisor), Embedder: embedderOf(models), Context: contextOf(c, supervisor), Files: filesOf(c, supervisor)}
	if err := g.tools(ctx, start, s, supervisor, metering{outer{spans}}, own, log); err != nil {
		return nil, err
	}
	routes, err := router.New(router.Options{Config: s.router, Tools: invoker{g.registry}})
	if err != nil {
		return nil, err
	}
	usage, err := router.NewUsage(router.UsageOptions{Budget: supervisor.Budget, Ends: endsOf(supervisor)})
	if err != nil {
		return nil, err
	}
	mounts := map[egress.Family]http.Handler{
		egress.Tools: g.registry.Handler(), egress.LLMChat: models, egress.LLMEmbeddings: models,
		egress.Router: routes, egress.Usage: usage,
		egress.Elevation: elevation.New(elevation.Options{Gate: entrance, Controls: controlsOf(supervisor)}),
	}
	served := mcpserver.Options{Tools: g.registry, Version: version, Ends: endsOf(supervisor)}
	if err := loop.serve(mounts, &served, entrance, log); err != nil {
		return nil, err
	}
	mounts[egress.MCP] = mcpserver.New(served)
	if start.OfTool {
		clear(mounts)
	}
	g.mux = tools.NewMux(tools.MuxOptions{Mounts: mounts, Bodies: s.bodies(), Record: supervisor.Record, Unknown: entrance.AskRoute})
	addresses, err := hostAddresses()
	if err != nil {
		return nil, err
	}
	g.inside = newWithin(pipeAddr{})
	g.forward, err = forward.New(forward.Options{
		Gateway: g.inside.dial, GatewayHosts: tools.DefaultHosts(), Resolver: resolver,
		Config: s.egress, Allow: start.Allow, Supervisor: counted{limitedTo(supervisor, start.Network), g.metrics}, CA: start.CA, Secret: s.Secret, Log: log,
		// After the drop no netlink socket can be made. A run is shorter than a host's address mostly lives, and whatever is
		// private is refused anyway.
		Own: func() ([]netip.Addr, error) { return addresses, nil },
	})
	return g, err
}

func (g *gateway) tools(ctx context.Context, start link.Start, s settings, supervisor link.Supervisor, entrance gate.Entrance, own builtin.Options, log *slog.Logger) error {
	parent := func(ctx context.Context) string { return spanOf(ctx).IDs().Traceparent() }
	web, err := webtool.Definitions(webtool.Options{
		Search: s.search, Secrets: s.Secret, Traceparent: parent, Way: func() http.RoundTripper { return g.forward.Transport() },
	})
	if err != nil {
		return err
	}
	definitions := append(append(builtin.Definitions(own), cmdtool.CodeExecutor(supervisor)), web...)
	if start.OfTool {
		definitions = nil
	}
	upstreams := mcptool.Sources(mcptool.Options{Secrets: s.Secret, Supervisor: supervisor, Context: ctx, Trace: parent,
		Report: func(server, tool, why string) {
			log.Warn("tool of an MCP server is not offered", "server", server, "tool", tool, "why", why)
		}})
	g.registry, err = tools.New(tools.Options{
		Config: s.tools, Builtin: definitions,
		Factories: map[string]tools.Factory{
			"http":    httptool.Factory(httptool.Options{Secrets: s.Secret, Traceparent: parent}),
			"command": cmdtool.Factory(cmdtool.Options{Supervisor: supervisor}),
		},
		Sources: map[string]tools.SourceFactory{"mcp": func(name string, node *read.Node) (tools.Source, error) {
			source, err := upstreams(name, node)
			if s, ok := source.(*mcptool.Source); ok {
				g.sources = append(g.sources, s)
			}
			return source, err
		}},
		Entrance: entrance, Caller: start.Caller, Filter: boundary.Reply, Inspect: inspect, Log: log,
	})
	return err
}

// inspect looks for instructions in arguments (M-16): they come from the model, which may have read anything.
func inspect(args json.RawMessage) []string { return boundary.Inspect(string(args)) }

func toolNames(c tools.Config) []string {
	var names []string
	for _, d := range builtin.Definitions(builtin.Options{Context: (*link.Client)(nil), Files: (*link.Client)(nil)}) {
		names = append(names, d.Name)
	}
	for name := range c {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return append(names, "code-executor", "search-lite", "browser-lite", "llm")
}

func hostAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of this host: %w", err)
	}
	var own []netip.Addr
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr().Unmap())
		}
	}
	return own, nil
}

// endsOf asks when the run's time is over; nil: nobody knows.
func endsOf(s link.Supervisor) func() time.Time {
	if l, ok := s.(interface{ Ends() time.Time }); ok {
		return l.Ends
	}
	return nil
}

// invoker shows the registry to the router.
type invoker struct{ r *tools.Registry }

func (i invoker) List() []router.ToolInfo {
	var list []router.ToolInfo
	for _, t := range i.r.List(context.Background()) {
		list = append(list, router.ToolInfo{Name: t.Name, Description: t.Description})
	}
	return list
}

func (i invoker) Invoke(ctx context.Context, name string, args json.RawMessage) (json.RawMessage, *gate.Error) {
	return i.r.Invoke(ctx, name, telemetry.NewPlaintext(args))
}

// Refuse has a name that is no tool's: an intent is the agent's words.
func (i invoker) Refuse(ctx context.Context, why *gate.Error) *gate.Error {
	return i.r.Refuse(ctx, "router", gate.Args{}, why)
}

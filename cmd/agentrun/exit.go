// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/config"
	"agentrun/governance"
	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/supervisor"
	"agentrun/supervisor/live"
	"agentrun/supervisor/precheck"
	"agentrun/supervisor/toolcmd"
	"agentrun/telemetry/trace"
	"agentrun/toolproxy/link"
)

// exitFlags shape the way out of a sandbox (M-7, M-8).
func exitFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "allow", Usage: "ring 2: let connections to `HOST[:PORT]` out, as example.com, *.example.com, example.com:8443"},
		&cli.StringSliceFlag{Name: "tool", Usage: "give only these tools, by `NAME` (default: all that ring, plan and role have)"},
		&cli.StringFlag{Name: "policy", Usage: "decide tool calls by the Cedar policies in `FILE` or folder"},
		&cli.StringFlag{Name: "gateway", Usage: "tools, egress rules, models and secrets from `FILE` (default: " + config.GatewayPath + ", if there is one)"},
		&cli.BoolFlag{Name: "no-gateway", Usage: "no way out at all, not even tools"},
	}
}

// exitSpec turns the request into what the sandbox is built with. What the gateway alone can tell is wrong, it tells in check.
func exitSpec(g *global, r *supervisor.Request, s *runtime.Spec) (bad []runtime.Problem) {
	problem := func(flag, format string, args ...any) {
		bad = append(bad, runtime.Problem{Field: flag, Message: fmt.Sprintf(format, args...)})
	}
	if r.NoGateway {
		for _, f := range []struct {
			flag  string
			given bool
		}{{"allow", len(r.Allow) > 0}, {"tool", len(r.Tools) > 0}, {"policy", r.Policy != ""}, {"gateway", r.Gateway != ""}, {"metrics-addr", r.Metrics != ""}} {
			if f.given {
				problem("--"+f.flag, "there is nothing for it with --no-gateway")
			}
		}
		return bad
	}
	s.Exit = true
	file, err := g.gatewayFile(r)
	if err != nil {
		problem("--gateway", "%v", err)
	}
	s.CapturePorts, s.ExitCA = file.CapturePorts, file.Intercepts
	for _, entry := range r.Allow {
		if entry == "" || strings.ContainsAny(entry, " \t\n/@") {
			problem("--allow", "%q is not HOST or HOST:PORT", entry)
			continue
		}
		if _, port, err := net.SplitHostPort(entry); err == nil && port != "*" {
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil || n == 0 {
				problem("--allow", "%q: the port is a number from 1 to 65535, or *", entry)
				continue
			}
			s.CapturePorts = append(s.CapturePorts, uint16(n))
		}
	}
	for _, port := range s.CapturePorts {
		if slices.Contains(runtime.ExitPorts(), port) {
			problem("--allow", "port %d is one of the gateway's own inside; reach it by the proxy variables without capture", port)
		}
	}
	if r.Policy != "" {
		if _, err := os.Stat(r.Policy); err != nil {
			problem("--policy", "%v", err)
		}
	}
	return bad
}

// gatewayFile is gateway.yaml of the run that this command is about. It is read once: what is put in its place meanwhile is the
// next run's.
func (g *global) gatewayFile(r *supervisor.Request) (config.Gateway, error) {
	if g.gateway != nil {
		return *g.gateway, nil
	}
	file, err := config.ReadGateway(r.Gateway)
	if err == nil {
		g.gateway = &file
	}
	return file, err
}

// startOf is what a gateway is told of a run that is admitted, as far as the admission knows it.
func startOf(r *supervisor.Request, plan *runtime.Plan, adm *hypervisor.Admission, file config.Gateway) (link.Start, error) {
	start := link.Start{
		Caller: adm.Caller(plan.ID, plan.Name), Ring: adm.Ring, Config: link.Config{Path: file.Path, Text: file.Text}, Version: version,
		Allow: r.Allow, Tools: r.Tools, Metrics: r.Metrics, Safety: live.SafetyStart(plan),
	}
	if r.Policy == "" {
		return start, nil
	}
	var err error
	start.Policy, err = filepath.Abs(r.Policy)
	return start, err
}

// wayOut makes the exit of an admitted run. The caller closes what it returns when the run is over; end is called at most once.
func wayOut(g *global, r *supervisor.Request, v *live.Run, h *hypervisor.Hypervisor, adm hypervisor.Admission, end func(error)) (*runtime.Exit, *hypervisor.Exit, error) {
	plan := v.Plan
	if plan.Exit == nil {
		return nil, nil, nil
	}
	program, err := findGateway()
	if err != nil {
		return nil, nil, err
	}
	file, err := g.gatewayFile(r)
	if err != nil {
		return nil, nil, err
	}
	start, err := startOf(r, plan, &adm, file)
	if err != nil {
		return nil, nil, err
	}
	cmds := &toolcmd.Commands{Options: toolcmd.Options{StateDir: g.stateDir, RunDir: g.runDir, Run: plan.ID, Env: g.caller.childEnv(), Dir: g.caller.dir}}
	x := h.Exit(adm, hypervisor.ExitOptions{
		Run: plan.ID, Name: plan.Name, MaxSteps: plan.Limits.MaxSteps, KillOnBreach: r.KillOnBreach, Control: v.Control, Safety: v.Safety,
		End:     end,
		Warn:    func(err error) { g.log.Warn("tool proxy", "err", err) },
		Execute: cmds.Execute,
	})
	start.MaxSteps, start.LogDir, start.BestEffort = x.MaxSteps(), g.outputs().LogsDir(), r.BestEffort
	start.Network, start.Trace = narrowedNetwork(plan), trace.New(true).Traceparent()
	start.Ends = time.Now().Add(time.Duration(plan.Limits.Timeout))
	e := &runtime.Exit{
		Program: program, Start: start, Supervisor: x, Announce: cmds.Announce, Env: file.Environ(g.caller.lookupEnv), Eager: start.Metrics != "",
	}
	if plan.Exit.CA {
		if err := ownCA(e, plan.ID); err != nil {
			return nil, nil, errors.Join(err, x.Close())
		}
	}
	return e, x, nil
}

// narrowedNetwork names the profile's network where that is less than its ring has; empty: it isn't. A ring's own is not
// named: an elevation is to open what the higher ring has (M-22).
func narrowedNetwork(plan *runtime.Plan) string {
	own := map[int]profiles.NetworkMode{1: profiles.NetworkPublic, 2: profiles.NetworkAllowlist, 3: profiles.NetworkNone}[plan.Ring]
	if plan.Network == string(own) {
		return ""
	}
	return plan.Network
}

// planLimits narrows what the plan of the run's agent narrows (M-19). Flags that ask for more are refused like any other limit.
func planLimits(ctx context.Context, r *supervisor.Request, h *hypervisor.Hypervisor, req hypervisor.Request, l *profiles.Limits) error {
	if req.Agent == "" {
		return nil
	}
	grant, err := h.GrantFor(ctx, req.Agent)
	if err != nil {
		return err
	}
	most := profiles.Duration(grant.Limits.Time)
	if int64(grant.Limits.Time) == governance.Unlimited || l.Timeout <= most {
		return nil
	}
	if r.Limits.Timeout != nil {
		return &runtime.InvalidSpec{Problems: []runtime.Problem{{Field: "--timeout", Message: fmt.Sprintf("plan %s gives a run %s at most", grant.Plan, most)}}}
	}
	l.Timeout = most
	l.CPUTime = min(l.CPUTime, most)
	return nil
}

// checkGateway has the gateway's program look at what the run brings, before anything starts: it would refuse it at the run's
// first connection. With policies of the operator's it is also asked whether the run may be (M-9, agent.run.invoke); the
// built-in ones let every admitted run begin.
func checkGateway(g *global, r *supervisor.Request, plan *runtime.Plan, h *hypervisor.Hypervisor, adm hypervisor.Admission, req hypervisor.Request) error {
	if plan.Exit == nil {
		return nil
	}
	file, err := g.gatewayFile(r)
	if err != nil {
		return err
	}
	if file.Path == "" && r.Policy == "" && r.Metrics == "" && len(r.Allow)+len(r.Tools) == 0 {
		return nil // the built-in defaults
	}
	program, err := findGateway()
	if err != nil {
		return err
	}
	start, err := startOf(r, plan, &adm, file)
	if err != nil {
		return err
	}
	v, err := precheck.Ask(precheck.Question{
		Program: program, Start: start, Env: file.Environ(g.caller.lookupEnv), Named: file.Named,
		Folder: filepath.Join(g.runDir, "checked"), Warn: func(err error) { g.log.Info("checks of gateway.yaml are not kept", "err", err) },
	})
	if err != nil || v.Allowed {
		return err
	}
	return h.Refuse(req, adm.Ring, &hypervisor.DeniedError{
		What:     "run in " + adm.Ring.String(),
		Decision: rings.Decision{Code: v.Code, Rule: "M-9", Reason: v.Message},
		Hint:     "agentrun policy explain tells what decided",
	})
}

// ownCA has the gateway's program make the CA of a run. Its key goes from one to the other by pipes, and lies nowhere.
func ownCA(e *runtime.Exit, run string) error {
	cmd := exec.Command(e.Program, "ca", run)
	answer, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("CA of the run: %w", err)
	}
	var made struct {
		CA  link.CA `json:"ca"`
		PEM string  `json:"pem"`
	}
	if err := json.Unmarshal(answer, &made); err != nil {
		return fmt.Errorf("CA of the run: %w", err)
	}
	e.Start.CA, e.Certificate = made.CA, []byte(made.PEM)
	return nil
}

func findGateway() (string, error) {
	program, err := findSibling()
	if err != nil {
		return "", hinted.New(err, "make install puts it beside agentrun; --no-gateway runs without tools and network")
	}
	return program, nil
}

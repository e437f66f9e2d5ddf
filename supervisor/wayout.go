// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"agentrun/config"
	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/internal/sibling"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/supervisor/live"
	"agentrun/supervisor/precheck"
	"agentrun/supervisor/toolcmd"
	"agentrun/telemetry/trace"
	"agentrun/toolproxy/link"
)

// GatewayProgram is the program behind a run's way out. It knows policies, models and TLS, which this one
// doesn't: each run would pay for them at its start.
const GatewayProgram = "agentrun-gateway"

// Outside is what was found of it before this process entered a user namespace: root's files and anybody's
// look the same there, so who may have written the program can be told outside only. The zero value: this
// process has entered none.
type Outside struct{ Program, Why string }

// Find returns the gateway's program. The error is of package sibling, or its text where it was looked for
// outside.
func (o Outside) Find() (string, error) {
	switch {
	case o.Program != "":
		return o.Program, nil
	case o.Why != "":
		return "", errors.New(o.Why)
	}
	return sibling.Find(GatewayProgram)
}

// wayOut turns the request into what of the sandbox its way out is built with. What the gateway alone can
// tell is wrong, it tells in check.
func (s *run) wayOut() (bad []read.Problem) {
	r := s.want
	problem := func(flag, format string, args ...any) {
		bad = append(bad, read.Problem{Path: flag, Message: fmt.Sprintf(format, args...)})
	}
	var err error
	if s.file, err = s.node.ReadGateway(r.Gateway); errors.Is(err, fs.ErrNotExist) {
		problem("--gateway", "%v; examples/gateway.yaml is one, and without the flag it is the node's", err)
	} else if err != nil {
		problem("--gateway", "%v", err)
	}
	if r.Policy != "" {
		if _, err := os.Stat(r.Policy); err != nil {
			problem("--policy", "%v", err)
		}
	}
	if r.NoGateway { // policies decide about the start all the same (M-9)
		for _, f := range []struct {
			flag  string
			given bool
		}{{"allow", len(r.Allow) > 0}, {"tool", len(r.Tools) > 0}, {"metrics-addr", r.Metrics != ""}} {
			if f.given {
				problem("--"+f.flag, "there is nothing for it with --no-gateway")
			}
		}
		return bad
	}
	spec := &s.spec
	spec.Wayout, spec.CapturePorts, spec.WayoutCA, spec.Dialects = true, slices.Clone(s.file.CapturePorts), s.file.Intercepts, s.file.Dialects
	for _, entry := range r.Allow {
		if strings.HasPrefix(entry, "preset:") { // rules of the gateway's own, which read what is inside TLS
			spec.WayoutCA = true
			continue
		}
		if entry == "" || strings.ContainsAny(entry, " \t\n/@") {
			problem("--allow", "%q is not HOST or HOST:PORT%s", entry, sayHost(entry))
			continue
		}
		if _, port, err := net.SplitHostPort(entry); err == nil && port != "*" {
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil || n == 0 {
				problem("--allow", "%q: the port is a number from 1 to 65535, or *", entry)
				continue
			}
			spec.CapturePorts = append(spec.CapturePorts, uint16(n))
		}
	}
	// An agent's run may be elevated, and has its list then. The operator's own has no score that would earn it.
	if len(r.Allow) > 0 && spec.Profile.Ring == DefaultRing && r.Agent == "" && s.parent == nil {
		problem("--allow", "ring 3 has no way to other hosts, and a run without --agent is never elevated; say --ring 2")
	}
	for _, port := range spec.CapturePorts {
		if slices.Contains(runtime.WayoutPorts(), port) {
			problem("--allow", "port %d is one of the gateway's own inside; reach it by the proxy variables without capture", port)
		}
	}
	return bad
}

// sayHost tells what of a URL would be let out to.
func sayHost(entry string) string {
	u, err := url.Parse(entry)
	if err != nil || u.Host == "" || u.Hostname() == "" {
		return ""
	}
	return "; say " + strconv.Quote(u.Host)
}

// startOf is what a gateway is told of an admitted run, as far as the admission knows it.
func (s *run) startOf() (start link.Start, err error) {
	plan, r := s.plan, s.want
	start = link.Start{
		Caller: s.admission.Caller(plan.ID, plan.Name), Ring: s.admission.Ring, Version: s.node.Version,
		Config: link.Config{Path: s.file.Path, Text: s.file.Text},
		Allow:  r.Allow, Tools: r.Tools, OfTool: r.OfTool, Metrics: r.Metrics, Safety: live.SafetyStart(plan),
	}
	if r.Policy != "" {
		start.Policy, err = filepath.Abs(r.Policy)
	}
	return start, err
}

// openWayOut makes the way out of an admitted run.
func (s *run) openWayOut() error {
	defer func() { s.ahead = nil }() // a run may last
	plan, r := s.plan, s.want
	if plan.Wayout == nil {
		return nil
	}
	program, err := s.gateway()
	if err != nil {
		return err
	}
	start, err := s.startOf()
	if err != nil {
		return err
	}
	cmds := &toolcmd.Commands{Run: s.runTool}
	o := hypervisor.BrokerOptions{
		MaxSteps: plan.Limits.MaxSteps, MaxModelCalls: cmp.Or(s.file.ModelCalls, config.DefaultModelCalls), Safety: s.live.Safety, Execute: cmds.Execute,
		Gateway: s.file.Path, Guarded: plan.Guarded,
	}
	if s.parent != nil {
		o.Parent = s.parent.broker
	}
	if r.OfTool { // its gateway has none; nor has one that has fallen
		o.MaxSteps, o.MaxModelCalls, o.Execute = 0, 0, nil
	}
	s.broker = s.live.Control.Broker(o)
	start.MaxModelCalls = o.MaxModelCalls
	start.MaxSteps, start.LogDir, start.BestEffort = s.broker.MaxSteps(), s.node.Outputs().LogsDir(), r.BestEffort
	start.Network, start.Trace = narrowedNetwork(plan), trace.New(true).Traceparent()
	s.out = &runtime.Wayout{
		Program: program, Start: start, Supervisor: s.broker, Announce: cmds.Announce,
		Env: s.file.Environ(s.by.LookupEnv), Eager: start.Metrics != "",
	}
	if plan.Wayout.CA {
		return ownCA(s.out, plan.ID)
	}
	return nil
}

// closeWayOut ends what openWayOut began, and does with the run's log what the configuration says. Nothing of the
// run is left that could use either.
func (s *run) closeWayOut() {
	if s.broker == nil {
		return
	}
	s.node.Outputs().Keep(s.plan.ID, s.file.Logs)
	if err := s.broker.Close(); err != nil {
		s.node.Log.Warn("closing the account of the tool proxy", "err", err)
	}
}

// narrowedNetwork names the profile's network where that is less than its ring has; empty: it isn't. A ring's
// own is not named: an elevation is to open what the higher ring has (M-22).
func narrowedNetwork(plan *runtime.Plan) string {
	own := map[int]profiles.NetworkMode{1: profiles.NetworkPublic, 2: profiles.NetworkAllowlist, 3: profiles.NetworkNone}[plan.Ring]
	if plan.Network == string(own) {
		return ""
	}
	return plan.Network
}

// askPolicy has the gateway's program look at what the run brings, before anything starts: it would refuse it at
// the run's first connection. Where there are policies of the operator's it also asks them whether the run may be
// (agent.run.invoke), whether or not it has a way out: a run that could leave the gateway away could else leave
// the policies away (M-9). A run with a key is always asked about: the built-in policies hold it to role and
// capabilities. Without key and policies nothing is asked: the built-in ones let every such run begin.
func (s *run) askPolicy() error {
	if err := s.useKey(); err != nil {
		return err
	}
	r := s.want
	ruled := s.file.Policy != nil || r.Policy != "" || s.admission.Key != nil
	brings := s.file.Path != "" || r.Metrics != "" || len(r.Allow)+len(r.Tools) > 0
	if !ruled && (s.plan.Wayout == nil || !brings) {
		return nil
	}
	program, err := s.gateway()
	if err != nil {
		return err
	}
	start, err := s.startOf()
	if err != nil {
		return err
	}
	v, err := precheck.Ask(precheck.Question{
		Program: program, Start: start, Env: s.file.Environ(s.by.LookupEnv), Named: s.file.Named,
		Folder: filepath.Join(s.node.RunDir, "checked"),
		Warn:   func(err error) { s.node.Log.Info("checks of gateway.yaml are not kept", "err", err) },
	})
	if err != nil || v.Allowed {
		return err
	}
	ring := s.admission.Ring
	return s.h.Refuse(s.asked, ring, &hypervisor.DeniedError{
		What:     "run in " + ring.String(),
		Decision: rings.Decision{Code: v.Code, Rule: "M-9", Reason: v.Message},
		Hint:     cmp.Or(hintOf[v.Code], "agentrun policy explain tells what decided"),
	})
}

// hintOf says what to do about a start that a guard of the policies refuses.
var hintOf = map[rings.Code]string{
	"no_role":            "agentrun agent set ID --role ROLE gives the agent one",
	"capability_missing": "agentrun key issue --agent ID --may agent.run.invoke,… makes a key for runs",
}

// ownCA has the gateway's program make the CA of a run. Its key goes from one to the other by pipes, and lies
// nowhere.
func ownCA(e *runtime.Wayout, run string) error {
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

func (s *run) gateway() (string, error) {
	find := s.ahead.now().gateway
	if find == nil {
		find = s.node.Gateway.Find
	}
	program, err := find()
	if err != nil {
		return "", hinted.New(err, "make install puts it beside agentrun; --no-gateway runs without tools and network")
	}
	return program, nil
}

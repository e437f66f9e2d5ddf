// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"agentrun/internal/read"
	"agentrun/internal/shown"
	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// checkMain builds everything a run would be served with and throws it away: agentrun has it done before a run that brings a
// new configuration, so that a mistake in it is told before anything starts. What the run brings, a link.Start, is on standard
// input; the answer is link.Holds if it holds for every run that brings the same.
func checkMain() int {
	var start link.Start
	err := json.NewDecoder(os.Stdin).Decode(&start)
	holds := false
	if err == nil {
		holds, err = check(start)
	}
	if d, ok := errors.AsType[*notAllowed](err); ok {
		b, _ := json.Marshal(link.Verdict{Code: d.Code, Message: d.Message})
		fmt.Fprintf(os.Stdout, "%s\n", b)
		return exitDenied
	}
	if err != nil {
		for _, line := range read.Lines(err) {
			fmt.Fprintln(os.Stderr, shown.Line(line))
		}
		return exitFailed
	}
	if holds {
		fmt.Fprint(os.Stdout, link.Holds)
	}
	return exitOK
}

// exitDenied says that the policy refuses the run; the answer, a link.Verdict, is on standard output.
const exitDenied = 3

type notAllowed struct{ pdp.Decision }

func (n *notAllowed) Error() string { return n.Message }

// check tells whether a run may be, and if so, whether that holds for every run that brings the same.
func check(start link.Start) (holds bool, err error) {
	s, err := readSettings(start.Config, os.LookupEnv)
	if err != nil {
		return false, err
	}
	_, err = s.egress.Authorities()
	if err := s.Egress.Done(err); err != nil {
		return false, err // also where this run intercepts nothing, and needs none
	}
	if _, err := s.commands(); err != nil {
		return false, err
	}
	l, err := scrapeSocket(start.Metrics, s.telemetry.Metrics)
	if err != nil {
		return false, err
	}
	if l != nil {
		defer func() { _ = l.Close() }() // nobody was served
	}
	// Who runs doesn't matter to what is wrong with the configuration: a yes holds for others, too. mayRun alone asks about the run.
	anybody := start
	anybody.Caller, anybody.Ring = link.Caller{Run: "check", Agent: "check", Session: "check", Plan: "operator", Mode: "public"}, rings.Privileged
	if start.Caller == (link.Caller{}) {
		start.Caller, start.Ring = anybody.Caller, anybody.Ring
	}
	if _, err := newSafetyJudge(s.safety, anybody, slog.New(slog.DiscardHandler)); err != nil {
		return false, err // also where this run has no safety loop
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	g, err := assemble(ctx, anybody, s, nobody{}, slog.New(slog.DiscardHandler))
	if err != nil {
		return false, err
	}
	defer g.policy.Close()
	defer func() { _ = g.forward.Close() }() // likewise
	if err := knownTools(start.Tools, g); err != nil {
		return false, err
	}
	// An operator's policy is asked about each run, and an address may be another's by the next. The configuration's own address of
	// metrics on loopback is there, and may be another's.
	asked := len(g.policy.paths) > 0 || g.policy.remote != nil
	return !asked && start.Metrics == "" && !s.telemetry.Metrics.Anywhere, g.mayRun(ctx, start)
}

// mayRun asks the policy about the run itself (M-9, agent.run.invoke).
func (g *gateway) mayRun(ctx context.Context, start link.Start) error {
	c := start.Caller
	r := pdp.Request{
		Subject:  pdp.Subject{ID: cmp.Or(c.Agent, c.Run), Type: pdp.Agent},
		TeamID:   cmp.Or(c.Team, c.Run),
		Action:   pdp.RunAction,
		Resource: pdp.Resource{ID: c.Run, TeamID: cmp.Or(c.Team, c.Run), Mode: pdp.Mode(c.Mode)},
		Context: pdp.Context{
			Ring: start.Ring, RequiredRing: start.Ring, Plan: c.Plan, Role: c.Role, Keyless: c.Key == nil,
			Capabilities: []string{pdp.RunAction}, Input: pdp.Clean, Quota: pdp.Quota{Limit: 1},
		},
	}
	if k := c.Key; k != nil { // the supervisor has just looked at it
		r.KeyID, r.Context.KeyValid, r.Context.Capabilities = k.ID, true, k.May
	}
	ctx, cancel := context.WithTimeout(ctx, gate.DefaultPolicyTimeout)
	defer cancel()
	if d := pdp.Guarded(g.policy).Decide(ctx, r); !d.Allowed() {
		return &notAllowed{d}
	}
	return nil
}

// knownTools refuses a name that nothing can stand for. Those of MCP servers are known when they are asked.
func knownTools(names []string, g *gateway) error {
	var errs []error
	for _, name := range names {
		if !g.registry.Has(name) {
			errs = append(errs, fmt.Errorf("--tool %.64q: there is no such tool%s", name, whichTools(name, g.registry.Names())))
		}
	}
	return errors.Join(errs...)
}

// whichTools says which tool was probably meant, else which there are.
func whichTools(name string, known []string) string {
	if near := read.Nearest(name, known); near != "" {
		return "; did you mean " + near + "?"
	}
	return "; there are " + strings.Join(known, ", ")
}

// nobody is a supervisor for a gateway that serves nobody.
type nobody struct{ link.Supervisor }

func (nobody) Ring() (rings.Ring, <-chan struct{}) { return rings.Privileged, make(chan struct{}) }

func (nobody) Record(context.Context, link.Record) error { return nil }

func (nobody) Safety(context.Context, link.Safety) (json.RawMessage, error) { return nil, link.ErrGone }

func (nobody) Intent(context.Context, string, string) error { return link.ErrGone }

func (nobody) Blocked(context.Context) error { return link.ErrGone }

// A session's tools are among those that a run may be given (--tool).
func (nobody) Context(context.Context, link.ContextRequest) (link.ContextAnswer, error) {
	return link.ContextAnswer{}, link.ErrGone
}

func (nobody) File(context.Context, link.FileRequest) (link.FileAnswer, error) {
	return link.FileAnswer{}, link.ErrGone
}

func (nobody) Budget(context.Context) (link.Budget, error) { return link.Budget{}, nil }

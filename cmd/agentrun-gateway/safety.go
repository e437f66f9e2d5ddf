// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"agentrun/internal/read"
	"agentrun/safetyloop/judge"
	"agentrun/safetyloop/policy"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/mcpserver"
	"agentrun/toolproxy/safety"
)

// safetySchema is the JSON Schema of the section safety:.
//
//go:embed safety.schema.json
var safetySchema []byte

// safetyConfig is the section safety: of gateway.yaml. The zero value is the score alone, without patterns.
type safetyConfig struct {
	Policy string `yaml:"policy"` // absolute path of a policy file (docs/safety-policy.md)
}

func parseSafetyConfig(n *read.Node) (safetyConfig, error) {
	var c safetyConfig
	n.Into(&c)
	var err error
	if c.Policy != "" && !filepath.IsAbs(c.Policy) {
		err = read.Bad("policy", "%q: want an absolute path", c.Policy)
	}
	return c, n.Done(err)
}

// safetyJudge is the operator's policy for one agent, as it is now.
type safetyJudge struct {
	current          func() *policy.Policy
	agent, workspace string
	path             string // empty: no file
}

// newSafetyJudge reads the policy, so it comes before confine.Drop. That it belongs to root is looked at here; later only root can
// have put another one in its place.
func newSafetyJudge(c safetyConfig, start link.Start, log *slog.Logger) (*safetyJudge, error) {
	j := &safetyJudge{current: func() *policy.Policy { return &policy.Policy{} }, agent: cmp.Or(start.Caller.Agent, start.Caller.Run), path: c.Policy}
	if start.Safety != nil {
		j.path, j.workspace = cmp.Or(start.Safety.Policy, c.Policy), start.Safety.Workspace
	}
	if j.path == "" {
		return j, nil
	}
	if _, err := read.File(j.path, read.OthersMayWrite, policy.MaxBytes); err != nil {
		return nil, fmt.Errorf("safety policy: %w", err)
	}
	w, err := policy.Watch(j.path, policy.WatchOptions{
		Now: time.Now,
		Changed: func(p *policy.Policy) {
			log.Info("safety policy loaded", "path", j.path)
			tellUnused(p, log)
		},
		Failed: func(err error) {
			log.Warn("safety policy refused, the last valid one goes on judging", "path", j.path, "error", err)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("safety policy: %w", err)
	}
	j.current = w.Current
	tellUnused(w.Current(), log)
	return j, nil
}

// tellUnused: how the loop of a sandbox is set, the profile says. A policy that says it too isn't wrong: the same file may be that of
// a server without sandbox.
func tellUnused(p *policy.Policy, log *slog.Logger) {
	s := p.For("", true).Settings()
	if s.Mode != judge.NoMode || s.Tolerance != judge.NoTolerance || s.MaxSteps != 0 || s.Confirm != judge.NoConfirm {
		log.Info("mode, tolerance, maxAutonomousSteps and confirm of a safety policy don't hold in a sandbox: its profile says them")
	}
}

// Judge implements judge.Judge.
func (j *safetyJudge) Judge(ctx context.Context, hint string) (judge.Judgement, error) {
	return j.current().For(j.agent, true).In(j.workspace).Judge(ctx, hint)
}

// guarded is the safety loop of a run, as its gateway has it.
type guarded struct {
	loop    link.Safeties
	judge   *safetyJudge
	mode    judge.Mode
	intents bool
}

// guard returns nil for a run without a safety loop.
func guard(start link.Start, s settings, supervisor link.Supervisor, log *slog.Logger) (*guarded, error) {
	if start.Safety == nil {
		return nil, nil
	}
	mode, err := judge.ParseMode(start.Safety.Mode)
	if err != nil {
		return nil, fmt.Errorf("safety loop: %w", err)
	}
	loop, ok := supervisor.(link.Safeties)
	if !ok {
		return nil, errors.New("safety loop: the supervisor has none")
	}
	for _, name := range safety.ToolNames() {
		if _, taken := s.tools[name]; taken {
			return nil, fmt.Errorf("tools.%s: the name is the safety loop's", name)
		}
	}
	j, err := newSafetyJudge(s.safety, start, log)
	if err != nil {
		return nil, err
	}
	return &guarded{loop, j, mode, start.Safety.RequireIntent}, nil
}

// readable is what must stay readable after the drop for hot reload: the folder, for a file that is renamed over it.
func (g *guarded) readable() []string {
	if g == nil || g.judge.path == "" {
		return nil
	}
	return []string{filepath.Dir(g.judge.path)}
}

// require has the gate ask the loop.
func (g *guarded) require(o *gate.Options) {
	if g != nil {
		o.Safety, o.RequireIntent = g.loop, g.intents
	}
}

// serve puts the loop's routes beside the others, and its tools beside the agent's.
func (g *guarded) serve(mounts map[egress.Family]http.Handler, server *mcpserver.Options, entrance *gate.Gate, log *slog.Logger) error {
	if g == nil {
		return nil
	}
	h, err := safety.New(safety.Options{Gate: entrance, Loop: g.loop, Judge: g.judge, Mode: g.mode, Log: log})
	if err != nil {
		return err
	}
	mounts[egress.Safety] = h
	server.Beside, server.Instructions = h, safety.Instructions(g.intents)
	return nil
}

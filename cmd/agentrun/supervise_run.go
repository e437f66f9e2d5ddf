// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/hypervisor"
	"agentrun/runtime"
	"agentrun/safetyloop/desk"
	"agentrun/supervisor/killhooks"
)

// supervise makes an admitted run known to its operators, from before its first step to when its account is complete. close ends
// that; it comes after the run's exit is closed and before the admission is given back.
func (g *global) supervise(c *cli.Context, h *hypervisor.Hypervisor, adm hypervisor.Admission, plan *runtime.Plan) (v *supervision, closeIt func(), err error) {
	v = &supervision{plan: plan, since: time.Now().UTC(), detached: c.Bool("d"), ended: make(chan struct{})}
	v.warn = func(err error) { g.log.Warn("control", "err", err) }
	if v.detached {
		v.output = g.outputFile(plan.ID)
	}
	v.control = h.Control(adm, hypervisor.ControlOptions{
		Run: plan.ID, Name: plan.Name, Settled: v.settled, Elevatable: plan.ElevatableNow, KillOnBreach: c.Bool("kill-on-breach"), QuarantineTimeout: c.Duration("quarantine-timeout"),
		HandlerLimit: killhooks.Backstop, Notify: v.decided, Warn: v.warn,
	})
	if err := g.hooks.Register(v.control, plan, g.log); err != nil {
		return nil, nil, errors.Join(err, v.control.Close())
	}
	silence := func() {}
	if home := g.caller.home; home != nil {
		v.all = home.runs
		home.queue.Started(g.caller.slot, plan.ID)
	} else {
		v.all = newSupervisions()
		v.all.safety.node, v.all.safety.warn = func() (*hypervisor.Hypervisor, error) { return h, nil }, v.warn
		if silence, err = g.answer(plan.ID, v.all); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("control socket: %w", err), v.control.Close())
		}
	}
	v.all.add(v)
	end := func() {
		v.all.remove(v)
		silence()
		v.all.safety.leave(v)
		if g.caller.home == nil {
			v.all.safety.close()
		}
		if err := v.control.Close(); err != nil {
			v.warn(err)
		}
	}
	if v.safety, err = v.all.safety.join(v); err != nil {
		end()
		return nil, nil, err
	}
	return v, end, nil
}

// answer serves the control API under a name. silence ends it, when those who asked have their answers.
func (g *global) answer(name string, runs *supervisions) (silence func(), err error) {
	l, err := control.Listen(g.runDir, name, g.access)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	srv := &control.Server{Controller: runs, Access: g.access, Version: version, More: append(desk.Routes(runs.safety), runs.safety.metrics.Route()), Report: func(err error) { g.log.Warn("control", "err", err) }}
	go func() {
		defer close(done)
		if err := srv.Serve(ctx, l); err != nil {
			g.log.Warn("control", "err", err)
		}
	}()
	return func() {
		runs.bus.Close()
		cancel()
		<-done
	}, nil
}

// follows lets a run be changed while it lives.
func (v *supervision) follows(opt *runtime.Options, alone bool) {
	opt.Ring, opt.OnLive, opt.OnEvent = v.control, v.begun, v.changed
	started := opt.OnStart
	opt.OnStart = func(s runtime.Status) {
		if alone {
			time.AfterFunc(tidyAfter, tidy)
		}
		started(s)
	}
}

// accessConfig is who besides root and the supervisor's own user may use the control API.
type accessConfig struct {
	ReadGroup    string `yaml:"read_group"`    // by name or id: may look
	OperateGroup string `yaml:"operate_group"` // may do everything
}

func (a accessConfig) resolve() (access control.Access, err error) {
	for field, of := range map[string]struct {
		name string
		id   *int
	}{"control.read_group": {a.ReadGroup, &access.ReadGroup}, "control.operate_group": {a.OperateGroup, &access.OperateGroup}} {
		if of.name == "" {
			continue
		}
		g, err := user.LookupGroup(of.name)
		if err != nil {
			g, err = user.LookupGroupId(of.name)
		}
		if err != nil {
			return access, fmt.Errorf("configuration: %s: no group %.64q on this host", field, of.name)
		}
		if *of.id, err = strconv.Atoi(g.Gid); err != nil || *of.id == 0 {
			return access, fmt.Errorf("configuration: %s: group %.64q can't be given access", field, of.name)
		}
	}
	return access, nil
}

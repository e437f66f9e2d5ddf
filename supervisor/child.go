// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"
	"io"
	"os"

	"agentrun/hypervisor"
	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/safetyloop"
	"agentrun/supervisor/live"
	"agentrun/toolproxy/link"
)

// runTool carries a tool's command out as a child of the run, and returns when nothing of it is left. It goes the way of any run, in
// this process: who it is comes from its parent and from nothing that could be said by another (H-15).
func (s *run) runTool(ctx context.Context, cmd link.Command, stdin, stdout *os.File) (code int, why string) {
	by := &Caller{Stdin: stdin, Stdout: stdout, Stderr: io.Discard, Environ: s.by.Environ, Dir: s.by.Dir}
	c := newRun(s.ctx, s.node, by, child{s}, s.requestFor(by, cmd))
	defer c.end(nil)
	defer context.AfterFunc(ctx, func() { c.end(context.Cause(ctx)) })()
	c.parent, c.h = s, s.h
	if err := c.through(s.way); err != nil {
		s.node.Log.Warn("a tool's command was not run", "run", s.plan.ID, "tool", cmd.Tool, "err", err)
		return exitCode(err), string(runtime.Failed) + ": " + err.Error()
	}
	if st := c.status.State; st != runtime.Exited && st != runtime.Signaled {
		why = string(st)
	}
	return c.status.ExitCode, why
}

// requestFor is what the operator's configuration asks for. It is asked by the policies that its parent was asked by, and has its key (M-9). The ring is the less privileged of what it says and what a child of the run
// may have (H-15).
func (s *run) requestFor(by *Caller, cmd link.Command) *Request {
	r := toolRequest(by, cmd)
	if cmd.Ring != 0 {
		*r.Ring = max(cmd.Ring, s.live.Control.ChildRing().Value())
	}
	r.Agent, r.Session, r.Policy, r.Key = s.want.Agent, s.want.Session, s.want.Policy, s.token
	if len(cmd.Allow) == 0 { // what the run's own file lets out is for its agent
		r.Gateway = s.want.Gateway
	}
	return r
}

// toolRequest is what a tool's command is run by, whoever runs it.
func toolRequest(by *Caller, cmd link.Command) *Request {
	ring := cmp.Or(cmd.Ring, DefaultRing)
	// It reports no steps, whatever its profile says of agents: it has nothing that takes one.
	off, no := profiles.SafetyMode(safetyloop.Disabled.String()), false
	r := &Request{
		Command: cmd.Argv, Ring: &ring, Profile: cmd.Profile, Workspace: by.Path(cmd.Workspace), Env: cmd.Env, Allow: cmd.Allow, Interactive: true,
		NoGateway: len(cmd.Allow) == 0, OfTool: true, Safety: &off, RequireIntent: &no,
	}
	bad := func(field string, err error) {
		if err != nil {
			r.Malformed = append(r.Malformed, read.Problem{Path: "command of tool " + cmd.Tool + ": " + field, Message: err.Error()})
		}
	}
	if cmd.Memory != "" {
		n, err := profiles.ParseSize(cmd.Memory)
		bad("memory", err)
		r.Limits.Memory = &n
	}
	if cmd.Timeout != "" {
		d, err := profiles.ParseDuration(cmd.Timeout)
		bad("timeout", err)
		r.Limits.Timeout = &d
	}
	for _, v := range cmd.ROBind {
		b, err := by.Bind(v, false)
		bad("ro_bind", err)
		r.Binds = append(r.Binds, b)
	}
	return r
}

// admitChild has the parent decide.
func (s *run) admitChild() (err error) {
	ring, _ := rings.RingOf(s.plan.Ring)
	s.admission, err = s.parent.live.Control.AdmitChild(s.ctx, s.plan.ID, ring, s.end)
	return err
}

// child is a child's place: its parent's. It takes no room of the node, since its memory is within its parent's, nor a place of
// its plan, which the parent holds as long as it lives.
type child struct{ of *run }

var _ Host = child{}

// Outlives implements Host.
func (child) Outlives() bool { return true }

// Admit implements Host.
func (child) Admit(context.Context, int64, live.Coming) error { return nil }

// Ahead implements Host.
func (child) Ahead() *Ahead { return nil }

// Take implements Host: what is ready lies in a cgroup of nobody's.
func (child) Take(*runtime.Plan) {}

// Begin implements Host. Operators find it beside its parent.
func (c child) Begin(
	h *hypervisor.Hypervisor, adm hypervisor.Admission, plan *runtime.Plan, o live.RunOptions,
) (*live.Run, func(), error) {
	v, err := c.of.live.BeginChild(h, adm, plan, o)
	return v, func() { v.Close() }, err
}

// Collect implements Host.
func (child) Collect(context.Context) {}

// Signals implements Host: there are none for a tool.
func (child) Signals() <-chan os.Signal { return nil }

// Started implements Host.
func (child) Started() {}

// LetGo implements Host: no tool is detached.
func (child) LetGo(*os.File) error { return nil }

// Answer implements Host.
func (child) Answer(int) {}

// Cool implements Host.
func (child) Cool() {}

// Close implements Host.
func (child) Close() {}

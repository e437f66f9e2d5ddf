// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"agentrun/control"
	"agentrun/governance"
	"agentrun/hypervisor"
	"agentrun/images"
	"agentrun/internal/hinted"
	"agentrun/profiles"
	"agentrun/supervisor/sandboxes"
)

// What operators do with kept sandboxes (M-23), by the command line and by the control API: by is whoever asks, as the audit has it.

// SandboxFlag has an exec be a start of a kept sandbox.
const SandboxFlag = "of-sandbox"

// idle is the main command of a sandbox that was created without one: further ones are run in it by exec --in.
var idle = []string{"sleep", "infinity"}

const (
	killTime = 5 * time.Minute  // of a sandbox's run: handlers and compensations have their own limits (H-21)
	letGo    = 30 * time.Second // until a supervisor whose run is dead has let go of what the sandbox keeps
)

// RunFinder finds who answers for a live run.
type RunFinder func(ctx context.Context, id string) (control.Controller, error)

// FindRun is the one that asks all supervisors.
func (n *Node) FindRun(ctx context.Context, id string) (control.Controller, error) {
	f, err := control.Find(ctx, n.RunDir, id)
	return f.Client, err
}

// RecordSandbox puts there what becomes of one, before it does.
func (n *Node) RecordSandbox(l hypervisor.SandboxLife) error {
	h, err := n.Open()
	if err != nil {
		return err
	}
	return errors.Join(h.RecordSandbox(l), h.Close())
}

// CreateSandbox makes one whose starts are what r asks for, if a start would not be refused. The flags of r are in k.Words. timeout is
// that of each start.
func (n *Node) CreateSandbox(ctx context.Context, by *Caller, r *Request, k sandboxes.Sandbox) (
	made sandboxes.Sandbox, timeout profiles.Duration, err error,
) {
	k.Created = time.Now().UTC()
	if k.Dir, err = by.Getwd(); err != nil {
		return k, 0, err
	}
	var used *os.File
	defer func() { _ = used.Close() }() // nil: it has none
	err = n.Sandboxes().Create(ctx, k, func(s *sandboxes.Sandbox) error {
		if len(r.Command) == 0 {
			r.Command, r.NoEntrypoint = idle, r.Image != ""
		}
		r.Sandbox, r.Draft = s.Name, s
		plan, err := Plan(ctx, n, by, r)
		if err != nil {
			return err
		}
		s.Ring, s.Overlay, timeout, s.Leads = plan.Ring, plan.Overlay, plan.Limits.Timeout, straight(leads(plan, r))
		if plan.Image != nil { // by now's meaning of the name, whatever has it later
			s.Image = plan.Image.ID
			if used, err = n.Images().Use(s.Image); err != nil { // nobody removes it before it is known for the sandbox's
				return err
			}
			s.Words = append(s.Words, "--image="+images.Pinned(r.Image, s.Image), fmt.Sprintf("--no-entrypoint=%v", r.NoEntrypoint))
		}
		if most := n.Ranges; r.Limits.Timeout == nil && r.Agent == "" && r.Session == "" {
			most.Plan = governance.Operator
			in := most.Of(plan.Ring)
			timeout = min(in.Timeout.Max, plan.MostTime())
			s.Words = append(s.Words, fmt.Sprintf("--timeout=%v", timeout))
			if r.Limits.CPUTime == nil {
				s.Words = append(s.Words, fmt.Sprintf("--cpu-time=%v", min(in.CPUTime.Max, plan.MostTime())))
			}
		}
		s.Words = slices.Concat(s.Words, []string{"--"}, r.Command)
		return n.RecordSandbox(hypervisor.SandboxLife{By: s.By, Change: "created", Name: s.Name})
	})
	if errors.Is(err, sandboxes.ErrExists) {
		err = hinted.New(fmt.Errorf("create %s: %w", k.Name, err), "agentrun start "+k.Name+" starts it; agentrun rm "+k.Name+" removes it")
	}
	if err == nil {
		made, err = n.Sandboxes().Load(k.Name)
	}
	return made, timeout, err
}

// WantSandbox has a sandbox be one that is to run, and returns the exec that is its start. again: nobody's wish but its own.
func (n *Node) WantSandbox(name, by string, again bool) (k sandboxes.Sandbox, exec []string, err error) {
	if k, err = n.Sandboxes().Load(name); err != nil {
		return k, nil, known("start", name, err)
	}
	if n.Sandboxes().Live(name) {
		return k, nil, hinted.New(fmt.Errorf("start %s: %w already", name, sandboxes.ErrBusy), "agentrun shell "+name+" opens a shell in it")
	}
	info, err := os.Stat(k.Dir)
	if err == nil && !info.IsDir() {
		err = &os.PathError{Op: "stat", Path: k.Dir, Err: syscall.ENOTDIR}
	}
	// An agent that may write above it could have put a link in its place, and so choose what relative paths lead to.
	if at, lerr := filepath.EvalSymlinks(k.Dir); err == nil && at != k.Dir {
		err = cmp.Or(lerr, fmt.Errorf("%s leads to %s by now", k.Dir, at))
	}
	if err != nil {
		return k, nil, fmt.Errorf("start %s: the folder it was created in: %w", name, err)
	}
	k, err = n.Sandboxes().Change(name, func(k *sandboxes.Sandbox) error {
		if again && (!k.Wanted || k.Frozen) {
			return errNotWanted
		}
		if again {
			return nil
		}
		k.Wanted, k.Restarts = true, 0
		return n.RecordSandbox(hypervisor.SandboxLife{By: by, Change: "started", Name: name, Run: k.Run})
	})
	if err == nil && k.Frozen {
		err = n.Sandboxes().Freeze(name, false)
	}
	words, _ := k.Exec()
	exec = slices.Concat([]string{"--detach", "--name=" + name, "--" + SandboxFlag + "=" + name}, words)
	return k, exec, known("start", name, err)
}

// StopSandbox ends a sandbox's run, if it has one: by SIGTERM, and a kill after the grace time. It does so also if that can't be noted or put on
// record, as on a disk that the agent has filled: a stop grants nothing. The error is then returned.
func (n *Node) StopSandbox(ctx context.Context, name, by string, grace time.Duration, find RunFinder) (ran bool, err error) {
	var unwritten error
	k, err := n.Sandboxes().Change(name, func(k *sandboxes.Sandbox) error {
		k.Wanted = false
		unwritten = n.RecordSandbox(hypervisor.SandboxLife{By: by, Change: "stopped", Name: name, Run: k.Run})
		return nil
	})
	defer func() { err = errors.Join(err, known("stop", name, unwritten)) }()
	if err != nil && k.Run != "" {
		unwritten, err = errors.Join(unwritten, err), nil
	}
	if err != nil || !n.Sandboxes().Live(name) {
		return false, known("stop", name, err)
	}
	asked, cancel := context.WithTimeout(ctx, letGo)
	defer cancel()
	if r, err := find(asked, k.Run); err == nil {
		_ = r.Signal(asked, k.Run, int(syscall.SIGTERM), by) // one that has just ended has none to hear it
	}
	if !n.let(ctx, name, grace) {
		if err := n.killSandbox(ctx, name, by, find); err != nil {
			return true, fmt.Errorf("stop %s: %w", name, err)
		}
	}
	return true, nil
}

// StopBetweenRuns has nothing start those sandboxes again that would have another run: all, or those of an agent or a session. One that has
// a run, which may only just begin, is told of by that run's kill.
func (n *Node) StopBetweenRuns(by, agent, session string) error {
	list, err := n.Sandboxes().List()
	for _, k := range list {
		flags := k.Words[:max(0, slices.Index(k.Words, "--"))]
		of := func(flag, id string) bool { return id == "" || slices.Contains(flags, "--"+flag+"="+id) }
		if !k.Wanted || k.Restart == sandboxes.RestartNo || !of("agent", agent) || !of("session", session) {
			continue
		}
		var unwritten error // as of StopSandbox
		_, cerr := n.Sandboxes().Change(k.Name, func(now *sandboxes.Sandbox) error {
			if now.Wanted = false; !k.Live {
				unwritten = n.RecordSandbox(hypervisor.SandboxLife{By: by, Change: "stopped", Name: k.Name, Run: now.Run})
			}
			return nil
		})
		err = errors.Join(err, known("stop", k.Name, errors.Join(cerr, unwritten)))
	}
	return err
}

// let waits until no run has the sandbox.
func (n *Node) let(ctx context.Context, name string, most time.Duration) bool {
	for end := time.Now().Add(most); n.Sandboxes().Live(name); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) || ctx.Err() != nil {
			return false
		}
	}
	return true
}

// killSandbox ends a sandbox's run and returns when its supervisor has let go of what it keeps.
func (n *Node) killSandbox(ctx context.Context, name, by string, find RunFinder) error {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	k, err := n.Sandboxes().Load(name) // a start that was under way has got its run by now
	if err != nil {
		return err
	}
	r, err := find(ctx, k.Run)
	if err == nil {
		_, err = r.Kill(ctx, control.Selector{ID: k.Run}, "its sandbox is stopped", by)
	}
	if !n.let(ctx, name, letGo) {
		return errors.Join(err, sandboxes.ErrBusy)
	}
	return nil
}

// RemoveSandbox deletes a sandbox with its files. force kills its run first.
func (n *Node) RemoveSandbox(ctx context.Context, name, by string, force bool, find RunFinder) error {
	k, err := n.Sandboxes().Load(name)
	if err == nil && n.Sandboxes().Live(name) {
		if !force {
			return hinted.New(fmt.Errorf("rm %s: %w", name, sandboxes.ErrBusy), "agentrun rm -f "+name+" kills it first")
		}
		// Where that can't be noted, as on a full disk, it is killed all the same.
		_, _ = n.Sandboxes().Change(name, func(k *sandboxes.Sandbox) error { k.Wanted = false; return nil })
		err = n.killSandbox(ctx, name, by, find)
	}
	if err == nil {
		err = n.removing(by, k.Name, k.Run, func() error { return n.Sandboxes().Remove(name) })
	}
	return known("rm", name, err)
}

// removing puts the removal of a sandbox on record before it. On a disk that its agent has filled there may be no room for that: what is
// removed makes it, and the record comes behind.
func (n *Node) removing(by, name, run string, remove func() error) error {
	gone := hypervisor.SandboxLife{By: by, Change: "removed", Name: name, Run: run}
	unwritten := n.RecordSandbox(gone)
	if err := remove(); err != nil {
		return errors.Join(err, unwritten)
	}
	if unwritten != nil {
		return n.RecordSandbox(gone)
	}
	return nil
}

// SweepSandboxes removes those whose time is over (agentrun gc), and returns their names.
func (n *Node) SweepSandboxes(by string, now time.Time) (removed []string, err error) {
	var late []hypervisor.SandboxLife // records that there was no room for
	removed, err = n.Sandboxes().Sweep(now, func(k sandboxes.Sandbox) error {
		gone := hypervisor.SandboxLife{By: by, Change: "removed", Name: k.Name, Run: k.Run}
		if n.RecordSandbox(gone) != nil {
			late = append(late, gone)
		}
		return nil
	})
	for _, gone := range late {
		err = errors.Join(err, n.RecordSandbox(gone))
	}
	return removed, err
}

// RenameSandbox is of one that isn't running.
func (n *Node) RenameSandbox(from, to, by string) error {
	k, err := n.Sandboxes().Load(from)
	if err == nil {
		err = sandboxes.CheckName(to)
	}
	if _, lerr := n.Sandboxes().Load(to); err == nil && lerr == nil {
		err = sandboxes.ErrExists
	}
	if err == nil && n.Sandboxes().Live(from) {
		err = sandboxes.ErrBusy
	}
	if err == nil {
		err = n.RecordSandbox(hypervisor.SandboxLife{By: by, Change: "renamed", Name: from, To: to, Run: k.Run})
	}
	if err == nil {
		err = n.Sandboxes().Rename(from, to)
	}
	return known("rename", from, err)
}

// KeepSandbox says until when it is kept; the zero time: until it is removed.
func (n *Node) KeepSandbox(name, by string, until time.Time) (sandboxes.Sandbox, error) {
	k, err := n.Sandboxes().Change(name, func(k *sandboxes.Sandbox) error {
		k.Until = until
		return n.RecordSandbox(hypervisor.SandboxLife{By: by, Change: "kept", Name: name, Run: k.Run})
	})
	return k, known("keep", name, err)
}

// known turns what is wrong with a sandbox's name into an error with a way out.
func known(doing, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sandboxes.ErrNone):
		err = hinted.New(err, "agentrun ps --all lists those there are; agentrun create makes one")
	case errors.Is(err, sandboxes.ErrBusy):
		err = hinted.New(err, "agentrun stop "+name+" stops it")
	}
	return fmt.Errorf("%s %.64q: %w", doing, name, err)
}

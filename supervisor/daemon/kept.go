// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"agentrun/control"
	"agentrun/supervisor/sandboxes"
)

// mostGrace bounds how long a stop may wait before it kills: it holds a connection, and a kill needs one.
const mostGrace = 5 * time.Minute

// routes are what a daemon answers beside what is about live runs. Own are those that decide what runs, and with which of the host's
// files: as whoever hands an exec over.
func (d *Daemon) routes() []control.Route {
	const one = "/v1/kept/{id}"
	own := func(r control.Route) control.Route { r.Own = true; return r }
	long := func(r control.Route) control.Route { r.Waits = true; return r }
	return append(d.imageRoutes(), []control.Route{
		own(long(control.Route{Method: "POST", Path: "/v1/sandboxes", Do: d.start})),
		kept("GET", "/v1/kept", d.listKept),
		own(kept("POST", "/v1/kept", d.createKept)),
		kept("GET", one, d.oneKept),
		kept("DELETE", one, d.removeKept),
		own(long(kept("POST", one+"/start", d.startKept))),
		long(kept("POST", one+"/stop", d.stopKept)),
		kept("POST", one+"/rename", d.renameKept),
		kept("POST", one+"/keep", d.keepKept),
		long(kept("POST", one+"/snapshot", d.snapshotKept)),
		kept("DELETE", one+"/snapshot", d.dropSnapshot),
		long(kept("POST", one+"/rollback", d.rollbackKept)),
		own(long(kept("POST", one+"/fork", d.forkKept))),
	}...)
}

// route makes one of a function that is given its body.
func route[T any](method, path string, do func(context.Context, control.Request, T) (any, error)) control.Route {
	return control.Route{Method: method, Path: path, Do: func(ctx context.Context, r control.Request) (any, error) {
		var body T
		if err := r.Read(&body); err != nil {
			return nil, err
		}
		return do(ctx, r, body)
	}}
}

// kept makes a route about kept sandboxes.
func kept[T any](method, path string, do func(context.Context, control.Request, T) (any, error)) control.Route {
	return route(method, path, func(ctx context.Context, r control.Request, body T) (any, error) {
		if strings.Contains(path, "{id}") {
			if err := checkName("the path", r.ID); err != nil {
				return nil, err
			}
		}
		v, err := do(ctx, r, body)
		for _, is := range []error{sandboxes.ErrNone, sandboxes.ErrBusy, sandboxes.ErrExists, sandboxes.ErrNoSnapshot, sandboxes.ErrSnapshotExists, sandboxes.ErrTooMany} {
			if errors.Is(err, is) {
				return nil, startRefusal(err, "")
			}
		}
		return v, err
	})
}

func checkName(field, name string) error {
	if err := sandboxes.CheckName(name); err != nil {
		return badRequest(field, "%v", err)
	}
	return nil
}

func keptOf(k sandboxes.Sandbox, live bool) control.Kept {
	quota := cmp.Or(k.Quota, sandboxes.DefaultQuota)
	var snapshots []control.KeptSnapshot
	for _, s := range k.Snapshots {
		snapshots = append(snapshots, control.KeptSnapshot{
			Name: s.Name, By: s.By, At: s.At, Bytes: int64(s.Sealed), Layers: len(s.Below), //nolint:gosec // of a disk
		})
	}
	return control.Kept{
		Name: k.Name, By: k.By, Created: k.Created, Until: k.Until, Ring: k.Ring, Restart: string(k.Restart),
		Quota: int64(quota), //nolint:gosec // ParseSize gives no more
		Dir:   k.Dir, Command: k.Words[slices.Index(k.Words, "--")+1:], Wanted: k.Wanted, Live: live, Run: k.Run, Began: k.Began, Restarts: k.Restarts,
		Sealed: int64(k.Sealed), Snapshots: snapshots, //nolint:gosec // of a disk
	}
}

func (d *Daemon) listKept(context.Context, control.Request, struct{}) (any, error) {
	list, err := d.node.Sandboxes().List()
	all := []control.Kept{}
	for _, k := range list {
		all = append(all, keptOf(k.Sandbox, k.Live))
	}
	return control.KeptList{Sandboxes: all}, err
}

func (d *Daemon) oneKept(_ context.Context, r control.Request, _ struct{}) (any, error) {
	return d.keptNow(r.ID)
}

func (d *Daemon) keptNow(name string) (any, error) {
	k, err := d.node.Sandboxes().Load(name)
	return keptOf(k, d.node.Sandboxes().Live(name)), err
}

// createKept reads the words as agentrun create does, on the daemon's own node.
func (d *Daemon) createKept(ctx context.Context, r control.Request, q control.KeptRequest) (any, error) {
	if err := checkName("name", q.Name); err != nil {
		return nil, err
	}
	ask := startRequest{Command: q.Command, Options: q.Options, Dir: real(q.Dir), Environ: q.Environ}
	args, err := ask.words(d.node, "name", "create", "--name="+q.Name)
	if err != nil {
		return nil, err
	}
	said := &bytes.Buffer{}
	by := ask.caller(said, said)
	asked := d.opt.ReadCreate(ctx, by, args)
	if asked.Sandbox == nil {
		return nil, startRefusal(errUnread, said.String())
	}
	asked.Sandbox.By = r.By
	node, err := d.current()
	if err != nil {
		return nil, startRefusal(err, "")
	}
	if _, _, err := node.CreateSandbox(ctx, by, asked.Request, *asked.Sandbox); err != nil {
		return nil, startRefusal(err, said.String())
	}
	return d.keptNow(q.Name)
}

func (d *Daemon) startKept(_ context.Context, r control.Request, q control.KeptStart) (any, error) {
	if err := checkEnviron(q.Environ); err != nil {
		return nil, err
	}
	k, words, err := d.node.WantSandbox(r.ID, r.By, false)
	if err != nil {
		return nil, err
	}
	return d.launch(startRequest{Dir: k.Dir, Environ: q.Environ}, slices.Concat(commandLine(d.node, "exec", "--json"), words))
}

// findRun knows the daemon's own without asking, so that who asks for a run's end is on record with it.
func (d *Daemon) findRun(ctx context.Context, id string) (control.Controller, error) {
	if _, err := d.runs.Inspect(ctx, id); err == nil {
		return d.runs, nil
	}
	return d.node.FindRun(ctx, id)
}

func (d *Daemon) stopKept(ctx context.Context, r control.Request, q control.KeptStop) (any, error) {
	if q.Grace < 0 || q.Grace > mostGrace {
		return nil, badRequest("grace_ns", "want 0 to %d (%v)", int64(mostGrace), mostGrace)
	}
	_, err := d.node.StopSandbox(ctx, r.ID, r.By, q.Grace, d.findRun)
	return control.Done{}, err
}

func (d *Daemon) renameKept(_ context.Context, r control.Request, q control.KeptRename) (any, error) {
	if err := checkName("to", q.To); err != nil {
		return nil, err
	}
	return control.Done{}, d.node.RenameSandbox(r.ID, q.To, r.By)
}

func (d *Daemon) keepKept(_ context.Context, r control.Request, q control.KeptFor) (any, error) {
	var until time.Time
	switch {
	case q.For < 0:
		return nil, badRequest("for_ns", "it is negative")
	case q.For > 0:
		until = time.Now().Add(q.For).UTC()
	}
	if _, err := d.node.KeepSandbox(r.ID, r.By, until); err != nil {
		return nil, err
	}
	return d.keptNow(r.ID)
}

func (d *Daemon) removeKept(ctx context.Context, r control.Request, q control.KeptRemoval) (any, error) {
	return control.Done{}, d.node.RemoveSandbox(ctx, r.ID, r.By, q.Force, d.findRun)
}

func (d *Daemon) snapshotKept(ctx context.Context, r control.Request, q control.KeptSnapshotName) (any, error) {
	if err := checkName("name", q.Name); err != nil {
		return nil, err
	}
	if _, err := d.node.SnapshotSandbox(ctx, r.ID, q.Name, r.By, d.findRun); err != nil {
		return nil, err
	}
	return d.keptNow(r.ID)
}

func (d *Daemon) dropSnapshot(_ context.Context, r control.Request, q control.KeptSnapshotName) (any, error) {
	return control.Done{}, d.node.DropSnapshot(r.ID, q.Name, r.By)
}

func (d *Daemon) rollbackKept(ctx context.Context, r control.Request, q control.KeptSnapshotName) (any, error) {
	if err := d.node.RollbackSandbox(ctx, r.ID, q.Name, r.By); err != nil {
		return nil, err
	}
	return d.keptNow(r.ID)
}

func (d *Daemon) forkKept(ctx context.Context, r control.Request, q control.KeptFork) (any, error) {
	if err := checkName("to", q.To); err != nil {
		return nil, err
	}
	to := sandboxes.Sandbox{Name: q.To, By: r.By}
	switch {
	case q.For < 0:
		return nil, badRequest("for_ns", "it is negative")
	case q.For > 0:
		to.Until = time.Now().Add(q.For).UTC()
	}
	if _, err := d.node.ForkSandbox(ctx, r.ID, q.Snapshot, to, d.findRun); err != nil {
		return nil, err
	}
	return d.keptNow(q.To)
}

// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentrun/control"
	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/hostcaps"
	"agentrun/supervisor/sandboxes"
)

// SnapshotSandbox keeps what a sandbox has now under a name. One that runs is paused meanwhile.
func (n *Node) SnapshotSandbox(ctx context.Context, name, as, by string, find RunFinder) (sandboxes.Snapshot, error) {
	snap := sandboxes.Snapshot{Name: as, By: by, At: time.Now().UTC()}
	err := n.ofSnapshot(name, as, by, "snapshot")
	if err == nil {
		err = n.settle(ctx)
	}
	if err == nil {
		snap, err = n.Sandboxes().Snapshot(ctx, name, snap, n.still(ctx, name, by, find))
	}
	return snap, toldSnapshot("snapshot", name, err)
}

// DropSnapshot forgets one, and removes what nobody else has of it.
func (n *Node) DropSnapshot(name, snapshot, by string) error {
	err := n.ofSnapshot(name, snapshot, by, "snapshot_removed")
	if err == nil {
		err = n.Sandboxes().DropSnapshot(name, snapshot)
	}
	return toldSnapshot("snapshot", name, err)
}

// RollbackSandbox gives one that isn't running what a snapshot has.
func (n *Node) RollbackSandbox(ctx context.Context, name, snapshot, by string) (err error) {
	if n.Sandboxes().Live(name) {
		err = sandboxes.ErrBusy
	}
	if err == nil {
		err = n.ofSnapshot(name, snapshot, by, "rolled_back")
	}
	if err == nil {
		err = n.settle(ctx)
	}
	if err == nil {
		err = n.Sandboxes().Rollback(ctx, name, snapshot)
	}
	return toldSnapshot("rollback", name, err)
}

// ForkSandbox makes another one with the files of a sandbox or of its snapshot. Until and By are to's.
func (n *Node) ForkSandbox(ctx context.Context, from, snapshot string, to sandboxes.Sandbox, find RunFinder) (sandboxes.Sandbox, error) {
	to.Created = time.Now().UTC()
	err := layered()
	if err == nil {
		err = n.settle(ctx)
	}
	if err == nil {
		err = n.Sandboxes().Fork(ctx, from, snapshot, n.still(ctx, from, to.By, find), to, func(*sandboxes.Sandbox) error {
			return n.RecordSandbox(hypervisor.SandboxLife{By: to.By, Change: "forked", Name: from, To: to.Name})
		})
	}
	if errors.Is(err, sandboxes.ErrExists) {
		return to, hinted.New(fmt.Errorf("fork %s: %s: %w", from, to.Name, err), "agentrun rm "+to.Name+" removes it")
	}
	if err == nil {
		to, err = n.Sandboxes().Load(to.Name)
	}
	return to, toldSnapshot("fork", from, err)
}

// settle sees to it that nobody of a run whose supervisor was killed may still write what is about to be sealed.
func (n *Node) settle(ctx context.Context) error {
	_, err := n.Collect(ctx, false)
	return err
}

// ofSnapshot puts there what is about to become of one.
func (n *Node) ofSnapshot(name, snapshot, by, change string) error {
	k, err := n.Sandboxes().Load(name)
	if err == nil {
		err = sandboxes.CheckName(snapshot)
	}
	there := err == nil && k.Has(snapshot)
	switch {
	case err != nil:
	case change == "snapshot" && there:
		err = sandboxes.ErrSnapshotExists
	case change == "snapshot":
		err = layered()
	case !there:
		err = sandboxes.ErrNoSnapshot
	}
	if err != nil {
		return err
	}
	return n.RecordSandbox(hypervisor.SandboxLife{By: by, Change: change, Name: name, To: snapshot, Run: k.Run})
}

// layered says whether this host mounts what a snapshot leaves behind: without it the next start would be refused.
func layered() error {
	if err := hostcaps.OverlayIDMapped.Check(); err != nil {
		return hinted.New(fmt.Errorf("%s: %w", hostcaps.OverlayIDMapped.Name, err), "docs/kept.md says what takes root")
	}
	return nil
}

// stillTime is for a run's supervisor to answer.
const stillTime = 30 * time.Second

// still has a live sandbox stand still for a copy: paused, or frozen by whoever. A pause that ended meanwhile makes the copy worthless.
func (n *Node) still(ctx context.Context, name, by string, find RunFinder) sandboxes.Still {
	return func(work func() error) error {
		k, err := n.Sandboxes().Load(name)
		if err != nil {
			return err
		}
		ask := func(do func(context.Context, control.Controller) error) error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stillTime)
			defer cancel()
			r, err := find(ctx, k.Run)
			if err != nil {
				return err
			}
			return do(ctx, r)
		}
		var since time.Time // zero: it isn't paused
		look := func(ctx context.Context, r control.Controller) error {
			s, err := r.Inspect(ctx, k.Run)
			since = time.Time{}
			if err == nil && s.Pause != nil {
				since = s.Pause.Since
			}
			return err
		}
		ours, hold := false, holder{}
		defer hold.close()
		err = ask(func(ctx context.Context, r control.Controller) error {
			if err := look(ctx, r); err != nil || !since.IsZero() {
				return err
			}
			p, err := hold.pause(ctx, r, k.Run, by)
			ours, since = err == nil, p.Since
			return err
		})
		if err != nil {
			return err
		}
		began := since
		err = work()
		if lerr := ask(look); lerr != nil || !since.Equal(began) {
			return errors.Join(err, hinted.New(errors.New("somebody had it go on meanwhile"), "agentrun freeze "+name+" lets nobody; or agentrun stop "+name))
		}
		if ours {
			err = errors.Join(err, ask(func(ctx context.Context, r control.Controller) error {
				err := r.Resume(ctx, k.Run, by)
				if e, ok := errors.AsType[*control.Error](err); ok && e.Code == control.CodeConflict {
					return nil // it is frozen besides, and stays so
				}
				return err
			}))
		}
		return err
	}
}

// holder is a pause that ends with this process, where another answers for the run.
type holder struct{ letGo func() }

// pause is bounded by ctx; what it has begun isn't.
func (h *holder) pause(ctx context.Context, r control.Controller, run, by string) (p control.Pause, err error) {
	elsewhere, ok := r.(interface {
		Hold(ctx context.Context, id string) (control.Pause, func(), error)
	})
	if !ok {
		return r.Pause(ctx, run, by)
	}
	held, end := context.WithCancelCause(context.WithoutCancel(ctx))
	bounded := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	defer bounded()
	p, letGo, err := elsewhere.Hold(held, run)
	if err != nil {
		end(err)
		return p, err
	}
	h.letGo = func() { letGo(); end(nil) }
	return p, nil
}

func (h *holder) close() {
	if h.letGo != nil {
		h.letGo()
	}
}

// toldSnapshot adds the way out to an error about a snapshot.
func toldSnapshot(doing, name string, err error) error {
	switch {
	case errors.Is(err, sandboxes.ErrNoSnapshot):
		err = hinted.New(err, "agentrun snapshot "+name+" lists those there are")
	case errors.Is(err, sandboxes.ErrSnapshotExists):
		err = hinted.New(err, "agentrun snapshot --rm "+name+" … forgets it")
	case errors.Is(err, sandboxes.ErrTooMany):
		err = hinted.New(err, "agentrun rollback to an older snapshot has fewer; a new sandbox has none")
	}
	return known(doing, name, err)
}

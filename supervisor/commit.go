// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"agentrun/fsjail"
	"agentrun/images"
	"agentrun/images/pack"
	"agentrun/internal/hinted"
	"agentrun/internal/thread"
	"agentrun/supervisor/sandboxes"
)

// Commit is a kept sandbox, or a snapshot of it, that is to become an image.
type Commit struct {
	Name, Snapshot string // Snapshot: empty, what it has now
	As             string // the image's name
	By             string
	Into           string // folder that is made: the OCI layout
	Scratch        string // folder of ours that is empty
}

// Committed is what an image of a sandbox has.
type Committed struct {
	Base    images.Image // that it begins in
	Changes pack.Counts
	Run     string // the sandbox's last one
}

// baseLimits are those of what was unpacked, and of links that may be files of their own by now.
var baseLimits = pack.Limits{Bytes: 8 << 30, Files: 1_000_000}

// PackSandbox writes what a sandbox has of its root as an image: the one that it was created from, in one layer, and what has changed, in
// another. One that runs is paused meanwhile.
func (n *Node) PackSandbox(ctx context.Context, c Commit, find RunFinder) (done Committed, err error) {
	err = n.mayCommit(c.Name)
	if err == nil {
		err = n.settle(ctx)
	}
	if err == nil {
		err = n.Sandboxes().Sealed(ctx, c.Name, c.Snapshot, n.still(ctx, c.Name, c.By, find), func(s sandboxes.Sandbox) (err error) {
			done, err = n.pack(ctx, c, s)
			return err
		})
	}
	return done, toldSnapshot("commit", c.Name, err)
}

// mayCommit refuses a sandbox whose root is no image with changes.
func (n *Node) mayCommit(name string) error {
	k, err := n.Sandboxes().Load(name)
	switch {
	case err != nil:
		return err
	case k.Image == "":
		return hinted.New(errors.New("its root shows folders of the host, which are no image that changes could lie on"), "agentrun create --image begins in one; agentrun cp takes files out")
	case k.Ring != 1:
		return hinted.New(fmt.Errorf("in ring %d its root is read-only, so nothing of the image has changed", k.Ring), "agentrun create --ring 1 --image has a root that can be written; agentrun cp takes files out of HOME")
	}
	return layered()
}

func (n *Node) pack(ctx context.Context, c Commit, s sandboxes.Sandbox) (done Committed, err error) {
	used, err := n.Images().Use(s.Image)
	if err != nil {
		return done, err
	}
	defer used.Close()
	if done.Base, err = n.Images().Load(s.Image); err != nil {
		return done, err
	}
	done.Run = s.Run
	config, err := n.configOf(done.Base)
	if err != nil {
		return done, err
	}
	layout, err := pack.NewLayout(c.Into)
	if err != nil {
		return done, err
	}
	defer layout.Close()
	layer := func(limits pack.Limits, fill func(*pack.Writer) error) (pack.Blob, pack.Counts, error) {
		var counts pack.Counts
		b, err := layout.Layer(func(to io.Writer) error {
			w := pack.New(&until{ctx, to}, limits)
			err := errors.Join(fill(w), w.Close())
			counts = w.Counts
			return err
		})
		return b, counts, err
	}
	base, _, err := layer(baseLimits, func(w *pack.Writer) error {
		root, err := os.Open(n.Images().Root(s.Image))
		if err != nil {
			return err
		}
		defer root.Close()
		return w.Whole(root)
	})
	if err != nil {
		return done, fmt.Errorf("image %s: %w", s.Image, err)
	}
	changes, counts, err := layer(pack.Limits{Bytes: int64(s.Quota), Files: baseLimits.Files}, func(w *pack.Writer) error { return n.changes(w, c.Scratch, s) })
	if errors.Is(err, pack.ErrLimit) {
		err = hinted.New(fmt.Errorf("its changes: %w", err), "--quota of agentrun create bounds them")
	}
	if err != nil {
		return done, err
	}
	done.Changes = counts
	of := c.Name
	if c.Snapshot != "" {
		of += "@" + c.Snapshot
	}
	config.Created = time.Now().UTC()
	config.History = []pack.Step{
		{Created: done.Base.Created, CreatedBy: "the root of " + s.Image + " in one layer"}, {Created: config.Created, CreatedBy: "agentrun commit " + of},
	}
	return done, layout.Finish(images.Canonical(c.As), config, base, changes)
}

// until is a writer that ends with a context.
type until struct {
	ctx context.Context
	to  io.Writer
}

func (u *until) Write(b []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.to.Write(b)
}

// configOf is what an image says of how it is run: all of it where it is known, else what a run gets.
func (n *Node) configOf(i images.Image) (c pack.Config, err error) {
	platform := append(strings.Split(i.Platform, "/"), "", "")
	c = pack.Config{OS: platform[0], Architecture: platform[1], Variant: platform[2]}
	raw, err := n.Images().Raw(i.ID)
	if errors.Is(err, fs.ErrNotExist) {
		c.Config, err = json.Marshal(map[string]any{
			"Env": i.Config.Env, "User": i.Config.User, "WorkingDir": i.Config.Workdir, "Entrypoint": i.Config.Entrypoint, "Cmd": i.Config.Cmd,
		})
		return c, err
	}
	if err != nil {
		return c, err
	}
	var of struct{ Config json.RawMessage }
	if err := json.Unmarshal(raw, &of); err != nil {
		return c, err
	}
	if c.Config = of.Config; len(c.Config) == 0 {
		c.Config = json.RawMessage("{}")
	}
	return c, nil
}

// changes writes what became of each folder of the image's root. HOME lies in none of them.
func (n *Node) changes(w *pack.Writer, scratch string, s sandboxes.Sandbox) error {
	// Without links on the way, as Merged wants them: from the state folder on nobody but us makes any.
	state, err := filepath.EvalSymlinks(n.StateDir)
	if err != nil {
		return err
	}
	root := images.Folder{StateDir: state}.Root(s.Image)
	entries, err := fsjail.SuppliedRoot(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Kind != fsjail.Bind || e.IsFile {
			continue
		}
		var layers []string
		for _, dir := range (sandboxes.Folder{StateDir: state}).SealedRoots(s) {
			at := fsjail.ChangesIn(dir, e.Target)
			if info, err := os.Lstat(at); err == nil && info.IsDir() {
				layers = append(layers, at)
			} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if len(layers) == 0 {
			continue
		}
		if err := changesOf(w, scratch, e, layers); err != nil {
			return err
		}
	}
	return nil
}

func changesOf(w *pack.Writer, scratch string, e fsjail.Entry, layers []string) (err error) {
	before, err := os.Open(e.Source)
	if err != nil {
		return err
	}
	defer before.Close()
	var now *os.File
	thread.Throwaway(func() { now, err = fsjail.Merged(append(layers, e.Source), scratch) })
	if err != nil {
		return fmt.Errorf("layers of %s: %w", e.Target, err)
	}
	defer now.Close()
	return w.Changes(path.Base(e.Target), before, now)
}

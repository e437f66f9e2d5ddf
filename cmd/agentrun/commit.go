// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/images"
	"agentrun/images/pack"
	"agentrun/internal/hinted"
	"agentrun/internal/verb"
	"agentrun/supervisor"
)

func commitCommand(g *global) *cli.Command {
	return &cli.Command{
		Name: "commit", Usage: "make an image of a kept sandbox, or of a snapshot", ArgsUsage: "NAME[@SNAPSHOT] IMAGE",
		Description: `The image that NAME was created from, with what has changed in its root (ring 1). HOME and a workspace aren't part of it. One that runs is
paused meanwhile.

   agentrun commit dev tools:8 && agentrun exec --image tools:8 -- make test
   agentrun commit --output tools.tar dev@before tools:8     for podman load and others`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "oci-layout", Usage: "also write it as an OCI layout to the folder `DIR`, which is made"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "also write it as a tar of an OCI layout to `FILE`, which is made"}, quietFlag(), jsonFlag(),
		},
		Action: verb.Action(g.commit),
	}
}

// committed is what the verb answers.
type committed struct {
	images.Info
	From    string      `json:"from"` // the image that it lies on
	Changes pack.Counts `json:"changes"`
}

func (g *global) commit(c *cli.Context, a []string) (err error) {
	q := supervisor.Commit{As: a[1], By: operatorName()}
	q.Name, q.Snapshot, _ = strings.Cut(a[0], "@")
	fail := func(err error) error { return fmt.Errorf("commit %.64q: %w", q.Name, err) }
	if err := images.CheckName(q.As); err != nil || strings.Contains(q.As, "@") || strings.HasPrefix(q.As, "sha256:") {
		return usageError(c, fail(fmt.Errorf("%.200q is no name that an image can get: want one with or without a tag, as tools:8", q.As)), false)
	}
	if g.ImagePolicy.SignedBy != "" {
		return hinted.New(fail(errors.New("this node takes signed images only (images.signed_by), and nobody has signed this one")), "commit it on another node, sign it, and pull it here")
	}
	var layout, output string
	for name, path := range map[string]*string{"oci-layout": &layout, "output": &output} {
		if !c.IsSet(name) {
			continue
		}
		if *path, err = g.caller.Abs(c.String(name)); err != nil {
			return err
		}
		if _, err := os.Lstat(*path); err == nil {
			return hinted.New(fail(fmt.Errorf("--%s: %s is there already", name, *path)), "remove it, or name another")
		}
	}
	if err := g.enter(); err != nil {
		return err
	}
	place, err := g.Images().Begin()
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, place.Close()) }()
	q.Into, q.Scratch = filepath.Join(place.Dir, "layout"), filepath.Join(place.Dir, "rootfs")
	done, err := g.PackSandbox(c.Context, q, g.FindRun)
	if err != nil {
		return err
	}
	if layout != "" { // a copy, as whose folder it lies in may have another in its place by then
		if err := pack.Copy(q.Into, layout); errors.Is(err, fs.ErrExist) { // somebody else's
			return fail(err)
		} else if err != nil {
			return fail(errors.Join(err, os.RemoveAll(layout)))
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, os.RemoveAll(layout))
			}
		}()
	}
	if output != "" {
		if err := archived(output, q.Into); err != nil {
			return fail(err)
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, os.Remove(output))
			}
		}()
	}
	if err := g.RecordSandbox(hypervisor.SandboxLife{By: q.By, Change: "committed", Name: q.Name, To: q.As, Run: done.Run}); err != nil {
		return fail(err)
	}
	i, names, err := g.fetch(c.Context, "committed", images.Order{Import: q.Into, Name: q.As, Platform: done.Base.Platform, Progress: !c.Bool("quiet")})
	if err != nil {
		return fail(err)
	}
	n := done.Changes
	return printResult(c, committed{images.Info{Image: i, Names: names}, done.Base.ID, n}, "%s: %s, of %s: %d files changed, %d deleted, %d left out\n",
		names[0], i.ID, a[0], n.Files-n.Deleted, n.Deleted, n.LeftOut)
}

func archived(path, dir string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(pack.Archive(f, dir), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

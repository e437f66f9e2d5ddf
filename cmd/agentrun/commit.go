// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

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
	if q.Name, q.Snapshot, err = ofSnapshot(a[0]); err != nil {
		return usageError(c, err, false)
	}
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
		l, lerr := pack.Copy(q.Into, layout)
		if lerr != nil {
			return fail(lerr)
		}
		defer l.Close()
		defer func() {
			if err != nil {
				err = errors.Join(err, l.Remove())
			}
		}()
	}
	if output != "" {
		remove, aerr := archived(output, q.Into)
		if aerr != nil {
			return fail(aerr)
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, remove())
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

// archived makes a file, and tells how it is removed: where it was made, whatever its path leads to by then.
func archived(path, dir string) (remove func() error, err error) {
	above, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(above.Fd()), filepath.Base(path), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "create", Path: path, Err: err}, above.Close())
	}
	remove = func() error {
		return os.NewSyscallError("unlinkat", unix.Unlinkat(int(above.Fd()), filepath.Base(path), 0))
	}
	f := os.NewFile(uintptr(fd), path)
	if err := errors.Join(pack.Archive(f, dir), f.Sync(), f.Close()); err != nil {
		return nil, errors.Join(err, remove(), above.Close())
	}
	return remove, nil
}

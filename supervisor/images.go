// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/hypervisor"
	"agentrun/images"
	"agentrun/images/based"
	"agentrun/internal/ending"
	"agentrun/internal/fault"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/internal/sibling"
	"agentrun/internal/thread"
)

var (
	// ErrImageSaid is what agentrun-image has refused, and why on its standard error.
	ErrImageSaid = errors.New(images.Program + " has said what is wrong")
	// ErrImageKept is an image that a kept sandbox has.
	ErrImageKept = errors.New("has it")
	errNoBase    = errors.New("the image that it begins with can't be used")
)

// BringImage has an image fetched and unpacked, puts that on record, and only then makes it one of the node's. change is the record's word.
// What the program tells of its progress, and of what is wrong, goes to said.
func (n *Node) BringImage(ctx context.Context, change, by string, o images.Order, said io.Writer) (i images.Image, names []string, err error) {
	for _, name := range []string{o.Pull, o.Name} {
		if err := images.CheckName(name); name != "" && err != nil {
			return i, nil, err
		}
	}
	if err := images.CheckTag(o.Name); err != nil {
		return i, nil, hinted.New(fmt.Errorf("--name: %w", err), "leave the digest out")
	}
	if o.Key, err = n.ImagePolicy.Key(); err != nil {
		return i, nil, err
	}
	o.Allow, o.Owners, o.Agent = n.ImagePolicy.Allow, os.Geteuid() == 0, "agentrun/"+n.Version
	o.Bases = n.Images().Bases(images.Fingerprint(o.Key))
	place, r, err := n.unpacked(ctx, o, said)
	if errors.Is(err, errNoBase) { // it is damaged, or somebody has removed it in the meantime
		if o.Progress {
			fmt.Fprintf(said, "%v: all layers are unpacked\n", err)
		}
		o.Bases = nil
		place, r, err = n.unpacked(ctx, o, said)
	}
	if err != nil {
		return i, nil, err
	}
	defer func() { err = errors.Join(err, place.Close()) }()
	if r.Names = images.Said(r.Names); o.Pull != "" || o.Name != "" { // whatever the program says
		r.Names = []string{cmp.Or(o.Pull, o.Name)}
	}
	if i = r.Image; change == "committed" {
		i.Source = "sandbox"
	}
	i.By, i.Created = by, time.Now().UTC()
	err = n.RecordImage(hypervisor.ImageChange{By: by, Change: change, Image: i.ID, Manifest: i.Manifest, Signer: i.SignedBy, Source: i.Source, Names: r.Names})
	if err != nil {
		return i, nil, err
	}
	return i, r.Names, place.Commit(i, r.Names)
}

// unpacked has an image unpacked: whole, or what is new of it, and then the base below that.
func (n *Node) unpacked(ctx context.Context, o images.Order, said io.Writer) (place *images.New, r images.Result, err error) {
	if place, err = n.Images().Begin(); err != nil {
		return nil, r, err
	}
	o.Into = place.Dir
	if r, err = unpackBy(ctx, o, said); err == nil && r.Base != "" {
		if err = n.complete(ctx, o, &r); err != nil {
			err = fmt.Errorf("%s: %w", cmp.Or(o.Pull, o.Import), err)
		}
	}
	root := filepath.Join(place.Dir, "rootfs")
	if err == nil {
		r.Image.UID, r.Image.GID, err = images.WhoIs(root, r.Image.Config.User)
	}
	if err == nil {
		err = place.Layers(r.Chain)
	}
	if err != nil {
		return nil, r, errors.Join(err, place.Close())
	}
	return place, r, nil
}

// complete puts a base below the layers that were unpacked. That is done here and not by the program that reads them: to it, no other
// image's files are ever within reach.
func (n *Node) complete(ctx context.Context, o images.Order, r *images.Result) error {
	if r.Delta == nil || !slices.ContainsFunc(o.Bases, func(b images.Base) bool { return b.ID == r.Base }) {
		return fmt.Errorf("%s: it has begun with %.80q, which it was not given", images.Program, r.Base)
	}
	used, err := n.Images().Use(r.Base)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoBase, err)
	}
	defer used.Close()
	if err := fault.At("image/base"); err != nil {
		return err
	}
	missing, err := based.Complete(ctx, filepath.Join(o.Into, "rootfs"), n.Images().Root(r.Base), *r.Delta, o.Owners)
	r.Image.Content.Missing += missing
	_, hostile := errors.AsType[*based.HostileError](err)
	switch {
	case err == nil, ctx.Err() != nil:
		return err
	case hostile:
		return hinted.New(err, "no image needs this; whoever built it may say why it is there (docs/images.md)")
	}
	return fmt.Errorf("%w: %w", errNoBase, err)
}

// RecordImage puts there what becomes of one, before it does.
func (n *Node) RecordImage(c hypervisor.ImageChange) error {
	h, err := n.Open()
	if err != nil {
		return err
	}
	return errors.Join(h.RecordImage(c), h.Close())
}

// maxImageResult bounds what the other program says: one that was taken over could say anything.
const maxImageResult = images.MaxDelta + 1<<20

// unpackBy has the program that reads strangers' archives carry out an order. It says itself what is wrong, and ends with this process.
func unpackBy(ctx context.Context, o images.Order, said io.Writer) (r images.Result, err error) {
	path, err := sibling.Find(images.Program)
	if err != nil {
		return r, hinted.New(err, images.Program+" comes with agentrun: install both, in a folder that only root may write")
	}
	order, err := json.Marshal(o)
	if err != nil {
		return r, err
	}
	var out bytes.Buffer
	if err := OwnDescriptors(); err != nil {
		return r, err
	}
	// The parent-death signal is that of the thread that forks.
	thread.Throwaway(func() {
		cmd := exec.CommandContext(ctx, path) //nolint:gosec // found where only root may write
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(order), &atMost{&out, maxImageResult}, said
		// An agent may have written the caller's folder, and what docker's credential helpers are may go by that, as asdf's scripts do.
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if o.Owners { // as root: what it can't write, and reach, is up to it then (confine.Unpack)
			cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNS
			if o.Import != "" {
				cmd.SysProcAttr.Unshareflags |= unix.CLONE_NEWNET
			}
		}
		err = cmd.Run()
	})
	if ended, ok := errors.AsType[*exec.ExitError](err); ok && ended.ExitCode() == ending.Failed {
		return r, ErrImageSaid
	}
	if err != nil {
		if err = fmt.Errorf("%s: %w", images.Program, err); o.Owners && errors.Is(err, unix.EPERM) {
			err = hinted.New(err, "as root it takes CAP_SYS_ADMIN, for a mount namespace in which it can write nothing else; as an ordinary user it doesn't")
		}
		return r, err
	}
	if err := read.Exactly(bytes.TrimSpace(out.Bytes()), &r); err != nil {
		return r, fmt.Errorf("%s: %w", images.Program, err)
	}
	return r, nil
}

// ImageKeptBy is a kept sandbox that has the image; empty: none.
func (n *Node) ImageKeptBy(id string) (string, error) {
	list, err := n.Sandboxes().List()
	for _, s := range list {
		if s.Image == id {
			return s.Name, nil
		}
	}
	return "", err
}

// RemoveImage takes a name away, and the image with its last one: then it is gone. No run and no kept sandbox has it then.
func (n *Node) RemoveImage(ref, by string) (gone bool, err error) {
	return n.Images().Remove(ref, func(i images.Image, whole bool) error {
		change := "untagged"
		if whole {
			change = "removed"
			if kept, err := n.ImageKeptBy(i.ID); err != nil || kept != "" {
				if err == nil {
					err = hinted.New(fmt.Errorf("the kept sandbox %s %w", kept, ErrImageKept), "agentrun rm "+kept+" removes that")
				}
				return err
			}
		}
		return n.RecordImage(hypervisor.ImageChange{By: by, Change: change, Image: i.ID, Names: []string{ref}})
	})
}

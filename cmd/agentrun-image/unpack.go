// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"agentrun/images"
	"agentrun/images/signed"
	"agentrun/images/unpack"
	"agentrun/internal/hinted"
)

// picture is an image as its source has it: who it is, and where its layers are read.
type picture struct {
	source     string
	names      []string
	config     []byte
	manifest   string   // digest; empty: it has none
	digests    []string // that a signature may be of
	signatures func() ([]signed.Signature, error)
	layers     []blob
}

// blob is a layer, packed in whatever way.
type blob struct {
	size int64
	open func() (io.ReadCloser, error)
}

func carryOut(ctx context.Context, o images.Order) (images.Result, error) {
	what, find := "pull "+o.Pull, pulled
	if o.Import != "" {
		what, find = "import "+o.Import, imported
	}
	fail := func(err error) (images.Result, error) { return images.Result{}, fmt.Errorf("%s: %w", what, err) }
	platform, err := v1.ParsePlatform(o.Platform)
	if err != nil || platform.OS == "" || platform.Architecture == "" {
		return fail(fmt.Errorf("--platform %.64q: want one as linux/amd64", o.Platform))
	}
	p, closing, err := find(ctx, o, *platform)
	if err != nil {
		return fail(err)
	}
	defer closing()
	// Before a byte of a layer is looked at.
	if err := p.checkSigned(o.Key); err != nil {
		return fail(err)
	}
	r, err := p.unpack(o, *platform)
	if err != nil {
		return fail(err)
	}
	return r, nil
}

func (p *picture) checkSigned(key string) error {
	if key == "" {
		return nil
	}
	if len(p.digests) == 0 {
		return hinted.New(fmt.Errorf("this node takes signed images only, and a %s has no manifest that could be signed", p.source),
			"import an OCI layout that has the signature, or pull from a registry")
	}
	all, err := p.signatures()
	if err == nil {
		err = signed.Verify(key, p.digests, all)
	}
	if err == nil {
		return nil
	}
	return hinted.New(fmt.Errorf("this node takes images only that images.signed_by has signed: %w", err),
		"cosign sign --key cosign.key NAME@"+p.digests[0]+", or another key in config.yaml")
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// maxConfig bounds an image's configuration, of which we keep a part.
const (
	maxConfig = images.MaxConfig
	maxKept   = 256 << 10
	maxLayers = 512
)

func (p *picture) read(want v1.Platform) (*v1.ConfigFile, error) {
	var c v1.ConfigFile
	if err := json.Unmarshal(p.config, &c); err != nil {
		return nil, fmt.Errorf("its configuration: %w", err)
	}
	if c.OS != want.OS || c.Architecture != want.Architecture || want.Variant != "" && c.Variant != want.Variant {
		return nil, hinted.New(fmt.Errorf("it is for %s, not for %s", cmp.Or(platformOf(&c), "an unknown platform"), want.String()),
			"another tag or digest may be for this machine; --platform takes it as it is, and no run can use it here")
	}
	if len(p.layers) != len(c.RootFS.DiffIDs) || len(p.layers) == 0 || len(p.layers) > maxLayers {
		return nil, fmt.Errorf("it has %d layers, and its configuration knows %d; want as many, and 1 to %d", len(p.layers), len(c.RootFS.DiffIDs), maxLayers)
	}
	for _, kv := range c.Config.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.ContainsRune(kv, 0) {
			return nil, fmt.Errorf("its environment has %.100q, which is no NAME=VALUE", kv)
		}
	}
	return &c, nil
}

func platformOf(c *v1.ConfigFile) string {
	return strings.Trim(c.OS+"/"+c.Architecture+"/"+c.Variant, "/")
}

// unpack writes the layers and tells what came of it. Who the image's user is, its whole root says, which isn't looked at here.
func (p *picture) unpack(o images.Order, want v1.Platform) (images.Result, error) {
	c, err := p.read(want)
	if err != nil {
		return images.Result{}, err
	}
	var diffIDs []string
	for _, d := range c.RootFS.DiffIDs {
		diffIDs = append(diffIDs, d.String())
	}
	base, there := longest(o.Bases, diffIDs)
	r, err := p.write(o, diffIDs, base, there)
	if err == nil && r.Delta != nil {
		text, jerr := json.Marshal(r.Delta)
		if err = jerr; err == nil && len(text) > images.MaxDelta {
			r, err = p.anew(o, diffIDs)
		}
	}
	if err != nil {
		return images.Result{}, err
	}
	i := images.Image{
		ID: digest(p.config), Manifest: p.manifest, Platform: platformOf(c), Source: p.source, Content: r.Image.Content,
		Config: images.Config{Env: c.Config.Env, User: c.Config.User, Workdir: c.Config.WorkingDir, Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd},
	}
	for _, l := range p.layers {
		i.Layers = append(i.Layers, l.size)
	}
	if err := os.WriteFile(filepath.Join(o.Into, images.ConfigFile), p.config, 0o600); err != nil {
		return images.Result{}, err
	}
	if o.Key != "" {
		i.SignedBy = images.Fingerprint(o.Key)
	}
	if text, err := json.Marshal(i); err != nil || len(text) > maxKept {
		return images.Result{}, fmt.Errorf("its environment, commands and platform have %d bytes, and %d are the most", len(text), maxKept)
	}
	r.Image, r.Names, r.Chain = i, p.names, images.Chain(diffIDs)
	return r, nil
}

// longest is the base that has most of the layers, and how many.
func longest(bases []images.Base, diffIDs []string) (images.Base, int) {
	by := map[string]images.Base{}
	for _, b := range bases {
		by[b.Chain] = b
	}
	for n := len(diffIDs); n > 0; n-- {
		if b, ok := by[images.Chain(diffIDs[:n])]; ok {
			return b, n
		}
	}
	return images.Base{}, 0
}

// write writes the layers above those that are there.
func (p *picture) write(o images.Order, diffIDs []string, base images.Base, there int) (r images.Result, err error) {
	tree, err := unpack.Open(filepath.Join(o.Into, "rootfs"), unpack.DefaultLimits(), o.Owners)
	if err != nil {
		return r, err
	}
	defer tree.Close()
	if there > 0 {
		tree.Over(base.Content, there)
	}
	bar := newProgress(os.Stderr, o, p.layers, there, base.ID)
	for n, layer := range p.layers[there:] {
		if err := apply(tree, layer, bar, diffIDs[there+n]); err != nil {
			bar.end()
			return r, explain(err)
		}
	}
	bar.end()
	if r.Image.Content, err = tree.Done(); err == nil && there > 0 {
		r.Base, r.Delta = base.ID, tree.Delta()
	}
	return r, err
}

// anew writes all of them, where more was to be told of those above the base than anybody reads.
func (p *picture) anew(o images.Order, diffIDs []string) (images.Result, error) {
	root := filepath.Join(o.Into, "rootfs")
	list, err := os.ReadDir(root)
	for _, e := range list {
		err = errors.Join(err, os.RemoveAll(filepath.Join(root, e.Name())))
	}
	if err != nil {
		return images.Result{}, err
	}
	return p.write(o, diffIDs, images.Base{}, 0)
}

func apply(tree *unpack.Tree, layer blob, bar *progress, diffID string) error {
	r, err := layer.open()
	if err != nil {
		return err
	}
	defer r.Close()
	got, err := tree.Apply(bar.layer(r))
	if err == nil && got != diffID {
		err = fmt.Errorf("a layer's content is %s, and the configuration says %s: it is damaged, or somebody has changed it", got, diffID)
	}
	return err
}

func explain(err error) error {
	switch {
	case errors.Is(err, unpack.ErrLimit):
		l := unpack.DefaultLimits()
		return hinted.New(err, fmt.Sprintf("images have at most %d GiB and %d files; --rootfs takes any folder", l.Bytes>>30, l.Files))
	case hostile(err):
		return hinted.New(err, "no image needs this; whoever built it may say why it is there (docs/images.md)")
	}
	return err
}

func hostile(err error) bool {
	_, ok := errors.AsType[*unpack.HostileError](err)
	return ok
}

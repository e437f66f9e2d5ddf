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
	i, err := p.unpack(o, *platform)
	if err != nil {
		return fail(err)
	}
	return images.Result{Image: i, Names: p.names}, nil
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

// unpack writes the layers and tells what came of it.
func (p *picture) unpack(o images.Order, want v1.Platform) (images.Image, error) {
	c, err := p.read(want)
	if err != nil {
		return images.Image{}, err
	}
	root := filepath.Join(o.Into, "rootfs")
	tree, err := unpack.Open(root, unpack.DefaultLimits(), o.Owners)
	if err != nil {
		return images.Image{}, err
	}
	defer tree.Close()
	bar := newProgress(os.Stderr, o, p.layers)
	for n, layer := range p.layers {
		if err := apply(tree, layer, bar, c.RootFS.DiffIDs[n].String()); err != nil {
			bar.end()
			return images.Image{}, explain(err)
		}
	}
	bar.end()
	content, err := tree.Done()
	if err != nil {
		return images.Image{}, err
	}
	i := images.Image{
		ID: digest(p.config), Manifest: p.manifest, Platform: platformOf(c), Source: p.source, Content: content,
		Config: images.Config{Env: c.Config.Env, User: c.Config.User, Workdir: c.Config.WorkingDir, Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd},
	}
	for _, l := range p.layers {
		i.Layers = append(i.Layers, l.size)
	}
	if err := os.WriteFile(filepath.Join(o.Into, images.ConfigFile), p.config, 0o600); err != nil {
		return images.Image{}, err
	}
	if o.Key != "" {
		i.SignedBy = images.Fingerprint(o.Key)
	}
	if text, err := json.Marshal(i.Config); err != nil || len(text) > maxKept {
		return images.Image{}, fmt.Errorf("its environment and commands have %d bytes, and %d are the most", len(text), maxKept)
	}
	i.UID, i.GID, err = whoIs(root, c.Config.User)
	return i, err
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

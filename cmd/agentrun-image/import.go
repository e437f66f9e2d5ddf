// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"agentrun/images"
	"agentrun/images/signed"
	"agentrun/internal/confine"
	"agentrun/internal/hinted"
)

// imported finds an image in a folder or an archive: an OCI layout, or what docker save writes.
func imported(_ context.Context, o images.Order, want v1.Platform) (p *picture, closing func(), err error) {
	if _, err := os.Stat(o.Import); err != nil {
		return nil, nil, err
	}
	if err := confine.Unpack(confine.UnpackOptions{Tree: o.Into, Read: []string{o.Import}}); err != nil {
		return nil, nil, err
	}
	f, err := openFiles(o.Import)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	_, err = f.text("index.json", maxIndex)
	switch {
	case err == nil:
		p, err = layout(f, o, want)
	case errors.Is(err, fs.ErrNotExist):
		p, err = dockerArchive(f, o)
	}
	if err != nil {
		return nil, nil, err
	}
	return p, func() { f.Close() }, nil
}

const maxIndex = 4 << 20

// layout reads an OCI layout (image-spec, image-layout.md).
func layout(f files, o images.Order, want v1.Platform) (*picture, error) {
	text, err := f.text("index.json", maxIndex)
	if err != nil {
		return nil, err
	}
	p := &picture{source: "oci-layout"}
	if _, ok := f.(*archive); ok {
		p.source = "oci-archive"
	}
	top, err := v1.ParseIndexManifest(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("index.json: %w", err)
	}
	all, err := signaturesIn(f, top)
	if err != nil {
		return nil, err
	}
	p.signatures = func() ([]signed.Signature, error) { return all, nil }
	d, err := chosen(f, top, o.Name, want)
	if err != nil {
		return nil, err
	}
	p.names = namesOf(d)
	for depth := 0; d.MediaType.IsIndex(); depth++ {
		p.digests = append(p.digests, d.Digest.String())
		text, err := blobText(f, d.Digest, maxIndex)
		if err != nil {
			return nil, err
		}
		index, err := v1.ParseIndexManifest(bytes.NewReader(text))
		if err == nil && depth > 2 {
			err = errors.New("indexes in indexes")
		}
		if err == nil {
			d, err = chosen(f, index, "", want)
		}
		if err != nil {
			return nil, fmt.Errorf("index %s: %w", p.digests[depth], err)
		}
	}
	return p, p.manifestOf(f, d)
}

// chosen is the image of an index that is meant: the one of that name, or the only one for the platform.
func chosen(f files, index *v1.IndexManifest, named string, want v1.Platform) (v1.Descriptor, error) {
	var fit, of []v1.Descriptor
	var names []string
	for _, d := range index.Manifests {
		if !d.MediaType.IsIndex() && !d.MediaType.IsImage() || isSignature(d) || d.Platform != nil && !d.Platform.Satisfies(want) {
			continue
		}
		fit, names = append(fit, d), append(names, namesOf(d)...)
		if named != "" && slices.Contains(namesOf(d), named) {
			of = append(of, d)
		}
	}
	if len(of) == 1 {
		return of[0], nil
	}
	switch len(fit) {
	case 0:
		return v1.Descriptor{}, hinted.New(fmt.Errorf("it has no image for %s", want.String()), "--platform names another; no run can use it here")
	case 1:
		return fit[0], nil
	}
	return v1.Descriptor{}, hinted.New(fmt.Errorf("it has %d images", len(fit)), "--name chooses one: "+strings.Join(names, ", "))
}

func isSignature(d v1.Descriptor) bool {
	return strings.HasSuffix(d.Annotations[refName], ".sig") || d.Annotations["kind"] == "dev.cosignproject.cosign/sigs"
}

const refName = "org.opencontainers.image.ref.name"

func namesOf(d v1.Descriptor) (names []string) {
	for _, key := range []string{"io.containerd.image.name", refName} {
		if n := d.Annotations[key]; n != "" {
			return []string{n}
		}
	}
	return nil
}

func signaturesIn(f files, index *v1.IndexManifest) (all []signed.Signature, err error) {
	manifests := slices.DeleteFunc(slices.Clone(index.Manifests), func(d v1.Descriptor) bool { return !isSignature(d) })
	for _, d := range manifests[:min(len(manifests), signed.Most)] {
		text, err := blobText(f, d.Digest, maxIndex)
		if err != nil {
			return nil, err
		}
		m, err := v1.ParseManifest(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("manifest %s: %w", d.Digest, err)
		}
		for _, l := range m.Layers {
			if l.MediaType != signed.MediaType || len(all) >= signed.Most {
				continue
			}
			statement, err := blobText(f, l.Digest, maxStatement)
			if err != nil {
				return nil, err
			}
			all = append(all, signed.Signature{Statement: statement, Base64: l.Annotations[signed.Annotation]})
		}
	}
	return all, nil
}

func (p *picture) manifestOf(f files, d v1.Descriptor) error {
	text, err := blobText(f, d.Digest, maxIndex)
	if err != nil {
		return err
	}
	p.manifest = d.Digest.String()
	p.digests = append(p.digests, p.manifest)
	m, err := v1.ParseManifest(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	if p.config, err = blobText(f, m.Config.Digest, maxConfig); err != nil {
		return err
	}
	for _, l := range m.Layers {
		p.layers = append(p.layers, blob{l.Size, func() (io.ReadCloser, error) {
			r, _, err := f.open(blobName(l.Digest))
			return r, err
		}})
	}
	return nil
}

func blobName(h v1.Hash) string { return path.Join("blobs", h.Algorithm, h.Hex) }

// blobText is a blob that is small, and what its digest says.
func blobText(f files, h v1.Hash, most int64) ([]byte, error) {
	text, err := f.text(blobName(h), most)
	if err == nil && digest(text) != h.String() {
		err = fmt.Errorf("%s has another content than its digest says", blobName(h))
	}
	return text, err
}

// dockerArchive reads what docker save has written without an OCI layout in it.
func dockerArchive(f files, o images.Order) (*picture, error) {
	text, err := f.text("manifest.json", maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, hinted.New(errors.New("it has neither index.json nor manifest.json"), "want an OCI layout, as a folder or a tar, or what docker save writes")
	}
	if err != nil {
		return nil, err
	}
	var all []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("manifest.json: %w", err)
	}
	var tags []string
	one := -1
	for i, m := range all {
		tags = append(tags, m.RepoTags...)
		if len(all) == 1 || slices.Contains(m.RepoTags, o.Name) {
			one = i
		}
	}
	if one < 0 {
		return nil, hinted.New(fmt.Errorf("it has %d images", len(all)), "--name chooses one: "+strings.Join(tags, ", "))
	}
	p := &picture{source: "docker-archive", names: all[one].RepoTags}
	if p.config, err = f.text(all[one].Config, maxConfig); err != nil {
		return nil, err
	}
	for _, name := range all[one].Layers {
		r, size, err := f.open(name)
		if err != nil {
			return nil, err
		}
		r.Close()
		p.layers = append(p.layers, blob{size, func() (io.ReadCloser, error) {
			r, _, err := f.open(name)
			return r, err
		}})
	}
	return p, nil
}

// files are those of a folder or an archive.
type files interface {
	open(name string) (r io.ReadCloser, size int64, err error) // fs.ErrNotExist: there is none
	text(name string, most int64) ([]byte, error)
	Close() error
}

func openFiles(name string) (files, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		root, err := os.OpenRoot(name)
		return &directory{root}, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is neither a file nor a folder")
	}
	return openArchive(name)
}

// directory is a folder, whose links lead nowhere else.
type directory struct{ *os.Root }

func (d *directory) open(name string) (io.ReadCloser, int64, error) {
	info, err := d.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", name)
	}
	if err != nil {
		return nil, 0, err
	}
	f, err := d.Open(name)
	return f, info.Size(), err
}

func (d *directory) text(name string, most int64) ([]byte, error) { return textOf(d, name, most) }

func textOf(f files, name string, most int64) ([]byte, error) {
	r, size, err := f.open(name)
	if err != nil {
		return nil, err
	}
	if size > most {
		r.Close()
		return nil, fmt.Errorf("%.200q has %d bytes, and %d are the most", name, size, most)
	}
	return whole(func() (io.ReadCloser, error) { return r, nil }, most)
}

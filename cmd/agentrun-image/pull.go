// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"agentrun/images"
	"agentrun/images/signed"
	"agentrun/internal/confine"
	"agentrun/internal/hinted"
	"agentrun/internal/upstream"
)

// pulled finds an image in a registry. What the registry sends is held to the digests that lead to it; credentials are those of
// docker's configuration and its helpers, of whoever asks.
func pulled(ctx context.Context, o images.Order, want v1.Platform) (*picture, func(), error) {
	options := []name.Option{}
	if o.PlainHTTP {
		options = append(options, name.Insecure)
	}
	ref, err := name.ParseReference(o.Pull, options...)
	if err != nil {
		return nil, nil, hinted.New(err, "names are as python:3.12-slim, or with a digest, NAME@sha256:…")
	}
	registry := ref.Context().Registry
	// The library takes plain HTTP for a private address by itself; here it takes a word for all but the loopback.
	if registry.Scheme() == "http" && !o.PlainHTTP && !loopback(registry.RegistryStr()) {
		return nil, nil, hinted.New(fmt.Errorf("%s would be asked without TLS", registry), "--plain-http, if nobody else is on the way to it")
	}
	if p := (images.Policy{Allow: o.Allow}); !p.Allows(ref.Context().Name()) {
		return nil, nil, hinted.New(fmt.Errorf("images.allow in config.yaml has no pattern for %s", ref.Context().Name()), "the node's operator decides what is pulled")
	}
	auth, err := credentials(ref.Context())
	if err == nil {
		err = confine.Unpack(confine.UnpackOptions{Tree: o.Into, Network: true})
	}
	if err != nil {
		return nil, nil, err
	}
	by := newWary(registry)
	opts := []remote.Option{
		remote.WithTransport(by), remote.WithContext(ctx), remote.WithAuth(auth), remote.WithPlatform(want), remote.WithUserAgent(o.Agent),
	}
	d, err := remote.Get(ref, opts...)
	if err != nil {
		return nil, nil, registryError(err)
	}
	img, err := d.Image()
	if err != nil {
		if strings.Contains(err.Error(), "no child with platform") {
			err = hinted.New(fmt.Errorf("it isn't there for %s", want.String()), "--platform names another; no run can use it here")
		}
		return nil, nil, err
	}
	p := &picture{source: "registry", names: []string{o.Pull}}
	p.signatures = func() ([]signed.Signature, error) { return signatures(ref.Context(), p.digests, opts) }
	return p, func() {}, p.from(img, d.Digest.String(), by)
}

// credentials are asked for, and certificates read, while helpers can be started and files be opened.
func credentials(of name.Repository) (authn.Authenticator, error) {
	_, _ = x509.SystemCertPool() // without one each connection fails, and says why
	a, err := authn.DefaultKeychain.Resolve(of)
	if err != nil {
		return nil, err
	}
	c, err := a.Authorization()
	if err != nil || *c == (authn.AuthConfig{}) {
		return authn.Anonymous, err
	}
	return authn.FromConfig(*c), nil
}

func loopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (p *picture) from(img v1.Image, asked string, by *wary) error {
	own, err := img.Digest()
	if err != nil {
		return err
	}
	p.manifest, p.digests = own.String(), []string{asked}
	if asked != p.manifest {
		p.digests = append(p.digests, p.manifest)
	}
	manifest, err := img.Manifest()
	if err != nil {
		return err
	}
	if manifest.Config.Size > maxConfig {
		return fmt.Errorf("its configuration has %d bytes, and %d are the most", manifest.Config.Size, maxConfig)
	}
	if p.config, err = img.RawConfigFile(); err != nil {
		return err
	}
	if len(manifest.Layers) > maxLayers {
		return fmt.Errorf("it has %d layers, and %d are the most", len(manifest.Layers), maxLayers)
	}
	for n, l := range manifest.Layers {
		// Such a layer would be fetched from wherever the image says, with what this machine reaches.
		if len(l.URLs) > 0 {
			return fmt.Errorf("layer %d lies somewhere else than in the registry, which is not followed", n+1)
		}
		layer, err := img.LayerByDigest(l.Digest)
		if err != nil {
			return err
		}
		p.layers = append(p.layers, blob{l.Size, func() (io.ReadCloser, error) {
			by.layers.Store(true)
			return layer.Compressed()
		}})
	}
	return nil
}

// signatures are those that the registry has of these digests.
func signatures(in name.Repository, of []string, opts []remote.Option) (all []signed.Signature, err error) {
	for _, d := range of {
		img, err := remote.Image(in.Tag(signed.Tag(d)), opts...)
		if refused, ok := errors.AsType[*transport.Error](err); ok && refused.StatusCode == http.StatusNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		manifest, err := img.Manifest()
		if err != nil {
			return nil, err
		}
		for _, l := range manifest.Layers[:min(len(manifest.Layers), signed.Most)] {
			if l.MediaType != signed.MediaType || l.Size > maxStatement || len(l.URLs) > 0 {
				continue
			}
			layer, err := img.LayerByDigest(l.Digest)
			if err != nil {
				return nil, err
			}
			text, err := whole(layer.Compressed, maxStatement)
			if err != nil {
				return nil, err
			}
			all = append(all, signed.Signature{Statement: text, Base64: l.Annotations[signed.Annotation]})
		}
	}
	return all, nil
}

// maxStatement bounds what is signed: some names and digests.
const maxStatement = 64 << 10

func whole(open func() (io.ReadCloser, error), most int64) ([]byte, error) {
	r, err := open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("more than %d bytes", most)
	}
	return text, err
}

func registryError(err error) error {
	if errors.Is(err, upstream.ErrAddress) {
		return hinted.New(err, "a public registry leads to public addresses only; a mirror in a network of yours may lead there")
	}
	refused, ok := errors.AsType[*transport.Error](err)
	if !ok {
		return err
	}
	switch refused.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return hinted.New(err, "docker login writes the credentials that are used; the registry may also say so of what isn't there")
	case http.StatusNotFound:
		return hinted.New(err, "look at the spelling of name and tag")
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"agentrun/internal/read"
	"agentrun/internal/upstream"
	"agentrun/pdp"
	"agentrun/pdp/authzen"
)

// policySchema is the JSON Schema of the section policy:.
//
//go:embed policy.schema.json
var policySchema []byte

// policyPoll is how often the files are looked at: a change counts within two seconds, and looking costs a stat of each.
const policyPoll = 2 * time.Second

// policyConfig is the section policy: of gateway.yaml. The zero value means the built-in policies alone.
type policyConfig struct {
	File   string        `yaml:"file"` // absolute path of a policy file; or
	Dir    string        `yaml:"dir"`  // of a folder of *.cedar files
	Remote *policyRemote `yaml:"remote"`
}

// policyRemote is a PDP that must say yes as well. Bounds and defaults are those of package authzen.
type policyRemote struct {
	URL       string        `yaml:"url"`
	Timeout   time.Duration `yaml:"timeout"`
	AllowTTL  time.Duration `yaml:"allow_ttl"`
	DenyTTL   time.Duration `yaml:"deny_ttl"`
	CacheSize int           `yaml:"cache_size"`
	CAFile    string        `yaml:"ca_file"`
	Token     *struct {
		Secret string `yaml:"secret"`
	} `yaml:"token"`
}

func parsePolicyConfig(n *read.Node) (policyConfig, error) {
	var c policyConfig
	n.Into(&c)
	var errs []error
	if c.File != "" && c.Dir != "" {
		errs = append(errs, errors.New("want file or dir, not both"))
	}
	for name, path := range map[string]string{"file": c.File, "dir": c.Dir} {
		if path != "" && !filepath.IsAbs(path) {
			errs = append(errs, read.Bad(name, "%q: want an absolute path", path))
		}
	}
	if r := c.Remote; r != nil {
		if r.Token != nil && r.Token.Secret == "" {
			errs = append(errs, read.Bad("remote.token.secret", "missing"))
		}
		_, err := authzen.New(r.options())
		errs = append(errs, read.Under("remote", err))
	}
	return c, n.Done(errs...)
}

func (r policyRemote) options() authzen.Options {
	return authzen.Options{URL: r.URL, Timeout: r.Timeout, AllowTTL: r.AllowTTL, DenyTTL: r.DenyTTL, CacheSize: r.CacheSize}
}

// Path of the operator's policies; empty: the built-in ones alone.
func (c policyConfig) Path() string { return cmp.Or(c.File, c.Dir) }

// policyDecider decides as M-9 wants it: the embedded engine first, then the remote PDP.
type policyDecider struct {
	pdp.Decider
	engines []*pdp.Engine // at least one
	paths   []string      // of the operator's policies; none: the built-in ones alone
	remote  *authzen.Client
}

// newPolicyDecider loads policies and secrets, so it comes before confine.Drop. more is --policy of the run: it must say yes beside
// the configuration's file or folder, which a flag can't leave out (M-9).
func newPolicyDecider(c policyConfig, more string, secret func(string) (string, bool), log *slog.Logger) (*policyDecider, error) {
	d := &policyDecider{}
	for _, path := range []string{c.Path(), more} {
		if path != "" && !slices.Contains(d.paths, path) {
			d.paths = append(d.paths, path)
		}
	}
	load := d.paths
	if len(load) == 0 {
		load = []string{""} // the built-in ones
	}
	var deciders []pdp.Decider
	for _, path := range load {
		e, err := pdp.NewEngine(pdp.Options{Path: path, Notify: func(s pdp.Status) { tellPolicies(log, s) }})
		if err != nil {
			return nil, fmt.Errorf("policy: %w", err)
		}
		d.engines, deciders = append(d.engines, e), append(deciders, e)
	}
	if c.Remote != nil {
		var err error
		if d.remote, err = c.Remote.client(secret); err != nil {
			return nil, err
		}
		deciders = append(deciders, d.remote)
	}
	d.Decider = pdp.Every(deciders...)
	return d, nil
}

func (r policyRemote) client(secret func(string) (string, bool)) (*authzen.Client, error) {
	o := r.options()
	if r.Token != nil {
		var ok bool
		if o.Token, ok = secret(r.Token.Secret); !ok {
			return nil, fmt.Errorf("policy.remote.token: no secret %.64q", r.Token.Secret)
		}
	}
	var err error
	if o.Roots, err = upstream.Roots(r.CAFile); err != nil {
		return nil, fmt.Errorf("policy.remote: %w", err)
	}
	client, err := authzen.New(o)
	if err != nil {
		return nil, fmt.Errorf("policy.remote: %w", err)
	}
	return client, nil
}

// Readable is what must stay readable after the drop for hot reload: the folder also of a single file, since Landlock's rule
// would hold for the file that is there now and not for the one that is renamed over it.
func (d *policyDecider) Readable() []string {
	var dirs []string
	for _, path := range d.paths {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			path = filepath.Dir(path)
		}
		dirs = append(dirs, path)
	}
	return dirs
}

// Watch looks at the files until ctx ends. It runs beside the calls: none of them waits for policies to load.
func (d *policyDecider) Watch(ctx context.Context) {
	if len(d.paths) == 0 {
		return
	}
	tick := time.NewTicker(policyPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			for _, e := range d.engines {
				e.Poll()
			}
		}
	}
}

// Close lets go of connections.
func (d *policyDecider) Close() { d.remote.Close() }

func tellPolicies(log *slog.Logger, s pdp.Status) {
	if log == nil {
		return
	}
	if s.Refused != nil {
		log.Warn("policies refused, the last valid ones go on deciding", "revision", s.Revision, "since", s.RefusedSince, "error", s.Refused.Error())
		return
	}
	log.Info("policies loaded", "revision", s.Revision, "policies", s.Policies)
}

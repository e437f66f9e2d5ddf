// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"slices"
	"strings"

	"agentrun/hypervisor"
	"agentrun/internal/read"
)

// EnvKey is the variable that an agent's key may stand in, in place of --key-file. No sandbox is given it.
const EnvKey = "AGENTRUN_KEY"

// presented finds the key that the run is to start with: the request's, that of its file, or that of the caller's
// environment. What is wrong with the key itself is for the hypervisor to tell, on record.
func (s *run) presented() (bad []read.Problem) {
	r := s.want
	s.token = r.Key
	switch {
	case r.KeyFile != "":
		text, err := read.File(r.KeyFile, 0o077, hypervisor.MaxKeyText)
		if err != nil {
			return []read.Problem{{Path: "--key-file", Message: err.Error()}}
		}
		if s.token = hypervisor.NewToken(string(text)); !s.token.Given() {
			return []read.Problem{{Path: "--key-file", Message: r.KeyFile + " is empty"}}
		}
	case !s.token.Given():
		s.token = hypervisor.NewToken(s.by.Getenv(EnvKey))
	}
	if !s.token.Given() {
		return nil
	}
	shows := func(v string) bool { return strings.Contains(v, s.token.Reveal()) }
	for _, of := range []struct {
		path  string
		words []string
	}{{"--env", s.spec.Env}, {"COMMAND", r.Command}} {
		if slices.ContainsFunc(of.words, shows) {
			bad = append(bad, read.Problem{Path: of.path, Message: "holds the agent's key, which no sandbox is shown"})
		}
	}
	return bad
}

// withoutKey is what of an environment a sandbox may be given.
func withoutKey(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(v string) bool { return strings.HasPrefix(v, EnvKey+"=") })
}

// useKey looks at the key before anything else is asked about the run, and refuses one that comes without where the
// configuration demands a key (M-9).
func (s *run) useKey() error {
	if s.parent != nil {
		return nil // its parent's, which came with the admission
	}
	ring := s.admission.Ring
	if !s.token.Given() {
		if s.node.KeysRequired {
			return s.h.RefuseKey(s.asked, ring, "this node's runs need a key, and there is none")
		}
		return nil
	}
	k, err := s.h.UseKey(s.ctx, s.token, s.asked, ring)
	if err == nil {
		s.admission.Key = &k
	}
	return err
}

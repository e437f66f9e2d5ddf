// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"agentrun/internal/read"
	"agentrun/profiles"
)

const (
	maxBundle = 8 << 20  // agentrun-oci writes what it has read, in other words
	maxNames  = 32 << 10 // of each of its files of names: both are one message to the gateway
)

// readBundle reads what agentrun-oci has kept of a container's bundle: what holds beside the ring's own, and isn't said by a flag.
func (s *run) readBundle() error {
	if s.want.Bundle == "" {
		return nil
	}
	if s.host == nil || s.host.Outlives() { // it names files, which a daemon would read for whoever asks
		return errors.New("--bundle-config: agentrun-oci's, of a run in a process of its own (--no-daemon)")
	}
	text, _, err := read.Regular(s.want.Bundle, maxBundle)
	s.bundle = &specs.Spec{}
	if err == nil {
		err = read.Exactly(text, s.bundle)
	}
	if err == nil && (s.bundle.Process == nil || s.bundle.Linux == nil) {
		err = errors.New("process and linux: want both")
	}
	if err != nil {
		return fmt.Errorf("the bundle's configuration: %w", err)
	}
	s.spec.Seccomp, s.spec.Rlimits, s.spec.Hostname = s.bundle.Linux.Seccomp, s.bundle.Process.Rlimits, s.bundle.Hostname
	if score := s.bundle.Process.OOMScoreAdj; score != nil {
		s.spec.OOMScore = *score
	}
	if s.bundle.Root != nil && s.bundle.Root.Readonly { // as in rings 2 and 3
		s.spec.Profile.Files.Root = profiles.RootReadonly
	}
	return nil
}

// useNames has the gateway look names up by the files that an engine mounts for its container.
func (s *run) useNames() error {
	if s.bundle == nil || s.out == nil {
		return nil
	}
	for _, m := range s.bundle.Mounts {
		var to *string
		switch path.Clean("/" + m.Destination) {
		case "/etc/resolv.conf":
			to = &s.out.Start.Names.Resolv
		case "/etc/hosts":
			to = &s.out.Start.Names.Hosts
		}
		if to == nil || m.Type != "bind" && !slices.Contains(m.Options, "bind") && !slices.Contains(m.Options, "rbind") {
			continue
		}
		text, _, err := read.Regular(m.Source, maxNames)
		if err == nil && len(text) > maxNames {
			err = fmt.Errorf("%s is longer than %d bytes", m.Source, maxNames)
		}
		if err != nil {
			return fmt.Errorf("the bundle's %s: %w", m.Destination, err)
		}
		*to = string(text)
	}
	return nil
}

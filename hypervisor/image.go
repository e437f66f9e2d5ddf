// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"fmt"
	"strings"

	"agentrun/audit"
)

// ImageChange is what becomes of a container image (M-2).
type ImageChange struct {
	By, Change              string // as audit.Image has them
	Image, Manifest, Signer string // digests; Signer: of the key
	Source                  string
	Names                   []string
}

// RecordImage puts it on record, on disk, before it takes effect.
func (h *Hypervisor) RecordImage(c ImageChange) error {
	r := &audit.Image{
		By: audit.Claimed(c.By), Change: c.Change, Image: c.Image, Manifest: c.Manifest, Key: c.Signer, Source: strings.ReplaceAll(c.Source, "-", "_"),
	}
	for _, n := range c.Names {
		r.Names = append(r.Names, audit.Claimed(n))
	}
	if err := h.record("", true, r); err != nil {
		return fmt.Errorf("image %s: %w", c.Image, err)
	}
	return nil
}

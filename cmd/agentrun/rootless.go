// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"agentrun/internal/rootless"
)

// enter starts this process anew in a user namespace if an ordinary user has started it; it comes back as root or with the reason.
func (g *global) enter() error {
	if os.Geteuid() == 0 {
		return nil
	}
	var keep []int
	if g.detachedFD != 0 {
		keep = append(keep, g.detachedFD)
	}
	if err := rootless.Enter(keep...); err != nil {
		return &hintError{err: err, hint: "agentrun doctor says how to get it; as root none of it is needed"}
	}
	return nil
}

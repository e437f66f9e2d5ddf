// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"io"
	"testing"

	"agentrun/runtime"
)

// A launch that ends before there is a terminal has nothing to undo: it once called itself until the stack was full, and took the
// supervisor, its reason and its account along.
func TestFollowWithoutATerminal(*testing.T) {
	follow(ownTerminal{}, &runtime.Options{Stdout: io.Discard})()
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"testing"

	"agentrun/supervisor"
)

// BenchmarkFlags is what it costs to know what a caller of the daemon wants.
func BenchmarkFlags(b *testing.B) {
	dir := b.TempDir()
	args := []string{"agentrun", "--state-dir", dir, "--run-dir", dir, "exec", "--", "/bin/true"}
	var all clients
	b.ReportAllocs()
	for b.Loop() {
		by := &supervisor.Caller{Stdout: io.Discard, Stderr: io.Discard, Environ: []string{"HOME=" + dir}, Dir: "/"}
		if asked := all.read(b.Context(), by, args); asked.Request == nil {
			b.Fatal(asked)
		}
	}
}

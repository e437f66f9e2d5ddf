// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"testing"

	"github.com/urfave/cli/v2"
)

// BenchmarkFlags is what it costs to know what a caller of the daemon wants.
func BenchmarkFlags(b *testing.B) {
	dir := b.TempDir()
	d := &daemon{g: &global{stateDir: dir, runDir: dir}}
	args := []string{"agentrun", "--state-dir", dir, "--run-dir", dir, "exec", "--", "/bin/true"}
	b.ReportAllocs()
	for b.Loop() {
		g := &global{caller: &caller{home: d, stdout: io.Discard, stderr: io.Discard, environ: []string{"HOME=" + dir}, dir: "/"}}
		app := g.app()
		read := false
		app.Commands[0].Action = func(*cli.Context) error { read = true; return nil }
		if err := app.RunContext(b.Context(), flagsFirst(app, args)); err != nil || !read {
			b.Fatal(err, read)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

// Command man writes the man pages of agentrun and of the two programs beside it:
//
//	go run ./tools/man bin/agentrun bin/man
//
// They are made of what the program itself prints by --help, verb by verb, so a new flag is in them by being there. The
// program links no generator for it. It must run on the machine that builds.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"agentrun/tools/man/page"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: man PROGRAM FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func write(program, folder string) error {
	say := func(args ...string) (string, error) {
		cmd := exec.Command(program, args...)
		// It says of itself what this build says, whatever daemon listens.
		cmd.Env, cmd.Stderr = append(os.Environ(), "AGENTRUN_NO_DAEMON=1"), os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
		}
		return string(out), nil
	}
	version, err := say("--version")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, p := range page.All {
		var roff bytes.Buffer
		if err := p.Write(&roff, strings.TrimSpace(version), say); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		if err := os.WriteFile(filepath.Join(folder, p.Name+".1"), roff.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/internal/early"
	"agentrun/internal/handoff"
	"agentrun/supervisor"
)

// handOver gives an exec to the daemon that the short way could not find: its run folder stands in a configuration file. It
// starts this program anew, with the folder named in front, and returns only when the run is to be alone.
func (g *global) handOver(c *cli.Context) error {
	if why := early.Declined(); why != "" {
		g.Log.Info("the daemon does not take this run; it runs alone", "why", why)
		return nil
	}
	named := []string{"--run-dir", g.RunDir}
	if g.detachedFD > 0 || c.Bool("no-daemon") || os.Getenv(supervisor.NoDaemon) == "1" ||
		len(os.Args) > 2 && slices.Equal(os.Args[1:3], named) {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(g.ControlDir(), handoff.SocketName)); err != nil {
		return nil //nolint:nilerr // no daemon
	}
	args := slices.Concat([]string{os.Args[0]}, named, os.Args[1:])
	// The file of this process, not what stands at its path by now.
	if err := unix.Exec("/proc/self/exe", args, os.Environ()); err != nil && !errors.Is(err, unix.E2BIG) {
		return os.NewSyscallError("execve", err)
	}
	return nil
}

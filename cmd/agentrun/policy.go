// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/internal/hinted"
	"agentrun/internal/policycmd"
	"agentrun/internal/sibling"
	"agentrun/supervisor"
)

func policyCommand() *cli.Command {
	return policycmd.New(policycmd.All(func(c *cli.Context) error {
		return become(supervisor.GatewayProgram, policycmd.Args(supervisor.GatewayProgram, c))
	}), usageError)
}

// become replaces this process by another program of agentrun's; it comes back only if that can't be.
func become(program string, args []string) error {
	path, err := sibling.Find(program)
	if err != nil {
		return hinted.New(err, program+" comes with agentrun: install both, in a folder that only root may write")
	}
	if err := unix.Exec(path, args, os.Environ()); err != nil {
		return fmt.Errorf("exec %s: %w", path, err)
	}
	return nil
}

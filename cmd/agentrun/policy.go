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

func policyCommand(*global) *cli.Command {
	return policycmd.New(policycmd.All(policyHandOver), usageError)
}

// policyHandOver becomes the gateway's program; it comes back only if that can't be.
func policyHandOver(c *cli.Context) error {
	path, err := sibling.Find(supervisor.GatewayProgram)
	if err != nil {
		return hinted.New(err, supervisor.GatewayProgram+" comes with agentrun: install both, in a folder that only root may write")
	}
	if err := unix.Exec(path, policycmd.Args(supervisor.GatewayProgram, c), os.Environ()); err != nil {
		return fmt.Errorf("exec %s: %w", path, err)
	}
	return nil
}

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
)

// gatewayProgram knows policies, which this one doesn't: each run would pay for them at its start.
const gatewayProgram = "agentrun-gateway"

func policyCommand(*global) *cli.Command {
	return policycmd.New(policycmd.All(policyHandOver), usageError)
}

// policyHandOver becomes the gateway's program; it comes back only if that can't be.
func policyHandOver(c *cli.Context) error {
	path, err := sibling.Find(gatewayProgram)
	if err != nil {
		return hinted.New(err, gatewayProgram+" comes with agentrun: install both, in a folder that only root may write")
	}
	if err := unix.Exec(path, policycmd.Args(gatewayProgram, c), os.Environ()); err != nil {
		return fmt.Errorf("exec %s: %w", path, err)
	}
	return nil
}

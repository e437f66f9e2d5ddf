// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/urfave/cli/v2"

	"agentrun/safetyloop/policy"
)

func schemaAction(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	_, err := os.Stdout.Write(policy.Schema())
	return err
}

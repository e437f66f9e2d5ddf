// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
	"agentrun/safetyloop/mcpaql"
)

// token prints a token once. The file gets its hash, so that who reads the file can't use it.
func token(c *cli.Context, a []string) error {
	text, t, err := mcpaql.NewToken(a[0], mcpaql.Role(c.String("role")))
	if err != nil {
		return hinted.New(err, "agentrun safety token planner-1 --role agent")
	}
	fmt.Println(text)
	fmt.Fprintf(os.Stderr, "  - {name: %s, role: %s, sha256: %s}\n", t.Name, t.Role, t.SHA256)
	return nil
}

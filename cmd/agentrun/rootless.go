// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"agentrun/internal/hinted"
	"agentrun/internal/rootless"
	"agentrun/internal/sibling"
	"agentrun/supervisor"
)

// gatewayVariable takes the gateway's path, or why there is none, into the user namespace: root's files and anybody's look the same there, so who
// may have written the program can be told outside only. It says nothing that the user who sets it couldn't do by another binary.
const gatewayVariable = "_AGENTRUN_GATEWAY"

// outside is what it said.
var outside supervisor.Outside

// arrive ends the way into a user namespace, if this process is on it.
func arrive() error {
	defer func() {
		for _, name := range []string{gatewayVariable, gatewayVariable + "_WHY"} {
			_ = os.Unsetenv(name)
		}
	}()
	if err := rootless.Arrived(); err != nil {
		return err
	}
	outside = supervisor.Outside{Program: os.Getenv(gatewayVariable), Why: os.Getenv(gatewayVariable + "_WHY")}
	return nil
}

// enter starts this process anew in a user namespace if an ordinary user has started it; it comes back as root or with the reason.
func (g *global) enter() error {
	if os.Geteuid() == 0 {
		return nil
	}
	var keep []int
	if g.detachedFD != 0 {
		keep = append(keep, g.detachedFD)
	}
	var extra []string
	if program, err := sibling.Find(supervisor.GatewayProgram); err != nil {
		extra = append(extra, gatewayVariable+"_WHY="+err.Error())
	} else {
		extra = append(extra, gatewayVariable+"="+program)
	}
	if err := rootless.Enter(keep, extra...); err != nil {
		return hinted.New(err, "agentrun doctor says how to get it; as root none of it is needed")
	}
	return nil
}

// enterIfPossible is enter for what an ordinary user may do without a user namespace, too. What an agent has left may be the user's other ids',
// or closed to the user by its mode: in there nothing is.
func (g *global) enterIfPossible() error {
	if len(rootless.Missing()) > 0 {
		return nil
	}
	return g.enter()
}

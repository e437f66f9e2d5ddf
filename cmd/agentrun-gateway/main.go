// SPDX-License-Identifier: Apache-2.0

// Command agentrun-gateway is the heavy half of agentrun: it serves one run's tool proxy, started by agentrun on the run's
// first connection, and it is what `agentrun policy` hands over to. It is built without cgo (internal/confine).
package main

import (
	"fmt"
	"os"
)

// version is set by the Makefile.
var version = "dev"

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) > 0 {
		switch args[0] {
		case "serve":
			return serveMain()
		case "ca":
			return caMain(args[1:])
		case "check":
			return checkMain()
		case "undo":
			return undoMain()
		case "policy":
			return policyMain(args)
		case "version", "--version":
			fmt.Println(gatewayName, "version", version)
			return 0
		}
	}
	fmt.Fprintf(os.Stderr, "%s: it is started by agentrun\nhint: agentrun policy --help\n", gatewayName)
	return exitFailed
}

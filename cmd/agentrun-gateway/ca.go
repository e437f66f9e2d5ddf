// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"agentrun/toolproxy/forward/runca"
	"agentrun/toolproxy/link"
)

// madeCA is what the supervisor gets: the CA for link.Start, and its certificate for the root view.
type madeCA struct {
	CA  link.CA `json:"ca"`
	PEM string  `json:"pem"`
}

// caMain makes the CA of one run, on standard output. Only runs whose configuration intercepts TLS need one, so crypto/x509
// is not linked into the program that every run starts.
func caMain(args []string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "ca: want the id of a run")
		return exitFailed
	}
	ca, pem, err := runca.NewCA(args[0], time.Now)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(madeCA{ca, string(pem)})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	return exitOK
}

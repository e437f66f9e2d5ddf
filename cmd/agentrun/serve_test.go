// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"agentrun/supervisor"
)

// The flag library keeps state in variables; callers at the same time get each their own answer, paths and
// environment.
func TestManyCallersAtOnce(t *testing.T) {
	var all clients
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			var out, errOut bytes.Buffer
			dir := fmt.Sprintf("/nosuch%d", i)
			by := &supervisor.Caller{
				Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errOut, Dir: dir, Environ: []string{"AGENTRUN_STATE_DIR=" + dir, "AGENTRUN_RUN_DIR=r"},
			}
			words, code, want := []string{"exec", "--help"}, 0, "--ring"
			switch i % 4 {
			case 1:
				words, code, want = []string{"exec", fmt.Sprintf("--nosuch%d", i), "x"}, 125, fmt.Sprintf("-nosuch%d", i)
			case 2:
				words, want = []string{"exec", "--gateway", "g.yaml", "--", "x"}, ""
			case 3:
				words, code, want = []string{"gc"}, 125, `"gc" is no command`
			}
			got := all.read(t.Context(), by, append([]string{"agentrun"}, words...))
			if said := out.String() + errOut.String(); got.Code != code || !strings.Contains(said, want) || (want == "") != (said == "") {
				t.Errorf("%v: got %d: %s", words, got.Code, said)
			}
			if (got.Request == nil) != (want != "") {
				t.Errorf("%v: got the request %+v", words, got.Request)
			}
			if r := got.Request; r != nil && (r.Gateway != dir+"/g.yaml" || got.Node.StateDir != dir || got.Node.RunDir != dir+"/r") {
				t.Errorf("%v in %s: got %+v on the node %+v", words, dir, r, got.Node)
			}
		})
	}
	wg.Wait()
}

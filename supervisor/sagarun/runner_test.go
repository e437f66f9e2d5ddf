// SPDX-License-Identifier: Apache-2.0

package sagarun

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/sagas"
	"agentrun/sagas/sagafile"
	"agentrun/supervisor"
)

// What a step's command is started with: contained, in its ring, with its key, as its agent.
func TestSagaCommandArguments(t *testing.T) {
	r := &execRunner{node: &supervisor.Node{StateDir: "/s", RunDir: "/r"}}
	call := sagas.Call{SagaID: "id", Key: "id/a", Agent: "planner", Session: "s1"}
	got, err := r.args(sagafile.Command{Command: []string{"sh", "-c", "true"}, Ring: 2, Workspace: "/w"}, sagas.DefaultStepTimeout, call)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields("--state-dir /s --run-dir /r exec --ring 2 --name saga-id --env AGENTRUN_IDEMPOTENCY_KEY=id/a --timeout 5m0s " +
		"--agent planner --session s1 --workspace /w -- sh -c true")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	got, err = r.args(sagafile.Command{Command: []string{"ls"}, Ring: 3, Profile: "strict"}, time.Second, sagas.Call{})
	if err != nil || slices.Contains(got, "--timeout") || !slices.Contains(got, "strict") {
		t.Errorf("got %v, %v", got, err)
	}
	for _, ring := range []int{-1, 0, 4} {
		if _, err := r.args(sagafile.Command{Command: []string{"ls"}, Ring: ring}, time.Second, call); err == nil {
			t.Errorf("ring %d: no error", ring)
		}
	}
}

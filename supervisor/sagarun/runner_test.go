// SPDX-License-Identifier: Apache-2.0

package sagarun

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/profiles"
	"agentrun/sagas"
	"agentrun/sagas/sagafile"
	"agentrun/supervisor"
)

// What a step's command is started with: contained, in its ring, with its key, as its agent.
func TestSagaCommandArguments(t *testing.T) {
	r := &execRunner{node: &supervisor.Node{StateDir: "/s", RunDir: "/r"}}
	call := sagas.Call{SagaID: "id", Key: "id/a", Agent: "planner", Session: "s1"}
	got, err := r.args(sagafile.Command{Command: []string{"sh", "-c", "true"}, Ring: 2, Workspace: "/w"}, 0, sagafile.MaxCommandTimeout, call)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields("--state-dir /s --run-dir /r exec --no-daemon --ring 2 --name saga-id --env AGENTRUN_IDEMPOTENCY_KEY=id/a --timeout 5m0s " +
		"--agent planner --session s1 --workspace /w -- sh -c true")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	got, err = r.args(sagafile.Command{Command: []string{"ls"}, Ring: 3, Profile: "strict"}, 0, sagafile.MaxCommandTimeout, sagas.Call{})
	if err != nil || slices.Contains(got, "--timeout") || !slices.Contains(got, "strict") {
		t.Errorf("got %v, %v", got, err)
	}
	for _, ring := range []int{-1, 0, 4} {
		if _, err := r.args(sagafile.Command{Command: []string{"ls"}, Ring: ring}, time.Second, sagafile.MaxCommandTimeout, call); err == nil {
			t.Errorf("ring %d: no error", ring)
		}
	}
}

// H-19: the step's time limit goes before that of the ring, and before that of a profile where the step gives one.
func TestH19StepTimeoutIsTheRuns(t *testing.T) {
	if sagafile.MaxCommandTimeout != time.Duration(profiles.MaxTimeout) {
		t.Errorf("a file allows %v, a sandbox %v", sagafile.MaxCommandTimeout, profiles.MaxTimeout)
	}
	r := &execRunner{node: &supervisor.Node{}}
	for _, tt := range []struct {
		profile string
		limit   time.Duration
		longest time.Duration // of the node and the plan
		want    string
	}{
		{"", 0, 5 * time.Minute, "5m0s"},
		{"", time.Millisecond, 5 * time.Minute, "1s"}, // the orchestrator ends it, and this limit is behind that
		{"", 75 * time.Second, 5 * time.Minute, "1m15s"},
		{"", 120500 * time.Millisecond, 5 * time.Minute, "2m1s"},
		{"", 5 * time.Minute, 5 * time.Minute, "5m0s"},
		{"strict", 0, time.Minute, ""},
		{"strict", 2 * time.Minute, 5 * time.Minute, "2m0s"},
		{"", 0, time.Minute, "1m0s"},
		{"", 2 * time.Minute, time.Minute, "1m0s"},
		{"", 59500 * time.Millisecond, 59600 * time.Millisecond, "59.6s"},
	} {
		got, err := r.args(sagafile.Command{Command: []string{"ls"}, Ring: 3, Profile: tt.profile}, tt.limit, tt.longest, sagas.Call{})
		if err != nil {
			t.Fatal(err)
		}
		limit := ""
		if i := slices.Index(got, "--timeout"); i >= 0 {
			limit = got[i+1]
		}
		if limit != tt.want {
			t.Errorf("profile %q, step %v: got --timeout %q, want %q", tt.profile, tt.limit, limit, tt.want)
		}
	}
}

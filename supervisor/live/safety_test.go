// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/hypervisor"
	"agentrun/profiles"
	"agentrun/runtime"
	"agentrun/safetyloop"
	"agentrun/toolproxy/link"
)

// loopsOf are the loops of a supervisor over a state folder, and one run of each plan.
func loopsOf(t *testing.T, state string, plans ...*runtime.Plan) (*Runs, []link.Safeties) {
	t.Helper()
	h, err := hypervisor.Open(hypervisor.Options{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	s := runsOn(t, h)
	t.Cleanup(func() { s.Close(); h.Close() })
	var all []link.Safeties
	for _, p := range plans {
		p.Wayout = &runtime.PlanWayout{}
		adm, err := h.Admit(t.Context(), hypervisor.Request{Agent: p.Agent})
		if err != nil {
			t.Fatal(err)
		}
		v, err := s.Begin(h, adm, p, RunOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v.Safety)
		t.Cleanup(func() { v.Close(); adm.Done() })
	}
	return s, all
}

// runsOn are the runs of a supervisor whose safety loops keep their state in h.
func runsOn(t *testing.T, h *hypervisor.Hypervisor) *Runs {
	return New(Options{Node: func() (*hypervisor.Hypervisor, error) { return h, nil }, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
}

func stateFolder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// reportsStep reports a step with a judgement that is of another hint if judged is not the hint.
func reportsStep(t *testing.T, l link.Safeties, hint, judged string, score int) string {
	t.Helper()
	params, err := json.Marshal(map[string]string{"element_name": "planner", "nextActionHint": hint})
	if err != nil {
		t.Fatal(err)
	}
	q := link.Safety{Endpoint: "CREATE", Operation: "record_execution_step", Params: params}
	if judged != "" {
		q.Judgement, q.Judged = &safetyloop.Judgement{Rule: safetyloop.RuleDefault, Score: score, Verb: "write_file", Target: "/a"}, link.HintSum(judged)
	}
	b, err := l.Safety(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// S-15: a step is judged by what came with it, if that is of this very hint; else nobody can let it go on.
func TestS15OnlyItsOwnJudgementCounts(t *testing.T) {
	_, l := loopsOf(t, stateFolder(t), &runtime.Plan{ID: "r1", Safety: &profiles.Safety{Mode: profiles.SafetyEnforcing}})
	for _, tt := range []struct{ judged, want string }{
		{"read /a", `"continue":true`}, {"", `"continue":false`}, {"read /b", `"continue":false`}, {"read /a ", `"continue":false`},
	} {
		got := reportsStep(t, l[0], "read /a", tt.judged, 1)
		if !strings.Contains(got, tt.want) || tt.judged != "read /a" && strings.Contains(got, "confirmation_token") {
			t.Errorf("judged %q: got %s, want %s", tt.judged, got, tt.want)
		}
	}
	if err := l[0].Intent(t.Context(), "write_file", "/a"); err != nil {
		t.Errorf("the approved step: %v", err)
	}
	if err := l[0].Intent(t.Context(), "write_file", "/a"); !errors.Is(err, link.ErrNoIntent) {
		t.Errorf("twice: got %v, want %v", err, link.ErrNoIntent)
	}
}

// A stop reaches the other loops of the process and the other processes of the node; what nobody serves any more, operators find in the
// state.
func TestS15StopIsTheNodes(t *testing.T) {
	state := stateFolder(t)
	enforcing := func(c profiles.SafetyConfirm) *profiles.Safety {
		return &profiles.Safety{Mode: profiles.SafetyEnforcing, Confirm: c, Why: "test"}
	}
	here, l := loopsOf(t, state,
		&runtime.Plan{ID: "r1", Agent: "a", Safety: enforcing("")}, &runtime.Plan{ID: "r2", Agent: "a", Safety: enforcing(profiles.SafetyServer)},
		&runtime.Plan{ID: "r3", Agent: "b", Safety: enforcing("")}, &runtime.Plan{ID: "r4", Agent: "a", Safety: &profiles.Safety{Mode: profiles.SafetyMonitoring}})
	there, far := loopsOf(t, state, &runtime.Plan{ID: "r5", Agent: "a", Safety: enforcing("")})
	if got := reportsStep(t, l[0], "wipe it all", "wipe it all", 100); !strings.Contains(got, `"stopped":true`) {
		t.Fatalf("got %s, want a stop", got)
	}
	for i, want := range []error{link.ErrStopped, link.ErrStopped, nil, nil} {
		if err := l[i].Blocked(t.Context()); !errors.Is(err, want) {
			t.Errorf("run %d: got %v, want %v", i+1, err, want)
		}
	}
	if err := far[0].Blocked(t.Context()); !errors.Is(err, link.ErrStopped) {
		t.Errorf("the other supervisor: got %v, want %v", err, link.ErrStopped)
	}
	blocks, err := here.safety.Blocks(t.Context())
	if err != nil || len(blocks) != 1 || blocks[0].Agent != "a" || blocks[0].Challenge == "" {
		t.Fatalf("blocks: %+v, %v", blocks, err)
	}
	waiting := here.safety.Challenges(t.Context())
	if len(waiting) != 1 || waiting[0].ID != blocks[0].Challenge {
		t.Fatalf("challenges: %+v", waiting)
	}
	for what, err := range map[string]error{
		"verify": here.safety.Verify(t.Context(), "uid:0", waiting[0].ID, "wrong"), "elsewhere": there.safety.Verify(t.Context(), "uid:0", waiting[0].ID, "x"),
		"confirm": here.safety.Confirm(t.Context(), "uid:0", "conf_x"),
	} {
		if want := map[string]error{"verify": safetyloop.ErrCode}[what]; want != nil && !errors.Is(err, want) || want == nil && !errors.Is(err, safetyloop.ErrNotFound) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	shown, err := here.safety.Show(t.Context(), "uid:0", waiting[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := here.safety.Verify(t.Context(), "uid:0", shown.ID, shown.Code.Reveal()); err != nil {
		t.Fatal(err)
	}
	if err := far[0].Blocked(t.Context()); err != nil {
		t.Errorf("released here, and there still stopped: %v", err)
	}

	// By name, and by nobody's loop.
	reportsStep(t, l[2], "wipe it all", "wipe it all", 100)
	h, err := hypervisor.Open(hypervisor.Options{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	kept, err := h.SafetyBlocks(t.Context())
	if err != nil || len(kept) != 1 || kept[0].Agent != "b" {
		t.Errorf("kept: %+v, %v", kept, err)
	}
	if err := Unblock(t.Context(), h, "uid:0", "a", "false alarm"); !errors.Is(err, safetyloop.ErrNotFound) {
		t.Errorf("got %v, want %v", err, safetyloop.ErrNotFound)
	}
	if err := Unblock(t.Context(), h, "uid:0", "b", "false alarm"); err != nil {
		t.Error(err)
	}
	if err := l[2].Blocked(t.Context()); err != nil {
		t.Errorf("released in the state, and still stopped: %v", err)
	}
}

// Whose runs differ gets the strictest; a run without an agent leaves nothing behind.
func TestS15StrictestOfAllRuns(t *testing.T) {
	state := stateFolder(t)
	s, l := loopsOf(t, state,
		&runtime.Plan{ID: "r1", Agent: "a", Safety: &profiles.Safety{Mode: profiles.SafetyEnforcing, MaxSteps: 7, Tolerance: profiles.SafetyAggressive}},
		&runtime.Plan{ID: "r2", Agent: "a", Safety: &profiles.Safety{Mode: profiles.SafetyEnforcing, MaxSteps: 900, Tolerance: profiles.SafetyConservative}},
		&runtime.Plan{ID: "r3", Safety: &profiles.Safety{Mode: profiles.SafetyEnforcing}})
	got := s.safety.ownOf(safetyloop.Caller{Principal: "a"}, "")
	if want := (safetyloop.Own{MaxSteps: 7, Tolerance: safetyloop.Conservative}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := s.safety.ownOf(safetyloop.Caller{Principal: "r3"}, ""); got.MaxSteps != profiles.DefaultSafetySteps || got.Tolerance != safetyloop.Moderate {
		t.Errorf("got %+v, want the defaults", got)
	}
	reportsStep(t, l[2], "wipe it all", "wipe it all", 100)
	v, err := s.find("r3")
	if err != nil {
		t.Fatal(err)
	}
	s.safety.leave(v)
	if blocks, err := s.safety.Blocks(context.Background()); err != nil || len(blocks) != 0 {
		t.Errorf("left behind: %+v, %v", blocks, err)
	}
}

// S-15: a run that wants a loop and can't reach it doesn't begin without, whoever forgot to look before.
func TestS15NoLoopWithoutAWayOut(t *testing.T) {
	s := runsOn(t, nil)
	got, err := s.safety.join(&Run{all: s, Plan: &runtime.Plan{ID: "r1", Safety: &profiles.Safety{Mode: profiles.SafetyEnforcing}}})
	if got != nil || err == nil || !strings.Contains(err.Error(), "no way out") {
		t.Errorf("got %v, %v, want a refusal", got, err)
	}
	if got, err := s.safety.join(&Run{all: s, Plan: &runtime.Plan{ID: "r1"}}); got != nil || err != nil {
		t.Errorf("no loop wanted: got %v, %v", got, err)
	}
}

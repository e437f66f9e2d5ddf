// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/runtime"
)

// testNode is a node of its own, of which nothing exists yet.
func testNode(t *testing.T) *Node {
	t.Helper()
	dir := t.TempDir()
	return &Node{
		StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), Version: "test",
		Gateway: Outside{Why: "no gateway here"}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// specified is what a request comes to, and what is wrong with it.
func specified(t *testing.T, by *Caller, r *Request) (runtime.Spec, error) {
	t.Helper()
	s := newRun(t.Context(), testNode(t), by, nil, r)
	t.Cleanup(func() { s.end(nil) })
	if err := s.openNode(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.closeNode)
	err := s.specify()
	return s.spec, err
}

// fields are those that an error says are wrong.
func fields(err error) string {
	bad, ok := errors.AsType[*runtime.InvalidSpec](err)
	if !ok {
		return fmt.Sprint(err)
	}
	var list []string
	for _, p := range bad.Problems {
		list = append(list, p.Path)
	}
	return strings.Join(list, " ")
}

func TestSpecify(t *testing.T) {
	for _, tt := range []struct {
		name string
		r    Request
		bad  string // fields, or the error
		is   func(runtime.Spec) bool
	}{
		{"ring 3 is the default", Request{Command: []string{"x"}, NoGateway: true}, "", func(s runtime.Spec) bool { return s.Profile.Name == "ring3" && !s.Wayout }},
		{"a ring", Request{Command: []string{"x"}, NoGateway: true, Ring: new(2)}, "", func(s runtime.Spec) bool { return s.Profile.Name == "ring2" }},
		{"a profile", Request{Command: []string{"x"}, NoGateway: true, Profile: "strict"}, "", func(s runtime.Spec) bool { return s.Profile.Name == "strict" }},
		{"both, and they agree", Request{Command: []string{"x"}, NoGateway: true, Ring: new(3), Profile: "strict"}, "",
			func(s runtime.Spec) bool { return s.Profile.Name == "strict" }},
		{"a way out, with the port of a name", Request{Command: []string{"x"}, Ring: new(2), Allow: []string{"example.com:8443"}}, "",
			func(s runtime.Spec) bool { return s.Wayout && len(s.CapturePorts) == 1 && s.CapturePorts[0] == 8443 }},
		{"limits go over the profile's", Request{Command: []string{"x"}, NoGateway: true, Limits: Limits{Timeout: new(profiles.Duration(7 * time.Second))}}, "",
			func(s runtime.Spec) bool { return s.Limits.Timeout == profiles.Duration(7*time.Second) }},

		{"ring 0", Request{Ring: new(0)}, ErrRing0.Error(), nil},
		{"ring 0 by its profile", Request{Profile: "ring0"}, ErrRing0.Error(), nil},
		{"no ring", Request{Ring: new(4)}, "--ring 4: there are four rings, and agents run in 1, 2 or 3", nil},
		{"a ring against a profile", Request{Ring: new(2), Profile: "strict"}, "--ring 2 contradicts --profile strict, which is a profile of ring 3", nil},
		{"identifiers, all of them", Request{Agent: "a b", Session: "../x"}, "--agent --session", nil},
		{"a session of nobody", Request{Session: "s"}, "--session", nil},
		{"what could not be read, and the rest", Request{Ring: new(2), Malformed: []read.Problem{{Path: "--pids"}}, Allow: []string{"a b"}}, "--pids --allow command", nil},
		{"flags of a way out without one", Request{Command: []string{"x"}, NoGateway: true, Allow: []string{"a"}, Tools: []string{"t"}, Policy: "p", Gateway: "g", Metrics: ":1"},
			"--gateway --policy --allow --tool --metrics-addr", nil},
		{"a list that nothing can open", Request{Command: []string{"x"}, Allow: []string{"a"}}, "--allow", nil},
		{"a list of an agent, which may be elevated", Request{Command: []string{"x"}, Agent: "a", Allow: []string{"a"}}, "",
			func(s runtime.Spec) bool { return s.Profile.Ring == 3 }},
		{"files that are not there", Request{Command: []string{"x"}, Gateway: "/nonexistent/g.yaml", Policy: "/nonexistent/p"}, "--gateway --policy", nil},
		{"ports", Request{Command: []string{"x"}, Ring: new(2), Allow: []string{"a:0", "b:x", "c:65536", fmt.Sprintf("d:%d", runtime.WayoutPorts()[0])}}, "--allow --allow --allow --allow", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := specified(t, &Caller{Dir: "/"}, &tt.r)
			if tt.bad != "" {
				if err == nil || fields(err) != tt.bad {
					t.Errorf("got %q, want %q", fields(err), tt.bad)
				}
				return
			}
			if err != nil || !tt.is(s) {
				t.Errorf("got %v, %+v", err, s)
			}
		})
	}
}

// The flag goes before the profile, the profile before the environment; a word that is no mode is an error
// from wherever it comes, and what can't hold is refused by the name of what asked for it.
func TestS14WhoSetsTheModeOfARun(t *testing.T) {
	mode := func(m profiles.SafetyMode) *profiles.SafetyMode { return &m }
	for _, tt := range []struct {
		name    string
		r       Request
		env     string
		profile profiles.Safety
		want    string // mode, why and require_intent, or the problem's field
	}{
		{"nobody", Request{}, "", profiles.Safety{}, "  false"},
		{"the environment", Request{}, "monitoring", profiles.Safety{}, "monitoring MCPAQL_SAFETY_LOOP false"},
		{"the profile before it", Request{}, "disabled", profiles.Safety{Mode: "enforcing", Why: "p"}, "enforcing p false"},
		{"the flag before both", Request{Safety: mode("disabled")}, "enforcing", profiles.Safety{Mode: "enforcing", Why: "p"}, "disabled p false"},
		{"the flag and intent", Request{Safety: mode("enforcing"), RequireIntent: new(true)}, "off", profiles.Safety{}, "enforcing --safety true"},
		{"intent is taken back", Request{RequireIntent: new(false)}, "", profiles.Safety{Mode: "enforcing", Why: "p", RequireIntent: true}, "enforcing p false"},
		{"no mode in the environment", Request{}, "off", profiles.Safety{}, "the caller's environment"},
		{"no mode in the flag", Request{Safety: mode("off")}, "", profiles.Safety{}, "--safety"},
		{"an empty flag", Request{Safety: mode("")}, "", profiles.Safety{}, "--safety"},
		{"intent without a loop", Request{RequireIntent: new(true)}, "", profiles.Safety{}, "--require-intent"},
		{"intent that nobody holds to", Request{RequireIntent: new(true), Safety: mode("logging")}, "", profiles.Safety{}, "--require-intent"},
		{"a loop that can't be reached", Request{NoGateway: true, Safety: mode("enforcing")}, "", profiles.Safety{}, "--no-gateway"},
		{"likewise, by the profile", Request{NoGateway: true}, "", profiles.Safety{Mode: "enforcing", Why: "p"}, "--no-gateway"},
		{"neither", Request{NoGateway: true, Safety: mode("disabled")}, "", profiles.Safety{Mode: "enforcing", Why: "p"}, "disabled p false"},
		{"the environment asks for what can't be", Request{NoGateway: true}, "enforcing", profiles.Safety{}, "  false"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			by := &Caller{}
			if tt.env != "" {
				by.Environ = []string{"MCPAQL_SAFETY_LOOP=" + tt.env}
			}
			p := tt.profile
			bad := safetyOf(by, &tt.r, &p)
			got := fmt.Sprint(p.Mode, " ", p.Why, " ", p.RequireIntent)
			if len(bad) > 0 {
				got = bad[0].Path
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

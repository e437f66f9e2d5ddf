// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentrun/hypervisor"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/supervisor/live"
	"agentrun/toolproxy/link"
)

// H-15: the run of a tool is its parent's agent, below its parent's ring, whatever the configuration says; without a way out of its own
// it has none, whatever its profile says (M-12). Its parent's policies are its own (M-9).
func TestH15RequestOfATool(t *testing.T) {
	h, err := hypervisor.Open(hypervisor.Options{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	off, no := profiles.SafetyMode("disabled"), false
	memory := profiles.Size(1 << 30)
	ring := func(n int) *int { return &n }
	noKey := cmp.Comparer(func(a, b hypervisor.Token) bool { return !a.Given() && !b.Given() }) // it comes with the admission
	for _, tt := range []struct {
		name   string
		parent rings.Ring
		cmd    link.Command
		want   Request
	}{
		{"least", rings.Privileged, link.Command{Argv: []string{"/bin/x", "--ring", "1"}},
			Request{Command: []string{"/bin/x", "--ring", "1"}, Ring: ring(3), NoGateway: true, Gateway: "/g"}},
		{"ring 2 of ring 1", rings.Privileged, link.Command{Argv: []string{"/x"}, Ring: 2, Profile: "p", Memory: "1G", Env: []string{"A=b"},
			ROBind: []string{"/c:/d"}, Allow: []string{"h:1"}},
			Request{Command: []string{"/x"}, Ring: ring(2), Profile: "p", Limits: Limits{Memory: &memory}, Env: []string{"A=b"},
				Binds: []runtime.BindMount{{Source: "/c", Target: "/d"}}, Allow: []string{"h:1"}}},
		{"ring 2 of ring 2", rings.Standard, link.Command{Argv: []string{"/x"}, Ring: 2, Allow: []string{"h"}},
			Request{Command: []string{"/x"}, Ring: ring(3), Allow: []string{"h"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := h.Control(hypervisor.Admission{Ring: tt.parent}, hypervisor.ControlOptions{Run: "p"})
			defer c.Close()
			s := &run{want: &Request{Agent: "a", Session: "s", Gateway: "/g", Policy: "/p"}, live: &live.Run{Control: c}}
			tt.want.Agent, tt.want.Session, tt.want.Interactive, tt.want.Policy = "a", "s", true, "/p"
			tt.want.OfTool, tt.want.Safety, tt.want.RequireIntent = true, &off, &no
			if diff := cmp.Diff(&tt.want, s.requestFor(&Caller{}, tt.cmd), noKey); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	c := h.Control(hypervisor.Admission{}, hypervisor.ControlOptions{Run: "p"})
	defer c.Close()
	s := &run{want: &Request{}, live: &live.Run{Control: c}}
	r := s.requestFor(&Caller{}, link.Command{Tool: "t", Argv: []string{"/x"}, Memory: "much", Timeout: "long", ROBind: []string{":"}})
	if len(r.Malformed) != 3 {
		t.Errorf("three malformed fields: %v", r.Malformed)
	}
}

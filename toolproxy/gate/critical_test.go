// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/gate/gatetest"
	"agentrun/toolproxy/link"
)

// H-23: whatever becomes of record and alarm, the call is denied and nothing passes any more.
func TestH23CriticalViolation(t *testing.T) {
	for name, spoil := range map[string]func(*gatetest.Supervisor, *gate.Options){
		"as it should be": func(*gatetest.Supervisor, *gate.Options) {},
		"no record": func(s *gatetest.Supervisor, _ *gate.Options) {
			s.OnRecord = func(link.Record) error { return errors.New("disk full") }
		},
		"alarm panics": func(_ *gatetest.Supervisor, o *gate.Options) {
			tell := o.Alarm
			o.Alarm = func(ctx context.Context, v gate.Violation) { tell(ctx, v); panic("broke") }
		},
		"agent goes away": func(_ *gatetest.Supervisor, o *gate.Options) {
			tell := o.Alarm
			o.Alarm = func(ctx context.Context, v gate.Violation) {
				if ctx.Err() != nil {
					v.Action = "given up with the agent's request"
				}
				tell(ctx, v)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := gatetest.New(rings.Sandbox)
			var told []gate.Violation
			var critical, entering atomic.Bool
			critical.Store(true)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o := options(s)
			o.Alarm = func(_ context.Context, v gate.Violation) { told = append(told, v) }
			o.Policy = pdp.DeciderFunc(func(ctx context.Context, r pdp.Request) pdp.Decision {
				if critical.Load() {
					if name == "agent goes away" && entering.Load() {
						defer cancel()
					}
					return pdp.Decision{Code: pdp.CodeACLBlock, Policy: "no-math", Critical: true}
				}
				return allow(ctx, r)
			})
			spoil(s, &o)
			g := newGate(t, o)
			if g.May(t.Context(), call()) || told != nil {
				t.Error("asking whether a call may be listed is taken for a violation")
			}
			entering.Store(true)
			permit, e := g.Enter(ctx, call())
			if permit != nil || e == nil {
				t.Fatalf("got %v, %v, want a refusal", permit, e)
			}
			if d := cmp.Diff([]gate.Violation{{Action: "tool.math.invoke", Policy: "no-math"}}, told); d != "" {
				t.Error(d)
			}
			critical.Store(false)
			for range 2 {
				if _, e := g.Enter(t.Context(), call()); e == nil || e.Code != gate.CodeCanceled {
					t.Errorf("afterwards: got %v, want %s", e, gate.CodeCanceled)
				}
			}
			if e := g.AskElevation(t.Context(), rings.Standard); e == nil || e.Code != gate.CodeCanceled {
				t.Errorf("elevation afterwards: got %v, want %s", e, gate.CodeCanceled)
			}
			if len(told) != 1 {
				t.Errorf("got %d alarms, want 1", len(told))
			}
			if places, _, wrong := s.Held(); places != 0 || wrong != nil {
				t.Errorf("got %d places, %v", places, wrong)
			}
		})
	}
}

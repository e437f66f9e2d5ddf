// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"agentrun/pdp"
	"agentrun/rings"
)

// policy measures decisions: with the built-in policies, and with a thousand of an operator's beside them; one at a time,
// and as many at once as there are processors, which is full load.
func (b *bench) policy() ([]Row, error) {
	file := filepath.Join(b.dir, "thousand.cedar")
	if err := os.WriteFile(file, []byte(thousandPolicies()), 0o644); err != nil {
		return nil, err
	}
	engines := []struct{ name, path string }{{"built-in policies", ""}, {"a thousand more", file}}
	everybody := goruntime.GOMAXPROCS(0)
	figures := map[string]samples{}
	var order []string
	add := func(what, name string, v float64) {
		if figures[what] == nil {
			figures[what] = samples{}
			order = append(order, what)
		}
		figures[what].add(name, v)
	}
	for _, e := range engines {
		engine, err := pdp.NewEngine(pdp.Options{Path: e.path, Clock: time.Now})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		for range b.size.proxy {
			for _, n := range []int{1, everybody} {
				took, err := decide(b.ctx, engine, n, b.size.proxyTime)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", e.name, err)
				}
				at := fmt.Sprintf(", %d at once", n)
				for _, p := range []int{50, 95, 99} {
					add(fmt.Sprintf("p%d", p)+at, e.name, quantileSorted(took, float64(p)/100))
				}
				add("decisions/s"+at, e.name, float64(len(took))/b.size.proxyTime.Seconds())
			}
		}
	}
	var rows []Row
	for _, what := range order {
		unit := "µs"
		if strings.HasPrefix(what, "decisions") {
			unit = "/s"
		}
		for _, e := range engines {
			row := figures[what].row(e.name, unit, nil)
			row.Name = e.name + ", " + what
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// decide asks for a time and returns how long each answer took, in µs, sorted.
func decide(ctx context.Context, d pdp.Decider, askers int, during time.Duration) ([]float64, error) {
	r := pdp.Request{
		Subject: pdp.Subject{ID: "agent-1", Type: pdp.Agent}, TeamID: "team-1", Action: pdp.ToolAction("math"),
		Resource: pdp.Resource{ID: "math", TeamID: "team-1", Mode: pdp.Public}, KeyID: "key-1",
		Context: pdp.Context{
			Ring: rings.Sandbox, RequiredRing: rings.Sandbox, Plan: "casual", Role: "analyst", KeyValid: true,
			Capabilities: []string{pdp.RunAction, pdp.ToolAction("math"), pdp.ToolAction("text")},
			Tool:         pdp.Tool{Category: "A", PlaintextFree: true}, Input: pdp.Clean, Quota: pdp.Quota{Used: 1, Limit: 100},
		},
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var all []float64
	var errs []error
	until := time.Now().Add(during)
	for range askers {
		wg.Go(func() {
			took := make([]float64, 0, 1<<16)
			var err error
			for began := time.Now(); began.Before(until) && err == nil; {
				if answer := d.Decide(ctx, r); !answer.Allowed() {
					err = fmt.Errorf("refused with %s: %s", answer.Code, answer.Message)
				}
				now := time.Now()
				took = append(took, float64(now.Sub(began).Nanoseconds())/1e3)
				began = now
			}
			mu.Lock()
			defer mu.Unlock()
			all, errs = append(all, took...), append(errs, err)
		})
	}
	wg.Wait()
	slices.Sort(all)
	return all, errors.Join(errs...)
}

// thousandPolicies are as an operator with many teams, roles and tools has them: most name one of them, every tenth is
// general and must be tried for each request.
func thousandPolicies() string {
	var b strings.Builder
	for i := range 1000 {
		switch i % 10 {
		case 0:
			fmt.Fprintf(&b, "forbid (principal, action, resource) when { context.plan == \"plan-%d\" && context.ring > 1 };\n", i)
		case 1, 2, 3, 4:
			fmt.Fprintf(&b, "forbid (principal, action == Action::\"tool.invoke\", resource == Tool::\"tool-%d\") when { context.ring > 2 };\n", i)
		default:
			fmt.Fprintf(&b, "permit (principal in Role::\"role-%d\", action, resource);\n", i%50)
		}
	}
	b.WriteString("permit (principal in Role::\"analyst\", action, resource);\n")
	return b.String()
}

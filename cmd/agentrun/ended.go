// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"agentrun/control"
	"agentrun/internal/hinted"
	"agentrun/runtime"
)

// stateLost is a run without an end on record that doesn't live: its supervisor was killed.
const stateLost = "lost"

// endedRun is the account of a run that is over. A run's account is kept from its end until it is pruned
// (docs/logs.md), and for a detached run from its start.
type endedRun struct {
	runtime.Status
	at time.Time // the end; of a lost run its start
}

// ended are the runs whose accounts are kept, the newest first. What can't be read as one is left out.
func (l *liveVerbs) ended() ([]endedRun, error) {
	kept, err := l.g.Outputs().Accounts()
	if err != nil {
		return nil, err
	}
	var all []endedRun
	for _, a := range kept {
		r := endedRun{at: a.Ended}
		if json.Unmarshal(a.Text, &r.Status) != nil || r.ID != a.Run {
			continue
		}
		if r.State == "" {
			r.State, r.ExitCode = stateLost, runtime.ExitFailed
			r.Reason = "its supervisor was killed, and the run with it"
		}
		all = append(all, r)
	}
	return all, nil
}

// findEnded returns the run that is over and that ref names: by its id, else the newest of that name, else
// by the beginning of its id. notFound is what was said of ref among the live runs: the error where no
// account says more, or none may be read.
func (l *liveVerbs) findEnded(ref string, notFound error) (endedRun, error) {
	all, err := l.ended()
	if err != nil || ref == "" { // which is the name of all that have none, and the beginning of every id
		return endedRun{}, notFound
	}
	for _, fits := range []func(endedRun) bool{
		func(r endedRun) bool { return r.ID == ref }, func(r endedRun) bool { return r.Name == ref },
	} {
		if i := slices.IndexFunc(all, fits); i >= 0 {
			return all[i], nil
		}
	}
	all = slices.DeleteFunc(all, func(r endedRun) bool { return !strings.HasPrefix(r.ID, ref) })
	switch len(all) {
	case 0:
		return endedRun{}, notFound
	case 1:
		return all[0], nil
	}
	err = fmt.Errorf("run %.64q fits %d runs that are over", ref, len(all))
	return endedRun{}, hinted.New(err, "give more of the id")
}

// sandbox is the run as a list of live ones shows it.
func (r endedRun) sandbox() control.Sandbox {
	return control.Sandbox{
		ID: r.ID, Name: r.Name, Agent: r.Agent, Session: r.Session, Parent: r.Parent, Profile: r.Profile,
		State: control.Ended, BaseRing: r.Ring, Ring: r.Ring, Command: r.Command, StartedAt: r.began(),
		Usage: control.Usage{CPUTime: r.CPUTime, MemoryPeak: r.PeakMemory, Output: r.Output,
			GatewayCPUTime: r.GatewayCPUTime, GatewayMemoryPeak: r.GatewayPeakMemory},
	}
}

// began is when it was executed, or when a launch that failed was begun.
func (r endedRun) began() time.Time {
	if r.StartedAt.IsZero() {
		return r.at.Add(-r.WallTime)
	}
	return r.StartedAt
}

// listedRun is a run of ps: a live one, or one that is over and has its account beside it.
type listedRun struct {
	control.Sandbox
	End *runtime.Status `json:"end,omitempty"`
}

// withEnded adds the runs that are over to those that live, the oldest first.
func (l *liveVerbs) withEnded(live []control.Sandbox, fits func(control.Sandbox) bool) ([]listedRun, error) {
	list := []listedRun{}
	for _, s := range live {
		list = append(list, listedRun{Sandbox: s})
	}
	if fits == nil {
		return list, nil
	}
	all, err := l.ended()
	for _, r := range all {
		s := r.sandbox()
		if fits(s) && !slices.ContainsFunc(live, func(o control.Sandbox) bool { return o.ID == r.ID }) {
			list = append(list, listedRun{s, &r.Status})
		}
	}
	slices.SortStableFunc(list, func(a, b listedRun) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), strings.Compare(a.ID, b.ID))
	})
	return list, err
}

// stateStopped is a kept sandbox without a run.
const stateStopped control.State = "stopped"

// withStopped adds the kept sandboxes that no run has. They have no id.
func (l *liveVerbs) withStopped(list *[]listedRun, fits func(control.Sandbox) bool) error {
	kept, err := l.g.Sandboxes().List()
	for _, k := range kept {
		s := control.Sandbox{Name: k.Name, State: stateStopped, BaseRing: k.Ring, Ring: k.Ring, StartedAt: k.Created}
		if at := slices.Index(k.Words, "--"); at >= 0 {
			s.Command = k.Words[at+1:]
		}
		if !k.Live && fits(s) {
			*list = append(*list, listedRun{Sandbox: s})
		}
	}
	return err
}

// row is the run in a table. What it used at most stands where live runs have what they use.
func (r listedRun) row() control.Sandbox {
	s := r.Sandbox
	s.ID = orDash(s.ID)
	if r.End != nil {
		s.State, s.Usage.Memory = control.State(endText(*r.End)), s.Usage.MemoryPeak
	}
	return s
}

func endText(s runtime.Status) string { return fmt.Sprintf("%s %d", s.State, s.ExitCode) }

func endedText(r endedRun) string {
	var b strings.Builder
	field := func(name, format string, args ...any) {
		if text := oneLine(fmt.Sprintf(format, args...)); text != "" {
			fmt.Fprintf(&b, "%-12s%s\n", name, text)
		}
	}
	field("id", "%s", r.ID)
	field("name", "%s", r.Name)
	field("agent", "%s", r.Agent)
	field("session", "%s", r.Session)
	field("state", "%s", endText(r.Status))
	field("reason", "%s", cmp.Or(r.Reason, r.Error))
	field("hint", "%s", r.Hint)
	field("ring", "%d (profile %s)", r.Ring, r.Profile)
	field("command", "%s", commandText(r.Command))
	field("started", "%s", r.began().UTC().Format(time.RFC3339))
	if r.State != stateLost {
		field("ended", "%s, after %s", r.at.UTC().Format(time.RFC3339), r.WallTime.Round(time.Millisecond))
		field("usage", "cpu time %s, memory peak %s, output %s",
			cpuText(r.CPUTime), memText(r.PeakMemory), memText(r.Output))
	}
	field("plan", "%s", r.PlanDigest)
	field("refused", "%s", refusedText(r.Refused))
	for _, g := range r.GatewayRefused {
		field("refused", "%s %s (%s) %d", g.Kind, g.Name, g.Code, g.Count)
		field("hint", "%s", g.Hint)
	}
	return b.String()
}

// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/telemetry/mask"
	"agentrun/toolproxy/link"
)

// Options of New.
type Options struct {
	Supervisor link.Supervisor // required
	Caller     link.Caller     // from link.Start; Run, Plan and Mode are required; without Agent or Team it is by itself: its run
	Policy     pdp.Decider     // required; it is asked through pdp.Guarded whatever it is
	MaxSteps   int             // calls of the run that may reach the policy (M-3); 0 allows none
	// MaxModelCalls are those of models, which are counted apart; 0 allows none
	MaxModelCalls int

	Granted func(tool string) bool                // whether the run's key carries tool.<name>.invoke; nil: it carries none
	Now     func() time.Time                      // nil: time.Now; used for durations, and against Ends
	Log     *slog.Logger                          // for the operator; nil: nothing is logged
	Observe func(Event)                           // told of each call once, after its record; nil: nobody. It must not block.
	TraceID func(context.Context) string          // of the call's span, for the record; nil: none
	Mask    func(json.RawMessage) ([]byte, error) // what an operator sees of arguments; nil: mask.JSON

	// Ends is when the run's time is over, which an operator may put off; zero: never, or not known. nil: not known.
	Ends func() time.Time

	// Alarm is told that a policy calls what was tried a critical violation (H-23), after the record and before the agent hears
	// of the refusal; from then on the gate refuses everything. It may take RecordTimeout. nil: nobody is told.
	Alarm func(ctx context.Context, v Violation)

	// Safety is the run's safety loop (S-15): calls under way end when it stops the agent. nil: the run has none.
	Safety Safety
	// RequireIntent lets a tool pass only with the approved step that it matches. It takes a Safety.
	RequireIntent bool

	PolicyTimeout time.Duration // 0: DefaultPolicyTimeout
	ApprovalWait  time.Duration // 0: DefaultApprovalWait. Calls may say another; none waits longer than the run lasts
	RecordTimeout time.Duration // of booking and recording, after the call; 0: DefaultRecordTimeout
}

// Defaults of Options, and a bound.
const (
	DefaultPolicyTimeout = time.Second // M-9: a slow policy denies. M-10 asks for 8 ms at the 99th percentile.
	DefaultApprovalWait  = 2 * time.Minute
	DefaultRecordTimeout = 10 * time.Second
	// maxDeciding bounds the policies' decisions under way: a decider that never returns would otherwise take a goroutine
	// with each call.
	maxDeciding = 128
)

// Violation is what a policy calls critical.
type Violation struct {
	Action string // as tool.shell.invoke
	Policy string // that says so; empty: a remote one
}

// Event is one decided call, for metrics (M-20). It has nothing of arguments and results.
type Event struct {
	Kind     string // "tool" or "llm"
	Tool     string // known tools and models only; empty for others, whose names an agent makes up
	Category Category
	Allowed  bool
	Code     rings.Code // ok, or why not; also of a call that passed and failed
	Ring     rings.Ring
	Cost     int64
	Tokens   int64
	Prompt   int64 // of Tokens
	Took     time.Duration
}

func (o Options) check() error {
	var errs []error
	if o.Supervisor == nil {
		errs = append(errs, errors.New("no supervisor"))
	}
	if o.Policy == nil {
		errs = append(errs, errors.New("no policy"))
	}
	if o.RequireIntent && o.Safety == nil {
		errs = append(errs, errors.New("intents are required, and there is no safety loop"))
	}
	who := o.withDefaults().Caller
	for name, id := range map[string]string{"run": who.Run, "agent": who.Agent, "team": who.Team, "plan": who.Plan} {
		if rings.CheckAgentID(id) != nil {
			errs = append(errs, fmt.Errorf("caller's %s %.64q is no identifier", name, id))
		}
	}
	if m := pdp.Mode(o.Caller.Mode); m != pdp.Public && m != pdp.Confidential {
		errs = append(errs, fmt.Errorf("caller's mode %.64q is neither public nor confidential", o.Caller.Mode))
	}
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	o.Caller.Agent = cmp.Or(o.Caller.Agent, o.Caller.Run)
	o.Caller.Team = cmp.Or(o.Caller.Team, o.Caller.Run)
	if o.Granted == nil {
		o.Granted = func(string) bool { return false }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Alarm == nil {
		o.Alarm = func(context.Context, Violation) {}
	}
	if o.Observe == nil {
		o.Observe = func(Event) {}
	}
	if o.Mask == nil {
		o.Mask = func(raw json.RawMessage) ([]byte, error) { return mask.JSON(raw) }
	}
	o.PolicyTimeout = cmp.Or(max(o.PolicyTimeout, 0), DefaultPolicyTimeout)
	o.ApprovalWait = cmp.Or(max(o.ApprovalWait, 0), DefaultApprovalWait)
	o.RecordTimeout = cmp.Or(max(o.RecordTimeout, 0), DefaultRecordTimeout)
	return o
}

// Granting returns the Granted of a list of tools, as link.Start.Tools is: an empty one grants all, and leaves it to ring, plan,
// role and policy.
func Granting(tools []string) func(tool string) bool {
	if len(tools) == 0 {
		return func(string) bool { return true }
	}
	granted := make(map[string]bool, len(tools))
	for _, name := range tools {
		granted[name] = true
	}
	return func(tool string) bool { return granted[tool] }
}

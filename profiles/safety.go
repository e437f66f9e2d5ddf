// SPDX-License-Identifier: Apache-2.0

package profiles

// Safety is the execution safety loop of a run (S-15). The zero value is none: the agent is offered none, and nothing waits for one.
type Safety struct {
	Mode      SafetyMode      `json:"mode,omitempty"`
	Tolerance SafetyTolerance `json:"tolerance,omitempty"` // not set: moderate
	MaxSteps  int             `json:"max_steps,omitempty"` // steps without a human, 1 to 10000; not set: DefaultSafetySteps
	Confirm   SafetyConfirm   `json:"confirm,omitempty"`   // not set: server
	// RequireIntent refuses a tool call that no approved step of the agent's names.
	RequireIntent bool       `json:"require_intent,omitempty"`
	OnStop        SafetyStop `json:"on_stop,omitempty"` // not set: freeze
	Why           string     `json:"why" read:"say why, for whoever reviews this"`
}

// DefaultSafetySteps is how many steps an agent takes by itself where its profile doesn't say (S-9).
const DefaultSafetySteps = 20

// MaxSafetySteps is the most that Safety.MaxSteps may be.
const MaxSafetySteps = 10000

// On tells whether there is a loop.
func (s Safety) On() bool { return s.Mode != "" && s.Mode != SafetyDisabled }

// SafetyMode is a closed choice (S-14). Not set: SafetyDisabled.
type SafetyMode string

// The modes of a safety loop.
const (
	SafetyDisabled   SafetyMode = "disabled"
	SafetyLogging    SafetyMode = "logging"    // steps are recorded and not judged
	SafetyMonitoring SafetyMode = "monitoring" // judged and recorded; nobody is stopped
	SafetyEnforcing  SafetyMode = "enforcing"
)

// Choices implements read.Choice.
func (SafetyMode) Choices() []string {
	return []string{"disabled", "logging", "monitoring", "enforcing"}
}

// SafetyTolerance is a closed choice: the score above which an agent pauses (S-6).
type SafetyTolerance string

// The tolerances.
const (
	SafetyConservative SafetyTolerance = "conservative" // 25
	SafetyModerate     SafetyTolerance = "moderate"     // 50
	SafetyAggressive   SafetyTolerance = "aggressive"   // 75
)

// Choices implements read.Choice.
func (SafetyTolerance) Choices() []string { return []string{"conservative", "moderate", "aggressive"} }

// SafetyConfirm is a closed choice: who confirms the loop's EXECUTE operations (S-2). Pauses are the loop's in either. A sandbox has
// no client that could ask a human, so that word isn't there.
type SafetyConfirm string

// Who confirms.
const (
	SafetyServer SafetyConfirm = "server" // an operator, each time
	SafetyPolicy SafetyConfirm = "policy" // the safety policy's patterns; an operator where none matches
)

// Choices implements read.Choice.
func (SafetyConfirm) Choices() []string { return []string{"server", "policy"} }

// SafetyStop is a closed choice: what becomes of a run whose agent is stopped (S-15).
type SafetyStop string

// What a stop does. Either way everything that leaves the sandbox is refused, and the agent stays stopped on this node.
const (
	SafetyFreeze SafetyStop = "freeze" // its processes stand still until an operator lets them go on
	SafetyKill   SafetyStop = "kill"
)

// Choices implements read.Choice.
func (SafetyStop) Choices() []string { return []string{"freeze", "kill"} }

func checkSafety(s Safety, rep report) {
	switch {
	case s.MaxSteps < 0:
		rep("safety.max_steps", "%d, at least 1", s.MaxSteps)
	case s.MaxSteps > MaxSafetySteps:
		rep("safety.max_steps", "%d, at most %d", s.MaxSteps, MaxSafetySteps)
	}
	if s.RequireIntent && s.Mode != SafetyEnforcing && s.Mode != SafetyMonitoring {
		rep("safety.require_intent", "only with mode enforcing or monitoring: otherwise no step is approved that a call could match")
	}
}

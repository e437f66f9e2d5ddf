// SPDX-License-Identifier: Apache-2.0

package safetyloop

// Operation is one of the seven (S-2), as introspect and a server's tools describe it.
type Operation struct {
	Name        string      `json:"name"`
	Endpoint    string      `json:"endpoint"` // CREATE, READ, EXECUTE
	Tool        string      `json:"mcpTool"`
	Description string      `json:"description"`
	Permission  string      `json:"permission"` // AUTO_APPROVE, CONFIRM_SESSION, CONFIRM_SINGLE_USE
	Parameters  []Parameter `json:"parameters"`
}

// Parameter of an operation.
type Parameter struct {
	Name        string   `json:"name"`
	Alias       string   `json:"alias,omitempty"` // taken as well; not both at once
	Type        string   `json:"type"`            // string, integer, number, object, any
	Required    bool     `json:"required"`
	Description string   `json:"description"`
	Values      []string `json:"values,omitempty"`   // the only ones
	Min         float64  `json:"minimum,omitempty"`  // of a number; Max 0: no bounds
	Max         float64  `json:"maximum,omitempty"`  //
	MaxBytes    int      `json:"maxBytes,omitempty"` // of a string, or of the JSON of any and object
}

// Names of the operations and of the parameters that code looks at.
const (
	opIntrospect = "introspect"
	opStep       = "record_execution_step"
	opVerify     = "verify_challenge"
	opExecute    = "execute_agent"
	opComplete   = "complete_execution"
	opAbort      = "abort_execution"
	opConfirm    = "confirm_operation"
	// opIntent is a tool call that asks for its step (S-15). It is no operation on the wire.
	opIntent = "require_intent"

	pElement   = "element_name"
	pHint      = "nextActionHint"
	pOutcome   = "outcome"
	pRisk      = "riskScore"
	pToken     = "confirmation_token"
	pChallenge = "challenge_id"
	pCode      = "code"
	pSteps     = "maxAutonomousSteps"
	pReason    = "reason"
	pOperation = "operation"
	pQuery     = "query"
	pName      = "name"

	autoApprove     = "AUTO_APPROVE"
	confirmSession  = "CONFIRM_SESSION"
	confirmOnce     = "CONFIRM_SINGLE_USE"
	outcomeFailure  = "failure"
	protocolVersion = "1.0.0-draft"
)

func text(name, alias string, required bool, limit int, about string, values ...string) Parameter {
	return Parameter{Name: name, Alias: alias, Type: "string", Required: required, MaxBytes: limit, Description: about, Values: values}
}

func elementName() Parameter {
	return text(pElement, "elementName", true, MaxName, "name of the agent that acts")
}

func confirmationToken() Parameter {
	return text(pToken, "confirmationToken", false, MaxName, "token of an earlier refusal or pause of this same call, once somebody else has confirmed it")
}

// Operations describes the seven operations. It is a function, and no table of the package: what is linked into the supervisor
// costs nothing at its start.
func Operations() []Operation {
	list := []Operation{
		{Name: opIntrospect, Endpoint: Read.String(), Permission: autoApprove,
			Description: "Tells the operations with their parameters, the mode, the limits, and whether the caller is stopped.",
			Parameters: []Parameter{
				text(pQuery, "", false, MaxName, "what to tell; without it, all", "operations", "types", "capabilities"),
				text(pName, "", false, MaxName, "one operation, or one type"),
			}},
		{Name: opStep, Endpoint: Create.String(), Permission: confirmSession,
			Description: "Reports the next intended action before it is done. Go on only if the answer says continue: true; if it says stopped: true, do nothing more.",
			Parameters: []Parameter{
				elementName(),
				text(pHint, "next_action_hint", true, MaxHint, "the intended action: verb, target and how, in full"),
				text(pOutcome, "", false, MaxName, "how the step before went", "success", outcomeFailure, "skipped"),
				text("stepDescription", "step_description", false, MaxText, "what the step before did"),
				{Name: "findings", Type: "any", MaxBytes: MaxText, Description: "what it found"},
				{Name: "confidence", Type: "number", Max: 1, Description: "the caller's own; recorded, and decides nothing"},
				{Name: pRisk, Alias: "risk_score", Type: "integer", Max: 100, Description: "the caller's own assessment; it can raise the score, and never lowers it"},
				confirmationToken(),
			}},
		{Name: opVerify, Endpoint: Create.String(), Permission: confirmSession,
			Description: "Answers a challenge with the code that a human has read on another channel.",
			Parameters: []Parameter{
				text(pChallenge, "challengeId", true, MaxName, "verificationId of the notification"),
				text(pCode, "", true, MaxName, "the code"),
				confirmationToken(),
			}},
		{Name: opExecute, Endpoint: Execute.String(), Permission: confirmOnce,
			Description: "Starts an execution of an agent, with a step counter of its own.",
			Parameters: []Parameter{
				elementName(),
				{Name: "parameters", Type: "object", MaxBytes: MaxText, Description: "the goal's values; shown to who confirms"},
				{Name: pSteps, Alias: "max_autonomous_steps", Type: "integer", Min: 1, Max: 10000, Description: "a lower step limit than the server's"},
				confirmationToken(),
			}},
		{Name: opComplete, Endpoint: Execute.String(), Permission: confirmOnce,
			Description: "Ends an execution that has done what it should.",
			Parameters: []Parameter{
				elementName(),
				text(pOutcome, "", false, MaxName, "how it went", "success", outcomeFailure, "partial"),
				text("summary", "", false, MaxText, "what came of it"),
				text("goalId", "goal_id", false, MaxName, "execution_id of execute_agent"),
				confirmationToken(),
			}},
		{Name: opAbort, Endpoint: Execute.String(), Permission: confirmOnce,
			Description: "Ends an execution that will not do what it should.",
			Parameters: []Parameter{
				elementName(),
				text(pReason, "", false, MaxText, "why"),
				text("goalId", "goal_id", false, MaxName, "execution_id of execute_agent"),
				confirmationToken(),
			}},
		{Name: opConfirm, Endpoint: Execute.String(), Permission: autoApprove,
			Description: "Confirms what another agent was refused or paused for. Nobody confirms for themselves.",
			Parameters: []Parameter{
				{Name: pToken, Alias: "confirmationToken", Type: "string", Required: true, MaxBytes: MaxName, Description: "the token that the other one was given"},
				text(pOperation, "", false, MaxName, "what the token is meant to confirm; if given, it must"),
			}},
	}
	for i := range list {
		list[i].Tool = list[i].endpoint().Tool()
	}
	return list
}

func (o *Operation) endpoint() Endpoint {
	for e := Create; e <= Execute; e++ {
		if o.Endpoint == e.String() {
			return e
		}
	}
	return NoEndpoint
}

func operation(name string) *Operation {
	for _, o := range Operations() {
		if o.Name == name {
			return &o
		}
	}
	return nil
}

func (o *Operation) parameterNames() []string {
	names := make([]string, 0, len(o.Parameters))
	for _, p := range o.Parameters {
		names = append(names, p.Name)
	}
	return names
}
